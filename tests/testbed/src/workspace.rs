//! This checkout: its root, what cargo builds in it, and the cache for what takes long to build.
//! Other developer commands are run as programs, so that no test and no benchmark compiles them.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The workspace's root.
pub fn root() -> &'static Path {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.ancestors().nth(2).unwrap_or(manifest)
}

/// The cargo that runs us, at the workspace's root.
pub fn cargo() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.current_dir(root());
    cargo
}

/// `cargo xtask`, with arguments.
pub fn xtask(arguments: &[&str]) -> Command {
    let mut xtask = cargo();
    xtask.args(["run", "--quiet", "--package", "xtask", "--"]).args(arguments);
    xtask
}

/// Directory in which cargo builds, relative to the root unless CARGO_TARGET_DIR is absolute.
pub fn target_directory() -> PathBuf {
    let directory = env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    root().join(directory)
}

/// Cache for what takes long to build and depends on a version only: `$PORTCULLIS_CACHE`, or under
/// the user's cache directory.
pub fn cache() -> PathBuf {
    let user = || env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let default = || user().or_else(home).unwrap_or_else(env::temp_dir).join("portcullis");
    env::var_os("PORTCULLIS_CACHE").map(PathBuf::from).unwrap_or_else(default)
}
