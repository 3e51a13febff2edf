//! Crates are the layers: who may know whom, and what must not even be compiled into a layer.

use super::Problem;
use super::metadata::Package;

struct Layer {
    package: &'static str,
    /// The crates of this workspace it may name.
    may_use: &'static [&'static str],
    /// External crates that must not be reachable from it.
    never: &'static [&'static str],
}

const KUBERNETES: &str = "k8s-openapi";

const LAYERS: &[Layer] = &[
    Layer { package: "portcullis-common", may_use: &[], never: &["tokio", "aya", KUBERNETES] },
    Layer { package: "portcullis-log", may_use: &[], never: &["tokio", "hyper", "aya", KUBERNETES] },
    Layer { package: "portcullis-model", may_use: &[], never: &["tokio", "hyper", "aya", KUBERNETES] },
    Layer {
        package: "portcullis-api",
        may_use: &["portcullis-model"],
        never: &["tokio", "hyper", "aya", "notify"],
    },
    Layer {
        package: "portcullis-gateway",
        may_use: &["portcullis-api", "portcullis-model"],
        never: &["tokio", "hyper", "aya", "notify"],
    },
    Layer {
        package: "portcullis-control",
        may_use: &["portcullis-api", "portcullis-gateway", "portcullis-log", "portcullis-model"],
        never: &["aya"],
    },
    Layer {
        package: "portcullis-proxy",
        may_use: &["portcullis-model"],
        never: &["aya", "kube", KUBERNETES],
    },
    Layer {
        package: "portcullis-node",
        may_use: &["portcullis-common", "portcullis-log", "portcullis-model"],
        never: &["hyper", "kube", KUBERNETES],
    },
    Layer {
        package: "portcullis-inspect",
        may_use: &["portcullis-api", "portcullis-gateway", "portcullis-model"],
        never: &["tokio", "hyper", "aya", "clap", "notify"],
    },
    Layer {
        package: "portcullis",
        may_use: &[
            "portcullis-api",
            "portcullis-control",
            "portcullis-gateway",
            "portcullis-inspect",
            "portcullis-model",
            "portcullis-node",
            "portcullis-proxy",
        ],
        never: &[],
    },
    // Tests and tools see the product from outside: its command line, its files, its sockets.
    Layer { package: "portcullis-testbed", may_use: &[], never: &["tokio", KUBERNETES] },
    Layer { package: "portcullis-netns-tests", may_use: &["portcullis-testbed"], never: &[] },
    Layer { package: "portcullis-test-cluster", may_use: &["portcullis-testbed"], never: &[] },
    Layer {
        package: "portcullis-chart-tests",
        may_use: &["portcullis-test-cluster", "portcullis-testbed"],
        never: &[],
    },
    Layer {
        package: "portcullis-conformance-tests",
        may_use: &["portcullis-chart-tests", "portcullis-test-cluster", "portcullis-testbed"],
        never: &[],
    },
    Layer {
        package: "portcullis-task-tests",
        may_use: &["portcullis-chart-tests", "portcullis-test-cluster", "portcullis-testbed"],
        never: &[],
    },
    // Parsers are reached by calls, millions of times.
    Layer {
        package: "portcullis-fuzz",
        may_use: &[
            "portcullis-common",
            "portcullis-control",
            "portcullis-gateway",
            "portcullis-model",
            "portcullis-proxy",
        ],
        never: &["aya"],
    },
    Layer { package: "portcullis-attack", may_use: &["portcullis-testbed"], never: &[] },
    Layer {
        package: "portcullis-bench",
        may_use: &["portcullis-test-cluster", "portcullis-testbed"],
        never: &[],
    },
    Layer { package: "xtask", may_use: &["portcullis-testbed"], never: &[] },
];

pub(super) fn problems(packages: &[Package]) -> Vec<Problem> {
    packages.iter().flat_map(package).collect()
}

fn package(package: &Package) -> Vec<Problem> {
    let name = &package.name;
    let Some(layer) = LAYERS.iter().find(|layer| layer.package == name) else {
        return vec![Problem(format!("{name} is in no layer: add it to xtask/src/tidy/layers.rs"))];
    };
    let up = package.internal.iter().filter(|used| !layer.may_use.contains(&used.as_str()));
    let up = up.map(|used| Problem(format!("{name} must not depend on {used}: ARCHITECTURE.md, layers")));
    let foreign = layer.never.iter().filter(|never| package.compiled.contains(**never));
    let foreign = foreign.map(|never| Problem(format!("{name} must not compile {never}, directly or not")));
    up.chain(foreign).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn crate_with(name: &str, internal: &[&str], compiled: &[&str]) -> Package {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        Package {
            name: name.to_owned(),
            external: BTreeSet::new(),
            internal: set(internal),
            compiled: set(compiled),
        }
    }

    #[test]
    fn edges_go_downwards() {
        assert!(package(&crate_with("portcullis-proxy", &["portcullis-model"], &["tokio"])).is_empty());
        assert_eq!(package(&crate_with("portcullis-proxy", &["portcullis-gateway"], &[])).len(), 1);
        assert_eq!(package(&crate_with("portcullis-model", &[], &["tokio", "hyper"])).len(), 2);
        assert_eq!(package(&crate_with("portcullis-utils", &[], &[])).len(), 1);
    }
}
