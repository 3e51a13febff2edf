//! Running a command for what it prints.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Its standard output. If it fails, its standard error is the error.
pub(crate) fn of(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {program}"))?;
    if !output.status.success() {
        bail!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
