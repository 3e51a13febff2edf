//! `cargo xtask dashboards`: tables of panels → Grafana's JSON in the chart. `--try` asks a real
//! Prometheus that has scraped a real agent for all of it.
//!
//! Grafana wants to be told many times as much about a panel as a panel says: that is written down
//! once, in `grafana`. That metrics and labels exist is a test of `portcullis-inspect`.

mod grafana;
mod listeners;
mod node;
mod overview;
mod panel;
mod routes;
mod trial;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use portcullis_testbed::workspace;

use crate::demo::Datapath;

/// Relative to the workspace.
const PLACE: &str = "deploy/helm/portcullis/dashboards";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Write nothing; fail if a dashboard is not what it would be now
    #[arg(long)]
    check: bool,
    /// Write nothing; run every query, and those of the alerts, on what Prometheus' own code
    /// scraped of an agent under load, and say how large a scrape is at 10,000 routes
    #[arg(long = "try", conflicts_with = "check")]
    trial: bool,
    /// The way connections find their listener, when tried
    #[arg(long, value_enum, default_value_t, requires = "trial")]
    datapath: Datapath,
    /// An agent to try with that is built already
    #[arg(long, value_name = "FILE", requires = "trial")]
    binary: Option<PathBuf>,
}

impl Args {
    pub(crate) fn check() -> Self {
        Self { check: true, trial: false, datapath: Datapath::Auto, binary: None }
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if args.trial {
        return trial::run(args.binary.as_ref(), args.datapath.into());
    }
    let files = files()?;
    if args.check { check(&files) } else { write(&files) }
}

/// Text by path relative to the workspace.
fn files() -> Result<BTreeMap<PathBuf, String>> {
    let dashboards = [overview::dashboard(), listeners::dashboard(), routes::dashboard(), node::dashboard()];
    let file = |dashboard: &panel::Dashboard| {
        let text = serde_json::to_string_pretty(&grafana::json(dashboard))? + "\n";
        Ok((PathBuf::from(PLACE).join(format!("{}.json", dashboard.name)), text))
    };
    dashboards.iter().map(file).collect()
}

fn write(files: &BTreeMap<PathBuf, String>) -> Result<()> {
    fs::create_dir_all(workspace::root().join(PLACE))?;
    for (path, text) in files {
        fs::write(workspace::root().join(path), text)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    println!("dashboards: {} files written", files.len());
    Ok(())
}

fn check(files: &BTreeMap<PathBuf, String>) -> Result<()> {
    let is_stale = |(path, text): &(&PathBuf, &String)| {
        fs::read_to_string(workspace::root().join(path)).ok().as_ref() != Some(*text)
    };
    let stale: Vec<_> = files.iter().filter(is_stale).map(|(path, _)| path.display().to_string()).collect();
    if !stale.is_empty() {
        bail!("stale: {}; run `cargo xtask dashboards` and commit", stale.join(", "));
    }
    println!("dashboards: {} files are up to date", files.len());
    Ok(())
}
