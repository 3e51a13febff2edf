//! MetalLB's own programs, built once for a given `tests/chart/metallb/go.sum` and kept in the
//! cache.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use portcullis_testbed::{command, go, workspace};
use sha2::{Digest, Sha256};

/// The nested Go module, relative to the workspace.
const MODULE: &str = "tests/chart/metallb";
const METALLB: &str = "go.universe.tf/metallb";

pub(super) struct MetalLb {
    pub(super) controller: PathBuf,
    pub(super) speaker: PathBuf,
    /// Directory of its CRDs.
    pub(super) crds: PathBuf,
}

pub(super) fn programs() -> Result<MetalLb> {
    let module = workspace::root().join(MODULE);
    go::ensure()?;
    let sums = fs::read(module.join("go.sum")).context("no tests/chart/metallb/go.sum")?;
    let key: String = Sha256::digest(sums).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let program = |name: &str| -> Result<PathBuf> {
        let place = workspace::cache().join(format!("metallb-{name}-{key}"));
        if !place.is_file() {
            println!("chart: building MetalLB's {name} (a few minutes the first time)");
            let partial = place.with_extension("partial");
            let mut build = go::command(&module);
            build.args(["build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o"]).arg(&partial);
            command::run(build.arg(format!("{METALLB}/{name}")))?;
            // A program with the key in its name is whole: it gets its name last.
            fs::rename(&partial, &place)?;
        }
        Ok(place)
    };
    let (controller, speaker) = (program("controller")?, program("speaker")?);
    let source = command::output(go::command(&module).args(["list", "-m", "-f", "{{.Dir}}", METALLB]))?;
    Ok(MetalLb { controller, speaker, crds: PathBuf::from(source.trim()).join("config/crd/bases") })
}
