//! Debian's packages, where there are any.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
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

/// Fetches a package of any architecture into a directory. dpkg is not told of the architecture:
/// lists and cache are in the directory, too.
pub(crate) fn fetch(package: &str, directory: &Path) -> Result<()> {
    if command::find("apt-get").is_none() {
        bail!("{package} is a package of Debian's, and there is no apt-get here");
    }
    let architecture = package.rsplit_once(':').map_or(package, |(_, rest)| rest);
    let architecture = architecture.split('=').next().unwrap_or_default();
    let apt = |arguments: &[&str]| {
        let mut apt = Command::new("apt-get");
        apt.arg("-qq").current_dir(directory);
        for (option, value) in [
            ("APT::Architectures::", architecture.into()),
            ("Dir::State::Lists", directory.join("lists").into_os_string()),
            ("Dir::Cache", directory.join("cache").into_os_string()),
            ("Acquire::Languages", "none".into()),
        ] {
            let mut assignment = OsString::from(format!("{option}="));
            assignment.push(value);
            apt.arg("-o").arg(assignment);
        }
        command::run(apt.args(arguments))
    };
    fs::create_dir_all(directory.join("lists/partial"))?;
    fs::create_dir_all(directory.join("cache/archives/partial"))?;
    apt(&["update"])?;
    apt(&["download", package])
}
