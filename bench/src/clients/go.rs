//! Go's crypto/tls, as a program that is built here: TLS 1.2 and 1.3, ClientHellos in one segment
//! and in several.

use std::fs;
use std::process::Command;

use anyhow::{Result, bail};
use portcullis_testbed::{command, go, workspace};

use super::AT_ONCE;
use super::backends::Backends;
use super::tally::Tally;
use super::world::World;

/// Relative to the workspace.
const SOURCE: &str = "bench/src/clients/client.go";
const PROGRAM: &str = "go-client";

pub(super) fn version(world: &World) -> Result<Option<String>> {
    if go::ensure().is_err() {
        return Ok(None);
    }
    let version = command::output(go::command(&world.directory).arg("version"))?;
    let number = version.split(' ').nth(2).unwrap_or_default().trim_start_matches("go");
    Ok(Some(format!(" {number}")))
}

pub(super) fn run(world: &World, _backends: &Backends, connections: usize) -> Result<Tally> {
    let program = world.directory.join(PROGRAM);
    let mut build = go::command(&world.directory);
    command::run(build.args(["build", "-o"]).arg(&program).arg(workspace::root().join(SOURCE)))?;
    let hosts: Vec<_> = world.hosts(connections).collect();
    let list = world.directory.join("hosts");
    fs::write(&list, hosts.join("\n"))?;
    let mut client = Command::new(&program);
    client.arg(world.address.to_string()).arg(world.authority_file()).arg(&list).arg(AT_ONCE.to_string());
    let lines = command::output(&mut client)?;
    let mut tally = Tally::default();
    for line in lines.lines() {
        let columns: Vec<_> = line.split('\t').collect();
        match columns[..] {
            [host, "answer", answer] => tally.note(host, Ok(answer)),
            [host, "error", error] => tally.note(host, Err(&error)),
            _ => bail!("the client printed {line:?}"),
        }
    }
    Ok(tally)
}
