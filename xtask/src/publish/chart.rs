//! The Helm chart as an OCI artifact, with the image that it installs pinned by its digest.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use portcullis_testbed::{command, helm, workspace};

use crate::publish::registry::{Repository, Transport};

const CHART: &str = "deploy/helm/portcullis";
pub(super) const NAME: &str = "portcullis";
/// The values that are set, as the chart has them.
const REPOSITORY: &str = "repository: portcullis.dev/portcullis\n";
const DIGEST: &str = "digest: \"\"\n";

/// Returns the digest of the chart.
pub(super) fn publish(
    charts: &Repository,
    (image, digest): (&Repository, &str),
    place: &Path,
    transport: Transport,
) -> Result<String> {
    let chart = place.join("chart");
    copy(&workspace::root().join(CHART), &chart)?;
    pin(&chart.join("values.yaml"), image, digest)?;
    let helm = || -> Result<Command> { Ok(Command::new(helm::program()?)) };
    command::output(helm()?.arg("package").arg(&chart).arg("--destination").arg(place))?;
    let package = place.join(format!("{NAME}-{}.tgz", env!("CARGO_PKG_VERSION")));
    let mut push = helm()?;
    push.arg("push").arg(&package).arg(format!("oci://{charts}"));
    if transport == Transport::Plain {
        push.arg("--plain-http");
    }
    // Helm tells of it on standard error.
    let output = push.output().context("cannot run helm")?;
    let said =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    ensure!(output.status.success(), "cannot push the chart: {}", said.trim());
    let digest = said.lines().find_map(|line| line.trim().strip_prefix("Digest:"));
    Ok(digest.with_context(|| format!("helm says no digest: {said}"))?.trim().to_owned())
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
