//! The values that a scrape shows, gathered from the parts that count; nothing is counted or named
//! here.

use std::collections::BTreeMap;
use std::time::SystemTime;

use portcullis_control::applier::State;
use portcullis_inspect::{
    Agent, BudgetTraffic, Cluster, Configuration, ForwardedTraffic, Forwarding, GatewayTraffic,
    ListenerTraffic, Metrics, Traffic,
};
use portcullis_node::Coverage;
use portcullis_proxy::{BudgetStats, Forwarded, NotAdmitted, Stats};

use crate::cluster::Membership;
use crate::forwarding::Mechanism;
use crate::panics;
use crate::plane::Plane;
use crate::serving::{self, Served};

pub(crate) async fn metrics(state: &State, plane: &Plane, membership: Option<&Membership>) -> Metrics {
    let datapath = if plane.node.is_steered() { "ebpf" } else { "userspace" };
    let verdicts = plane.node.counters().into_iter().map(|(reason, count)| (reason.label(), count));
    let served = plane.served();
    let enforced = serving::places(&served, |frontend, name| plane.node.enforcement(frontend, name));
    let mut traffic = traffic(plane.stats().await);
    let kernel: BTreeMap<_, _> = plane.node.budgets().into_iter().collect();
    for budget in &mut traffic.budgets {
        budget.refused_by_kernel = kernel.get(&budget.owner).map_or(0, |used| used.refused);
    }
    Metrics {
        agent: Agent {
            version: env!("CARGO_PKG_VERSION"),
            datapath,
            without_programs: plane.node.without_programs(),
            panics: panics::survived(),
        },
        traffic,
        verdicts: verdicts.collect(),
        unguarded: missing(plane.node.guard_coverage()),
        unread: missing(plane.node.name_coverage()),
        forwarding: forwarding(plane, &served),
        enforced: enforced.into_iter().map(|((terms, by), listeners)| (terms, by, listeners)).collect(),
        configuration: configuration(state),
        cluster: membership.map(cluster),
    }
}

fn traffic(stats: Stats) -> Traffic {
    let gateways = stats.gateways.into_iter().map(|(name, stats)| {
        let refused = stats.refused.into_iter().map(|(limit, count)| (limit.name(), count));
        let not_admitted = not_admitted(stats.not_admitted);
        (name, GatewayTraffic { open: stats.open, refused: refused.collect(), not_admitted })
    });
    let listeners = stats.listeners.into_iter().map(|(id, stats)| {
        let traffic = ListenerTraffic {
            tls_connections: stats.connections,
            requests: stats.requests,
            forwarded: forwarded(stats.forwarded),
            not_admitted: not_admitted(stats.not_admitted),
        };
        (id, traffic)
    });
    let budgets = stats.budgets.into_iter().map(|(owner, BudgetStats { taken, refused })| BudgetTraffic {
        owner,
        taken,
        refused,
        refused_by_kernel: 0,
    });
    let failures = stats.handshake_failures.into_iter().map(|(failure, count)| (failure.name(), count));
    let answers = stats.answers.into_iter().map(|(reason, count)| (reason.name(), count));
    Traffic {
        gateways: gateways.collect(),
        listeners: listeners.collect(),
        budgets: budgets.collect(),
        accepted: stats.accepted,
        accept_errors: stats.accept_errors,
        handshake_failures: failures.collect(),
        unrouted: stats.unrouted,
        own_answers: answers.collect(),
        access_log_lost: stats.access_log_lost,
        upstream_connects: stats.upstream_connects,
        upstream_connect_failures: stats.upstream_connect_failures,
        upstream_retries: stats.upstream_retries,
    }
}

fn forwarded(stats: Forwarded) -> ForwardedTraffic {
    let Forwarded { begun, open, received, sent, endings } = stats;
    let endings = endings.into_iter().map(|(ending, count)| (ending.name(), count)).collect();
    ForwardedTraffic { begun, open, received, sent, endings }
}

fn missing(coverage: Coverage) -> Vec<(String, &'static str)> {
    coverage.missing.into_iter().map(|it| (it.interface, it.label)).collect()
}

fn forwarding(plane: &Plane, served: &Served) -> Forwarding {
    let (mut kernel, mut userspace) = (0, BTreeMap::new());
    for mechanism in served.mechanisms.values() {
        match mechanism {
            Mechanism::Kernel => kernel += 1,
            Mechanism::UserSpace(why) => *userspace.entry(why.label()).or_default() += 1,
        }
    }
    let flows = plane.node.forwarding().map_or(0, |report| report.flows);
    Forwarding { kernel, userspace: userspace.into_iter().collect(), flows }
}

fn not_admitted(counts: BTreeMap<NotAdmitted, u64>) -> Vec<(&'static str, u64)> {
    counts.into_iter().map(|(reason, count)| (reason.name(), count)).collect()
}

fn configuration(state: &State) -> Configuration {
    let age = state.last_applied.and_then(|at| SystemTime::now().duration_since(at).ok());
    Configuration {
        applied: state.applied,
        apply_time: state.apply_time,
        age: age.unwrap_or_default(),
        generation: state.snapshot.generation,
        problems: state.problems.len() + state.unreported.len(),
        frontends: state.snapshot.frontends.len(),
        refused: state.refused.frontends.len(),
        backends: state.snapshot.backends.len(),
    }
}

fn cluster(membership: &Membership) -> Cluster {
    Cluster {
        is_read: *membership.current.borrow(),
        leads: *membership.leading.borrow(),
        refused: membership.provisioning.borrow().as_ref().map_or(0, BTreeMap::len),
        mesh_unclaimed: membership.mesh.borrow().warning.is_some(),
    }
}
