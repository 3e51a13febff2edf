//! The suite of a newer release than the test cluster's, made to compile with the Go that is there
//! by `tests/conformance/backport`. Its backends are those that the cluster has the image
//! of.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use portcullis_testbed::{command, go, workspace};

use super::inventory;

/// The tool, a module without dependencies.
const BACKPORT: &str = "tests/conformance/backport";

/// Builds it; the program.
pub(super) fn build(version: &str) -> Result<PathBuf> {
    go::ensure()?;
    let place = workspace::root().join("target").join(format!("conformance-{version}"));
    let program = place.join("conformance.test");
    let tool = workspace::root().join(BACKPORT);
    let mut port = go::command(&tool);
    port.args(["run", ".", "-version", version, "-go", &language(&tool)?]);
    port.args(["-backends", &portcullis_test_cluster::suite_version()?, "-to"]).arg(&place);
    command::run(&mut port)?;
    println!("conformance: building the suite {version} (minutes the first time)");
    let suite = place.join("conformance");
    let inventory = workspace::root().join(inventory::FILE);
    fs::copy(&inventory, suite.join("inventory_test.go"))
        .with_context(|| format!("cannot copy {}", inventory.display()))?;
    let mut test = go::command(&suite);
    // Its go.mod lacks what an older go command would have written there.
    test.env("GOWORK", "off").args(["test", "-c", "-mod=mod", "-trimpath", "-buildvcs=false", "-o"]);
    command::run(test.arg(&program).arg("."))?;
    Ok(program)
}

/// The version of Go that the tool's own module asks for.
fn language(tool: &Path) -> Result<String> {
    let module = tool.join("go.mod");
    let text = fs::read_to_string(&module).with_context(|| format!("cannot read {}", module.display()))?;
    let version = text.lines().find_map(|line| Some(line.strip_prefix("go ")?.trim().to_owned()));
    version.with_context(|| format!("{} has no go directive", module.display()))
}
