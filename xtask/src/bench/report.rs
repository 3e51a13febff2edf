//! The result as a Markdown table for each workload, to standard output and into `docs/performance.md`.

use std::fmt::Write;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

use super::peers::Peer;
use super::sample::{Sample, median, ratio};
use super::workload::Workload;
use crate::shell;

const DOCUMENT: &str = "docs/performance.md";

pub(super) struct Report {
    names: Vec<&'static str>,
    heading: String,
    measured: Vec<Measured>,
}

/// One workload's samples, by proxy, then by round.
pub(super) struct Measured {
    name: &'static str,
    title: &'static str,
    pub(super) samples: Vec<Vec<Sample>>,
}

impl Measured {
    pub(super) fn new(workload: &Workload, proxies: usize) -> Self {
        let samples = vec![Vec::new(); proxies];
        Self { name: workload.name, title: workload.title, samples }
    }

    fn cpu(&self, proxy: usize) -> Vec<f64> {
        self.samples[proxy].iter().map(|sample| sample.cpu).collect()
    }
}

impl Report {
    pub(super) fn new(peers: &[Box<dyn Peer>], rounds: usize, duration: Duration) -> Result<Self> {
        let named = |peer: &dyn Peer| Ok(format!("{} {}", peer.name(), peer.version()?));
        let versions = peers.iter().map(|peer| named(peer.as_ref())).collect::<Result<Vec<_>>>()?.join(", ");
        let date = shell::ask("date", &["-u", "+%F"]).unwrap_or_default();
        let heading = format!(
            "{date}, {}; {versions}. {rounds} interleaved rounds of {} s each after one that is not counted.\n",
            machine(),
            duration.as_secs()
        );
        Ok(Self { names: peers.iter().map(|peer| peer.name()).collect(), heading, measured: Vec::new() })
    }

    pub(super) fn add(&mut self, measured: Measured) {
        self.measured.push(measured);
    }

    pub(super) fn text(&self) -> String {
        let tables: String = self.measured.iter().map(|measured| self.table(measured)).collect();
        format!("{}{tables}{}", self.heading, self.match_cost())
    }

    /// Replaces what the document says of the last run.
    pub(super) fn write(&self) -> Result<()> {
        replace("http", &self.text())
    }

    fn table(&self, measured: &Measured) -> String {
        let mut text = format!("\n### {}\n\n", measured.title);
        text += "| | µs CPU/request | Portcullis ÷ it (95 %) | requests/s | p50 ms | p99 ms | RSS MB | failed |\n";
        text += "|---|---|---|---|---|---|---|---|\n";
        for proxy in 0..self.names.len() {
            text += &self.row(measured, proxy);
        }
        text
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
            "| {} | {:.1} | {compared} | {:.0} | {:.2} | {:.2} | {:.0} | {failed} |\n",
            self.names[proxy],
            of(|sample| sample.cpu),
            of(|sample| sample.rate),
            of(|sample| sample.p50.as_secs_f64() * 1e3),
            of(|sample| sample.p99.as_secs_f64() * 1e3),
            of(|sample| sample.memory),
        )
    }

    /// The same process with the same configuration, asked for one route or for ten thousand.
    fn match_cost(&self) -> String {
        let find = |name| self.measured.iter().find(|measured| measured.name == name);
        let (Some(one), Some(many)) = (find("routes-one"), find("routes")) else { return String::new() };
        let mut text =
            "\nCPU per request of 10,000 routes ÷ of 1, in the same process (1.00 = flat): ".to_owned();
        for (proxy, name) in self.names.iter().enumerate() {
            let cost = median(many.cpu(proxy)) / median(one.cpu(proxy));
            let separator = if proxy == 0 { "" } else { ", " };
            let _ = write!(text, "{separator}{name} {cost:.2}");
        }
        text + ".\n"
    }
}

/// Replaces what the document says between the marks of a benchmark.
pub(super) fn replace(bench: &str, text: &str) -> Result<()> {
    let (begin, end) = (format!("<!-- bench {bench}: begin -->\n"), format!("<!-- bench {bench}: end -->"));
    let path = shell::root().join(DOCUMENT);
    let old = fs::read_to_string(&path)?;
    let (before, rest) = old.split_once(&begin).with_context(|| format!("{DOCUMENT} has lost {begin:?}"))?;
    let (_, after) = rest.split_once(&end).with_context(|| format!("{DOCUMENT} has lost {end:?}"))?;
    Ok(fs::write(path, format!("{before}{begin}{text}{end}{after}"))?)
}

pub(super) fn machine() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        cpuinfo.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split_once(": "));
    let cores = cpuinfo.lines().filter(|line| line.starts_with("processor")).count();
    let kernel = shell::ask("uname", &["-r"]).unwrap_or_default();
    format!("{cores} × {}, Linux {kernel}", model.map_or("unknown CPU", |(_, model)| model))
}
