//! The program behind `cargo xtask chart`.

use anyhow::Result;
use clap::Parser;

fn main() -> Result<()> {
    portcullis_test_cluster::enter_if_asked()?;
    portcullis_chart_tests::run(&portcullis_chart_tests::Args::parse())
}
