//! `portcullis ready`: `/readyz` or `/livez` for probes that run a command and make no request.

use std::process::ExitCode;

use anyhow::Result;

use crate::cli::ReadyArgs;
use crate::{admin, output};

pub(crate) fn run(args: &ReadyArgs) -> Result<ExitCode> {
    let question = if args.live { "/livez" } else { "/readyz" };
    output::text(&admin::client::get(&args.admin.path(), question)?);
    Ok(ExitCode::SUCCESS)
}
