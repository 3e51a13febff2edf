//! Commands of cargo that do not come with it: built from crates.io once for each version, and kept
//! in the cache.

use std::env;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::versions::CargoTool;
use crate::{command, workspace};

/// The program, built if it is not in the cache. Its build takes minutes.
pub fn ensure(tool: CargoTool) -> Result<PathBuf> {
    let root = workspace::cache().join(format!("{}-{}", tool.name, tool.version));
    let program = root.join("bin").join(tool.name);
    fs::create_dir_all(workspace::cache())?;
    // Two at once would build everything twice, at half the speed.
    let lock = File::create(workspace::cache().join(format!("{}.lock", tool.name)))?;
    if lock.try_lock().is_err() {
        println!("setup: waiting for another setup");
        lock.lock()?;
    }
    if !program.is_file() {
        println!("setup: building {} {} (some minutes, once)", tool.name, tool.version);
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()));
        cargo.args(["install", tool.name, "--locked", "--quiet", "--version", tool.version, "--root"]);
        // What an outer cargo was told of its target is not meant for a tool.
        cargo.arg(&root).current_dir(env::temp_dir()).env_remove("RUSTFLAGS").env_remove("CARGO_TARGET_DIR");
        // It runs for seconds, whatever its own profile would have cargo spend on it.
        cargo.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1").env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
        cargo.env("CARGO_PROFILE_RELEASE_LTO", "off").env("CARGO_PROFILE_RELEASE_DEBUG", "false");
        command::run(&mut cargo).with_context(|| format!("{} is needed", tool.name))?;
    }
    Ok(program)
}
