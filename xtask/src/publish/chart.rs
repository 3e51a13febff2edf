//! The Helm chart as an OCI artifact, with the image that it installs pinned by its digest.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use flate2::read::GzDecoder;
use portcullis_testbed::{command, helm, workspace};
use serde_json::Value;

use crate::image::blobs;
use crate::publish::registry::{Registry, Repository, Tag, Transport};

const CHART: &str = "deploy/helm/portcullis";
pub(super) const NAME: &str = "portcullis";
/// The values that are set, as the chart has them.
const REPOSITORY: &str = "repository: portcullis.dev/portcullis\n";
const DIGEST: &str = "digest: \"\"\n";

/// Bytes of a chart, unpacked: a registry's answer may be anything.
const LARGEST: u64 = 16 << 20;

/// Returns the path of the package.
pub(super) fn package((image, digest): (&Repository, &str), place: &Path) -> Result<PathBuf> {
    let chart = place.join("chart");
    copy(&workspace::root().join(CHART), &chart)?;
    pin(&chart.join("values.yaml"), image, digest)?;
    command::output(helm()?.arg("package").arg(&chart).arg("--destination").arg(place))?;
    Ok(place.join(format!("{NAME}-{}.tgz", env!("CARGO_PKG_VERSION"))))
}

/// The digest of the chart of this version, if it is published with the same content. Helm packs
/// the time, too, so that the bytes of two packages differ.
///
/// # Errors
/// When it is published with another content, another image for instance.
pub(super) fn published(registry: &Registry, charts: &Repository, package: &Path) -> Result<Option<String>> {
    let chart = charts.child(NAME);
    let version = Tag::of_version();
    let Some(digest) = registry.digest(&chart, &version)? else { return Ok(None) };
    let layer = layer(&registry.manifest(&chart, &digest)?)?;
    let there = contents(&registry.blob(&chart, &layer)?)?;
    ensure!(
        there == contents(&fs::read(package)?)?,
        "the chart {chart}:{version} is published already, as {digest}, with another content: raise the version, or \
         --replace it"
    );
    Ok(Some(digest))
}

/// Returns the digest of the chart, which is of what was pushed, whatever the registry says.
pub(super) fn push(
    registry: &Registry,
    charts: &Repository,
    package: &Path,
    transport: Transport,
) -> Result<String> {
    let mut push = helm()?;
    push.arg("push").arg(package).arg(format!("oci://{charts}"));
    if transport == Transport::Plain {
        push.arg("--plain-http");
    }
    // Helm tells of it on standard error.
    let output = push.output().context("cannot run helm")?;
    let said =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    ensure!(output.status.success(), "cannot push the chart: {}", said.trim());
    let digest = said.lines().find_map(|line| line.trim().strip_prefix("Digest:"));
    let digest = digest.with_context(|| format!("helm says no digest: {said}"))?.trim().to_owned();
    // It is what is signed.
    let layer = layer(&registry.manifest(&charts.child(NAME), &digest)?)?;
    ensure!(
        layer == blobs::digest(&fs::read(package)?),
        "{charts}/{NAME}@{digest} is not the chart that was pushed, but has {layer}"
    );
    Ok(digest)
}

fn helm() -> Result<Command> {
    Ok(Command::new(helm::program()?))
}

/// The only layer of a chart.
fn layer(manifest: &str) -> Result<String> {
    let manifest: Value = serde_json::from_str(manifest).context("the chart's manifest is no JSON")?;
    let layers = manifest["layers"].as_array().filter(|layers| layers.len() == 1);
    let digest = layers.and_then(|layers| layers[0]["digest"].as_str());
    Ok(digest.context("a chart has one layer, and this manifest has not")?.to_owned())
}

/// By path.
fn contents(package: &[u8]) -> Result<BTreeMap<PathBuf, Vec<u8>>> {
    let mut left = LARGEST;
    let mut archive = tar::Archive::new(GzDecoder::new(package).take(LARGEST));
    let mut contents = BTreeMap::new();
    for entry in archive.entries()? {
        let mut entry = entry?;
        let (path, mut bytes) = (entry.path()?.into_owned(), Vec::new());
        entry.by_ref().take(left).read_to_end(&mut bytes)?;
        left -= u64::try_from(bytes.len())?;
        contents.insert(path, bytes);
    }
    Ok(contents)
}

fn pin(values: &Path, image: &Repository, digest: &str) -> Result<()> {
    let mut text = fs::read_to_string(values).context("the chart has no values")?;
    for (from, to) in
        [(REPOSITORY, format!("repository: {image}\n")), (DIGEST, format!("digest: {digest}\n"))]
    {
        ensure!(text.matches(from).count() == 1, "{} does not have {from:?} once", values.display());
        text = text.replace(from, &to);
    }
    fs::write(values, text).context("cannot write the chart's values")
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("no {}", from.display()))? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &to)?;
        } else {
            fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}
