//! This process: how many descriptors it may have; its times and sizes, as Linux counts them.

use std::fs;
use std::time::Duration;

use portcullis_inspect::Process;
use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the number of descriptors to what the system's administrator allows. The lower limit that
/// programs begin with is for those that use select(2).
pub(crate) fn have_all_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(%error, "the limit of open files stays what it is: {:?}", limit.current);
    }
}

/// As far as `/proc` can be read.
pub(crate) fn this() -> Process {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let booted = fs::read_to_string("/proc/stat").ok().and_then(|text| boot_time(&text)).unwrap_or_default();
    let ticks = clock_ticks_per_second();
    let of_ticks = |count: u64| Duration::from_millis(count.saturating_mul(1000) / ticks.max(1));
    let Stat { cpu, threads, started, virtual_memory, pages } = Stat::parse(&stat).unwrap_or_default();
    Process {
        cpu: of_ticks(cpu),
        resident: pages.saturating_mul(page_size() as u64),
        virtual_memory,
        open_descriptors: open_descriptors(),
        most_descriptors: getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX),
        threads,
        started: booted + of_ticks(started).as_secs(),
    }
}

/// Since Linux 6.2 the directory has their number as its size; before, all have to be listed, which
/// takes a while if there are a hundred thousand.
fn open_descriptors() -> u64 {
    const OPEN: &str = "/proc/self/fd";
    match fs::metadata(OPEN).map_or(0, |directory| directory.len()) {
        0 => fs::read_dir(OPEN).map_or(0, |open| open.count() as u64),
        count => count,
    }
}

/// Fields of proc_pid_stat(5).
#[derive(Debug, Default, PartialEq, Eq)]
struct Stat {
    /// Clock ticks, in user space and in the kernel.
    cpu: u64,
    threads: u64,
    /// Clock ticks since the machine was started.
    started: u64,
    /// Bytes.
    virtual_memory: u64,
    pages: u64,
}

// === impl Stat ===

impl Stat {
    fn parse(line: &str) -> Option<Self> {
        // The name in parentheses may hold anything. The state behind it is field 3.
        let (_, fields) = line.rsplit_once(')')?;
        let fields: Vec<_> = fields.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Self {
            cpu: field(14)? + field(15)?,
            threads: field(20)?,
            started: field(22)?,
            virtual_memory: field(23)?,
            pages: field(24)?,
        })
    }
}

/// Seconds since 1970, of proc_stat(5).
fn boot_time(stat: &str) -> Option<u64> {
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::time::{SystemTime, UNIX_EPOCH};

    use super::*;

    #[test]
    fn fields_are_found_behind_any_name() {
        let line = "7 (a) b) S 1 7 7 0 -1 0 5 0 0 0 140 60 0 0 20 0 9 0 4200 1048576 33 18446744073709551615";
        let stat = Stat { cpu: 200, threads: 9, started: 4200, virtual_memory: 1 << 20, pages: 33 };
        assert_eq!(Stat::parse(line), Some(stat));
        assert_eq!(Stat::parse("7 (a) S 1"), None);
        assert_eq!(boot_time("cpu 1 2\nbtime 1700000000\nprocesses 5\n"), Some(1_700_000_000));
    }

    #[test]
    fn this_process_has_begun_a_while_ago_and_uses_something() {
        let process = this();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        assert!(process.started <= now && process.started + 3600 > now, "{process:?}");
        assert!(process.resident > 1 << 20 && process.virtual_memory >= process.resident, "{process:?}");
        assert!(process.threads >= 1 && process.open_descriptors > 2, "{process:?}");
        let listed = fs::read_dir("/proc/self/fd").unwrap().count() as u64;
        assert!(process.open_descriptors.abs_diff(listed) < 50, "{process:?}, {listed} are listed");
        assert!(process.most_descriptors >= process.open_descriptors, "{process:?}");
    }
}
