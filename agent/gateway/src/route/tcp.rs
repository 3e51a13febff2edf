//! TCPRoute: all connections to a port.

use std::borrow::Cow;
use std::sync::Arc;

use portcullis_api::types::shared::{ParentReference, StreamRouteRule};
use portcullis_api::types::tcproutes::TcpRoute;
use portcullis_model::{L4Protocol, RuleId};

use super::kind::{RouteKind, Traffic};
use super::{ParsedRule, stream};
use crate::protocol::Protocol;

impl RouteKind for TcpRoute {
    type Rule = StreamRouteRule;

    const PROTOCOLS: &'static [Protocol] = &[Protocol::Tcp];

    const TRAFFIC: Traffic = Traffic::Streams(L4Protocol::Tcp);

    fn hostnames(&self) -> &[String] {
        &[]
    }

    fn parent_refs(&self) -> &[ParentReference] {
        self.spec.parent_refs.as_deref().unwrap_or_default()
    }

    fn rules(&self) -> Cow<'_, [StreamRouteRule]> {
        Cow::Borrowed(&self.spec.rules)
    }

    fn rule_name(rule: &StreamRouteRule) -> Option<&str> {
        rule.name.as_deref()
    }

    fn parse_rule(rule: &StreamRouteRule, id: Arc<RuleId>) -> ParsedRule {
        stream::parse_rule(rule, id)
    }

    fn default_gateways(&self) -> Option<&str> {
        self.spec.use_default_gateways.as_deref()
    }
}
