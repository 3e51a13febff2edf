//! Embeds the kernel programs if `cargo xtask build-ebpf` has built them. Without them the agent
//! builds all the same and logs at run time that it falls back to ordinary sockets.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

const OVERRIDE: &str = "PORTCULLIS_EBPF_OBJECT";

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-env-changed={OVERRIDE}");
    println!("cargo::rerun-if-changed=build.rs");
    let object = env::var_os(OVERRIDE).map_or_else(well_known, |path| Ok(PathBuf::from(path)))?;
    if object.is_file() {
        println!("cargo::rerun-if-changed={}", object.display());
        println!("cargo::rustc-cfg=ebpf_object");
        println!("cargo::rustc-env=PORTCULLIS_EBPF_OBJECT_EMBEDDED={}", embed(&object)?.display());
    }
    Ok(())
}

/// Path at which xtask puts the object. Cargo reruns a script whose watched file does not exist on
/// every build, so the directory is made and watched instead. This script is another checkout's as
/// well, where they share a target directory: which one it is for is known when it runs.
fn well_known() -> io::Result<PathBuf> {
    let package = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default();
    let directory = Path::new(&package).join("../../target/ebpf");
    fs::create_dir_all(&directory)?;
    println!("cargo::rerun-if-changed={}", directory.display());
    Ok(directory.join("portcullis-ebpf.o"))
}

/// A copy of its own: the build must not see a half-replaced file.
fn embed(object: &Path) -> io::Result<PathBuf> {
    let copy = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("portcullis-ebpf.o");
    fs::copy(object, &copy)?;
    Ok(copy)
}
