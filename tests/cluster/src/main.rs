//! The program behind `cargo xtask cluster`.

use anyhow::Result;
use clap::Parser;

fn main() -> Result<()> {
    portcullis_test_cluster::enter_if_asked()?;
    portcullis_test_cluster::run(&portcullis_test_cluster::Args::parse())
}
