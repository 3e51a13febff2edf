//! The result as a Markdown table for each workload, after one of the bounds that are wanted of
//! them, to standard output and into `docs/performance.md`. A run of some workloads replaces their
//! tables and rows there and leaves the others as they are.

use std::fmt::Write;
use std::fs;

use anyhow::Result;
use portcullis_testbed::command;

use super::bounds;
use super::document::{self, title_line};
use super::peers::Peer;
use super::sample::{Interval, Measured, Rounds, Sample, interval, median};
use super::workload::WORKLOADS;

/// Title of the table that a report begins with.
const BOUNDS: &str = "Bounds";

pub(super) struct Report {
    names: Vec<&'static str>,
    /// The machine and the versions.
    heading: String,
    date: String,
    pub(super) rounds: Rounds,
    measured: Vec<Measured>,
}

impl Report {
    pub(super) fn new(peers: &[Box<dyn Peer>], rounds: Rounds) -> Result<Self> {
        let versions = peers.iter().map(|peer| Ok(format!("{} {}", peer.name(), peer.version()?)));
        let versions = versions.collect::<Result<Vec<_>>>()?.join(", ");
        let date = command::ask("date", &["-u", "+%F"]).unwrap_or_default();
        let names = peers.iter().map(|peer| peer.name()).collect();
        let heading = format!("{};\n{versions}.\n", machine());
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
            let new = self.measured(workload.name).map(|measured| self.section(measured));
            new.or_else(|| document::section(old, workload.title))
        });
        format!("{}{}{}", self.heading, self.bounds(old), sections.collect::<String>())
    }

    fn measured(&self, workload: &str) -> Option<&Measured> {
        self.measured.iter().find(|measured| measured.workload.name == workload)
    }

    /// The table of bounds, with the rows of an older one for what was not measured.
    fn bounds(&self, old: &str) -> String {
        let old = document::section(old, BOUNDS).unwrap_or_default();
        let rows = WORKLOADS.iter().map(|workload| match self.measured(workload.name) {
            Some(measured) => bounds::rows(measured, &self.measured, &self.names),
            None => rows_of(&old, workload.title),
        });
        let rows: String = rows.collect();
        if rows.is_empty() { rows } else { format!("{}\n{}{rows}", title_line(BOUNDS), bounds::HEAD) }
    }

    fn section(&self, measured: &Measured) -> String {
        let mut text = format!("{}\n{}\n", title_line(measured.workload.title), self.occasion(measured));
        text += "| | µs CPU/request | Portcullis ÷ it (95 %) | requests/s | p50 ms | p99 ms | RSS MB | failed |\n";
        text += "|---|---|---|---|---|---|---|---|\n";
        for proxy in (0..self.names.len()).filter(|&proxy| measured.has(proxy)) {
            text += &self.row(measured, proxy);
        }
        if let Some(share) = measured.by_library {
            text += &format!("\nRequests by the HTTP library: {:.1} %.\n", share * 100.0);
        }
        if measured.workload.load.rate.is_some() {
            text += &self.slowest(measured);
        }
        if measured.workload.name == "routes" {
            text += &self.match_cost(measured);
        }
        text
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
        let of = |value: fn(&Sample) -> f64| median(measured.values(proxy, value));
        let failed: u64 = measured.samples[proxy].iter().map(|sample| sample.failed).sum();
        let compared = compared(measured, proxy, |sample| sample.cpu);
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

    /// With the rate given, the slowest answers are what is left to compare.
    fn slowest(&self, measured: &Measured) -> String {
        let mut text = "\n| | p99 ms (95 %) | Portcullis ÷ it (95 %) |\n|---|---|---|\n".to_owned();
        for proxy in (0..self.names.len()).filter(|&proxy| measured.has(proxy)) {
            let p99 = |sample: &Sample| sample.p99.as_secs_f64() * 1e3;
            let Interval { median, low, high } = interval(measured.values(proxy, p99));
            let (name, compared) = (self.names[proxy], compared(measured, proxy, p99));
            text += &format!("| {name} | {median:.3} ({low:.3}–{high:.3}) | {compared} |\n");
        }
        text
    }

    /// The same process with the same configuration, asked for one route or for ten thousand.
    fn match_cost(&self, many: &Measured) -> String {
        let Some(one) = self.measured("routes-one") else { return String::new() };
        let mut text =
            "\nCPU per request of 10,000 routes ÷ of 1, in the same process (1.00 = flat):\n".to_owned();
        for (proxy, name) in self.names.iter().enumerate() {
            let cost = many.against(one, proxy, |sample| sample.cpu).median;
            let separator = if proxy == 0 { "" } else { ", " };
            let _ = write!(text, "{separator}{name} {cost:.2}");
        }
        text + ".\n"
    }
}

/// Portcullis ÷ a proxy, as a cell.
fn compared(measured: &Measured, proxy: usize, of: fn(&Sample) -> f64) -> String {
    let ratio = measured.compared(proxy, of).filter(|_| proxy > 0);
    ratio.map_or("1".to_owned(), |it| format!("**{:.2}** ({:.2}–{:.2})", it.median, it.low, it.high))
}

/// The rows of a table that begin with a title.
fn rows_of(table: &str, title: &str) -> String {
    let begin = format!("| {title} |");
    table.split_inclusive('\n').filter(|row| row.starts_with(&begin)).collect()
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
    use crate::workload::Workload;

    fn report(workload: &'static Workload) -> Report {
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
    fn requests_by_the_library_are_told() {
        let mut report = report(&WORKLOADS[0]);
        assert!(!report.text().contains("library"));
        report.measured[0].by_library = Some(0.0);
        assert!(report.text().contains("\nRequests by the HTTP library: 0.0 %.\n"));
    }

    #[test]
    fn dropped_rounds_are_told() {
        let expected = "2026-11-28, 1 rounds of 2 s; 2 of 3 rounds dropped for foreign CPU time over 2 %.";
        assert!(report(&WORKLOADS[0]).text().contains(expected));
    }

    #[test]
    fn a_run_of_some_workloads_leaves_the_others_as_they_are() {
        let [first, second, third, ..] = WORKLOADS else { panic!("too few workloads") };
        let section = |it: &Workload, text: &str| format!("{}\n{text}\n", title_line(it.title));
        let row = |it: &Workload, text: &str| format!("| {} | {text} |\n", it.title);
        let table = |rows: &[String]| format!("{}\n{}{}", title_line(BOUNDS), bounds::HEAD, rows.concat());
        let old = [
            "another machine\n".to_owned(),
            table(&[row(first, "kept"), row(first, "too"), row(second, "stale"), row(third, "kept")]),
            section(first, "kept"),
            section(second, "stale"),
            section(third, "kept"),
        ];
        let report = report(second);
        let new = &report.measured[0];
        let of_second = bounds::rows(new, &report.measured, &report.names);
        let expected = [
            "a machine\n".to_owned(),
            table(&[row(first, "kept"), row(first, "too"), of_second, row(third, "kept")]),
            section(first, "kept"),
            report.section(new),
            section(third, "kept"),
        ];
        assert_eq!(report.merged(&old.concat()), expected.concat());
        // The same run once more changes nothing.
        assert_eq!(report.merged(&expected.concat()), expected.concat());
    }

    #[test]
    fn a_rate_that_is_given_has_its_slowest_answers_compared() {
        let text = report(WORKLOADS.iter().find(|it| it.name == "steady").unwrap()).text();
        assert!(text.contains("| Portcullis | 2.000 (2.000–2.000) | 1 |\n"), "{text}");
    }
}
