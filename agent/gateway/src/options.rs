//! Keys of `options` of TLS, which every implementation may define some of.
//! "Implementation-specific definitions MUST use domain-prefixed names"; others "are reserved for
//! key names defined by Gateway API".

/// The domain of options that are ours. There are none yet.
const OWN_DOMAIN: &str = "portcullis.dev";

/// True of a key that is another implementation's. All others have to be known: what an option was
/// to forbid must not be done without it.
pub(crate) fn is_foreign(option: &str) -> bool {
    let Some((domain, _)) = option.split_once('/') else { return false };
    domain != OWN_DOMAIN && !domain.strip_suffix(OWN_DOMAIN).is_some_and(|sub| sub.ends_with('.'))
}
