//! Network namespaces, by the `ip` command.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::thread;

use anyhow::{Context, Result, bail};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

const DIRECTORY: &str = "/run/netns";
const PREFIX: &str = "pcn-";

/// Removed when dropped, with all interfaces in it.
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// `PREFIX TEST - PROCESS - ROLE`, so that a later run sees whose it was.
    pub fn create(test: &str, role: &str) -> Result<Self> {
        let name = format!("{PREFIX}{test}-{}-{role}", process::id());
        ip(&["netns", "add", &name]).context("these tests need root and network namespaces")?;
        let namespace = Self { name };
        namespace.ip(&["link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    /// Runs `ip` in the namespace.
    pub fn ip(&self, arguments: &[&str]) -> Result<()> {
        ip(&[&["-n", &self.name], arguments].concat())
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Words before a command that run it in the namespace. Not `ip netns exec`: that mounts
    /// another /sys, without pins.
    pub fn prefix(&self) -> Vec<OsString> {
        vec!["nsenter".into(), format!("--net={}", self.path().display()).into()]
    }

    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.path().display())).arg(program);
        command
    }

    /// Runs a function on a thread in the namespace. Sockets made there stay there.
    pub fn enter<T: Send>(&self, function: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let namespace = File::open(self.path())?;
        let inside = || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            function()
        };
        let joined = thread::scope(|scope| scope.spawn(inside).join());
        joined.unwrap_or_else(|_| bail!("a thread in {} panicked", self.name))
    }

    fn path(&self) -> PathBuf {
        Path::new(DIRECTORY).join(&self.name)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = ip(&["netns", "delete", &self.name]);
    }
}

/// Removes the namespaces that a killed run of this test left.
pub(crate) fn remove_leftovers(test: &str) -> Result<()> {
    let Ok(entries) = fs::read_dir(DIRECTORY) else { return Ok(()) };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let rest = name.strip_prefix(PREFIX).and_then(|rest| rest.strip_prefix(test)?.strip_prefix('-'));
        let owner = rest.and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
            ip(&["netns", "delete", &name])?;
        }
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
