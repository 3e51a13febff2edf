//! Paths and authorities of requests: what is matched is what is forwarded, so a normal form is its
//! own, and has nothing in it that a backend could resolve further.

use portcullis_proxy::{bare_host, normalise_path};

pub(crate) fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(path) = normalise_path(text) {
        assert!(path.starts_with('/') && path.len() <= text.len(), "{text:?} becomes {path:?}");
        assert!(path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\'), "{path:?}");
        assert!(!path.contains("//"), "{path:?} has an empty segment");
        for segment in path.split('/') {
            let name = segment.split(';').next().unwrap_or_default();
            assert!(!matches!(name, "." | ".."), "{path:?} leads elsewhere");
        }
        let lower = path.to_ascii_lowercase();
        for escape in ["%00", "%2e", "%2f", "%5c"] {
            assert!(!lower.contains(escape), "{path:?} has {escape}");
        }
        assert_eq!(normalise_path(&path).as_deref(), Ok(&*path), "the normal form of {text:?}");
    }
    if let Ok(host) = bare_host(text) {
        assert!(!host.bytes().any(|byte| byte.is_ascii_uppercase()), "{host:?}");
        assert!(!host.is_empty(), "{text:?} names no host");
        assert_eq!(bare_host(&host).as_deref(), Ok(&*host), "the host of {text:?}");
    }
}
