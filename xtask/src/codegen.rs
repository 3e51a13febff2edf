//! `cargo xtask codegen`: upstream's CRDs plus our patches → `deploy/crds` → the Rust types in
//! `agent/api/src/types`.
//!
//! The types are made here and not by kopium: enumerations must stay strings (a newer CRD may add a
//! value), descriptions are left out, and equal structs of different kinds must become one type.
//! That is all of kopium's output rewritten.

mod bundle;
mod names;
mod patch;
mod render;
mod shape;
mod types;
mod yaml;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use portcullis_testbed::workspace;

const CRDS: &str = "deploy/crds";
const API: &str = "agent/api/src/types";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Write nothing; fail if a generated file is not what it would be now. Needs no network
    #[arg(long)]
    check: bool,
    /// Take the CRDs anew from this Gateway API release, for example v1.7.0. Another release than
    /// the committed one goes to target/crds
    #[arg(long, value_name = "VERSION", conflicts_with = "check")]
    bundle: Option<String>,
}

impl Args {
    pub(crate) fn check() -> Self {
        Self { check: true, bundle: None }
    }
}

/// Text by path relative to the workspace.
type Files = BTreeMap<PathBuf, String>;

pub(crate) fn run(args: &Args) -> Result<()> {
    if let Some(version) = &args.bundle {
        let files = bundle::patched(version)?;
        write(&files)?;
        if version != bundle::COMMITTED {
            return Ok(());
        }
    }
    let crds = bundle::committed()?;
    let types = types::generate(&crds)?;
    if args.check { check(&types) } else { write(&types) }
}

fn write(files: &Files) -> Result<()> {
    for (path, text) in files {
        let place = workspace::root().join(path);
        fs::create_dir_all(place.parent().unwrap_or(&place))?;
        fs::write(&place, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    println!("codegen: {} files written", files.len());
    Ok(())
}

fn check(files: &Files) -> Result<()> {
    let is_stale = |(path, text): &(&PathBuf, &String)| {
        fs::read_to_string(workspace::root().join(path)).ok().as_ref() != Some(*text)
    };
    let stale: Vec<_> = files.iter().filter(is_stale).map(|(path, _)| path.display().to_string()).collect();
    if !stale.is_empty() {
        bail!("stale: {}; run `cargo xtask codegen` and commit", stale.join(", "));
    }
    println!("codegen: {} files are up to date", files.len());
    Ok(())
}
