//! The programs and images of the test cluster, built from `tests/cluster` once and kept in the
//! cache under a name made of everything that they are built from.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use portcullis_testbed::{command, go, workspace};

/// The nested Go module, relative to the workspace.
const MODULE: &str = "tests/cluster";
const SUITE: &str = "sigs.k8s.io/gateway-api/conformance";

/// The way things are built is part of what they are built from.
const RECIPES: &[&str] = &[include_str!("artifacts.rs"), include_str!("../../../xtask/src/image/archive.rs")];

pub(crate) struct Artifacts {
    directory: PathBuf,
}

impl Artifacts {
    /// From the cache, or built: ten minutes with an empty Go cache, else seconds.
    pub(crate) fn ensure() -> Result<Self> {
        let cache = workspace::cache();
        let directory = cache.join(format!("cluster-{}", key()?));
        if directory.is_dir() {
            return Ok(Self { directory });
        }
        fs::create_dir_all(&cache)?;
        // Two at once would build everything twice, at half the speed.
        let lock = File::create(cache.join("cluster.lock"))?;
        lock.lock()?;
        if !directory.is_dir() {
            build_into(&directory)?;
        }
        Ok(Self { directory })
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }
}

/// The conformance suite's release.
pub fn suite_version() -> Result<String> {
    required(SUITE)
}

/// Directory in which Go keeps the unpacked conformance suite.
fn conformance_module() -> Result<PathBuf> {
    let directory = command::output(go::command(&module()).args(["list", "-m", "-f", "{{.Dir}}", SUITE]))?;
    Ok(PathBuf::from(directory.trim()))
}

/// A directory with the key in its name is whole: it gets its name last.
fn build_into(directory: &Path) -> Result<()> {
    let start = Instant::now();
    println!("cluster: building Kubernetes and the conformance suite (about ten minutes the first time)");
    go::ensure()?;
    let partial = directory.with_extension("partial");
    let _ = fs::remove_dir_all(&partial);
    fs::create_dir_all(partial.join("images"))?;
    command::run(go::command(&module()).args(["mod", "download"]))?;
    build_programs(&partial)?;
    build_images(&partial)?;
    fs::rename(&partial, directory)?;
    println!("cluster: built in {:.0} s: {}", start.elapsed().as_secs_f32(), directory.display());
    Ok(())
}

fn build_programs(place: &Path) -> Result<()> {
    let version = required("k8s.io/kubernetes")?;
    let flags = linker_flags(&version);
    build(&["build"], &flags, &place.join("kubernetes"), "./kubernetes")?;
    build(&["test", "-c"], &flags, &place.join("conformance.test"), "./conformance")?;
    build(&["build"], &flags, &place.join("pause"), "./images/pause")?;
    build(&["build"], &flags, &place.join("coredns"), "./images/coredns")?;
    build(&["build"], &flags, &place.join("echo-basic"), &format!("{SUITE}/echo-basic"))
}

/// The same flags for every package, or shared packages would be compiled anew.
fn build(verb: &[&str], linker: &str, place: &Path, package: &str) -> Result<()> {
    let mut go = go::command(&module());
    go.args(verb).args(["-trimpath", "-buildvcs=false", "-ldflags", linker, "-o"]).arg(place).arg(package);
    command::run(&mut go)
}

/// Without these the API server reports v0.0.0 and kubectl refuses to talk to it.
fn linker_flags(version: &str) -> String {
    let mut numbers = version.trim_start_matches('v').split('.');
    let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    let package = "k8s.io/component-base/version";
    format!(
        "-s -w -X {package}.gitVersion={version} -X {package}.gitMajor={major} -X {package}.gitMinor={minor}"
    )
}

fn build_images(place: &Path) -> Result<()> {
    let suite = suite_images(&conformance_module()?)?;
    let tagged = |name: &str| suite.iter().filter(|tag| tag.contains(name)).cloned().collect::<Vec<_>>();
    write_image(place, "pause", vec!["portcullis.test/pause:1".to_owned()])?;
    write_image(place, "coredns", tagged("/coredns:"))?;
    write_image(place, "echo-basic", tagged("/echo-basic:"))
}

fn write_image(place: &Path, name: &str, tags: Vec<String>) -> Result<()> {
    if tags.is_empty() {
        bail!("the conformance suite no longer uses an image {name}");
    }
    let mut image = workspace::xtask(&["image", "--nobody", "--without-authorities", "--binary"]);
    image.arg(place.join(name)).arg("--output").arg(place.join(format!("images/{name}.tar")));
    for tag in &tags {
        image.args(["--tag", tag]);
    }
    command::run(&mut image)
}

/// The tags that the suite's manifests ask for: pods find them here and pull nothing.
fn suite_images(directory: &Path) -> Result<BTreeSet<String>> {
    let mut images = BTreeSet::new();
    for entry in fs::read_dir(directory).with_context(|| format!("no suite at {}", directory.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            images.extend(suite_images(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            images.extend(images_in(&fs::read_to_string(path)?));
        }
    }
    Ok(images)
}

fn images_in(manifest: &str) -> impl Iterator<Item = String> {
    let image =
        |line: &str| Some(line.trim().trim_start_matches("- ").strip_prefix("image:")?.trim().to_owned());
    manifest.lines().filter_map(image)
}

fn module() -> PathBuf {
    workspace::root().join(MODULE)
}

/// A version in go.mod.
pub(crate) fn required(name: &str) -> Result<String> {
    let text = fs::read_to_string(module().join("go.mod")).context("cannot read tests/cluster/go.mod")?;
    let version = |line: &str| Some(line.trim().strip_prefix(name)?.strip_prefix(' ')?.trim().to_owned());
    text.lines().find_map(version).with_context(|| format!("tests/cluster/go.mod does not require {name}"))
}

/// A digest of the sources, which fix every dependency by go.sum.
fn key() -> Result<String> {
    let mut digest = Sha256::new();
    let module = module();
    for source in sources(&module)? {
        digest.update(source.strip_prefix(&module)?.as_os_str().as_encoded_bytes());
        digest.update(fs::read(&source).with_context(|| format!("cannot read {}", source.display()))?);
    }
    RECIPES.iter().for_each(|recipe| digest.update(recipe));
    Ok(digest.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect())
}

fn sources(directory: &Path) -> Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(directory).with_context(|| format!("no {}", directory.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(sources(&path)?);
        } else if matches!(path.extension().and_then(|it| it.to_str()), Some("go" | "mod" | "sum")) {
            found.insert(path);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_found_in_manifests() {
        let manifest =
            "  containers:\n  - name: a\n    image: example.org/a:v1\n  - image: example.org/b:v2\n";
        assert_eq!(images_in(manifest).collect::<Vec<_>>(), ["example.org/a:v1", "example.org/b:v2"]);
    }

    #[test]
    fn versions_come_from_go_mod() {
        assert!(required("k8s.io/kubernetes").unwrap().starts_with("v1."));
        assert!(linker_flags("v1.37.1").contains("gitMinor=37"));
        assert!(required("example.org/nothing").is_err());
    }
}
