//! The result as a Markdown table for each workload, to standard output and into
//! `docs/performance.md`. A run of some workloads replaces their tables there and leaves the others
//! as they are.

use std::fmt::Write;
use std::fs;

use anyhow::Result;
use portcullis_testbed::command;

use super::document;
use super::peers::Peer;
use super::sample::{Rounds, Sample, median, ratio};
use super::workload::{WORKLOADS, Workload};

pub(super) struct Report {
    names: Vec<&'static str>,
    /// The machine and the versions.
    heading: String,
    date: String,
    pub(super) rounds: Rounds,
    measured: Vec<Measured>,
}

/// One workload's samples, by proxy, then by round.
pub(super) struct Measured {
    name: &'static str,
    title: &'static str,
    pub(super) samples: Vec<Vec<Sample>>,
    /// Rounds that were disturbed.
    pub(super) dropped: usize,
}

impl Measured {
    pub(super) fn new(workload: &Workload, proxies: usize) -> Self {
        let samples = vec![Vec::new(); proxies];
        Self { name: workload.name, title: workload.title, samples, dropped: 0 }
    }

    /// Rounds of which there are samples.
    pub(super) fn kept(&self) -> usize {
        self.samples[0].len()
    }

    fn cpu(&self, proxy: usize) -> Vec<f64> {
        self.samples[proxy].iter().map(|sample| sample.cpu).collect()
    }
}

impl Report {
    pub(super) fn new(peers: &[Box<dyn Peer>], rounds: Rounds) -> Result<Self> {
        let versions = peers.iter().map(|peer| Ok(format!("{} {}", peer.name(), peer.version()?)));
        let versions = versions.collect::<Result<Vec<_>>>()?.join(", ");
        let date = command::ask("date", &["-u", "+%F"]).unwrap_or_default();
        let names = peers.iter().map(|peer| peer.name()).collect();
        let heading = format!("{}; {versions}.\n", machine());
        Ok(Self { names, heading, date, rounds, measured: Vec::new() })
    }

    pub(super) fn add(&mut self, measured: Measured) {
        self.measured.push(measured);
    }

    pub(super) fn text(&self) -> String {
        self.merged("")
    }

    /// Replaces what the document says of the workloads that were measured.
    pub(super) fn write(&self) -> Result<()> {
        document::update("http", |old| self.merged(old))
    }

    /// With the tables of an older report for what was not measured.
    fn merged(&self, old: &str) -> String {
        let sections = WORKLOADS.iter().filter_map(|workload| {
            let new = self.measured.iter().find(|measured| measured.name == workload.name);
            new.map(|measured| self.section(measured)).or_else(|| section_of(old, workload.title))
        });
        format!("{}{}", self.heading, sections.collect::<String>())
    }

    fn section(&self, measured: &Measured) -> String {
        let mut text = format!("{}\n{}\n", title_line(measured.title), self.occasion(measured));
        text += "| | µs CPU/request | Portcullis ÷ it (95 %) | requests/s | p50 ms | p99 ms | RSS MB | failed |\n";
        text += "|---|---|---|---|---|---|---|---|\n";
        for proxy in (0..self.names.len()).filter(|&proxy| !measured.samples[proxy].is_empty()) {
            text += &self.row(measured, proxy);
        }
        if measured.name == "routes" { text + &self.match_cost(measured) } else { text }
    }

    /// Date and rounds.
    fn occasion(&self, measured: &Measured) -> String {
        let (kept, dropped) = (measured.kept(), measured.dropped);
        format!(
            "{}, {kept} rounds of {} s; {dropped} of {} rounds dropped for foreign CPU time over {} %.\n",
            self.date,
            self.rounds.duration.as_secs(),
            kept + dropped,
            self.rounds.foreign,
        )
    }

    fn row(&self, measured: &Measured, proxy: usize) -> String {
        let samples = &measured.samples[proxy];
        let of = |value: fn(&Sample) -> f64| median(samples.iter().map(value).collect());
        let failed: u64 = samples.iter().map(|sample| sample.failed).sum();
        let compared = if proxy == 0 {
            "1".to_owned()
        } else {
            let ratio = ratio(&measured.cpu(0), &measured.cpu(proxy));
            format!("**{:.2}** ({:.2}–{:.2})", ratio.median, ratio.low, ratio.high)
        };
        format!(
            "| {} | {:.1} | {compared} | {:.0} | {:.3} | {:.3} | {:.0} | {failed} |\n",
            self.names[proxy],
            of(|sample| sample.cpu),
            of(|sample| sample.rate),
            of(|sample| sample.p50.as_secs_f64() * 1e3),
            of(|sample| sample.p99.as_secs_f64() * 1e3),
            of(|sample| sample.memory),
        )
    }

    /// The same process with the same configuration, asked for one route or for ten thousand.
    fn match_cost(&self, many: &Measured) -> String {
        let Some(one) = self.measured.iter().find(|measured| measured.name == "routes-one") else {
            return String::new();
        };
        let mut text =
            "\nCPU per request of 10,000 routes ÷ of 1, in the same process (1.00 = flat): ".to_owned();
        for (proxy, name) in self.names.iter().enumerate() {
            let cost = ratio(&many.cpu(proxy), &one.cpu(proxy)).median;
            let separator = if proxy == 0 { "" } else { ", " };
            let _ = write!(text, "{separator}{name} {cost:.2}");
        }
        text + ".\n"
    }
}

fn title_line(title: &str) -> String {
    format!("\n### {title}\n")
}

/// From a title to the next.
fn section_of(report: &str, title: &str) -> Option<String> {
    let title = title_line(title);
    let (_, rest) = report.split_once(&title)?;
    let body = rest.split_once("\n### ").map_or(rest, |(body, _)| body);
    Some(format!("{title}{body}"))
}

pub(super) fn machine() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        cpuinfo.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split_once(": "));
    let cores = cpuinfo.lines().filter(|line| line.starts_with("processor")).count();
    let kernel = command::ask("uname", &["-r"]).unwrap_or_default();
    // A distribution's suffix says nothing about speed.
    let kernel = kernel.split('-').next().unwrap_or_default();
    format!("{cores} × {}, Linux {kernel}", model.map_or("unknown CPU", |(_, model)| model))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn report(workload: &Workload) -> Report {
        let sample = Sample {
            cpu: 20.0,
            rate: 30_000.0,
            p50: Duration::from_millis(1),
            p99: Duration::from_millis(2),
            failed: 0,
            memory: 12.0,
            foreign: 0.0,
        };
        let samples = vec![vec![sample]];
        Report {
            names: vec!["Portcullis"],
            heading: "a machine\n".to_owned(),
            date: "2026-11-28".to_owned(),
            rounds: Rounds { count: 1, duration: Duration::from_secs(2), foreign: 2.0 },
            measured: vec![Measured { samples, dropped: 2, ..Measured::new(workload, 1) }],
        }
    }

    #[test]
    fn dropped_rounds_are_told() {
        let expected = "2026-11-28, 1 rounds of 2 s; 2 of 3 rounds dropped for foreign CPU time over 2 %.";
        assert!(report(&WORKLOADS[0]).text().contains(expected));
    }

    #[test]
    fn a_run_of_some_workloads_leaves_the_others_as_they_are() {
        let [first, second, third, ..] = WORKLOADS else { panic!("too few workloads") };
        let begin = report(first).text();
        let (stale, kept) = (title_line(second.title) + "\nstale\n", title_line(third.title) + "\nkept\n");
        let second = report(second);
        let merged = second.merged(&format!("{begin}{stale}{kept}"));
        assert_eq!(merged, format!("{begin}{}{kept}", second.section(&second.measured[0])));
    }
}
