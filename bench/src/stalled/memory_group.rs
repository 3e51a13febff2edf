//! Control groups with a limit of memory, of either version.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

const CGROUPS: &str = "/sys/fs/cgroup";

/// A group below the root; removed when dropped, unless processes of it are left.
pub(super) struct MemoryGroup {
    path: PathBuf,
    /// The group that this process is in.
    home: PathBuf,
    version: Version,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl MemoryGroup {
    pub(super) fn create(name: &str, mebibytes: u64) -> Result<Self> {
        let root = Path::new(CGROUPS);
        let groups = fs::read_to_string("/proc/self/cgroup")?;
        let one = groups.lines().find_map(|line| line.split_once(":memory:"));
        let (root, version, home, limit) = match one {
            Some((_, home)) => (root.join("memory"), Version::One, home, "memory.limit_in_bytes"),
            None => {
                fs::write(root.join("cgroup.subtree_control"), "+memory")
                    .context("control groups have no limits of memory here, or this is not root")?;
                let home = groups.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/");
                (root.to_owned(), Version::Two, home, "memory.max")
            }
        };
        let path = root.join(format!("portcullis-bench-{name}"));
        let made = fs::create_dir(&path);
        made.or_else(|error| if error.kind() == ErrorKind::AlreadyExists { Ok(()) } else { Err(error) })
            .with_context(|| format!("cannot make the control group {}: this takes root", path.display()))?;
        fs::write(path.join(limit), (mebibytes << 20).to_string())?;
        Ok(Self { path, home: root.join(home.trim_start_matches('/')), version })
    }

    /// Does something in the group, which processes that are started meanwhile stay in.
    pub(super) fn within<T>(&self, start: impl FnOnce() -> Result<T>) -> Result<T> {
        let enter = |group: &Path| fs::write(group.join("cgroup.procs"), std::process::id().to_string());
        enter(&self.path)?;
        let started = start();
        enter(&self.home)?;
        started
    }

    /// Processes of the group that the kernel ended for want of memory.
    pub(super) fn kills(&self) -> Result<u64> {
        let file = match self.version {
            Version::One => "memory.oom_control",
            Version::Two => "memory.events",
        };
        let text = fs::read_to_string(self.path.join(file))?;
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        Ok(count.with_context(|| format!("{file} has no count of kills"))?.parse()?)
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.path);
    }
}
