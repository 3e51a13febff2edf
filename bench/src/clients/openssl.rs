//! `openssl s_client`, a process for each connection.

use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use portcullis_testbed::command;

use super::backends::Backends;
use super::in_parallel;
use super::tally::Tally;
use super::world::World;

pub(super) fn version(_world: &World) -> Result<Option<String>> {
    let version = command::ask("openssl", &["version"]);
    Ok(version.and_then(|line| line.split(' ').nth(1).map(|number| format!(" {number}"))))
}

pub(super) fn run(world: &World, _backends: &Backends, connections: usize) -> Result<Tally> {
    let hosts: Vec<_> = world.hosts(connections).collect();
    Ok(in_parallel(&hosts, 1, |hosts| {
        let mut tally = Tally::default();
        for host in hosts {
            let answer = ask(world, host);
            tally.note(host, answer.as_deref().map_err(|error| error as _));
        }
        tally
    }))
}

fn ask(world: &World, host: &str) -> Result<String> {
    let mut client = Command::new("openssl");
    client.args(["s_client", "-quiet", "-verify_return_error", "-connect", &world.address.to_string()]);
    client.args(["-servername", host, "-verify_hostname", host, "-CAfile"]).arg(world.authority_file());
    client.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut client = client.spawn().context("cannot run openssl")?;
    let mut request = client.stdin.take().context("openssl has no input")?;
    write!(request, "GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")?;
    // Its input stays open: an end would be the end of the connection.
    let output = client.wait_with_output()?;
    drop(request);
    let answer = String::from_utf8_lossy(&output.stdout).into_owned();
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
    ensure!(body.is_some(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    body.context("no body")
}
