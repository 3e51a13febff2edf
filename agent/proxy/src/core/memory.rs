//! The memory that the process may use: that of its control group, or of the machine.

use std::fs;
use std::path::{Path, PathBuf};

const CGROUPS: &str = "/sys/fs/cgroup";

/// Bytes. No limit that can be read: as many as an address space has.
pub(crate) fn limit() -> u64 {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| machine_memory(&text));
    let group = fs::read_to_string("/proc/self/cgroup").ok().and_then(|text| group(&text));
    let of_groups = group.and_then(|group| smallest(Path::new(CGROUPS), &group));
    [machine, of_groups].into_iter().flatten().min().unwrap_or(u64::MAX)
}

/// The smallest limit of a group (version 2) and those that it is in; each holds for it.
fn smallest(root: &Path, group: &Path) -> Option<u64> {
    let limits = group.ancestors().filter_map(|group| {
        let limit = fs::read_to_string(root.join(group).join("memory.max")).ok()?;
        // `max` where there is none.
        limit.trim().parse().ok()
    });
    limits.min()
}

/// The path below [`CGROUPS`], without `/` at its beginning.
fn group(text: &str) -> Option<PathBuf> {
    let path = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(path.into())
}

fn machine_memory(text: &str) -> Option<u64> {
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = total.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_held_to_the_limits_above_it() {
        let root = std::env::temp_dir().join(format!("portcullis-memory-{}", std::process::id()));
        fs::create_dir_all(root.join("kubepods/pod1/agent")).unwrap();
        fs::write(root.join("kubepods/memory.max"), "8000\n").unwrap();
        fs::write(root.join("kubepods/pod1/memory.max"), "5000\n").unwrap();
        fs::write(root.join("kubepods/pod1/agent/memory.max"), "max\n").unwrap();
        let limit = |group| smallest(&root, Path::new(group));
        assert_eq!(limit("kubepods/pod1/agent"), Some(5000));
        assert_eq!(limit("kubepods"), Some(8000));
        assert_eq!(limit(""), None);
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn group_and_machine_are_read() {
        assert_eq!(group("1:name=x:/y\n0::/kubepods/pod1\n"), Some("kubepods/pod1".into()));
        assert_eq!(group("0::/\n"), Some("".into()));
        assert_eq!(machine_memory("MemTotal:       16000 kB\nMemFree: 1 kB\n"), Some(16_384_000));
    }
}
