//! Kinds of routes that nothing serves yet: they are read so that their statuses say so. They
//! attach to no listener, and of their rules nothing is looked at.

use std::borrow::Cow;
use std::sync::Arc;

use http::StatusCode;
use portcullis_api::types::shared::ParentReference;
use portcullis_api::types::tcproutes::TcpRoute;
use portcullis_api::types::tlsroutes::TlsRoute;
use portcullis_api::types::udproutes::UdpRoute;
use portcullis_model::{BackendProtocol, RuleId};
use serde::Serialize;

use super::ParsedRule;
use super::kind::RouteKind;
use crate::protocol::Protocol;

/// A rule that is not looked at.
#[derive(Clone, Serialize)]
pub(crate) enum UnreadRule {}

macro_rules! unserved {
    ($($kind:ident: $message:literal;)+) => {$(
        impl RouteKind for $kind {
            type Rule = UnreadRule;

            const PROTOCOLS: &'static [Protocol] = &[];

            const UNSERVED: Option<&'static str> = Some($message);

            const FAILURE: StatusCode = StatusCode::INTERNAL_SERVER_ERROR;

            const BACKEND_PROTOCOL: BackendProtocol = BackendProtocol::Http1;

            fn hostnames(&self) -> &[String] {
                &[]
            }

            fn parent_refs(&self) -> &[ParentReference] {
                self.spec.parent_refs.as_deref().unwrap_or_default()
            }

            fn rules(&self) -> Cow<'_, [UnreadRule]> {
                Cow::Borrowed(&[])
            }

            fn rule_name(rule: &UnreadRule) -> Option<&str> {
                match *rule {}
            }

            fn default_gateways(&self) -> Option<&str> {
                None
            }

            fn parse_rule(rule: &UnreadRule, _: Arc<RuleId>) -> ParsedRule {
                match *rule {}
            }
        }
    )+};
}

unserved! {
    TlsRoute: "TLSRoutes are not supported yet, and nothing of the route is served: use an HTTPRoute with an \
               HTTPS listener, or another controller";
    TcpRoute: "TCPRoutes are not supported yet, and nothing of the route is served: use an HTTPRoute for HTTP, \
               or another controller";
    UdpRoute: "UDPRoutes are not supported yet, and nothing of the route is served: use another controller";
}
