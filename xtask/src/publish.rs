//! `cargo xtask publish`: image, list of its parts (SBOM), and chart in a registry, signed. The
//! program that speaks to registries is crane, a Go module that is built in seconds: a client in
//! Rust would have every build of xtask compile an HTTP and TLS stack, and comes without a registry
//! to test against.

mod chart;
mod images;
mod parts;
mod registry;
mod signature;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::PathBuf;

use anyhow::{Context, Result};
use portcullis_testbed::workspace;

use crate::architecture::Architecture;
use crate::image::{self, Published};
use images::Images;
use registry::{Attachment, Registry, Repository, Tag, Transport};
use signature::Key;

const SBOM: Attachment = ("application/vnd.cyclonedx+json", "sbom");
/// Counts that the program is laid out by, as LLVM writes them.
const PROFILE: Attachment = ("application/vnd.portcullis.profdata", "profdata");
/// Directory in which all that is published is made.
const PLACE: &str = "target/publish";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Repository of the image, HOST/PATH/NAME; the chart goes to HOST/PATH/charts/portcullis
    repository: Repository,
    /// Tag of the image [default: the version]
    #[arg(long, default_value = env!("CARGO_PKG_VERSION"))]
    tag: Tag,
    /// Processors that there is an image for; repeat for several, which get one tag [default: this
    /// machine's]
    #[arg(long, value_enum)]
    architecture: Vec<Architecture>,
    /// An agent that is built already, in place of building; it must be static and list its crates.
    /// Repeat for several processors
    #[arg(long, conflicts_with = "architecture")]
    binary: Vec<PathBuf>,
    /// Sign with this ECDSA key (PEM), as cosign does
    #[arg(long)]
    key: Option<PathBuf>,
    /// Replace what is published with this tag, and the chart of this version
    #[arg(long)]
    replace: bool,
    /// Without TLS
    #[arg(long)]
    plain_http: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let key = args.key.as_deref().map(Key::read).transpose()?;
    let transport = if args.plain_http { Transport::Plain } else { Transport::Tls };
    let registry = Registry::new(transport)?;
    let place = workspace::root().join(PLACE);
    // Two at once would pack each other's files.
    fs::create_dir_all(place.parent().unwrap_or(&place))?;
    let lock = File::create(place.with_extension("lock")).context("cannot write into target")?;
    lock.lock()?;
    let _ = fs::remove_dir_all(&place);
    fs::create_dir_all(&place)?;

    let Args { repository, tag, .. } = args;
    let images = Images::of(&programs(args)?)?;
    let digests = images.digests();
    let digest = digests.first().context("there is no program to publish")?;
    let sboms = images.each().map(|image| Ok((image, parts::of(&image.program)?)));
    let sboms = sboms.collect::<Result<Vec<_>>>()?;
    let charts = repository.charts();
    let package = chart::package((repository, digest), &place)?;
    // All that may refuse comes before the first push: the tags say the same version, or none.
    let mut there = None;
    if !args.replace {
        registry.refuse_other(repository, tag, digest)?;
        there = chart::published(&registry, &charts, &package)?;
    }
    images.push(&registry, repository, tag)?;
    println!("publish: image {repository}@{digest} for {}", images.architectures());
    for (Published { layout, profile, .. }, sbom) in sboms {
        let image = &layout.manifest.digest;
        let name = format!("portcullis-{}.cdx.json", layout.architecture.name());
        fs::write(place.join(&name), &sbom).context("cannot write the SBOM")?;
        registry.attach(repository, image, SBOM, sbom)?;
        println!("publish: SBOM in {PLACE}/{name}, and beside the image");
        if let Some(profile) = profile {
            registry.attach(repository, image, PROFILE, fs::read(profile)?)?;
            println!("publish: the profile of {}, beside the image", layout.architecture.name());
        }
    }

    let chart = match there {
        Some(chart) => chart,
        None => chart::push(&registry, &charts, &package, transport)?,
    };
    println!("publish: chart oci://{charts}/{} {}, {chart}", chart::NAME, env!("CARGO_PKG_VERSION"));
    if let Some(key) = key {
        for digest in &digests {
            key.sign(&registry, repository, digest)?;
        }
        key.sign(&registry, &charts.child(chart::NAME), &chart)?;
        println!(
            "publish: all are signed; cosign verify --key PUBLIC.pem --insecure-ignore-tlog=true checks it"
        );
    }
    Ok(())
}

/// Those that are given, or else built, for each processor once.
fn programs(args: &Args) -> Result<Vec<PathBuf>> {
    if !args.binary.is_empty() {
        return Ok(args.binary.clone());
    }
    let mut wanted: BTreeSet<_> = args.architecture.iter().copied().collect();
    if wanted.is_empty() {
        wanted.insert(Architecture::host()?);
    }
    wanted.into_iter().map(|architecture| image::built(architecture, None)).collect()
}

#[cfg(test)]
mod tests;
