//! Warnings of the compiler and of clippy.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Result, ensure};
use portcullis_testbed::build::{self, Profile};
use portcullis_testbed::{command, workspace};
use serde_json::Value;

/// Cargo with clippy in the compiler's place, which lints what it compiles. With `cargo clippy`,
/// all dependencies would be compiled once more.
pub(super) fn linting_cargo() -> Command {
    let mut cargo = workspace::cargo();
    lint(&mut cargo);
    cargo
}

/// Has a program's cargo find what [`linting_cargo`] has built.
pub(super) fn lint(command: &mut Command) -> &mut Command {
    command.env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver")
}

/// Of all targets.
pub(super) fn of_workspace() -> Result<()> {
    none(linting_cargo().args(super::BUILD_ARGUMENTS))
}

/// Of the agent alone, without the features that tests and fuzzing add to its crates.
pub(super) fn of_agent() -> Result<()> {
    none(&mut build::static_build(Profile::Quick)?)
}

/// Fails if there are any in what the command builds: cargo repeats those of what is built already.
fn none(build: &mut Command) -> Result<()> {
    let messages = command::output(build.args(["--message-format", "json"]))?;
    let warnings: BTreeSet<_> = messages.lines().filter_map(warning).collect();
    let all: String = warnings.iter().map(String::as_str).collect();
    ensure!(warnings.is_empty(), "{} warnings\n{all}", warnings.len());
    Ok(())
}

/// The text of a message of cargo that is a warning.
fn warning(message: &str) -> Option<String> {
    let message: Value = serde_json::from_str(message).ok()?;
    let said = message.get("message")?;
    let is_warning = said.get("level")?.as_str()? == "warning";
    is_warning.then(|| said.get("rendered")?.as_str().map(str::to_owned))?
}

#[cfg(test)]
mod cases {
    use super::*;

    #[test]
    fn only_warnings_count() {
        let of = |level| {
            format!(r#"{{"reason":"compiler-message","message":{{"level":"{level}","rendered":"text"}}}}"#)
        };
        assert_eq!(warning(&of("warning")).as_deref(), Some("text"));
        for other in [of("note"), r#"{"reason":"build-finished","success":true}"#.to_owned(), "text".into()] {
            assert_eq!(warning(&other), None, "{other}");
        }
    }
}
