//! Conformance profiles: which there are, which the GatewayClass claims, and in how many runs of
//! the suite they are tested.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, bail};
use portcullis_test_cluster::{Cluster, wait};

use super::{Args, CLASS};

/// Each with the feature that claims it.
const PROFILES: &[(&str, &str)] = &[
    ("GATEWAY-HTTP", "HTTPRoute"),
    ("GATEWAY-TLS", "TLSRoute"),
    ("GATEWAY-TCP", "TCPRoute"),
    ("GATEWAY-UDP", "UDPRoute"),
    ("GATEWAY-GRPC", "GRPCRoute"),
];

const MESH: &[&str] = &["MESH-HTTP", "MESH-GRPC"];
const NO_MESH: &str =
    "no mesh traffic is handled, and its pods use an image of which the suite has no source";

/// Time for a claim to be in the GatewayClass's status.
const TIMEOUT: Duration = Duration::from_secs(30);

/// One run of the suite.
pub(super) struct Run {
    pub(super) profiles: Vec<&'static str>,
    pub(super) timeouts: Timeouts,
    /// The only tests to be run; all, if there are none.
    pub(super) tests: Vec<String>,
}

impl Run {
    /// As the suite was published.
    pub(super) fn of(profiles: Vec<&'static str>) -> Self {
        Self { profiles, timeouts: Timeouts::Published, tests: Vec::new() }
    }
}

/// Time that tests wait for what they expect.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Timeouts {
    /// As long as the suite was published with: up to five minutes.
    Published,
    /// Not as long: what is not claimed will not come.
    Short,
}

pub(super) fn names() -> Vec<&'static str> {
    PROFILES.iter().map(|(name, _)| *name).chain(MESH.iter().copied()).collect()
}

/// All that can run here.
pub(super) fn all() -> Vec<&'static str> {
    PROFILES.iter().map(|(name, _)| *name).collect()
}

pub(super) fn wanted(args: &Args) -> Result<Vec<&'static str>> {
    if let Some(mesh) = MESH.iter().find(|mesh| args.profile.iter().any(|given| given == *mesh)) {
        bail!("{mesh} cannot run: {NO_MESH}");
    }
    let is_wanted = |name: &str| match args.profile.as_slice() {
        _ if args.all => true,
        [] => name == "GATEWAY-HTTP",
        given => given.iter().any(|given| given == name),
    };
    Ok(all().into_iter().filter(|name| is_wanted(name)).collect())
}

pub(super) fn print_those_not_run() {
    for mesh in MESH {
        println!("{mesh:<14}not run: {NO_MESH}");
    }
}

/// Runs that test the profiles. Claimed ones are tested exactly as the suite was published. The
/// rest comes in a second run, which would take hours otherwise: most of its tests wait for a
/// Gateway that never is ready.
pub(super) fn runs(cluster: &Cluster, args: &Args, profiles: Vec<&'static str>) -> Result<Vec<Run>> {
    if args.run_test.is_some() {
        return Ok(vec![Run::of(profiles)]);
    }
    let claims = claims(cluster, args)?;
    let (claimed, others) = profiles.into_iter().partition(|profile| is_claimed(profile, &claims));
    let runs = [Run::of(claimed), Run { timeouts: Timeouts::Short, ..Run::of(others) }];
    Ok(runs.into_iter().filter(|run| !run.profiles.is_empty()).collect())
}

fn is_claimed(profile: &str, claims: &BTreeSet<String>) -> bool {
    PROFILES.iter().any(|(name, feature)| *name == profile && claims.contains(*feature))
}

/// From where the suite has them: from its option, or the GatewayClass's status.
pub(super) fn claims(cluster: &Cluster, args: &Args) -> Result<BTreeSet<String>> {
    if let Some(given) = &args.supported_features {
        return Ok(given.split(',').map(str::to_owned).collect());
    }
    let features = "jsonpath={.status.supportedFeatures[*].name}";
    wait::until(&format!("supportedFeatures of GatewayClass {CLASS}"), TIMEOUT, || {
        let names = cluster.kubectl(&["get", "gatewayclass", CLASS, "-o", features])?;
        let names: BTreeSet<_> = names.split_whitespace().map(str::to_owned).collect();
        Ok((!names.is_empty()).then_some(names))
    })
}
