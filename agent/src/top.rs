//! `portcullis top`: listeners, routes and backends by their requests, from two samples of an
//! agent's counters, again and again.

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use portcullis_inspect::{Look, Rate, Rates, Table, TrafficSample};

use crate::admin::client::Agent;
use crate::cli::TopArgs;
use crate::output;

/// Clears a terminal, and leaves what has scrolled out of it.
const CLEAR: &str = "\x1b[H\x1b[2J";

pub(crate) fn run(args: &TopArgs, agent: &Agent) -> Result<ExitCode> {
    let interval = Duration::from_secs(args.interval.into());
    let sample = || agent.get_json::<TrafficSample>("/api/v1/traffic?limit=1000");
    let mut before = sample()?;
    while output::is_read() {
        thread::sleep(interval);
        // One that is started anew is there again soon.
        let after = match sample() {
            Err(error) if !args.once => {
                output::error(&format!("{error:#}; asking again in {} s", args.interval));
                continue;
            }
            after => after?,
        };
        let mut rates = Rates::between(&before, &after);
        for kind in [&mut rates.listeners, &mut rates.routes, &mut rates.backends] {
            kind.truncate(usize::from(args.lines));
        }
        match args.output.format() {
            Some(format) => output::value(&serde_json::to_value(&rates)?, format)?,
            None => {
                let clear = !args.once && io::stdout().is_terminal();
                output::text(if clear { CLEAR } else { "" });
                output::text(&text(&rates, output::look()));
            }
        }
        if args.once {
            return Ok(ExitCode::SUCCESS);
        }
        if args.output.format().is_none() && !io::stdout().is_terminal() {
            output::text("\n");
        }
        before = after;
    }
    Ok(ExitCode::SUCCESS)
}

fn text(rates: &Rates, look: Look) -> String {
    let Rates { seconds, open_connections, connections_per_second, listeners, routes, backends } = rates;
    let mut text = format!(
        "{open_connections} connections open, {connections_per_second:.1} new per second, over {seconds:.1} s\n"
    );
    for (kind, rates) in [("LISTENER", listeners), ("ROUTE", routes), ("BACKEND", backends)] {
        let rows: Vec<_> = rates.iter().map(row).collect();
        if !rows.is_empty() {
            text.push('\n');
            text += &Table::new(&[kind, "REQUESTS/S", "ERRORS/S", "P50", "P99"], rows).text(look);
        }
    }
    if [listeners, routes, backends].iter().all(|rates| rates.is_empty()) {
        text += "no traffic since the agent began\n";
    }
    text
}

fn row(rate: &Rate) -> Vec<String> {
    let forwarded = rate.connections_per_second > 0.0 || rate.bytes_per_second > 0.0;
    let requests = match forwarded {
        true => format!("{:.1} connections, {:.0} bytes", rate.connections_per_second, rate.bytes_per_second),
        false => format!("{:.1}", rate.requests_per_second),
    };
    let errors = format!("{:.1}", rate.errors_per_second);
    vec![rate.name.clone(), requests, errors, duration(rate.p50), duration(rate.p99)]
}

fn duration(seconds: Option<f64>) -> String {
    match seconds {
        None => "-".to_owned(),
        Some(seconds) if seconds < 0.001 => "<1 ms".to_owned(),
        Some(seconds) if seconds < 1.0 => format!("{:.0} ms", seconds * 1000.0),
        Some(seconds) => format!("{seconds:.2} s"),
    }
}
