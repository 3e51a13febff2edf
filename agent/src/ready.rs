//! `portcullis ready`: `/readyz` for probes that run a command and make no request.

use std::process::ExitCode;

use anyhow::Result;

use crate::cli::ReadyArgs;
use crate::{admin, output};

pub(crate) fn run(args: &ReadyArgs) -> Result<ExitCode> {
    output::text(&admin::client::get(&args.admin.path(), "/readyz")?);
    Ok(ExitCode::SUCCESS)
}
