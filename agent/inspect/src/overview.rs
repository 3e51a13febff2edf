//! An agent at a glance, and the certificates of its listeners.

use std::collections::BTreeSet;

use portcullis_model::{Certificate, Snapshot};
use serde::{Deserialize, Serialize};

use crate::paging::{Page, Query, QueryError};
use crate::routes::{hosts, ports};

const DAY: i64 = 24 * 60 * 60;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Overview {
    pub version: String,
    /// The host's name.
    pub node: String,
    /// `ebpf` or `userspace`.
    pub datapath: String,
    pub ready: bool,
    /// The same in a sentence.
    pub readiness: String,
    /// Counts translations of the configuration.
    pub generation: u64,
    /// Seconds since the last change took effect.
    pub age: u64,
    pub size: Size,
}

/// Numbers of what is configured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Size {
    pub gateways: usize,
    pub listeners: usize,
    pub hosts: usize,
    /// Alternatives of rules.
    pub rules: usize,
    pub backends: usize,
    pub endpoints: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CertificateRow {
    pub gateway: String,
    /// `None` for the one that the Gateway shows backends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listener: Option<String>,
    pub names: Vec<String>,
    /// The end of its chain, in seconds since 1970.
    pub not_after: i64,
    /// Whole days until then; negative if that was.
    pub days_left: i64,
}

// === impl Size ===

impl Size {
    pub fn of(snapshot: &Snapshot) -> Self {
        let ports = ports(snapshot);
        let gateways: BTreeSet<_> = ports.iter().map(|it| &it.port.gateway.name).collect();
        let mut size = Self { gateways: gateways.len(), ..Self::default() };
        for listener in ports.iter().flat_map(|it| it.port.listeners.iter()) {
            let hosts = hosts(listener);
            size.listeners += 1;
            size.hosts += hosts.len();
            size.rules += hosts.iter().map(|(_, rules)| rules).sum::<usize>();
        }
        size.backends = snapshot.backends.len();
        size.endpoints = snapshot.backends.iter().map(|(_, backend)| backend.endpoints.len()).sum();
        size
    }
}

/// Those that end first come first. `now` is in seconds since 1970.
///
/// # Errors
/// When the question makes no sense.
pub fn certificates(
    snapshot: &Snapshot,
    query: &Query,
    now: i64,
) -> Result<Page<CertificateRow>, QueryError> {
    let window = query.window()?;
    let words = query.words();
    let row = |gateway: String, listener: Option<String>, certificate: &Certificate| CertificateRow {
        gateway,
        listener,
        names: certificate.names.iter().map(ToString::to_string).collect(),
        not_after: certificate.not_after,
        days_left: certificate.not_after.saturating_sub(now).div_euclid(DAY),
    };
    let mut rows = Vec::new();
    for listener in ports(snapshot).iter().flat_map(|it| it.port.listeners.iter()) {
        let certificates = listener.serves.tls().into_iter().flat_map(|tls| tls.certificates.iter());
        let id = &listener.id;
        rows.extend(certificates.map(|it| row(id.gateway.to_string(), Some(id.to_string()), it)));
    }
    rows.extend(snapshot.client_certificates.iter().map(|(gateway, it)| row(gateway.to_string(), None, it)));
    rows.retain(|row| {
        let names = row.names.join(" ");
        words.are_in(&[&row.gateway, row.listener.as_deref().unwrap_or_default(), &names])
    });
    rows.sort_by(|a, b| (a.not_after, &a.gateway, &a.listener).cmp(&(b.not_after, &b.gateway, &b.listener)));
    Ok(window.of(rows))
}
