//! h2spec, which tries what RFC 7540 and RFC 7541 have of "MUST" and "SHOULD" (`--strict`), on the
//! plain and on the TLS port. It is fetched and built by Go, and left to full runs: it takes for
//! silence what comes late.

use std::process::Command;

use anyhow::{Context, Result};
use portcullis_testbed::{command, go, workspace};

use crate::Size;
use crate::report::{Passed, Report};
use crate::world::World;

/// A module that names its version; relative to the workspace.
const MODULE: &str = "tests/attack/h2spec";

pub(crate) fn run(world: &World, size: Size, report: &mut Report) -> Result<()> {
    if size == Size::Quick {
        return Ok(());
    }
    go::ensure()?;
    let directory = tempfile::Builder::new().prefix("portcullis-attack-").tempdir()?;
    let program = directory.path().join("h2spec");
    let mut build = go::command(&workspace::root().join(MODULE));
    build.args(["build", "-o"]).arg(&program).arg("github.com/summerwind/h2spec/cmd/h2spec");
    command::run(&mut build)?;
    for (name, address, tls) in [("h2c", world.plain, &[][..]), ("TLS", world.tls, &["-t", "-k"])] {
        let mut h2spec = Command::new(&program);
        h2spec.args(["--strict", "--timeout", "10", "--path", "/h2spec"]).args(tls);
        h2spec.args(["-h", &address.ip().to_string(), "-p", &address.port().to_string()]);
        let output = h2spec.output().context("cannot run h2spec")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        // "146 tests, 146 passed, 0 skipped, 0 failed"
        let last = text.lines().rfind(|line| line.contains(" tests, ")).unwrap_or("no result");
        let passed = output.status.success() && last.contains(" passed, 0 skipped, 0 failed");
        if !passed {
            println!("{text}");
        }
        report.add(format!("h2spec --strict: {name}"), last, passed.then_some(Passed));
    }
    Ok(())
}
