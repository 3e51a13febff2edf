//! Bounds that are wanted of the workloads' ratios, and the table that says which are met.

use super::peers::{ENVOY, HAPROXY, NGINX, RELAY};
use super::sample::{Interval, Measured, Sample, median};

/// The upper end of an interval may be over the bound by so much.
const SLACK: f64 = 0.05;
/// The largest share of requests that the agent's HTTP library may have read. With more of them, a
/// ratio is not one of the agent's own code.
const BY_LIBRARY: f64 = 0.01;
/// Proxies of which the best is chosen: the relay is none, nor is another build of the agent.
const PEERS: [&str; 3] = [HAPROXY, NGINX, ENVOY];
pub(super) const HEAD: &str =
    "| workload | bound | against | median (95 %) | verdict |\n|---|---|---|---|---|\n";

/// The largest ratio, of medians of pairs.
struct Bound {
    /// By its name.
    workload: &'static str,
    quantity: Quantity,
    against: Against,
    most: f64,
    /// Wanted next.
    then: Option<f64>,
}

#[derive(Clone, Copy)]
enum Quantity {
    /// CPU time per request.
    Cpu,
    P50,
}

/// The other side of a ratio.
#[derive(Clone, Copy)]
enum Against {
    One(&'static str),
    /// The one whose median is lowest in the run.
    Best,
    /// Portcullis itself in another workload, by the workload's name.
    Workload(&'static str),
}

const BOUNDS: &[Bound] = &[
    cpu("http1", 0.78, Against::One(HAPROXY)),
    cpu("http1", 0.85, Against::One(NGINX)),
    cpu("http1", 1.20, Against::One(RELAY)),
    cpu("browser", 0.80, Against::Best),
    cpu("post", 0.82, Against::Best),
    cpu("few", 0.90, Against::Best),
    Bound { quantity: Quantity::P50, ..cpu("steady", 1.0, Against::Best) },
    cpu("64k", 1.0, Against::Best),
    cpu("1m", 0.60, Against::Best),
    cpu("https", 0.73, Against::Best),
    cpu("tls-64k", 0.60, Against::Best),
    Bound { then: Some(0.75), ..cpu("http2", 0.85, Against::One(HAPROXY)) },
    cpu("handshakes", 0.57, Against::Best),
    cpu("routes", 1.05, Against::Workload("routes-one")),
];

const fn cpu(workload: &'static str, most: f64, against: Against) -> Bound {
    Bound { workload, quantity: Quantity::Cpu, against, most, then: None }
}

/// A row for each bound of a workload, in a run of these workloads with proxies of these names.
pub(super) fn rows(workload: &Measured, run: &[Measured], names: &[&str]) -> String {
    let bounds = BOUNDS.iter().filter(|bound| bound.workload == workload.workload.name);
    bounds.map(|bound| bound.row(workload, run, names)).collect()
}

impl Bound {
    fn row(&self, workload: &Measured, run: &[Measured], names: &[&str]) -> String {
        let of = self.quantity.of();
        let (against, ratio) = match self.against {
            Against::One(name) => {
                let proxy = names.iter().position(|it| *it == name);
                (name.to_owned(), proxy.and_then(|proxy| workload.compared(proxy, of)))
            }
            Against::Best => {
                let best = best(workload, names, of);
                let name = best.map_or("none measured", |proxy| names[proxy]);
                (format!("best peer: {name}"), best.and_then(|proxy| workload.compared(proxy, of)))
            }
            Against::Workload(name) => {
                let other = run.iter().find(|measured| measured.workload.name == name);
                (format!("itself, `{name}`"), other.map(|other| workload.against(other, 0, of)))
            }
        };
        let bound = format!("{} ≤ {:.2}", self.quantity.name(), self.most);
        let then = self.then.map(|then| format!(", then {then:.2}")).unwrap_or_default();
        let ratio_text = ratio.map(|it| format!("{:.3} ({:.3}–{:.3})", it.median, it.low, it.high));
        let verdict = match workload.by_library {
            Some(share) if share > BY_LIBRARY => {
                format!("**missed**: {:.1} % by the HTTP library", share * 100.0)
            }
            _ => ratio.map_or("not measured", |ratio| self.verdict(ratio)).to_owned(),
        };
        format!(
            "| {} | {bound}{then} | {against} | {} | {verdict} |\n",
            workload.workload.title,
            ratio_text.unwrap_or_default(),
        )
    }

    fn verdict(&self, ratio: Interval) -> &'static str {
        if ratio.median <= self.most && ratio.high <= self.most + SLACK { "met" } else { "**missed**" }
    }
}

/// The peer with the lowest median, by its number.
fn best(workload: &Measured, names: &[&str], of: fn(&Sample) -> f64) -> Option<usize> {
    let median = |proxy: usize| median(workload.values(proxy, of));
    let peers = (0..names.len()).filter(|&proxy| PEERS.contains(&names[proxy]) && workload.has(proxy));
    peers.min_by(|&one, &other| median(one).total_cmp(&median(other)))
}

impl Quantity {
    fn of(self) -> fn(&Sample) -> f64 {
        match self {
            Self::Cpu => |sample| sample.cpu,
            Self::P50 => |sample| sample.p50.as_secs_f64(),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Cpu => "CPU",
            Self::P50 => "p50",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::workload::{WORKLOADS, Workload};

    const NAMES: [&str; 6] = ["Portcullis", HAPROXY, NGINX, ENVOY, RELAY, "Portcullis, earlier"];

    fn workload(name: &str) -> &'static Workload {
        WORKLOADS.iter().find(|workload| workload.name == name).unwrap()
    }

    /// With these values of each proxy's rounds, as CPU time and as p50.
    fn measured(name: &str, values: &[&[f64]]) -> Measured {
        let sample = |&cpu: &f64| Sample {
            cpu,
            rate: 1.0,
            p50: Duration::from_secs_f64(cpu),
            p99: Duration::from_secs(1),
            failed: 0,
            memory: 1.0,
            foreign: 0.0,
        };
        let samples = values.iter().map(|rounds| rounds.iter().map(sample).collect()).collect();
        Measured { samples, ..Measured::new(workload(name), values.len()) }
    }

    #[test]
    fn bounds_are_of_workloads() {
        for bound in BOUNDS {
            workload(bound.workload);
            if let Against::Workload(name) = bound.against {
                workload(name);
            }
        }
    }

    #[test]
    fn a_bound_is_met_by_the_median_and_nearly_by_the_interval() {
        let bound = cpu("http1", 0.80, Against::Best);
        let verdict = |median, high| bound.verdict(Interval { median, low: 0.5, high });
        assert_eq!(verdict(0.80, 0.84), "met");
        assert_eq!(verdict(0.81, 0.82), "**missed**");
        assert_eq!(verdict(0.70, 0.86), "**missed**");
        assert_eq!(verdict(f64::NAN, f64::NAN), "**missed**");
    }

    #[test]
    fn each_bound_has_a_row() {
        let run = [measured("http1", &[&[7.0; 3], &[10.0; 3], &[8.0; 3]])];
        let title = workload("http1").title;
        let expected = format!(
            "| {title} | CPU ≤ 0.78 | HAProxy | 0.700 (0.700–0.700) | met |\n\
             | {title} | CPU ≤ 0.85 | nginx | 0.875 (0.875–0.875) | **missed** |\n\
             | {title} | CPU ≤ 1.20 | relay |  | not measured |\n"
        );
        assert_eq!(rows(&run[0], &run, &NAMES[..3]), expected);
    }

    #[test]
    fn a_library_that_reads_more_than_one_in_a_hundred_misses_all_bounds() {
        let mut run = [measured("http1", &[&[7.0; 3], &[10.0; 3]])];
        run[0].by_library = Some(0.01);
        assert!(rows(&run[0], &run, &NAMES[..2]).contains("| met |"));
        run[0].by_library = Some(0.023);
        let missed = rows(&run[0], &run, &NAMES[..2]);
        assert_eq!(missed.matches("| **missed**: 2.3 % by the HTTP library |\n").count(), 3, "{missed}");
    }

    #[test]
    fn the_best_peer_is_another_proxy_that_was_measured() {
        let run = [measured("steady", &[&[7.0; 3], &[9.0; 3], &[], &[8.0; 3], &[1.0; 3], &[1.0; 3]])];
        let row = rows(&run[0], &run, &NAMES);
        assert!(row.ends_with(" | p50 ≤ 1.00 | best peer: Envoy | 0.875 (0.875–0.875) | met |\n"), "{row}");
        let alone = rows(&run[0], &run, &NAMES[..1]);
        assert!(alone.ends_with(" | best peer: none measured |  | not measured |\n"), "{alone}");
    }

    #[test]
    fn a_goal_beyond_the_bound_is_named() {
        let run = [measured("http2", &[&[8.0; 3], &[10.0; 3]])];
        let row = rows(&run[0], &run, &NAMES[..2]);
        assert!(row.contains("| CPU ≤ 0.85, then 0.75 | HAProxy | 0.800 (0.800–0.800) | met |"), "{row}");
    }

    #[test]
    fn many_routes_are_compared_with_one() {
        let run = [measured("routes-one", &[&[10.0; 3]]), measured("routes", &[&[11.0; 3]])];
        let row = rows(&run[1], &run, &NAMES[..1]);
        assert!(row.contains("| itself, `routes-one` | 1.100 (1.100–1.100) | **missed** |"), "{row}");
        let row = rows(&run[1], &run[1..], &NAMES[..1]);
        assert!(row.ends_with("| itself, `routes-one` |  | not measured |\n"), "{row}");
    }
}
