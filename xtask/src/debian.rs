//! Debian's packages, where there are any.

use std::process::Command;

use anyhow::{Result, bail};
use portcullis_testbed::command;

/// Installs Debian packages; as root, or through sudo.
pub(crate) fn install(packages: &[&str]) -> Result<()> {
    if command::find("apt-get").is_none() {
        bail!("missing here: {}; install them with this system's package manager", packages.join(", "));
    }
    println!("setup: installing {}", packages.join(", "));
    command::run(apt().args(["-qq", "update"]))?;
    command::run(apt().args(["-qq", "install", "--yes", "--no-install-recommends"]).args(packages))
}

fn apt() -> Command {
    let root = command::ask("id", &["-u"]).is_some_and(|uid| uid == "0");
    let mut command = Command::new(if root { "env" } else { "sudo" });
    command.args(["DEBIAN_FRONTEND=noninteractive", "apt-get"]);
    command
}
