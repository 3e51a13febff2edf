//! Log lines on standard error, for people or as JSON.

use std::io::IsTerminal;

use anyhow::{Context, Result};
use tracing_subscriber::EnvFilter;

use crate::cli::LogFormat;

/// Crates that log each request that fails, and each watch that has gone with its directory. The
/// code that made the request or the watch logs it once and in words; `--log kube_runtime=warn`
/// brings these lines back.
const QUIET: &str = "kube_client=off,kube_runtime=off,notify=off";

pub(crate) fn start(filter: &str, format: LogFormat) -> Result<()> {
    let filter = EnvFilter::try_new(format!("{QUIET},{filter}"))
        .with_context(|| format!("--log {filter:?} is no log filter"))?;
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let lines = lines.with_ansi(std::io::stderr().is_terminal());
    match format {
        LogFormat::Text => lines.with_target(false).init(),
        LogFormat::Json => lines.json().flatten_event(true).init(),
    }
    Ok(())
}
