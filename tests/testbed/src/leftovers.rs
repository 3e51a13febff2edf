//! Remains of killed runs: kernel programs stay pinned. Every pin directory of ours is named
//! after the process that made it, so that the next run can tell which of them have lost
//! their owner.

use std::path::{Path, PathBuf};
use std::{fs, process};

use anyhow::{Context, Result};

const BPF_FILES: &str = "/sys/fs/bpf";
const PREFIX: &str = "portcullis-";

/// A pin directory for this process and this purpose alone.
pub fn pin_directory(purpose: &str) -> PathBuf {
    Path::new(BPF_FILES).join(format!("{PREFIX}{purpose}-{}", process::id()))
}

/// Removes what killed runs for this purpose, or for one that begins with it, left pinned; programs
/// detach with their last pin.
pub fn remove_leftovers(purpose: &str) -> Result<()> {
    let Ok(entries) = fs::read_dir(BPF_FILES) else { return Ok(()) };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let rest = name.strip_prefix(PREFIX).and_then(|rest| rest.strip_prefix(purpose));
        if rest.and_then(|rest| rest.rsplit_once('-')).is_some_and(|(_, owner)| is_gone(owner)) {
            remove(&entry.path())?;
        }
    }
    Ok(())
}

fn is_gone(owner: &str) -> bool {
    owner.parse::<u32>().is_ok_and(|pid| !Path::new("/proc").join(pid.to_string()).exists())
}

pub(crate) fn remove(directory: &Path) -> Result<()> {
    if !directory.exists() {
        return Ok(());
    }
    fs::remove_dir_all(directory).with_context(|| format!("cannot remove {}", directory.display()))
}
