//! Policies that apply to a listener, found here and nowhere else, whatever the policy: those
//! attached to a parent apply to all listeners merged into it, those attached to a child apply to
//! the child's own listeners and to no others (GEP-1713 and its first revision, "Policy
//! attachment").
//!
//! Those that are fields of Gateways all apply: there is nothing to merge. Policies that are
//! objects (`targetRefs`) have a room each below this one. What protects adds up over the levels;
//! the first field of which the most specific counts brings the levels (Gateway before ListenerSet,
//! listener, route and rule) as one `Ord` by which policies are merged.

pub(crate) mod authorities;
pub(crate) mod backend;
pub(crate) mod backend_tls;
pub(crate) mod backend_traffic;
mod credential_fields;
pub(crate) mod credentials;
pub(crate) mod declared;
pub(crate) mod frontend_tls;
pub(crate) mod listener;
mod listener_settings;
mod rate_limit;
pub(crate) mod remote_key_set;
pub(crate) mod resilience;
pub(crate) mod traffic;

use portcullis_api::types::gateways::{Gateway, GatewayTlsFrontend};
use portcullis_api::types::shared::{FrontendTls, FrontendTlsValidation};

/// The policies of one listener, the parent's before the child's own. Each of them has to be
/// satisfied: a child can ask for more than its parent, never for less.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Policies<'o> {
    /// The ways in which clients have to authenticate.
    pub frontend_validation: Vec<FrontendValidation<'o>>,
}

/// `tls.frontend` of a Gateway, for one port.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FrontendValidation<'o> {
    pub gateway: &'o Gateway,
    pub validation: &'o FrontendTlsValidation,
}

impl<'o> Policies<'o> {
    /// The policies for the listeners of `definer` on `port`, merged into `parent`. `definer` is
    /// `None` if the listeners are the parent's own or a ListenerSet's, which has no policy fields.
    pub fn of(parent: &'o Gateway, definer: Option<&'o Gateway>, port: u16) -> Self {
        let gateways = std::iter::once(parent).chain(definer);
        let of_port = |gateway: &'o Gateway| {
            frontend_validation(gateway, port).map(|validation| FrontendValidation { gateway, validation })
        };
        Self { frontend_validation: gateways.filter_map(of_port).collect() }
    }

    pub fn is_empty(&self) -> bool {
        self.frontend_validation.is_empty()
    }
}

/// `tls.frontend.perPort` "overrides the default configuration" for its port.
fn frontend_validation(gateway: &Gateway, port: u16) -> Option<&FrontendTlsValidation> {
    let frontend = gateway.spec.tls.as_ref()?.frontend.as_ref()?;
    let of_port = per_port(frontend, port);
    of_port.unwrap_or(&frontend.default).validation.as_ref()
}

fn per_port(frontend: &GatewayTlsFrontend, port: u16) -> Option<&FrontendTls> {
    let ports = frontend.per_port.as_deref().unwrap_or_default();
    ports.iter().find(|entry| entry.port == i32::from(port)).map(|entry| &entry.tls)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn gateway(name: &str, tls: serde_json::Value) -> Gateway {
        let spec = json!({"gatewayClassName": "c", "tls": tls});
        serde_json::from_value(json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {"name": name}, "spec": spec}))
        .unwrap()
    }

    fn validation(ca: &str) -> serde_json::Value {
        json!({"validation": {"caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": ca}]}})
    }

    fn authorities(policies: &Policies<'_>) -> Vec<String> {
        let validations = policies.frontend_validation.iter();
        validations.map(|it| it.validation.ca_certificate_refs[0].name.clone()).collect()
    }

    #[test]
    fn a_parents_policies_apply_to_all_merged_listeners() {
        let parent = gateway("parent", json!({"frontend": {"default": validation("parent")}}));
        let child = gateway("child", json!({"frontend": {"default": validation("child")}}));
        assert_eq!(authorities(&Policies::of(&parent, None, 443)), ["parent"]);
        assert_eq!(authorities(&Policies::of(&parent, Some(&child), 443)), ["parent", "child"]);
    }

    #[test]
    fn a_childs_policies_apply_to_its_own_listeners_only() {
        let parent = gateway("parent", json!(null));
        let child = gateway("child", json!({"frontend": {"default": validation("child")}}));
        assert_eq!(authorities(&Policies::of(&parent, Some(&child), 443)), ["child"]);
        assert!(Policies::of(&parent, None, 443).is_empty());
    }

    #[test]
    fn a_port_has_its_own_configuration_instead_of_the_default() {
        let per_port = json!([{"port": 8443, "tls": validation("port")}, {"port": 9443, "tls": {}}]);
        let parent =
            gateway("parent", json!({"frontend": {"default": validation("all"), "perPort": per_port}}));
        assert_eq!(authorities(&Policies::of(&parent, None, 443)), ["all"]);
        assert_eq!(authorities(&Policies::of(&parent, None, 8443)), ["port"]);
        assert!(Policies::of(&parent, None, 9443).is_empty());
    }
}
