//! The ways in which a tenant can break its own part, what its clients see then, and what its
//! status says.

use anyhow::Result;
use portcullis_testbed::{Authority, Refusal};

use super::tenant::{Listener, Manifests, Tenant, host};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ailment {
    /// The private key belongs to another certificate; the last good pair is served.
    ForeignKey,
    /// Served nevertheless; clients see for themselves.
    ExpiredCertificate,
    GarbageCertificate,
    /// The Secret is created again later.
    NoCertificate,
    /// A Secret of a namespace that grants nothing.
    ForeignCertificate,
    UnsupportedProtocol,
    /// The port is another protocol's.
    ConflictingProtocol,
    /// The hostname is an older tenant's.
    ConflictingHostname,
    /// The Gateway does not allow ListenerSets of the namespace.
    RefusedNamespace,
    /// The listener does not allow routes of the kind.
    RefusedRoute,
    InvalidRoute,
    MissingBackend,
}

/// Consequences for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Symptom {
    Handshake(Refusal),
    Answer(u16),
}

impl Ailment {
    pub(crate) const ALL: &[Self] = &[
        Self::ForeignKey,
        Self::ExpiredCertificate,
        Self::GarbageCertificate,
        Self::NoCertificate,
        Self::ForeignCertificate,
        Self::UnsupportedProtocol,
        Self::ConflictingProtocol,
        Self::ConflictingHostname,
        Self::RefusedNamespace,
        Self::RefusedRoute,
        Self::InvalidRoute,
        Self::MissingBackend,
    ];

    pub(crate) fn befall(self, good: Manifests, tenant: &Tenant, authority: &Authority) -> Result<Manifests> {
        let secret = |certificate: portcullis_testbed::Certificate| certificate.secret(&tenant.name, "tls");
        let own = tenant.certificate.clone();
        let with_secret = |secret| Manifests { secret, ..tenant.manifests() };
        let with_listener = |listener| Manifests { listener, ..tenant.manifests() };
        let plain = Listener { tls: "", ..tenant.manifests().listener };
        Ok(match self {
            Self::ForeignKey => {
                let key = authority.issue(&[&tenant.host])?.key;
                with_secret(secret(portcullis_testbed::Certificate { key, ..own }))
            }
            Self::ExpiredCertificate => with_secret(secret(authority.issue_expired(&[&tenant.host])?)),
            Self::GarbageCertificate => {
                let chain =
                    "-----BEGIN CERTIFICATE-----\nZ2FyYmFnZQ==\n-----END CERTIFICATE-----\n".to_owned();
                with_secret(secret(portcullis_testbed::Certificate { chain, ..own }))
            }
            Self::NoCertificate => with_secret(String::new()),
            Self::ForeignCertificate => {
                let tls = "{certificateRefs: [{name: not-yours, namespace: infra}]}";
                with_listener(Listener { tls, ..good.listener })
            }
            Self::UnsupportedProtocol => with_listener(Listener { port: 9443, protocol: "SCTP", ..plain }),
            Self::ConflictingProtocol => with_listener(Listener { protocol: "HTTP", ..plain }),
            Self::ConflictingHostname => with_listener(Listener { hostname: host(0), ..good.listener }),
            Self::RefusedNamespace => Manifests { labels: "{}", ..good },
            Self::RefusedRoute => {
                with_listener(Listener { routes: "{kinds: [{kind: GRPCRoute}]}", ..good.listener })
            }
            Self::InvalidRoute => {
                let matches =
                    "[{path: {type: PathPrefix, value: /}}, {path: {type: RegularExpression, value: \"(\"}}]";
                Manifests { matches, ..good }
            }
            Self::MissingBackend => Manifests { backend: "nobody", ..good },
        })
    }

    pub(crate) fn symptom(self) -> Symptom {
        match self {
            Self::ExpiredCertificate => Symptom::Handshake(Refusal::Expired),
            Self::RefusedRoute => Symptom::Answer(404),
            Self::InvalidRoute | Self::MissingBackend => Symptom::Answer(500),
            // The pair that worked stays in service.
            Self::ForeignKey | Self::GarbageCertificate => Symptom::Answer(200),
            _ => Symptom::Handshake(Refusal::UnknownName),
        }
    }

    /// The kind of object whose status gives this reason.
    pub(crate) fn told(self) -> Option<(&'static str, &'static str)> {
        Some(match self {
            Self::ExpiredCertificate => return None,
            Self::ForeignKey | Self::GarbageCertificate | Self::NoCertificate => {
                ("ListenerSet", "InvalidCertificateRef")
            }
            Self::ForeignCertificate => ("ListenerSet", "RefNotPermitted"),
            Self::UnsupportedProtocol => ("ListenerSet", "UnsupportedProtocol"),
            Self::ConflictingProtocol => ("ListenerSet", "ProtocolConflict"),
            Self::ConflictingHostname => ("ListenerSet", "HostnameConflict"),
            Self::RefusedNamespace => ("ListenerSet", "NotAllowed"),
            Self::RefusedRoute => ("HTTPRoute", "NotAllowedByListeners"),
            Self::InvalidRoute => ("HTTPRoute", "UnsupportedValue"),
            Self::MissingBackend => ("HTTPRoute", "BackendNotFound"),
        })
    }
}
