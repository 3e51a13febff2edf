//! `cargo xtask tasks`: controllers of others do on a test cluster what the pages say of them, and
//! a report says what was seen. The controllers are built from their Go modules, whose versions are
//! fixed next to these sources, and run as processes of the node; the agent does, too.

mod cert_manager;
mod external_dns;
mod process;
mod progressive_delivery;
mod report;
mod world;

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::{Parser, ValueEnum};
use report::Report;
use world::World;

#[derive(clap::Parser)]
#[command(
    name = "cargo xtask tasks",
    about = "Run controllers of others as docs/tasks tells, on the test cluster"
)]
struct Args {
    /// A page; may be given more than once [default: all of them]
    #[arg(long, value_enum)]
    page: Vec<Page>,
    /// An agent that is built already [default: what `cargo build -p portcullis` builds]
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// The cluster's directory [default: target/cluster]
    #[arg(long, env = "PORTCULLIS_CLUSTER")]
    dir: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Page {
    CertManager,
    ExternalDns,
    ProgressiveDelivery,
}

fn main() -> Result<()> {
    portcullis_test_cluster::enter_if_asked()?;
    let args = Args::parse();
    let pages = if args.page.is_empty() { Page::value_variants() } else { &args.page };
    let mut report = Report::default();
    for page in pages {
        page.build()?;
    }
    let world = World::start(args.dir.as_ref(), args.binary.as_deref())?;
    for page in pages {
        report.begin(page.name(), page.controller()?);
        if let Err(error) = page.try_out(&world, &mut report) {
            report.end_early(&error);
        }
    }
    report.print();
    if report.failed() > 0 {
        bail!("not all is as the pages say; logs are in {}", world.logs().display());
    }
    Ok(())
}

impl Page {
    /// Its file in `docs/tasks`, without extension.
    fn name(self) -> &'static str {
        match self {
            Self::CertManager => cert_manager::PAGE,
            Self::ExternalDns => external_dns::PAGE,
            Self::ProgressiveDelivery => progressive_delivery::PAGE,
        }
    }

    /// The controller and its version.
    fn controller(self) -> Result<String> {
        match self {
            Self::CertManager => cert_manager::controller(),
            Self::ExternalDns => external_dns::controller(),
            Self::ProgressiveDelivery => progressive_delivery::controller(),
        }
    }

    /// Minutes the first time: no cluster should wait for it.
    fn build(self) -> Result<()> {
        match self {
            Self::CertManager => cert_manager::Programs::build().map(drop),
            Self::ExternalDns => external_dns::build().map(drop),
            Self::ProgressiveDelivery => progressive_delivery::build().map(drop),
        }
    }

    fn try_out(self, world: &World, report: &mut Report) -> Result<()> {
        match self {
            Self::CertManager => cert_manager::try_out(world, report),
            Self::ExternalDns => external_dns::try_out(world, report),
            Self::ProgressiveDelivery => progressive_delivery::try_out(world, report),
        }
    }
}
