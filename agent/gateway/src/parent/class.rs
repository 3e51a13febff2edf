//! The installed release of the Gateway API: what its CRDs say of themselves, against the releases
//! that this agent was made for and tested with.

use std::collections::{BTreeMap, BTreeSet};

use portcullis_api::{CustomResourceDefinition, Objects};

use crate::{ConditionType, Fault, Reason};

/// "The version of a Gateway API CRD is defined by the gateway.networking.k8s.io/bundle-version
/// annotation on the CRD."
const BUNDLE_VERSION: &str = "gateway.networking.k8s.io/bundle-version";

/// The release that the conformance suite ran with, and the one that `api` is generated from; of
/// any patch level.
const SUPPORTED: &[&str] = &["v1.6", "v1.7"];

/// The standard kinds, and the experimental ones.
const GROUPS: &[&str] = &[".gateway.networking.k8s.io", ".gateway.networking.x-k8s.io"];

/// The release of the Gateway API that the installed CRDs are of.
pub(crate) enum InstalledRelease {
    /// There are none, as without an API server.
    None,
    Supported,
    Unsupported(Fault),
}

pub(crate) fn installed_release(objects: &Objects) -> InstalledRelease {
    let installed = objects.definitions.iter().filter(|(name, _)| is_gateway_api(&name.name));
    let mut unknown = BTreeMap::<_, BTreeSet<_>>::new();
    let mut count = 0;
    for (name, definition) in installed {
        count += 1;
        let version = version(definition);
        if !version.is_some_and(is_supported) {
            unknown.entry(version.unwrap_or("unmarked versions")).or_default().insert(&*name.name);
        }
    }
    match (count, unknown.is_empty()) {
        (0, _) => InstalledRelease::None,
        (_, true) => InstalledRelease::Supported,
        (_, false) => InstalledRelease::Unsupported(unsupported(&unknown)),
    }
}

/// "A message SHOULD be included in this condition that includes the detected CRD version(s)
/// present in the cluster and the CRD version(s) that are supported by the GatewayClass."
fn unsupported(unknown: &BTreeMap<&str, BTreeSet<&str>>) -> Fault {
    let mut found = Vec::new();
    for (version, names) in unknown {
        let names: Vec<_> = names.iter().copied().collect();
        found.push(format!("{version} of {}", names.join(", ")));
    }
    let message = format!(
        "installed are {}; supported are {}: what these CRDs have in common with them is served",
        found.join("; "),
        SUPPORTED.join(" and ")
    );
    Fault::new(ConditionType::SupportedVersion, Reason::UnsupportedVersion, message)
}

fn version(definition: &CustomResourceDefinition) -> Option<&str> {
    let annotations = definition.metadata.annotations.as_ref()?;
    annotations.get(BUNDLE_VERSION).map(String::as_str).filter(|version| !version.is_empty())
}

/// `v1.7.0` and `v1.7.1-rc.1` are of `v1.7`; `v1.70.0` is not.
fn is_supported(version: &str) -> bool {
    SUPPORTED.iter().any(|release| {
        version.strip_prefix(release).is_some_and(|patch| patch.is_empty() || patch.starts_with('.'))
    })
}

fn is_gateway_api(name: &str) -> bool {
    GROUPS.iter().any(|group| name.ends_with(group))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_known_at_every_patch_level() {
        for (version, known) in
            [("v1.7.0", true), ("v1.6.3-rc.1", true), ("v1.70.0", false), ("v1.5.1", false), ("1.7.0", false)]
        {
            assert_eq!(is_supported(version), known, "{version}");
        }
    }
}
