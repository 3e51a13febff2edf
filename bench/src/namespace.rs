//! Network namespaces of clients, nodes and backends, by the `ip` command.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, bail};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Removed when dropped, with all interfaces in it.
pub(super) struct Namespace(String);

impl Namespace {
    pub(super) fn create(name: &str) -> Result<Self> {
        ip(&["netns", "add", name]).context("this needs root and network namespaces")?;
        let namespace = Self(name.to_owned());
        namespace.ip(&["link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    fn path(&self) -> String {
        format!("/run/netns/{}", self.0)
    }

    pub(super) fn ip(&self, arguments: &[&str]) -> Result<()> {
        ip(&[&["-n", &self.0], arguments].concat())
    }

    pub(super) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.path())).arg(program);
        command
    }

    pub(super) fn prefix(&self) -> Vec<OsString> {
        vec!["nsenter".into(), format!("--net={}", self.path()).into()]
    }

    /// Runs a function on a thread in the namespace. Sockets made there stay there.
    pub(super) fn enter<T: Send>(&self, function: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let namespace = File::open(self.path())?;
        let inside = || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            function()
        };
        let joined = thread::scope(|scope| scope.spawn(inside).join());
        joined.unwrap_or_else(|_| bail!("a thread in {} panicked", self.0))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = ip(&["netns", "delete", &self.0]);
    }
}

/// A veth pair: namespace, interface, address of both ends.
pub(super) fn connect(left: (&Namespace, &str, &str), right: (&Namespace, &str, &str)) -> Result<()> {
    let peer = ["peer", "name", right.1, "netns", &right.0.0];
    left.0.ip(&[["link", "add", left.1, "type", "veth"].as_slice(), &peer].concat())?;
    for (namespace, interface, address) in [left, right] {
        namespace.ip(&["address", "add", address, "dev", interface])?;
        namespace.ip(&["link", "set", interface, "up"])?;
    }
    Ok(())
}

fn ip(arguments: &[&str]) -> Result<()> {
    let output = Command::new("ip").args(arguments).output().context("cannot run `ip`")?;
    if !output.status.success() {
        bail!("`ip {}`: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
