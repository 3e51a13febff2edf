//! The say of a shared Gateway's owner over what other namespaces claim there. Of routes and
//! listeners the more specific hostname takes the traffic, so a tenant that may attach may take
//! another's; `claims` of GatewayParameters gives each namespace its hostnames, ports and how
//! many listeners. Nothing here knows how objects attach.

use std::collections::BTreeSet;
use std::sync::Arc;

use portcullis_api::types::gatewayparameters::GatewayParametersClaim;
use portcullis_model::HostPattern;

use crate::Fault;
use crate::selector::{NamespaceRule, Namespaces};

/// Everything that may be claimed. By default, anything.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Claims(Option<Arc<[Claim]>>);

/// Of the namespaces that it selects.
#[derive(Clone, Debug, PartialEq)]
struct Claim {
    namespaces: NamespaceRule,
    /// `None`: any.
    hostnames: Option<Vec<HostPattern>>,
    /// `None`: any.
    ports: Option<BTreeSet<u16>>,
    /// Of each child; `None`: any number.
    listeners: Option<usize>,
    /// Of all children of a namespace; `None`: any number.
    total_listeners: Option<usize>,
}

// === impl Claims ===

impl Claims {
    /// # Errors
    /// When one of them is malformed: `InvalidParameters`.
    pub(crate) fn of(given: &[GatewayParametersClaim]) -> Result<Self, Fault> {
        given.iter().map(Claim::of).collect::<Result<_, _>>().map(|claims| Self(Some(claims)))
    }

    pub(crate) fn is_anything(&self) -> bool {
        self.0.is_none()
    }

    /// The reason why objects of namespace `from` may not have a hostname on a port.
    pub(crate) fn refusal(
        &self,
        from: &str,
        hostname: &HostPattern,
        port: u16,
        namespaces: Namespaces<'_>,
    ) -> Option<String> {
        let mut claims = self.of_namespace(from, namespaces)?.peekable();
        if claims.peek().is_none() {
            return Some(format!(
                "the Gateway lets namespace {from} claim nothing (claims of its GatewayParameters)"
            ));
        }
        let is_covered = claims.any(|claim| claim.covers(hostname, port));
        (!is_covered).then(|| {
            format!(
                "the Gateway does not let namespace {from} claim hostname {hostname} on port {port} (claims of its \
                 GatewayParameters)"
            )
        })
    }

    /// The number of listeners that a child of namespace `from` may bring; `None`: any.
    pub(crate) fn most_listeners(&self, from: &str, namespaces: Namespaces<'_>) -> Option<usize> {
        greatest(self.of_namespace(from, namespaces)?.map(|claim| claim.listeners))
    }

    /// The number of listeners that all children of namespace `from` may bring together; `None`:
    /// any.
    pub(crate) fn most_in_total(&self, from: &str, namespaces: Namespaces<'_>) -> Option<usize> {
        greatest(self.of_namespace(from, namespaces)?.map(|claim| claim.total_listeners))
    }

    fn of_namespace<'c>(
        &'c self,
        from: &'c str,
        namespaces: Namespaces<'c>,
    ) -> Option<impl Iterator<Item = &'c Claim>> {
        let claims = self.0.as_ref()?.iter();
        // A selector does not ask whose the Gateway is.
        Some(claims.filter(move |claim| claim.namespaces.admits("", from, namespaces)))
    }
}

/// `None` if one is, or if there are none.
fn greatest(mut limits: impl Iterator<Item = Option<usize>>) -> Option<usize> {
    let first = limits.next()?;
    limits.fold(first, |one, other| Some(one?.max(other?)))
}

// === impl Claim ===

impl Claim {
    fn of(given: &GatewayParametersClaim) -> Result<Self, Fault> {
        let hostname = |text: &String| {
            HostPattern::parse(text).map_err(|error| {
                Fault::invalid_parameters(format!("claims: hostname {text:?} is not valid: {error}"))
            })
        };
        let port = |port: &i32| {
            u16::try_from(*port).ok().filter(|port| *port > 0).ok_or_else(|| {
                Fault::invalid_parameters(format!("claims: port {port} is out of range: use 1 to 65535"))
            })
        };
        let count = |field: &str, most: i32, given: Option<i32>| {
            let Some(count) = given else { return Ok(None) };
            let is_valid = (0..=most).contains(&count);
            usize::try_from(count).ok().filter(|_| is_valid).map(Some).ok_or_else(|| {
                Fault::invalid_parameters(format!("claims: {field} {count} is out of range: use 0 to {most}"))
            })
        };
        Ok(Self {
            namespaces: NamespaceRule::Selector(given.namespaces.clone()),
            hostnames: given.hostnames.as_ref().map(|all| all.iter().map(hostname).collect()).transpose()?,
            ports: given.ports.as_ref().map(|all| all.iter().map(port).collect()).transpose()?,
            listeners: count("listeners", 64, given.listeners)?,
            total_listeners: count("totalListeners", 65535, given.total_listeners)?,
        })
    }

    fn covers(&self, hostname: &HostPattern, port: u16) -> bool {
        self.hostnames.as_ref().is_none_or(|given| given.iter().any(|it| it.covers(hostname)))
            && self.ports.as_ref().is_none_or(|given| given.contains(&port))
    }
}
