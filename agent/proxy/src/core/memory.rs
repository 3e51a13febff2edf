//! The memory that the process may use: that of its control group, or of the machine.

use std::fs;
use std::path::{Path, PathBuf};

const CGROUPS: &str = "/sys/fs/cgroup";

/// Bytes. No limit that can be read: as many as an address space has.
pub(crate) fn limit() -> u64 {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| machine_memory(&text));
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let of_groups = Hierarchy::of(&groups).and_then(|hierarchy| hierarchy.limit(Path::new(CGROUPS)));
    [machine, of_groups].into_iter().flatten().min().unwrap_or(u64::MAX)
}

/// The groups by which the kernel limits memory.
#[derive(Debug, PartialEq, Eq)]
struct Hierarchy {
    /// Below [`CGROUPS`]: empty in version 2, which has one for all resources.
    root: &'static str,
    /// The process's, without `/` at its beginning.
    group: PathBuf,
    /// The name of the file that has the limit.
    file: &'static str,
}

impl Hierarchy {
    /// Reads `/proc/self/cgroup`. Where there are both versions, memory belongs to the first.
    fn of(groups: &str) -> Option<Self> {
        let group = |line: &str| line.splitn(3, ':').nth(2).map(|path| path.trim_start_matches('/').into());
        let controls =
            |line: &str| line.split(':').nth(1).unwrap_or_default().split(',').any(|it| it == "memory");
        let (first, second) =
            (groups.lines().find(|line| controls(line)), groups.lines().find(|line| line.starts_with("0::")));
        match (first, second) {
            (Some(line), _) => {
                Some(Self { root: "memory", group: group(line)?, file: "memory.limit_in_bytes" })
            }
            (None, Some(line)) => Some(Self { root: "", group: group(line)?, file: "memory.max" }),
            (None, None) => None,
        }
    }

    /// The smallest limit of the group and those that it is in; each holds for it.
    fn limit(&self, groups: &Path) -> Option<u64> {
        let root = groups.join(self.root);
        let limits = self.group.ancestors().filter_map(|group| {
            let limit = fs::read_to_string(root.join(group).join(self.file)).ok()?;
            // Version 2 says `max` where there is none; version 1 has a number beyond any memory.
            limit.trim().parse().ok()
        });
        limits.min()
    }
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
        let limit = |groups| Hierarchy::of(groups).and_then(|hierarchy| hierarchy.limit(&root));
        assert_eq!(limit("1:name=x:/y\n0::/kubepods/pod1/agent\n"), Some(5000));
        assert_eq!(limit("0::/kubepods\n"), Some(8000));
        assert_eq!(limit("0::/\n"), None);
        fs::create_dir_all(root.join("memory/kubepods/pod1")).unwrap();
        fs::write(root.join("memory/memory.limit_in_bytes"), "9223372036854771712\n").unwrap();
        fs::write(root.join("memory/kubepods/pod1/memory.limit_in_bytes"), "6000\n").unwrap();
        assert_eq!(limit("4:hugetlb,memory:/kubepods/pod1\n1:cpu:/\n0::/kubepods\n"), Some(6000));
        assert_eq!(limit("4:memory:/elsewhere\n"), Some(9_223_372_036_854_771_712));
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn the_memory_of_the_machine_is_read() {
        assert_eq!(machine_memory("MemTotal:       16000 kB\nMemFree: 1 kB\n"), Some(16_384_000));
    }
}
