//! The values that a scrape shows, gathered from the parts that count; nothing is counted or named
//! here.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use portcullis_control::applier::State;
use portcullis_inspect::{
    Agent, BackendTraffic, BudgetTraffic, Cluster, Configuration, Durations, Duties, ForwardedTraffic,
    Forwarding, GatewayTraffic, Histogram, KeySetTraffic, ListenerDurations, ListenerTraffic, Metrics,
    Requests, RouteSeries, Traffic,
};
use portcullis_model::BudgetOwner;
use portcullis_node::{BudgetUse, Coverage};
use portcullis_proxy::{
    BackendStats, BudgetStats, DurationStats, ExportStats, Forwarded, KeySetStats, NotAdmitted, RequestStats,
    Stats,
};

use crate::cluster::Membership;
use crate::expiry::expiries;
use crate::forwarding::Mechanism;
use crate::panics;
use crate::plane::Plane;
use crate::process;
use crate::serving::{self, Served};

pub(crate) async fn metrics(state: &State, plane: &Plane, membership: Option<&Membership>) -> Metrics {
    let datapath = if plane.node.is_steered() { "ebpf" } else { "userspace" };
    let verdicts = plane.node.counters().into_iter().map(|(reason, count)| (reason.label(), count));
    let served = plane.served();
    let enforced = serving::places(&served, |frontend, name| plane.node.enforcement(frontend, name));
    let mut stats = plane.stats().await;
    let durations = durations(std::mem::take(&mut stats.durations));
    let mut traffic = traffic(stats);
    add_kernels(&mut traffic.budgets, plane.node.budgets());
    Metrics {
        agent: Agent {
            version: env!("CARGO_PKG_VERSION"),
            datapath,
            without_programs: plane.node.without_programs(),
            panics: panics::survived(),
        },
        process: process::this(),
        traffic,
        durations,
        certificate_expiries: expiries(&served.snapshot).into_iter().collect(),
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
    let auth = stats.auth.into_iter().map(|(outcome, count)| (outcome.name(), count));
    let exported = stats.exports.into_iter().flat_map(|(signal, ExportStats { sent, lost })| {
        // Lines are counted with the log's until they are taken for export.
        let lost = if signal == "traces" { lost + stats.traces.lost } else { lost };
        [(signal, "sent", sent), (signal, "lost", lost)]
    });
    Traffic {
        gateways: gateways.collect(),
        listeners: listeners.collect(),
        budgets: budgets.collect(),
        accepted: stats.accepted,
        accept_errors: stats.accept_errors,
        cores: stats.cores,
        handshake_failures: failures.collect(),
        unrouted: stats.unrouted,
        own_answers: answers.collect(),
        auth: auth.collect(),
        access_log_lost: stats.access_log_lost,
        http1_by_library: stats.http1_by_library,
        upstream_connects: stats.upstream_connects,
        upstream_connect_failures: stats.upstream_connect_failures,
        upstream_retries: stats.upstream_retries,
        chosen: stats.chosen.into_iter().map(|(place, count)| (place.name(), count)).collect(),
        mirrored: stats.mirrored.into_iter().map(|(outcome, count)| (outcome.name(), count)).collect(),
        backends: stats.backends.into_iter().map(|(name, stats)| (name, backend(stats))).collect(),
        checked_endpoints: stats.checked_endpoints,
        key_sets: stats.key_sets.into_iter().map(|(set, stats)| (set, key_set(stats))).collect(),
        exported: exported.collect(),
        traces_over_budget: stats.traces.over_budget,
    }
}

fn durations(stats: DurationStats) -> Durations {
    let listeners = stats.listeners.into_iter().map(|(id, stats)| {
        let (requests, handshakes) = (histogram(&stats.requests), histogram(&stats.handshakes));
        (id, ListenerDurations { requests, handshakes })
    });
    let routes = stats.routes.into_iter().map(|(name, stats)| {
        let route = name.map(|name| RouteSeries {
            kind: name.kind,
            route: (*name.route).clone(),
            parent: name.parent.as_deref().cloned(),
        });
        (route, requests(&stats))
    });
    let backends = stats.backends.into_iter().map(|(name, stats)| (name, requests(&stats)));
    Durations {
        listeners: listeners.collect(),
        routes: routes.collect(),
        backends: backends.collect(),
        limit: stats.limit,
    }
}

fn requests(stats: &RequestStats) -> Requests {
    Requests { requests: stats.requests, durations: histogram(&stats.durations) }
}

fn histogram(stats: &portcullis_proxy::Histogram) -> Histogram {
    let bounds = portcullis_proxy::Histogram::BOUNDS.iter().map(Duration::as_secs_f64);
    let buckets = bounds.chain([f64::INFINITY]).zip(stats.buckets);
    Histogram { buckets: buckets.collect(), sum: stats.sum }
}

fn key_set(stats: KeySetStats) -> KeySetTraffic {
    KeySetTraffic { age: stats.age, fetches: [("fetched", stats.fetches), ("failed", stats.failures)].into() }
}

fn backend(stats: BackendStats) -> BackendTraffic {
    let checks = [("passed", stats.passed_checks), ("failed", stats.failed_checks)];
    let open = [
        ("requests", stats.requests),
        ("pendingRequests", stats.pending),
        ("connections", stats.connections),
    ];
    let refused = [("requests", stats.refused_requests), ("connections", stats.refused_connections)];
    BackendTraffic {
        out: stats.out,
        ejections: stats.ejections,
        checks: checks.into_iter().filter(|(_, count)| *count > 0).collect(),
        open: open.into(),
        refused: refused.into_iter().filter(|(_, count)| *count > 0).collect(),
    }
}

/// Budgets of listeners to which the kernel lets no client come are the kernel's alone.
fn add_kernels(budgets: &mut Vec<BudgetTraffic>, kernel: Vec<(BudgetOwner, BudgetUse)>) {
    let mut kernel: BTreeMap<_, _> = kernel.into_iter().filter(|(_, used)| used.refused > 0).collect();
    for budget in &mut *budgets {
        budget.refused_by_kernel = kernel.remove(&budget.owner).map_or(0, |used| used.refused);
    }
    budgets.extend(kernel.into_iter().map(|(owner, used)| BudgetTraffic {
        owner,
        taken: 0,
        refused: 0,
        refused_by_kernel: used.refused,
    }));
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
    let backends = &state.snapshot.backends;
    let externals = || backends.iter().map(|(_, it)| it).filter(|it| it.name.is_external());
    let age = state.last_applied.and_then(|at| SystemTime::now().duration_since(at).ok());
    Configuration {
        applied: state.applied,
        apply_time: state.apply_time,
        age: age.unwrap_or_default(),
        generation: state.snapshot.generation,
        problems: state.problems.len() + state.unreported.len(),
        frontends: state.snapshot.frontends.len(),
        refused: state.refused.frontends.len(),
        backends: backends.len(),
        externals: externals().count(),
        unreachable: externals().filter(|it| it.endpoints.is_empty()).count(),
    }
}

fn cluster(membership: &Membership) -> Cluster {
    Cluster {
        is_read: *membership.current.borrow(),
        duties: (!membership.has_one_gateway).then(|| Duties {
            leads: *membership.leading.borrow(),
            refused: membership.provisioning.borrow().as_ref().map_or(0, BTreeMap::len),
            mesh_unclaimed: membership.mesh.borrow().warning.is_some(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use portcullis_model::{ObjectName, ParentKind};

    use super::*;

    #[test]
    fn refusals_of_the_kernel_are_shown_of_budgets_that_user_space_does_not_know_too() {
        let owner = |name: &str| BudgetOwner {
            kind: ParentKind::Gateway,
            name: ObjectName::new("infra", name),
            listener: None,
        };
        let known = BudgetTraffic { owner: owner("known"), taken: 1, refused: 2, refused_by_kernel: 0 };
        let quiet = BudgetTraffic { owner: owner("quiet"), taken: 3, refused: 0, refused_by_kernel: 0 };
        let mut budgets = vec![known, quiet];
        let used = |refused| BudgetUse { taken: 9, refused };
        let kernel = [("closed", 4), ("known", 5), ("idle", 0)].map(|(name, it)| (owner(name), used(it)));
        add_kernels(&mut budgets, kernel.into());
        let shown =
            budgets.iter().map(|it| (&*it.owner.name.name, it.taken, it.refused, it.refused_by_kernel));
        assert_eq!(shown.collect::<Vec<_>>(), [("known", 1, 2, 5), ("quiet", 3, 0, 0), ("closed", 0, 0, 4)]);
    }
}
