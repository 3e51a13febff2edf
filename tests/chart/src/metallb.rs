//! MetalLB's own programs, built once for a given `tests/chart/metallb/go.sum` and kept in the
//! cache.

use std::path::PathBuf;

use anyhow::Result;
use portcullis_testbed::go;

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
    let program = |name: &str| go::built(MODULE, &format!("{METALLB}/{name}"), &format!("metallb-{name}"));
    let (controller, speaker) = (program("controller")?, program("speaker")?);
    Ok(MetalLb { controller, speaker, crds: go::source(MODULE, METALLB)?.join("config/crd/bases") })
}
