//! `portcullis ready`: `/readyz` for whoever can run a command and make no request, such as a probe of a pod.

use std::process::ExitCode;

use anyhow::Result;

use crate::cli::ReadyArgs;
use crate::{admin, output};

pub(crate) fn run(args: &ReadyArgs) -> Result<ExitCode> {
    output::text(&admin::client::get(&args.admin.path(), "/readyz")?);
    Ok(ExitCode::SUCCESS)
}
