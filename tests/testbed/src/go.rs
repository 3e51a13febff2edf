//! Go, by which the test cluster, Helm and releases of the Gateway API are had: the one in PATH if
//! it is new enough, else one in our cache. Go's releases are Go modules, too, so an old Go, such
//! as Debian's, fetches a new one, and checks it against the checksum database.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::versions::GO;
use crate::{command as program, workspace};

/// A nested module, relative to the workspace, that asks for as new a Go as any here.
const MODULE: &str = "tests/cluster";

/// Go in a directory, with nothing of the user's settings but where modules come from.
pub fn command(directory: &Path) -> Command {
    let own = installed().join("bin/go");
    let is_own = own.is_file();
    let mut go = Command::new(if is_own { own } else { PathBuf::from("go") });
    if is_own {
        go.env_remove("GOROOT");
    }
    go.current_dir(directory).env("CGO_ENABLED", "0").env("GOTOOLCHAIN", "local").env_remove("GOFLAGS");
    go
}

/// Fetches one unless there is one that is new enough.
pub fn ensure() -> Result<()> {
    if check().is_ok() {
        return Ok(());
    }
    if program::find("go").is_none() {
        bail!("there is no Go: run `cargo xtask setup --cluster`");
    }
    println!("setup: fetching Go {GO}");
    install()
        .with_context(|| format!("no Go {GO} or newer (https://go.dev/dl), and it cannot be fetched"))?;
    check()
}

/// A program built from a package of a nested module, once for given sources and sums, and kept in
/// the cache. `module` is relative to the workspace; `name` is the program's there.
pub fn built(module: &str, package: &str, name: &str) -> Result<PathBuf> {
    let directory = workspace::root().join(module);
    let place = workspace::cache().join(format!("{name}-{}", key(&directory)?));
    fs::create_dir_all(workspace::cache())?;
    // Of two at once, one would take what the other has built away from it.
    let lock = File::create(place.with_extension("lock"))?;
    if lock.try_lock().is_err() {
        println!("{name}: waiting for another build of it");
        lock.lock()?;
    }
    if place.is_file() {
        return Ok(place);
    }
    println!("{name}: building it (a few minutes the first time)");
    ensure()?;
    // A program with the key in its name is whole: it gets its name last.
    let partial = place.with_extension(format!("partial-{}", std::process::id()));
    let mut go = command(&directory);
    go.args(["build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o"]).arg(&partial).arg(package);
    program::run(&mut go)?;
    fs::rename(&partial, &place)?;
    Ok(place)
}

/// The version of another module that a nested module asks for.
pub fn required(module: &str, name: &str) -> Result<String> {
    let text = fs::read_to_string(workspace::root().join(module).join("go.mod"))
        .with_context(|| format!("cannot read {module}/go.mod"))?;
    let version = |line: &str| {
        let line = line.trim().trim_start_matches("require ");
        Some(line.strip_prefix(name)?.strip_prefix(' ')?.split(' ').next()?.to_owned())
    };
    text.lines().find_map(version).with_context(|| format!("{module}/go.mod does not require {name}"))
}

/// Directory in which Go keeps the sources of another module that a nested module asks for.
pub fn source(module: &str, name: &str) -> Result<PathBuf> {
    let directory = workspace::root().join(module);
    program::output(command(&directory).args(["mod", "download", name]))?;
    let source = program::output(command(&directory).args(["list", "-m", "-f", "{{.Dir}}", name]))?;
    Ok(PathBuf::from(source.trim()))
}

/// A digest of a module's sums, and of its own sources.
fn key(module: &Path) -> Result<String> {
    let read = |path: &Path| fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    let mut digest = Sha256::new_with_prefix(read(&module.join("go.sum"))?);
    let mut sources = sources(module)?;
    sources.sort();
    for source in sources {
        digest.update(read(&source)?);
    }
    Ok(digest.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect())
}

fn sources(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).with_context(|| format!("no {}", directory.display()))? {
        let path = entry?.path();
        // A directory with a go.mod is another module.
        if path.is_dir() && !path.join("go.mod").is_file() {
            found.extend(sources(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "go") {
            found.push(path);
        }
    }
    Ok(found)
}

fn check() -> Result<()> {
    program::output(command(&workspace::root().join(MODULE)).args(["list", "-m"])).map(drop)
}

fn installed() -> PathBuf {
    workspace::cache().join(format!("go-{GO}"))
}

/// It gets its name last: a directory of that name is whole.
fn install() -> Result<()> {
    let place = installed();
    let partial = workspace::cache().join(format!("go-{GO}.partial"));
    let _ = fs::remove_dir_all(&partial);
    fs::create_dir_all(&partial)?;
    let root = download(&partial)?;
    // A module has neither executable files nor other modules in it.
    fs::copy(root.join("src/_go.mod"), root.join("src/go.mod"))?;
    make_executable(&root.join("bin"))?;
    make_executable(&root.join("pkg/tool"))?;
    fs::rename(&root, &place)?;
    Ok(fs::remove_dir_all(&partial)?)
}

fn download(cache: &Path) -> Result<PathBuf> {
    let module = format!("golang.org/toolchain@v0.0.1-go{GO}.linux-{}", architecture()?);
    let mut go = Command::new("go");
    go.args(["mod", "download", "-json", &module]).current_dir(cache);
    go.env("GOMODCACHE", cache).env("GOFLAGS", "-modcacherw").env("GOTOOLCHAIN", "local");
    let answer: Value = serde_json::from_str(&program::output(&mut go)?)?;
    let directory = answer["Dir"].as_str();
    directory.map(PathBuf::from).with_context(|| format!("`go mod download {module}` left nothing"))
}

/// As Go calls it.
fn architecture() -> Result<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        other => bail!("unknown to Go: {other}"),
    }
}

fn make_executable(directory: &Path) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            make_executable(&path)?;
        } else {
            fs::set_permissions(&path, Permissions::from_mode(0o755))?;
        }
    }
    Ok(())
}
