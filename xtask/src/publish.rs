//! `cargo xtask publish`: image, list of its parts (SBOM), and chart in a registry, signed. The
//! program that speaks to registries is crane, a Go module that is built in seconds: a client in
//! Rust would have every build of xtask compile an HTTP and TLS stack, and comes without a registry
//! to test against.

mod chart;
mod parts;
mod registry;
mod signature;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use portcullis_testbed::workspace;

use crate::image;
use registry::{Registry, Repository, Tag, Transport};
use signature::Key;

const SBOM: &str = "application/vnd.cyclonedx+json";
/// Directory in which all that is published is made.
const PLACE: &str = "target/publish";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Repository of the image, HOST/PATH/NAME; the chart goes to HOST/PATH/charts/portcullis
    repository: Repository,
    /// Tag of the image [default: the version]
    #[arg(long, default_value = env!("CARGO_PKG_VERSION"))]
    tag: Tag,
    /// An agent that is built already; it must be static and list its crates
    #[arg(long)]
    binary: Option<PathBuf>,
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
    let _ = fs::remove_dir_all(&place);
    fs::create_dir_all(&place)?;

    let Args { repository, tag, .. } = args;
    let archive = place.join("portcullis.tar");
    let (digest, program) =
        image::published(args.binary.as_deref(), &format!("{repository}:{tag}"), &archive)?;
    let sbom = parts::of(&program)?;
    fs::write(place.join("portcullis.cdx.json"), &sbom).context("cannot write the SBOM")?;
    let charts = repository.charts();
    let package = chart::package((repository, &digest), &place)?;
    // All that may refuse comes before the first push: the tags say the same version, or none.
    let mut there = None;
    if !args.replace {
        registry.refuse_other(repository, tag, &digest)?;
        there = chart::published(&registry, &charts, &package)?;
    }
    registry.push_archive(&archive, repository, tag, &digest)?;
    println!("publish: image {repository}@{digest}");

    registry.attach(repository, &digest, SBOM, sbom)?;
    println!("publish: SBOM in {PLACE}/portcullis.cdx.json, and beside the image");

    let chart = match there {
        Some(chart) => chart,
        None => chart::push(&registry, &charts, &package, transport)?,
    };
    println!("publish: chart oci://{charts}/{} {}, {chart}", chart::NAME, env!("CARGO_PKG_VERSION"));
    if let Some(key) = key {
        key.sign(&registry, repository, &digest)?;
        key.sign(&registry, &charts.child(chart::NAME), &chart)?;
        println!(
            "publish: both are signed; cosign verify --key PUBLIC.pem --insecure-ignore-tlog=true checks it"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests;
