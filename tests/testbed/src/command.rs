//! Running other programs, always checked. Knows no program by name.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Runs a command with inherited output; an exit code other than 0 is an error.
pub fn run(command: &mut Command) -> Result<()> {
    let line = line(command);
    println!("$ {line}");
    let status = command.stdin(Stdio::null()).status().with_context(|| format!("cannot run `{line}`"))?;
    if !status.success() {
        bail!("`{line}` failed: {status}");
    }
    Ok(())
}

/// Standard output of a command, or nothing if it cannot be run or fails: for asking a machine what
/// it has.
pub fn ask(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Path of a program in PATH, or where an administrator's programs are.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let admin = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    env::split_paths(&path).chain(admin).map(|directory| directory.join(program)).find(|file| file.is_file())
}

/// PATH with a directory in front.
pub fn path_with(first: &[&Path]) -> Result<std::ffi::OsString> {
    let path = env::var_os("PATH").unwrap_or_default();
    let first = first.iter().map(|directory| directory.to_path_buf());
    env::join_paths(first.chain(env::split_paths(&path)))
        .context("PATH holds a directory that cannot be joined")
}

/// Standard output of a command. If it fails, its standard error is the error.
pub fn output(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {program}"))?;
    if !output.status.success() {
        bail!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}
