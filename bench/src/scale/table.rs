//! The result as Markdown.

use std::fmt::Write;
use std::time::Duration;

use portcullis_testbed::command;

use super::handshakes::Names;
use super::world::ROUTES;
use crate::report::machine;

const MIB: f64 = 1_048_576.0 / 1e6;

/// One number of tenants.
pub(super) struct Measured {
    pub(super) tenants: usize,
    pub(super) start: Start,
    pub(super) memory: Memory,
    pub(super) routes: Vec<Duration>,
    pub(super) certificates: Vec<Duration>,
    /// The client's part in seeing a certificate.
    pub(super) handshake: Duration,
}

pub(super) struct Start {
    /// From the start of the process to the last tenant's first answer.
    pub(super) ready: Duration,
    /// From the first edit to its being visible.
    pub(super) first_edit: Duration,
}

/// Resident, in MB.
pub(super) struct Memory {
    /// After the start.
    pub(super) resting: f64,
    /// Time until every tenant was served once.
    pub(super) served: f64,
    /// After all edits.
    pub(super) edited: f64,
    pub(super) peak: f64,
}

pub(super) fn text(measured: &[Measured], names: Option<Names>) -> String {
    let date = command::ask("date", &["-u", "+%F"]).unwrap_or_default();
    let mut text = format!("{date}, {}.\n", machine());
    text += &starts(measured);
    text += &edits(measured);
    text += &names.map(|names| handshakes(&names)).unwrap_or_default();
    text
}

fn starts(measured: &[Measured]) -> String {
    let mut text = "\n| ListenerSets, certificates | routes | cold start s | first edit ms | RSS MiB after the start | \
                    after serving every tenant once | after the edits | peak |\n|---|---|---|---|---|---|---|---|\n"
        .to_owned();
    for Measured { tenants, start, memory, .. } in measured {
        let _ = writeln!(
            text,
            "| {tenants} | {} | {:.2} | {:.1} | {:.0} | {:.0} | {:.0} | {:.0} |",
            tenants * ROUTES,
            start.ready.as_secs_f64(),
            milliseconds(start.first_edit),
            memory.resting / MIB,
            memory.served / MIB,
            memory.edited / MIB,
            memory.peak / MIB
        );
    }
    text
}

fn edits(measured: &[Measured]) -> String {
    let count = measured.first().map_or(0, |measured| measured.routes.len());
    let mut text = format!(
        "\nFrom the changed file being in place until a client sees it, {count} edits of each kind:\n\n\
         | routes | route, p50 ms | p99 ms | certificate, p50 ms | p99 ms | of which the client's handshake |\n\
         |---|---|---|---|---|---|\n"
    );
    for Measured { tenants, routes, certificates, handshake, .. } in measured {
        let _ = writeln!(
            text,
            "| {} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} |",
            tenants * ROUTES,
            percentile(routes, 50),
            percentile(routes, 99),
            percentile(certificates, 50),
            percentile(certificates, 99),
            milliseconds(*handshake)
        );
    }
    text
}

fn handshakes(names: &Names) -> String {
    format!(
        "\nA full TLS 1.3 handshake costs the agent {:.0} µs of CPU with 1 name and {:.0} µs with {} (random ones): \
         ratio {:.3} ({:.3}–{:.3}).\n",
        names.one, names.many, names.count, names.ratio.median, names.ratio.low, names.ratio.high
    )
}

fn percentile(times: &[Duration], percent: usize) -> f64 {
    let mut times = times.to_vec();
    times.sort_unstable();
    let at = (times.len() * percent / 100).min(times.len().saturating_sub(1));
    times.get(at).map_or(f64::NAN, |time| milliseconds(*time))
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
