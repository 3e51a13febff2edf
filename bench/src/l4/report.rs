//! The result as a Markdown table for each workload, and one for bytes and ends.

use std::fmt::Write;
use std::time::Duration;

use anyhow::Result;
use portcullis_testbed::command;

use super::integrity::Integrity;
use super::load::Seen;
use super::proxies::Proxy;
use super::workload::{Kind, Workload};
use crate::report::machine;
use crate::sample::{median, ratio};

const GIB: f64 = (1_u64 << 30) as f64;
const MIB: f64 = (1_u64 << 20) as f64;

pub(super) struct Report {
    names: Vec<&'static str>,
    heading: String,
    measured: Vec<Measured>,
    checked: Vec<(&'static str, Integrity)>,
}

/// One workload's samples, by proxy, then by round; none of a proxy that does not forward it.
pub(super) struct Measured {
    workload: &'static Workload,
    pub(super) samples: Vec<Vec<Sample>>,
}

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// Seconds for a GiB, or microseconds for a connection or a datagram with its answer.
    cpu: f64,
    /// MiB, connections or answers in a second.
    rate: f64,
    failed: u64,
}

impl Sample {
    pub(super) fn of(kind: Kind, seen: &Seen, used: Duration) -> Self {
        let (done, used) = (seen.done.max(1) as f64, used.as_secs_f64());
        let (cpu, rate) = match kind.is_bulk() {
            true => (used * GIB / done, done / MIB / seen.seconds),
            false => (used * 1e6 / done, done / seen.seconds),
        };
        Self { cpu, rate, failed: seen.failed }
    }
}

impl Measured {
    pub(super) fn new(workload: &'static Workload, proxies: usize) -> Self {
        Self { workload, samples: vec![Vec::new(); proxies] }
    }

    fn cpu(&self, proxy: usize) -> Vec<f64> {
        self.samples[proxy].iter().map(|sample| sample.cpu).collect()
    }

    fn section(&self, names: &[&str]) -> String {
        let (cost, rate) = match self.workload.kind {
            Kind::Bulk(_) | Kind::BulkTls(_) => ("CPU s/GiB", "MiB/s"),
            Kind::Connections | Kind::OneName | Kind::ManyNames => ("µs CPU/connection", "connections/s"),
            Kind::Datagrams => ("µs CPU/answer", "answers/s"),
        };
        let mut text = format!(
            "\n### {}\n\n| | {cost} | Portcullis ÷ it (95 %) | {rate} | failed |\n|---|---|---|---|---|\n",
            self.workload.title
        );
        for (proxy, name) in names.iter().enumerate().filter(|(proxy, _)| !self.samples[*proxy].is_empty()) {
            text += &self.row(proxy, name);
        }
        text
    }

    fn row(&self, proxy: usize, name: &str) -> String {
        let samples = &self.samples[proxy];
        let failed: u64 = samples.iter().map(|sample| sample.failed).sum();
        let compared = if proxy == 0 {
            "1".to_owned()
        } else {
            let ratio = ratio(&self.cpu(0), &self.cpu(proxy));
            format!("**{:.2}** ({:.2}–{:.2})", ratio.median, ratio.low, ratio.high)
        };
        let digits = if self.workload.kind.is_bulk() { 2 } else { 1 };
        let rate = median(samples.iter().map(|sample| sample.rate).collect());
        format!("| {name} | {:.digits$} | {compared} | {rate:.0} | {failed} |\n", median(self.cpu(proxy)))
    }
}

impl Report {
    pub(super) fn new<'a>(proxies: impl Iterator<Item = &'a dyn Proxy>, rounds: usize) -> Result<Self> {
        let (mut names, mut versions) = (Vec::new(), Vec::new());
        for proxy in proxies {
            names.push(proxy.name());
            versions.extend(proxy.version()?.map(|version| format!("{} {version}", proxy.name())));
        }
        let date = command::ask("date", &["-u", "+%F"]).unwrap_or_default();
        let heading = format!("{date}, {}; {}; {rounds} rounds.\n", machine(), versions.join(", "));
        Ok(Self { names, heading, measured: Vec::new(), checked: Vec::new() })
    }

    pub(super) fn add(&mut self, measured: Measured) {
        self.measured.push(measured);
    }

    pub(super) fn check(&mut self, name: &'static str, integrity: Integrity) {
        self.checked.push((name, integrity));
    }

    pub(super) fn text(&self) -> String {
        let sections: String = self.measured.iter().map(|measured| measured.section(&self.names)).collect();
        let mut text = format!("{}{sections}", self.heading);
        if !self.checked.is_empty() {
            text += "\n### Bytes and ends\n\n";
            text +=
                "| | MiB compared | bytes lost | ended one way | answered in full |\n|---|---|---|---|---|\n";
        }
        for (name, Integrity { sent, lost, half_closed, answered }) in &self.checked {
            let compared = sent >> 20;
            let _ = writeln!(text, "| {name} | {compared} | **{lost}** | {half_closed} | **{answered}** |");
        }
        text
    }
}
