//! curl, many connections of a process: each is to another host. Over HTTPS it speaks HTTP/2.

use std::process::Command;

use anyhow::{Context, Result};
use portcullis_testbed::command;

use super::backends::Backends;
use super::in_parallel;
use super::tally::Tally;
use super::world::World;

/// Of one process.
const CONNECTIONS: usize = 50;

pub(super) fn version(_world: &World) -> Result<Option<String>> {
    let version = command::ask("curl", &["--version"]);
    Ok(version.and_then(|line| line.split(' ').nth(1).map(|number| format!(" {number}"))))
}

pub(super) fn run(world: &World, _backends: &Backends, connections: usize) -> Result<Tally> {
    let hosts: Vec<_> = world.hosts(connections).collect();
    Ok(in_parallel(&hosts, CONNECTIONS, |hosts| ask(world, hosts)))
}

fn ask(world: &World, hosts: &[&str]) -> Tally {
    let (ip, port) = (world.address.ip(), world.address.port());
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--max-time", "30", "--write-out", "\t%{http_code} %{errormsg}\n"]);
    curl.arg("--cacert").arg(world.authority_file());
    for host in hosts {
        curl.args(["--resolve", &format!("{host}:{port}:{ip}"), &format!("https://{host}:{port}/")]);
    }
    let output = curl.output().context("cannot run curl");
    let lines = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let mut tally = Tally::default();
    let lines = lines.unwrap_or_default();
    let mut lines = lines.lines();
    for host in hosts {
        match lines.next().and_then(|line| line.split_once('\t')) {
            Some((body, code)) if code.starts_with("200 ") => tally.note(host, Ok(body)),
            Some((_, code)) => tally.note(host, Err(&code)),
            None => tally.note(host, Err(&"curl said nothing")),
        }
    }
    tally
}
