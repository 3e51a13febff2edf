//! `portcullis ready`: `/readyz` or `/livez` for probes that run a command and make no request.

use std::process::ExitCode;

use anyhow::Result;

use crate::admin::client::Agent;
use crate::cli::ReadyArgs;
use crate::output;

pub(crate) fn run(args: &ReadyArgs, agent: &Agent) -> Result<ExitCode> {
    let question = if args.live { "/livez" } else { "/readyz" };
    output::text(&agent.get(question)?);
    Ok(ExitCode::SUCCESS)
}
