//! Key sets that TrafficPolicies have fetched (`remoteJwks`): path and lifetime. The Service is
//! looked up elsewhere.

use std::time::Duration;

use portcullis_api::types::trafficpolicies::TrafficPolicyJwtProvidersRemoteJwks;
use portcullis_model::{BackendName, RemoteKeySet};

use crate::duration::parse_duration;

const LIFETIME: Duration = Duration::from_secs(5 * 60);
const SHORTEST: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
const LONGEST_PATH: usize = 1024;

/// The key set at a backend, which is asked for it by the name of `host`.
pub(crate) fn remote_key_set(
    written: &TrafficPolicyJwtProvidersRemoteJwks,
    backend: BackendName,
    host: &str,
) -> Result<RemoteKeySet, String> {
    let path = written.path.as_str();
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@/?%".contains(&byte);
    let is_path = path.starts_with('/') && path.bytes().all(is_part);
    if !is_path || path.len() > LONGEST_PATH || path.parse::<http::uri::PathAndQuery>().is_err() {
        return Err(format!("path {path:?}: write an absolute path of at most {LONGEST_PATH} characters"));
    }
    let lifetime = match written.cache_duration.as_deref() {
        None => LIFETIME,
        Some(text) => {
            let lifetime = parse_duration(text).map_err(|error| format!("cacheDuration: {error}"))?;
            if !(SHORTEST..=LONGEST).contains(&lifetime) {
                return Err(format!("cacheDuration is {text}: write {SHORTEST:?} to {LONGEST:?}"));
            }
            lifetime
        }
    };
    Ok(RemoteKeySet { backend, host: host.into(), path: path.into(), lifetime })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(fields: Value) -> Result<RemoteKeySet, String> {
        let mut written = json!({"backendRef": {"name": "login", "port": 80}, "path": "/certs?a=b"});
        written.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let backend = BackendName("auth/login:80".into());
        remote_key_set(&serde_json::from_value(written).unwrap(), backend, "login.auth.svc")
    }

    #[test]
    fn path_and_lifetime_are_within_limits() {
        let set = read(json!({})).unwrap();
        assert_eq!((&*set.path, &*set.host, set.lifetime), ("/certs?a=b", "login.auth.svc", LIFETIME));
        assert_eq!(read(json!({"cacheDuration": "1h"})).unwrap().lifetime, Duration::from_secs(3600));
        let long = format!("/{}", "a".repeat(LONGEST_PATH));
        for (fields, told) in [
            (json!({"path": "certs"}), "path \"certs\": write an absolute path"),
            (json!({"path": "/a b"}), "path \"/a b\": write an absolute path"),
            (json!({"path": "/a\r\nhost: b"}), "write an absolute path"),
            (json!({"path": "/a#b"}), "write an absolute path"),
            (json!({"path": "/a\"b"}), "write an absolute path"),
            (json!({"path": long}), "at most 1024 characters"),
            (json!({"cacheDuration": "9s"}), "cacheDuration is 9s: write 10s to 86400s"),
            (json!({"cacheDuration": "25h"}), "cacheDuration is 25h: write 10s to 86400s"),
            (json!({"cacheDuration": "soon"}), "cacheDuration: \"soon\" is not a duration"),
        ] {
            let fault = read(fields).unwrap_err();
            assert!(fault.contains(told), "{fault}");
        }
    }
}
