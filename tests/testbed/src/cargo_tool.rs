//! Commands of cargo that do not come with it: built from crates.io once for each version, and kept
//! in the cache.

use std::env;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::{command, workspace};

/// A package whose only program has its name, and the version of it that is used here.
#[derive(Clone, Copy)]
pub struct CargoTool {
    pub name: &'static str,
    pub version: &'static str,
}

impl CargoTool {
    /// The program, built if it is not in the cache. Its build takes minutes.
    pub fn ensure(self) -> Result<PathBuf> {
        let root = workspace::cache().join(format!("{}-{}", self.name, self.version));
        let program = root.join("bin").join(self.name);
        fs::create_dir_all(workspace::cache())?;
        // Two at once would build everything twice, at half the speed.
        let lock = File::create(workspace::cache().join(format!("{}.lock", self.name)))?;
        lock.lock()?;
        if !program.is_file() {
            println!("setup: building {} {} (some minutes, once)", self.name, self.version);
            let mut cargo = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()));
            cargo.args(["install", self.name, "--locked", "--quiet", "--version", self.version, "--root"]);
            // What an outer cargo was told of its target is not meant for a tool.
            cargo
                .arg(&root)
                .current_dir(env::temp_dir())
                .env_remove("RUSTFLAGS")
                .env_remove("CARGO_TARGET_DIR");
            command::run(&mut cargo).with_context(|| format!("{} is needed", self.name))?;
        }
        Ok(program)
    }
}
