//! The end of the certificates that listeners serve: of the earliest of each, with all that its
//! chain needs.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use portcullis_model::{ListenerId, Snapshot};

/// Seconds before the end from which on `status` tells of it.
const SOON: i64 = 14 * DAY;
const DAY: i64 = 24 * 60 * 60;

/// Seconds since 1970, by listener.
pub(crate) fn expiries(snapshot: &Snapshot) -> BTreeMap<ListenerId, i64> {
    let mut expiries = BTreeMap::new();
    for listener in snapshot.frontends.values().flat_map(|port| port.listeners.iter()) {
        let certificates = listener.serves.tls().into_iter().flat_map(|tls| tls.certificates.iter());
        if let Some(first) = certificates.map(|certificate| certificate.not_after).min() {
            expiries.insert(listener.id.clone(), first);
        }
    }
    expiries
}

/// The distance of such an end, if it is soon, or was.
pub(crate) fn told(expiry: i64, now: SystemTime) -> Option<String> {
    let now = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs().cast_signed());
    let left = expiry.saturating_sub(now);
    match (left, left / DAY) {
        (..0, 0) => Some("a certificate expired less than a day ago".to_owned()),
        (..0, past) => Some(format!("a certificate expired {} ago", days(past.abs()))),
        (..SOON, 0) => Some("a certificate expires in less than a day".to_owned()),
        (..SOON, left) => Some(format!("a certificate expires in {}", days(left))),
        _ => None,
    }
}

fn days(number: i64) -> String {
    if number == 1 { "1 day".to_owned() } else { format!("{number} days") }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use portcullis_model::{
        Certificate, FrontendKey, Gateway, HostPattern, Listener, ObjectName, ParentKind, Port, PortKey,
        PortListeners, Serves, TlsTermination,
    };
    use rustls::pki_types::PrivateKeyDer;
    use rustls::sign::CertifiedKey;

    use super::*;

    fn certificate(not_after: i64) -> Certificate {
        let pair = rcgen::generate_simple_self_signed(["a.example".to_owned()]).unwrap();
        let key = PrivateKeyDer::try_from(pair.signing_key.serialize_der()).unwrap();
        let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&key).unwrap();
        let key = Arc::new(CertifiedKey::new(vec![pair.cert.der().clone()], key));
        Certificate { fingerprint: [0; 32], names: [].into(), not_after, key }
    }

    fn snapshot(ends: &[i64]) -> Snapshot {
        let gateway = ObjectName::new("infra", "web");
        let id = ListenerId {
            gateway: gateway.clone(),
            kind: ParentKind::Gateway,
            parent: gateway.clone(),
            name: "https".into(),
        };
        let certificates = ends.iter().map(|end| certificate(*end)).collect();
        let tls = TlsTermination { certificates, ..TlsTermination::default() };
        let listener = Listener {
            id,
            hostname: HostPattern::Any,
            serves: Serves::Https { tls, routes: Arc::default() },
            admission: Arc::default(),
            filters: Arc::default(),
            policy: None,
        };
        let key = PortKey::tcp(443);
        let listeners = PortListeners::of(Arc::new(listener));
        let port = Arc::new(Port::new(Arc::new(Gateway::new(gateway)), key, listeners));
        let frontends =
            ["192.0.2.1", "192.0.2.2"].map(|address| FrontendKey::new(address.parse().unwrap(), key));
        let frontends = frontends.into_iter().map(|frontend| (frontend, port.clone())).collect();
        Snapshot { frontends, ..Snapshot::default() }
    }

    #[test]
    fn the_earliest_end_of_a_listener_is_told_in_time() {
        let now = 1000 * DAY;
        let time = UNIX_EPOCH + Duration::from_secs(now.cast_unsigned());
        for (left, told) in [
            (SOON, None),
            (SOON - 1, Some("expires in 13 days")),
            (DAY, Some("expires in 1 day")),
            (DAY - 1, Some("expires in less than a day")),
            (-1, Some("expired less than a day ago")),
            (-3 * DAY, Some("expired 3 days ago")),
        ] {
            let snapshot = snapshot(&[now + SOON, now + left, i64::MAX]);
            assert_eq!(expiries(&snapshot).into_values().collect::<Vec<_>>(), [now + left]);
            assert_eq!(super::told(now + left, time), told.map(|told| format!("a certificate {told}")));
        }
        assert!(expiries(&snapshot(&[])).is_empty());
    }
}
