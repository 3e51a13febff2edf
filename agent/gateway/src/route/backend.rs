//! From a Service port and its EndpointSlices to a [`Backend`].

use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::core::v1::{Service, ServicePort};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use portcullis_api::Kind;
use portcullis_model::{
    Backend, BackendName, BackendProtocol, Balancing, Encryption, HashKey, L4Protocol, ObjectName, PortKey,
};

use super::kind::{Traffic, traffic};
use super::locality;
use crate::{AgentPlace, Fault, Reason};

/// A Service port as rules use it. The same port may be used in two protocols: GRPCRoutes speak
/// HTTP/2 to a port that says nothing about its protocol, HTTPRoutes speak HTTP/1.1.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BackendUse {
    pub service: ObjectName,
    pub port: PortKey,
    pub protocol: ProtocolSource,
}

/// The source of the protocol that is spoken to a backend. Uses with the same one are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ProtocolSource {
    /// The Service: its `appProtocol`, or HTTP/1.1 if it states none. Or the XBackend, likewise.
    Service,
    /// The kind of route, which speaks HTTP/2 where the Service states nothing.
    RouteKind,
}

// === impl BackendUse ===

impl BackendUse {
    /// The use that a route of `kind` makes of the port.
    ///
    /// # Errors
    /// When the Service has no such port or speaks what we cannot.
    pub(super) fn of(
        kind: Kind,
        name: ObjectName,
        service: &Service,
        port: u16,
        encryption: &Encryption,
    ) -> Result<Self, Fault> {
        if service.spec.as_ref().and_then(|spec| spec.type_.as_deref()) == Some("ExternalName") {
            // CVE-2021-25740: "Implementations SHOULD NOT support ExternalName Services."
            return Err(Fault::unresolved(
                Reason::InvalidKind,
                format!("Service {name} is of type ExternalName, which is not supported"),
            ));
        }
        let (traffic, key) = (traffic(kind), port_key(kind, port));
        let found = service_port(service, key).ok_or_else(|| {
            Fault::unresolved(Reason::BackendNotFound, format!("Service {name} has no port {port}"))
        })?;
        let stated = match traffic {
            Traffic::Requests { .. } => stated_protocol(found, key.protocol, encryption),
            // Whatever it is that bytes are, they are passed on.
            Traffic::Streams(own) => foreign_transport(found, own).map_or(Ok(None), |it| Err(it.to_owned())),
        };
        let stated = stated.map_err(|what| {
            let message =
                format!("Service {name} port {port} speaks {what}, which this route cannot forward to");
            Fault::unresolved(Reason::UnsupportedProtocol, message)
        })?;
        let protocol = match (stated, traffic) {
            (None, Traffic::Requests { backend_protocol: BackendProtocol::H2c, .. }) => {
                ProtocolSource::RouteKind
            }
            _ => ProtocolSource::Service,
        };
        Ok(Self { service: name, port: key, protocol })
    }

    /// The name that the Service gives the port, by which policies refer to it.
    pub(crate) fn port_name<'s>(&self, service: &'s Service) -> Option<&'s str> {
        service_port(service, self.port)?.name.as_deref()
    }

    pub fn name(&self) -> BackendName {
        let plain = BackendName::new(&self.service.namespace, &self.service.name, self.port);
        match self.protocol {
            ProtocolSource::Service => plain,
            ProtocolSource::RouteKind => BackendName(format!("{plain}/h2c").into()),
        }
    }
}

/// The name that a Service gives the port with the number, by which policies refer to it.
pub(super) fn port_name(kind: Kind, service: &Service, port: u16) -> Option<&str> {
    service_port(service, port_key(kind, port))?.name.as_deref()
}

fn port_key(kind: Kind, port: u16) -> PortKey {
    match traffic(kind) {
        Traffic::Requests { .. } => PortKey::tcp(port),
        Traffic::Streams(protocol) => PortKey { number: port, protocol },
    }
}

/// The backend with its ready endpoints, as far as they may be used. A Service that is gone or lost
/// the port has none.
pub fn backend<'s>(
    used: &BackendUse,
    service: Option<&Service>,
    encryption: Encryption,
    slices: impl IntoIterator<Item = &'s EndpointSlice>,
    place: &AgentPlace,
    may_use: impl FnMut(&EndpointSlice, &Endpoint, IpAddr) -> bool,
) -> Backend {
    let port = service.and_then(|service| service_port(service, used.port));
    let stated = port.and_then(|port| stated_protocol(port, used.port.protocol, &encryption).ok().flatten());
    let inferred = match (used.protocol, &encryption) {
        (ProtocolSource::RouteKind, _) => BackendProtocol::H2c,
        (ProtocolSource::Service, Encryption::Tls(_)) => BackendProtocol::Negotiated,
        (ProtocolSource::Service, Encryption::None | Encryption::Unavailable) => BackendProtocol::Http1,
    };
    let endpoints = port.map(|port| endpoints(port, slices, may_use)).unwrap_or_default();
    let (endpoints, locality) = locality::ordered(endpoints, service, place);
    let balancing = match service.is_some_and(has_affinity) {
        true => Balancing::Hash(HashKey::ClientAddress),
        false => Balancing::default(),
    };
    let protocol = stated.unwrap_or(inferred);
    Backend { protocol, encryption, balancing, locality, ..Backend::new(used.name(), endpoints) }
}

/// "Supports "ClientIP" and "None"" (ServiceSpec). For how long, `sessionAffinityConfig`, has no
/// meaning here: no memory of clients is kept that could expire.
pub(super) fn has_affinity(service: &Service) -> bool {
    service.spec.as_ref().is_some_and(|spec| spec.session_affinity.as_deref() == Some("ClientIP"))
}

/// The port, or else one that has only its number.
fn service_port(service: &Service, port: PortKey) -> Option<&ServicePort> {
    let ports = service.spec.as_ref()?.ports.as_ref()?;
    let mut candidates = ports.iter().filter(|candidate| candidate.port == i32::from(port.number));
    let first = candidates.clone().next();
    candidates.find(|candidate| foreign_transport(candidate, port.protocol).is_none()).or(first)
}

/// "Transport protocols" of a Service may share a port number: HTTP/3 stands beside HTTP/2 like
/// that.
fn foreign_transport(port: &ServicePort, own: L4Protocol) -> Option<&str> {
    let transport = transport(port.protocol.as_deref());
    (transport != own.as_str()).then_some(transport)
}

/// TCP, unless an object says otherwise.
fn transport(stated: Option<&str>) -> &str {
    stated.filter(|transport| !transport.is_empty()).unwrap_or("TCP")
}

/// `None`: the Service does not say. KEP-3726 names the `kubernetes.io` protocols. Whether it is
/// TLS that a port speaks is a policy's to say, with what the other side has to prove: `https` by
/// itself would be TLS with any machine on the way.
fn stated_protocol(
    port: &ServicePort,
    own: L4Protocol,
    encryption: &Encryption,
) -> Result<Option<BackendProtocol>, String> {
    if let Some(transport) = foreign_transport(port, own) {
        return Err(transport.to_owned());
    }
    match port.app_protocol.as_deref() {
        Some("kubernetes.io/h2c") => Ok(Some(BackendProtocol::H2c)),
        Some("kubernetes.io/ws" | "http") => Ok(Some(BackendProtocol::Http1)),
        Some(tls @ ("kubernetes.io/wss" | "https" | "tls")) if encryption.is_none() => {
            Err(format!("{tls} without a BackendTLSPolicy"))
        }
        Some("kubernetes.io/wss") => Ok(Some(BackendProtocol::Http1)),
        // Not a protocol we know: appProtocol is a hint, and HTTP the usual truth.
        _ => Ok(None),
    }
}

/// Ready endpoints; if there are none, those that still serve while they terminate, as kube-proxy
/// does.
fn endpoints<'s>(
    port: &ServicePort,
    slices: impl IntoIterator<Item = &'s EndpointSlice>,
    mut may_use: impl FnMut(&EndpointSlice, &Endpoint, IpAddr) -> bool,
) -> Vec<(SocketAddr, &'s Endpoint)> {
    let mut ready = Vec::new();
    let mut leaving = Vec::new();
    for (slice, endpoint, number) in slices.into_iter().flat_map(|slice| ported(slice, port)) {
        let addresses = endpoint.addresses.iter().filter_map(|address| address.parse::<IpAddr>().ok());
        let usable: Vec<_> = addresses.filter(|address| may_use(slice, endpoint, *address)).collect();
        let sockets = usable.into_iter().map(|address| (SocketAddr::new(address, number), endpoint));
        match Readiness::of(endpoint) {
            Readiness::Ready => ready.extend(sockets),
            Readiness::Leaving => leaving.extend(sockets),
            Readiness::Not => {}
        }
    }
    if ready.is_empty() { leaving } else { ready }
}

/// The slice's endpoints with the number that the Service port has there: slices name ports, and
/// hold target ports. A port of the same name over another transport is another one.
fn ported<'s>(
    slice: &'s EndpointSlice,
    port: &ServicePort,
) -> impl Iterator<Item = (&'s EndpointSlice, &'s Endpoint, u16)> {
    let wanted = (port.name.as_deref().unwrap_or_default(), transport(port.protocol.as_deref()));
    let same = slice.ports.iter().flatten().find(|candidate| {
        (candidate.name.as_deref().unwrap_or_default(), transport(candidate.protocol.as_deref())) == wanted
    });
    let usable = slice.address_type == "IPv4" || slice.address_type == "IPv6";
    let number = same.and_then(|port| port.port).and_then(|port| u16::try_from(port).ok()).filter(|_| usable);
    number
        .into_iter()
        .flat_map(move |number| slice.endpoints.iter().map(move |endpoint| (slice, endpoint, number)))
}

enum Readiness {
    Ready,
    /// Terminating, but serving still.
    Leaving,
    Not,
}

impl Readiness {
    /// An unknown `ready` "should be interpreted as true", and `serving` as `ready`
    /// (EndpointConditions).
    fn of(endpoint: &Endpoint) -> Self {
        let conditions = endpoint.conditions.clone().unwrap_or_default();
        let terminating = conditions.terminating.unwrap_or(false);
        match conditions.ready.unwrap_or(!terminating) {
            true if !terminating => Self::Ready,
            ready if terminating && conditions.serving.unwrap_or(ready) => Self::Leaving,
            _ => Self::Not,
        }
    }
}

#[cfg(test)]
#[path = "backend_tests.rs"]
mod tests;
