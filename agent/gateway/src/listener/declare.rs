//! The entries of `spec.listeners`, of a Gateway or a ListenerSet alike, each judged on its own:
//! what it asks for, whether its references lead somewhere, whether we can serve it. How listeners
//! get along with each other is decided in `merge`.

use std::collections::BTreeSet;
use std::sync::Arc;

use portcullis_api::types::shared::{ListenerSpec, ObjectReference, RouteGroupKind};
use portcullis_api::{GATEWAY_GROUP, Kind, ObjectKey};
use portcullis_model::{Certificate, HostPattern, ObjectName, ParentKind, PortKey, TlsOptions};

use super::certificate::CertificateError;
use crate::options::{self, is_foreign};
use crate::protocol::Protocol;
use crate::route::carried_by;
use crate::route::external_auth::ParsedAuth;
use crate::selector::NamespaceRule;
use crate::{ConditionType, Fault, Granted, Grants, Reason};

/// By the CRD, of `filters.requests`.
const MOST_FILTERS: usize = 16;

/// The object that defines listeners.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParentKey {
    pub kind: ParentKind,
    pub name: ObjectName,
}

/// A listener by the object that defines it and its name there.
pub(crate) type ListenerKey = (ParentKey, Arc<str>);

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Listener {
    pub(crate) name: Arc<str>,
    /// With number 0 if what was written is none.
    pub(crate) port: PortKey,
    pub(crate) protocol: Protocol,
    pub(crate) hostname: HostPattern,
    /// The route kinds that may attach: of those that the protocol carries, the ones
    /// `allowedRoutes.kinds` names.
    pub(crate) kinds: Vec<Kind>,
    pub(crate) namespaces: NamespaceRule,
    pub(crate) certificates: Arc<[Certificate]>,
    /// The faults that make `ResolvedRefs` false; the listener may work with what was resolved.
    pub(crate) unresolved: Vec<Fault>,
    /// The fault for which the listener cannot be served, whatever the others are. It reserves
    /// nothing.
    pub(crate) refusal: Option<Fault>,
    /// The fault that no certificate is left of those that it refers to. It keeps its port and
    /// hostname: what is wrong with a Secret must not hand them to another tenant.
    pub(crate) no_certificate: Option<Fault>,
    /// The filters that requests pass before a route is looked for.
    pub(crate) filters: Vec<ParsedAuth>,
    /// The terms on which TLS ends, if it does.
    pub(crate) tls_options: Arc<TlsOptions>,
    /// Keys of `tls.options` that are another implementation's.
    pub(crate) foreign_options: Vec<String>,
}

/// All listeners of an object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Declared {
    pub(crate) key: ParentKey,
    pub(crate) generation: i64,
    pub(crate) created: i64,
    pub(crate) listeners: Vec<Listener>,
    /// Names used more than once; only the first listener of a name counts.
    pub(crate) duplicates: Vec<Arc<str>>,
    /// Every Secret referred to with permission, found or not.
    pub(crate) secrets: BTreeSet<ObjectName>,
    /// Secrets referred to in other namespaces, permitted or not.
    pub(crate) foreign: BTreeSet<ObjectName>,
    pub(crate) client_certificate: ClientCertificate,
    /// The Secret that it refers to, permitted or not.
    pub(crate) client_secret: Option<ObjectName>,
}

/// The certificate by which a Gateway shows backends who it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum ClientCertificate {
    /// It names none.
    #[default]
    None,
    Resolved(Certificate),
    /// With the one that is shown nevertheless, because the Secret held it before.
    Unresolved(Fault, Option<Certificate>),
}

/// The Secrets that certificateRefs are looked up in.
pub(crate) trait Certificates {
    fn held(&mut self, secret: &Granted<ObjectName>) -> Held;
}

/// The certificate that a Secret holds.
pub(crate) enum Held {
    Certificate(Certificate),
    /// None that can be served any more; this one was the last.
    Kept(Certificate, CertificateError),
    /// None that can be served.
    Broken(CertificateError),
    /// There is no such Secret.
    Nothing,
}

// === impl Declared ===

impl Declared {
    pub(crate) fn new(
        key: ParentKey,
        (generation, created): (i64, i64),
        specs: &[ListenerSpec],
        grants: Grants<'_>,
        certificates: &mut impl Certificates,
    ) -> Self {
        let mut declared = Self {
            key,
            generation,
            created,
            listeners: Vec::with_capacity(specs.len()),
            duplicates: Vec::new(),
            secrets: BTreeSet::new(),
            foreign: BTreeSet::new(),
            client_certificate: ClientCertificate::None,
            client_secret: None,
        };
        for spec in specs {
            declared.add(spec, grants, certificates);
        }
        declared
    }

    /// Follows `tls.backend.clientCertificateRef`. Its Secret is not among those of the listeners:
    /// who serves these has no right to it.
    pub(crate) fn follow_client_certificate(
        &mut self,
        reference: &ObjectReference,
        grants: Grants<'_>,
        certificates: &mut impl Certificates,
    ) {
        let mut references = References::new(&self.key, grants, certificates);
        let outcome = references.add("tls.backend.clientCertificateRef", reference);
        let found = references.found.pop();
        let secret = references.secrets.into_iter().chain(references.foreign).next();
        self.client_secret = secret;
        self.client_certificate = match (outcome, found) {
            (Ok(()), Some(certificate)) => ClientCertificate::Resolved(certificate),
            (Ok(()), None) => ClientCertificate::None,
            (Err(fault), found) if fault.reason == Reason::InvalidCertificateRef => {
                ClientCertificate::Unresolved(fault.because(Reason::InvalidClientCertificateRef), found)
            }
            (Err(fault), found) => ClientCertificate::Unresolved(fault, found),
        };
    }

    pub(crate) fn listener_keys(&self) -> impl Iterator<Item = ListenerKey> {
        self.listeners.iter().map(|listener| (self.key.clone(), listener.name.clone()))
    }

    fn add(&mut self, spec: &ListenerSpec, grants: Grants<'_>, certificates: &mut impl Certificates) {
        if self.listeners.iter().any(|listener| *listener.name == *spec.name) {
            self.duplicates.push(spec.name.as_str().into());
            return;
        }
        let mut references = References::new(&self.key, grants, certificates);
        let protocol = Protocol::of(spec);
        if protocol.ends_tls() {
            references.follow(spec, protocol);
        }
        let References { found, lost, secrets, foreign, .. } = references;
        self.secrets.extend(secrets);
        self.foreign.extend(foreign);
        let namespace = &self.key.name.namespace;
        self.listeners.push(Listener::new(spec, namespace, found.into(), lost));
    }
}

impl ClientCertificate {
    /// The one that backends are shown.
    pub(crate) fn shown(&self) -> Option<&Certificate> {
        match self {
            Self::None => None,
            Self::Resolved(certificate) => Some(certificate),
            Self::Unresolved(_, kept) => kept.as_ref(),
        }
    }
}

impl ParentKey {
    /// `None` for an object that defines no listeners.
    pub(crate) fn of(object: &ObjectKey) -> Option<Self> {
        let kind = match object.kind {
            Kind::Gateway => ParentKind::Gateway,
            Kind::ListenerSet => ParentKind::ListenerSet,
            _ => return None,
        };
        Some(Self { kind, name: object.name.clone() })
    }

    pub(crate) fn kind(&self) -> Kind {
        match self.kind {
            ParentKind::Gateway => Kind::Gateway,
            ParentKind::ListenerSet => Kind::ListenerSet,
        }
    }

    pub(crate) fn object(&self) -> ObjectKey {
        ObjectKey { kind: self.kind(), name: self.name.clone() }
    }
}

// === impl Listener ===

impl Listener {
    fn new(
        spec: &ListenerSpec,
        namespace: &Arc<str>,
        certificates: Arc<[Certificate]>,
        mut unresolved: Vec<Fault>,
    ) -> Self {
        let protocol = Protocol::of(spec);
        let (kinds, unknown_kinds) = kinds(spec, protocol);
        let no_certificate = certificates.is_empty().then(|| unresolved.first().cloned()).flatten();
        let no_certificate = no_certificate.map(|fault| fault.under(ConditionType::Accepted));
        unresolved.extend(unknown_kinds);
        let hostname = hostname(spec, protocol);
        let filters = filters(spec, protocol, namespace);
        let faults = shape_faults(spec, protocol).into_iter().chain(hostname.clone().err());
        let faults = faults.chain(filters.clone().err());
        let (tls_options, problems) = match tls_options(spec, protocol) {
            Ok(options) => (options, Vec::new()),
            Err(problems) => (TlsOptions::default(), problems),
        };
        let faults = faults.chain(problems.into_iter().map(Fault::unsupported));
        let refusal = Fault::summary(faults);
        Self {
            name: spec.name.as_str().into(),
            port: PortKey {
                number: u16::try_from(spec.port).unwrap_or_default(),
                protocol: protocol.transport(),
            },
            protocol,
            hostname: hostname.unwrap_or(HostPattern::Any),
            kinds,
            namespaces: namespaces(spec),
            certificates,
            unresolved,
            refusal,
            no_certificate,
            filters: filters.unwrap_or_default(),
            tls_options: Arc::new(tls_options),
            foreign_options: option_keys(spec).filter(|key| is_foreign(key)).map(str::to_owned).collect(),
        }
    }
}

fn namespaces(spec: &ListenerSpec) -> NamespaceRule {
    let allowed = spec.allowed_routes.as_ref().and_then(|allowed| allowed.namespaces.as_ref());
    NamespaceRule::new(allowed, NamespaceRule::Same)
}

/// "When unspecified, all hostnames are matched. This field is ignored for protocols that don't
/// require hostname based matching."
fn hostname(spec: &ListenerSpec, protocol: Protocol) -> Result<HostPattern, Fault> {
    match spec.hostname.as_deref().filter(|hostname| !hostname.is_empty()) {
        Some(hostname) if protocol.has_hostnames() => {
            HostPattern::parse(hostname).map_err(|error| Fault::unsupported(error.to_string()))
        }
        _ => Ok(HostPattern::Any),
    }
}

/// The faults of a listener that the CRD's validation rules exclude; files in a directory were
/// never checked.
fn shape_faults(spec: &ListenerSpec, protocol: Protocol) -> Vec<Fault> {
    let mut faults = Vec::new();
    if !(1..=65535).contains(&spec.port) {
        faults.push(Fault::unsupported(format!("port {} is not between 1 and 65535", spec.port)));
    }
    let allowed = spec.allowed_routes.as_ref().and_then(|allowed| allowed.namespaces.as_ref());
    let selector = allowed.and_then(NamespaceRule::malformation);
    faults.extend(selector.map(|fault| {
        Fault::unsupported(format!("allowedRoutes.namespaces: {fault}, so no route could attach"))
    }));
    faults.extend(protocol_faults(spec, protocol));
    faults
}

fn protocol_faults(spec: &ListenerSpec, protocol: Protocol) -> Vec<Fault> {
    let mode = spec.tls.as_ref().and_then(|tls| tls.mode.as_deref()).unwrap_or("Terminate");
    if protocol == Protocol::Unknown {
        let message =
            format!("protocol {} is not supported; use HTTP, HTTPS, TLS, TCP or UDP", spec.protocol);
        return vec![Fault::not_accepted(Reason::UnsupportedProtocol, message)];
    }
    let mut messages = Vec::new();
    if !protocol.has_server_names() && spec.tls.is_some() {
        messages.push("tls is for protocols HTTPS and TLS: remove it, or change the protocol".to_owned());
    }
    if protocol == Protocol::Https && mode != "Terminate" {
        messages.push(format!("tls.mode {mode} does not go with protocol HTTPS; use Terminate"));
    }
    if protocol == Protocol::TlsTerminated && mode != "Terminate" {
        messages.push(format!("there is no tls.mode {mode}; use Terminate or Passthrough"));
    }
    messages.into_iter().map(Fault::unsupported).collect()
}

/// The filters of requests (GEP-5224). Serving without one that was asked for could let in what it
/// was to keep out: "If a filter is unsupported by the implementation, the listener MUST be
/// rejected".
fn filters(spec: &ListenerSpec, protocol: Protocol, namespace: &Arc<str>) -> Result<Vec<ParsedAuth>, Fault> {
    let written = spec.filters.as_ref().and_then(|filters| filters.requests.as_deref()).unwrap_or_default();
    if !written.is_empty() && !matches!(protocol, Protocol::Http | Protocol::Https) {
        return Err(Fault::unsupported("filters are for protocols HTTP and HTTPS: remove them"));
    }
    if written.len() > MOST_FILTERS {
        let message =
            format!("filters.requests has {} entries; at most {MOST_FILTERS} are allowed", written.len());
        return Err(Fault::unsupported(message));
    }
    let mut parsed = Vec::with_capacity(written.len());
    for (at, filter) in written.iter().enumerate() {
        let filter = match (filter.r#type.as_str(), &filter.external_auth) {
            ("ExternalAuth", Some(auth)) => ParsedAuth::parse(auth, at, namespace)
                .map_err(|fault| fault.because(Reason::InvalidListenerFilter).within("externalAuth")),
            ("ExternalAuth", None) => {
                Err(Fault::not_accepted(Reason::InvalidListenerFilter, "externalAuth is missing"))
            }
            ("ExtensionRef", _) if let Some(to) = &filter.extension_ref => {
                let (kind, name, group) = (&to.kind, &to.name, &to.group);
                Err(Fault::unsupported(format!(
                    "extensionRef names {kind} {name} of group {group:?}, and listeners take no filter but \
                     ExternalAuth: remove it, or have the rules of routes refer to it"
                )))
            }
            (other, _) => Err(Fault::unsupported(format!(
                "filters of type {other} are not supported on listeners, ExternalAuth is: remove the filter"
            ))),
        };
        parsed.push(filter.map_err(|fault| fault.within(&format!("filters.requests[{at}]")))?);
    }
    Ok(parsed)
}

/// The options of ours. Where TLS is passed on, there is nothing that they could be about.
fn tls_options(spec: &ListenerSpec, protocol: Protocol) -> Result<TlsOptions, Vec<String>> {
    let written = spec.tls.as_ref().and_then(|tls| tls.options.as_ref());
    let Some(written) = written.filter(|_| protocol.has_server_names()) else {
        return Ok(TlsOptions::default());
    };
    let options = options::of_listener(written)?;
    if protocol == Protocol::TlsTerminated && !options.identity.is_empty() {
        let message = format!(
            "tls.options {} is about requests, which a listener of protocol TLS knows nothing of: \
            remove it, or use HTTPS",
            options::FORWARD_CLIENT_CERTIFICATE
        );
        return Err(vec![message]);
    }
    let own: Vec<_> = written.keys().map(String::as_str).filter(|key| !is_foreign(key)).collect();
    if protocol.ends_tls() || own.is_empty() {
        return Ok(options);
    }
    Err(vec![format!(
        "tls.options has {}, and TLS does not end at this listener: remove it, or use tls.mode Terminate",
        own.join(", ")
    )])
}

/// The keys of `tls.options`.
fn option_keys(spec: &ListenerSpec) -> impl Iterator<Item = &str> {
    let options = spec.tls.as_ref().and_then(|tls| tls.options.as_ref());
    options.into_iter().flat_map(|options| options.keys()).map(String::as_str)
}

/// The route kinds that may attach, and the fault of naming others.
fn kinds(spec: &ListenerSpec, protocol: Protocol) -> (Vec<Kind>, Option<Fault>) {
    let carried = carried_by(protocol);
    let named = spec.allowed_routes.as_ref().and_then(|allowed| allowed.kinds.as_deref()).unwrap_or_default();
    if named.is_empty() {
        return (carried, None);
    }
    let (known, unknown): (Vec<_>, Vec<_>) =
        named.iter().partition(|named| carried.iter().any(|kind| is(named, *kind)));
    let kinds = carried.iter().copied().filter(|kind| known.iter().any(|named| is(named, *kind))).collect();
    if unknown.is_empty() {
        return (kinds, None);
    }
    let unknown: Vec<_> = unknown.iter().map(|named| named.kind.as_str()).collect();
    let message = format!(
        "a listener with protocol {} carries no routes of kind {}",
        spec.protocol,
        unknown.join(", ")
    );
    (kinds, Some(Fault::unresolved(Reason::InvalidRouteKinds, message)))
}

fn is(named: &RouteGroupKind, kind: Kind) -> bool {
    named.group.as_deref().unwrap_or(GATEWAY_GROUP) == kind.group() && named.kind == kind.as_str()
}

// === certificateRefs ===

struct References<'r, C> {
    holder: &'r ParentKey,
    grants: Grants<'r>,
    certificates: &'r mut C,
    found: Vec<Certificate>,
    lost: Vec<Fault>,
    /// The Secrets referred to with permission, found or not.
    secrets: BTreeSet<ObjectName>,
    /// Those in other namespaces, permitted or not.
    foreign: BTreeSet<ObjectName>,
}

impl<'r, C: Certificates> References<'r, C> {
    fn new(holder: &'r ParentKey, grants: Grants<'r>, certificates: &'r mut C) -> Self {
        Self {
            holder,
            grants,
            certificates,
            found: Vec::new(),
            lost: Vec::new(),
            secrets: BTreeSet::new(),
            foreign: BTreeSet::new(),
        }
    }

    fn follow(&mut self, spec: &ListenerSpec, protocol: Protocol) {
        let references =
            spec.tls.as_ref().and_then(|tls| tls.certificate_refs.as_deref()).unwrap_or_default();
        if references.is_empty() {
            let message = match protocol {
                Protocol::Https => "tls.certificateRefs is empty: an HTTPS listener needs a certificate",
                _ => "tls.certificateRefs is empty: without a certificate, tls.mode can be Passthrough only",
            };
            self.lost.push(Fault::unresolved(Reason::InvalidCertificateRef, message));
        }
        for reference in references {
            if let Err(fault) = self.add("certificateRef", reference) {
                self.lost.push(fault);
            }
        }
    }

    /// Adds the certificate that is to be served, be it one that a Secret does not hold any more.
    fn add(&mut self, field: &str, reference: &ObjectReference) -> Result<(), Fault> {
        let invalid = |message: String| Fault::unresolved(Reason::InvalidCertificateRef, message);
        let (group, kind) =
            (reference.group.as_deref().unwrap_or_default(), reference.kind.as_deref().unwrap_or("Secret"));
        if Kind::of(group, kind) != Some(Kind::Secret) {
            let name = &reference.name;
            return Err(invalid(if kind == Kind::Secret.as_str() {
                format!("{field} {name} is of group {group:?}, where there is no Secret: leave group out")
            } else {
                format!("{field} {name} is of kind {kind:?} in group {group:?}; only Secret is supported")
            }));
        }
        let secret = self.permitted(reference)?;
        match self.certificates.held(&secret) {
            Held::Certificate(certificate) => self.found.push(certificate),
            Held::Kept(certificate, error) => {
                self.found.push(certificate);
                return Err(invalid(format!(
                    "Secret {} {error}; the certificate that it held before stays in service until it is corrected, \
                     or the agent restarts",
                    *secret
                )));
            }
            Held::Broken(error) => return Err(invalid(format!("Secret {} {error}", *secret))),
            Held::Nothing => return Err(invalid(format!("Secret {} does not exist", *secret))),
        }
        Ok(())
    }

    /// Permission comes first: without it, not even whether the Secret exists is reported.
    fn permitted(&mut self, reference: &ObjectReference) -> Result<Granted<ObjectName>, Fault> {
        let own = self.holder.name.namespace.clone();
        let namespace = reference.namespace.as_deref().map_or(own.clone(), Arc::from);
        let secret = ObjectName::new(namespace, reference.name.as_str());
        if secret.namespace != own {
            self.foreign.insert(secret.clone());
        }
        let from = self.holder.kind();
        let granted = self.grants.check(from, &own, Kind::Secret, secret.clone());
        let granted = granted.ok_or_else(|| {
            let message = format!(
                "a ReferenceGrant in namespace {} has to allow {from}s of namespace {own} to refer to Secret {}",
                secret.namespace, secret.name
            );
            Fault::unresolved(Reason::RefNotPermitted, message)
        })?;
        self.secrets.insert(secret);
        Ok(granted)
    }
}
