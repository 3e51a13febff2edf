//! The status of one listener: the same for Gateways and ListenerSets.

use std::collections::BTreeSet;

use portcullis_api::Kind;
use portcullis_api::types::shared::{ListenerStatus, RouteGroupKind};
use portcullis_model::ClientCertificates;

use crate::conditions::{Affected, Conditions};
use crate::listener::{Acceptance, Listener};
use crate::policy::frontend_tls::Clients;
use crate::protocol::Protocol;
use crate::{ConditionType, Fault, Reason};

/// A listener with what became of it.
pub(crate) struct ListenerView<'a> {
    pub(crate) listener: &'a Listener,
    pub(crate) acceptance: &'a Acceptance,
    /// `None` if clients are not asked for certificates.
    pub(crate) clients: Option<&'a Clients>,
    /// The fault of a filter's reference.
    pub(crate) filter_fault: Option<Fault>,
    pub(crate) attached_routes: usize,
    /// The fault for which the listener is not served although it is accepted.
    pub(crate) hindrance: Option<Fault>,
    /// Frontends at which the data plane does not serve it, one line for each.
    pub(crate) unserved: Vec<String>,
    pub(crate) overlap: Overlap,
    pub(crate) names: Names,
    /// The ListenerPolicy of which it is the target.
    pub(crate) affected: Vec<Affected>,
}

/// The names of a listener's hostname, compared with those of earlier listeners of the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Names {
    Own,
    /// They are among those of another namespace's.
    OthersToo,
}

/// Names that the listener has in common with another listener of the port, any tenant's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overlap {
    None,
    Some,
}

/// The fault for which no listener of an object is served; `None` if one is.
pub(super) fn unserved(views: &[ListenerView<'_>]) -> Option<Fault> {
    if views.iter().any(ListenerView::is_programmed) {
        return None;
    }
    let accepted = || views.iter().filter(|view| view.acceptance.is_accepted());
    let refused: BTreeSet<_> =
        accepted().filter(|view| view.hindrance.is_none()).flat_map(|view| &view.unserved).collect();
    not_served(Reason::PortUnavailable, refused)
        .or_else(|| Fault::summary(accepted().filter_map(|view| view.hindrance.clone())))
}

/// The fault that the data plane refused frontends, if it did: `Programmed` is true when it serves,
/// not when translation hopes so.
pub(super) fn not_served<'l>(reason: Reason, lines: impl IntoIterator<Item = &'l String>) -> Option<Fault> {
    let lines: Vec<_> = lines.into_iter().map(String::as_str).collect();
    (!lines.is_empty()).then(|| Fault::not_programmed(reason, format!("not served: {}", lines.join("; "))))
}

// === impl ListenerView ===

impl ListenerView<'_> {
    pub(crate) fn status(&self, generation: i64) -> ListenerStatus {
        ListenerStatus {
            name: self.listener.name.to_string(),
            attached_routes: i32::try_from(self.attached_routes).unwrap_or(i32::MAX),
            supported_kinds: Some(self.listener.kinds.iter().map(|kind| group_kind(*kind)).collect()),
            conditions: self.conditions(generation).list,
        }
    }

    pub(super) fn unresolved(&self) -> Option<Fault> {
        let of_clients = self.clients.iter().flat_map(|clients| &clients.unresolved);
        let unresolved = self.listener.unresolved.iter().chain(of_clients).chain(&self.filter_fault);
        Fault::summary(unresolved.cloned())
    }

    fn is_programmed(&self) -> bool {
        self.acceptance.is_accepted() && self.hindrance.is_none() && self.unserved.is_empty()
    }

    fn conditions(&self, generation: i64) -> Conditions {
        let mut conditions = Conditions::new(generation);
        let good = self.remarks();
        conditions.check_or(ConditionType::Accepted, self.acceptance.refusal(), good);
        conditions.check(ConditionType::Programmed, self.unprogrammed().as_ref());
        conditions.check(ConditionType::Conflicted, self.acceptance.conflict());
        conditions.check(ConditionType::ResolvedRefs, self.unresolved().as_ref());
        // "MUST NOT be set when it is False."
        if self.overlap == Overlap::Some {
            conditions.bad(ConditionType::OverlappingTLSConfig, &overlapping(self.listener));
        }
        conditions.affected(&self.affected);
        conditions
    }

    /// Remarks on a listener that is accepted. Options of other implementations are no fault of one
    /// that several of them are to serve.
    fn remarks(&self) -> String {
        let mut remarks = Vec::new();
        let options = self.listener.foreign_options.join(", ");
        if !options.is_empty() {
            remarks.push(format!(
                "tls.options without effect, because they are another implementation's: {options}"
            ));
        }
        let fields: Vec<_> = self.listener.tls_options.identity.iter().map(|field| field.name()).collect();
        let certificates = self.clients.map(|clients| &clients.certificates);
        if !fields.is_empty() && !matches!(certificates, Some(ClientCertificates::Required(_))) {
            remarks.push(format!(
                "backends get no {}, because clients need no certificate that is verified: tls.frontend \
                 of the Gateway would have to ask for one, in mode AllowValidOnly",
                fields.join(", ")
            ));
        }
        if self.names == Names::OthersToo {
            remarks.push(format!(
                "requests for {} come to this listener and not to an earlier one of another namespace, whose names \
                 include it; claims in the Gateway's GatewayParameters can say whose they are",
                self.listener.hostname
            ));
        }
        if remarks.is_empty() {
            ConditionType::Accepted.good_message().to_owned()
        } else {
            remarks.join("; ")
        }
    }

    fn unprogrammed(&self) -> Option<Fault> {
        match self.acceptance {
            Acceptance::Conflicted { refusal, .. } => Some(refusal.clone()),
            Acceptance::Refused(_) | Acceptance::NoCertificate(_) => {
                Some(Fault::not_programmed(Reason::Invalid, "the listener is not accepted"))
            }
            Acceptance::Accepted => {
                self.hindrance.clone().or_else(|| not_served(Reason::PortUnavailable, &self.unserved))
            }
        }
    }
}

fn overlapping(listener: &Listener) -> Fault {
    let (hostname, port) = (&listener.hostname, listener.port.number);
    let reused = match listener.protocol {
        Protocol::Https => ", and requests that reuse a connection to the other are answered 421",
        _ => "",
    };
    let message = format!(
        "another listener on port {port} has hostnames in common with {hostname}: the more specific one serves them{reused}"
    );
    Fault::new(ConditionType::OverlappingTLSConfig, Reason::OverlappingHostnames, message)
}

fn group_kind(kind: Kind) -> RouteGroupKind {
    RouteGroupKind { group: Some(kind.group().to_owned()), kind: kind.as_str().to_owned() }
}
