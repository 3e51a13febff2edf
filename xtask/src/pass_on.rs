//! Commands that are programs of their own: `cargo xtask` only finds and runs them, so nothing in
//! xtask measures or tests.

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result};
use portcullis_testbed::workspace;

#[derive(Clone, Copy)]
pub(crate) struct Program {
    pub(crate) package: &'static str,
}

pub(crate) const ATTACK: Program = Program { package: "portcullis-attack" };
pub(crate) const BENCH: Program = Program { package: "portcullis-bench" };
pub(crate) const CHART: Program = Program { package: "portcullis-chart-tests" };
pub(crate) const CLUSTER: Program = Program { package: "portcullis-test-cluster" };
pub(crate) const CONFORMANCE: Program = Program { package: "portcullis-conformance-tests" };
pub(crate) const TASKS: Program = Program { package: "portcullis-task-tests" };

/// Arguments that the program itself explains.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

impl Program {
    /// Builds and runs it where we are: relative paths are the user's.
    pub(crate) fn command(self) -> Command {
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()));
        cargo.args(["run", "--quiet", "--package", self.package, "--manifest-path"]);
        cargo.arg(workspace::root().join("Cargo.toml")).arg("--");
        cargo
    }

    /// Runs it as the workspace's build left it: of a package alone, dependencies would be built
    /// anew with fewer features.
    pub(crate) fn built(self) -> Command {
        Command::new(workspace::target_directory().join("debug").join(self.package))
    }

    /// Becomes the program.
    pub(crate) fn run(self, given: &Arguments) -> Result<()> {
        Err(self.command().args(&given.arguments).exec()).context("cannot run cargo")
    }
}
