//! `cargo xtask attack`: what clients and backends may try, against an agent that runs, while
//! another client is to notice nothing. One module for each kind of attack; it prints what happened
//! to each of them, and fails if one was let through.

mod backend;
mod credentials;
mod floods;
mod frames;
mod h2spec;
mod hostile_backends;
mod http1;
mod http2;
mod issuer;
mod parsers;
mod report;
mod slow;
mod upgrade;
mod wire;
mod witness;
mod world;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;
use clap::Parser;
use portcullis_testbed::build;

use crate::report::Report;
use crate::world::World;

#[derive(Parser)]
#[command(name = "cargo xtask attack", about = "Attack the agent, and say what came of it")]
struct Args {
    /// Attack this agent, rather than one that is built for it
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// A tenth of each flood: what CI has time for
    #[arg(long)]
    quick: bool,
}

/// The size of attacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    Full,
    /// A tenth of it.
    Quick,
}

type Attack = fn(&World, Size, &mut Report) -> Result<()>;

const ATTACKS: &[(&str, Attack)] = &[
    ("HTTP/1", http1::run),
    ("HTTP/2", http2::run),
    ("h2spec", h2spec::run),
    ("upgrades", upgrade::run),
    ("hostile backends", hostile_backends::run),
    ("smuggling", parsers::run),
    ("credentials", credentials::run),
    ("slow clients", slow::run),
    ("floods", floods::run),
];

fn main() -> Result<()> {
    let args = Args::parse();
    let size = if args.quick { Size::Quick } else { Size::Full };
    let binary = args.binary.map_or_else(build::debug, Ok)?;
    hostile_backends::start(world::address(9002)?)?;
    let world = World::start(binary)?;
    let mut report = Report::default();
    for (name, attack) in ATTACKS {
        let begun = Instant::now();
        attack(&world, size, &mut report)?;
        println!("attack: {name} took {:.1} s", begun.elapsed().as_secs_f64());
    }
    world.verify(&mut report)?;
    report.print();
    if report.failed() > 0 {
        std::process::exit(1);
    }
    Ok(())
}

// === impl Size ===

impl Size {
    const fn of(self, full: usize) -> usize {
        match self {
            Self::Full => full,
            Self::Quick => full / 10,
        }
    }
}
