//! CPU time that others take while a proxy is measured: processes that are none of the benchmark's,
//! and what a hypervisor gives to other machines. Kernel threads and interrupts count as the
//! benchmark's own, since its traffic is what keeps them busy. Processes on further CPUs count as
//! well: they share caches and clock. Those outside of this PID namespace are not seen.

use std::collections::BTreeMap;
use std::fs;
use std::iter::successors;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::process::{LOAD_CPU, PROXY_CPU};

/// Unit of CPU time in /proc, the same on all of Linux's architectures that Rust has.
const TICK: Duration = Duration::from_millis(10);
/// `PF_KTHREAD` of include/linux/sched.h.
const KERNEL_THREAD: u64 = 0x0020_0000;

/// Ticks that others have had until a point in time.
pub(super) struct Snapshot {
    at: Instant,
    processes: BTreeMap<Identity, Spent>,
    steal: u64,
}

/// A process; a number alone is used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Identity {
    pid: u32,
    started: u64,
}

/// Ticks of a process and, apart from them, of its children that have ended and were waited for,
/// with all of theirs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Spent {
    own: u64,
    children: u64,
}

/// A line of /proc/PID/stat.
#[derive(Debug, PartialEq)]
struct Stat {
    identity: Identity,
    parent: u32,
    flags: u64,
    spent: Spent,
}

impl Snapshot {
    pub(super) fn take() -> Result<Self> {
        let stats = fs::read_dir("/proc")?.flatten().filter_map(|entry| {
            entry.file_name().to_str()?.parse::<u32>().ok()?;
            // It may have ended since.
            parse(&fs::read_to_string(entry.path().join("stat")).ok()?)
        });
        let processes = others(&stats.collect::<Vec<_>>(), std::process::id());
        let steal = steal(&fs::read_to_string("/proc/stat")?).context("/proc/stat has no such CPU")?;
        Ok(Self { at: Instant::now(), processes, steal })
    }

    /// The share that others have had since, of the proxy's and the load's CPU together.
    pub(super) fn share_since(&self) -> Result<f64> {
        let now = Self::take()?;
        let ticks = spent(&self.processes, &now.processes) + now.steal.saturating_sub(self.steal);
        let wall = now.at.duration_since(self.at);
        Ok(ticks as f64 * TICK.as_secs_f64() / (2.0 * wall.as_secs_f64()))
    }
}

fn parse(stat: &str) -> Option<Stat> {
    // A name may hold spaces and parentheses, what follows it holds none.
    let (before, after) = stat.rsplit_once(") ")?;
    let (pid, _name) = before.split_once(" (")?;
    let fields: Vec<_> = after.split_whitespace().collect();
    // By its number in proc_pid_stat(5), where the state is field 3.
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    Some(Stat {
        identity: Identity { pid: pid.parse().ok()?, started: field(22)? },
        parent: u32::try_from(field(4)?).ok()?,
        flags: field(9)?,
        spent: Spent { own: field(14)? + field(15)?, children: field(16)? + field(17)? },
    })
}

/// Ticks for other machines, of the two CPUs.
fn steal(stat: &str) -> Option<u64> {
    let of = |cpu: &str| {
        let line = stat.lines().find_map(|line| line.strip_prefix(&format!("cpu{cpu} ")))?;
        line.split_whitespace().nth(7)?.parse::<u64>().ok()
    };
    Some(of(PROXY_CPU)? + of(LOAD_CPU)?)
}

/// All but kernel threads, and but a process and its descendants.
fn others(stats: &[Stat], root: u32) -> BTreeMap<Identity, Spent> {
    let parents: BTreeMap<_, _> = stats.iter().map(|stat| (stat.identity.pid, stat.parent)).collect();
    let ancestors = |pid| successors(Some(pid), |pid| parents.get(pid).copied()).take(stats.len());
    let is_other = |stat: &&Stat| {
        stat.flags & KERNEL_THREAD == 0 && ancestors(stat.identity.pid).all(|ancestor| ancestor != root)
    };
    stats.iter().filter(is_other).map(|stat| (stat.identity, stat.spent)).collect()
}

/// Ticks between two lists of processes. When one ends, what it has had moves to the parent that
/// waits for it. A parent that waits for none loses it, which must not hide what others have had.
fn spent(before: &BTreeMap<Identity, Spent>, after: &BTreeMap<Identity, Spent>) -> u64 {
    let (mut own, mut of_children) = (0, 0);
    for (identity, now) in after {
        let then = before.get(identity).copied().unwrap_or_default();
        own += now.own.saturating_sub(then.own);
        of_children += now.children.saturating_sub(then.children);
    }
    let ended = before.iter().filter(|(identity, _)| !after.contains_key(identity));
    let known: u64 = ended.map(|(_, spent)| spent.own + spent.children).sum();
    own + of_children.saturating_sub(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHELL: &str = "52 (a (b) c) d) S 1 52 52 34816 60 4194304 2289 9917 0 0 3 4 50 60 20 0 1 0 \
                         1270 8650752 1234 18446744073709551615 0 0 0 0 0 0 65536 3670020 1266777851 0 0 0 17 1 0 0";

    fn identity(pid: u32) -> Identity {
        Identity { pid, started: 1 }
    }

    fn process(pid: u32, parent: u32, flags: u64) -> Stat {
        Stat { identity: identity(pid), parent, flags, spent: Spent::default() }
    }

    fn processes<const N: usize>(spent: [(u32, u64, u64); N]) -> BTreeMap<Identity, Spent> {
        spent.map(|(pid, own, children)| (identity(pid), Spent { own, children })).into()
    }

    #[test]
    fn names_hold_spaces_and_parentheses() {
        let expected = Stat {
            identity: Identity { pid: 52, started: 1270 },
            parent: 1,
            flags: 4_194_304,
            spent: Spent { own: 7, children: 110 },
        };
        assert_eq!(parse(SHELL), Some(expected));
        assert_eq!(parse("52 (ends early) S 1 52"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn steal_is_of_the_two_cpus() {
        let stat = "cpu  9 9 9 9 9 9 9 60 9 9\ncpu0 1 2 3 4 5 6 7 10 0 0\ncpu1 1 2 3 4 5 6 7 20 0 0\n\
                    cpu10 1 2 3 4 5 6 7 30 0 0\nintr 1\n";
        assert_eq!(steal(stat), Some(30));
        assert_eq!(steal("cpu  9 9 9 9 9 9 9 60 9 9\n"), None);
    }

    #[test]
    fn a_benchmark_has_its_descendants_and_the_kernels_threads() {
        let stats = [
            process(1, 0, 0),
            process(2, 0, KERNEL_THREAD),
            process(14, 2, KERNEL_THREAD),
            process(30, 41, 0),
            process(40, 1, 0),
            process(41, 40, 0),
            process(50, 1, 0),
        ];
        let others: Vec<_> = others(&stats, 40).into_keys().map(|identity| identity.pid).collect();
        assert_eq!(others, [1, 50]);
    }

    #[test]
    fn processes_that_stay_and_new_ones_count() {
        assert_eq!(spent(&processes([(1, 100, 7)]), &processes([(1, 103, 7), (2, 5, 0)])), 8);
    }

    #[test]
    fn a_process_that_ends_counts_from_the_first_list_on() {
        // 40 ticks until then; 44 and its children's 6 are what the parent hears of.
        assert_eq!(spent(&processes([(1, 0, 10), (2, 40, 6)]), &processes([(1, 0, 60)])), 4);
        // It has begun in between.
        assert_eq!(spent(&processes([(1, 0, 10)]), &processes([(1, 0, 13)])), 3);
    }

    #[test]
    fn a_process_that_is_not_waited_for_hides_no_other() {
        assert_eq!(spent(&processes([(1, 0, 0), (2, 900, 0)]), &processes([(1, 5, 0)])), 5);
    }

    #[test]
    fn a_number_that_is_used_again_is_another_process() {
        let before = BTreeMap::from([(Identity { pid: 7, started: 1 }, Spent { own: 50, children: 0 })]);
        let after = BTreeMap::from([(Identity { pid: 7, started: 2 }, Spent { own: 4, children: 0 })]);
        assert_eq!(spent(&before, &after), 4);
    }

    #[test]
    fn this_machine_can_be_asked() {
        let snapshot = Snapshot::take().unwrap();
        assert!(snapshot.processes.keys().all(|identity| identity.pid != std::process::id()));
        assert!(snapshot.share_since().unwrap() >= 0.0);
    }
}
