//! An agent under valgrind's callgrind, which counts the instructions that user space executes.
//! Threads run one at a time, so the count depends on neither the machine's speed nor its load.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use portcullis_testbed::{Agent, Launch, until};

/// Starting with thousands of routes takes that long on a busy machine.
const START: Duration = Duration::from_secs(300);
/// Between two looks at the agent's threads.
const PAUSE: Duration = Duration::from_micros(200);
/// Time without work after which a start is over: statuses are written in the background.
const QUIET: Duration = Duration::from_millis(500);
const IDLE: Duration = Duration::from_secs(300);

/// Caches are trimmed, and pages given back, by the clock; here after so many bytes, and never.
const ALLOCATOR: &str = "_RJEM_MALLOC_CONF=experimental_tcache_gc:false,dirty_decay_ms:-1,muzzy_decay_ms:-1";

pub(super) struct Callgrind {
    agent: Agent,
    directory: PathBuf,
}

/// The threads of an agent, to wait until it has done all that was asked of it.
#[derive(Clone, Copy)]
pub(super) struct Threads {
    pid: u32,
}

impl Callgrind {
    /// Starts the agent, waits until it serves, and counts from then on.
    pub(super) fn start(mut launch: Launch, directory: &Path) -> Result<Self> {
        let prefix = directory.join("vgdb");
        launch.through = [
            "env",
            ALLOCATOR,
            "valgrind",
            "--tool=callgrind",
            "--instr-atstart=no",
            "--separate-threads=yes",
        ]
        .map(Into::into)
        .to_vec();
        launch.through.push(format!("--vgdb-prefix={}", prefix.display()).into());
        launch.through.push(format!("--callgrind-out-file={}", directory.join("counts").display()).into());
        let agent = launch.spawn().context("is valgrind there? `cargo xtask setup --bench` installs it")?;
        let callgrind = Self { agent, directory: directory.to_owned() };
        let ready = until(START, || callgrind.agent.get("/readyz"));
        ready.with_context(|| format!("the agent does not start; its log:\n{}", callgrind.agent.log()))?;
        callgrind.threads().wait_idle_for(QUIET)?;
        callgrind.ask(&["instrumentation", "on"])?;
        callgrind.count()?;
        Ok(callgrind)
    }

    pub(super) fn threads(&self) -> Threads {
        Threads { pid: self.agent.pid() }
    }

    /// Instructions since the last call, of the thread that executed most of them: the one that
    /// serves. What others do, such as writing statuses, has nothing to do with requests.
    pub(super) fn count(&self) -> Result<u64> {
        Ok(self.dump()?.0)
    }

    /// As [`Self::count`]; they are kept in this file, function by function.
    pub(super) fn keep(&self, file: &Path) -> Result<u64> {
        let (count, functions) = self.dump()?;
        fs::write(file, functions).with_context(|| format!("cannot write {}", file.display()))?;
        Ok(count)
    }

    /// The count, and callgrind's file about it.
    fn dump(&self) -> Result<(u64, String)> {
        self.ask(&["dump"])?;
        let mut most = None;
        for entry in fs::read_dir(&self.directory)? {
            let path = entry?.path();
            if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("counts.")) {
                let text = fs::read_to_string(&path)?;
                let total = text.lines().find_map(|line| line.strip_prefix("totals: "));
                let total: u64 = total.context("callgrind wrote no total")?.trim().parse()?;
                most = most.max(Some((total, text)));
                fs::remove_file(path)?;
            }
        }
        most.context("callgrind wrote no counts")
    }

    /// A command of callgrind's own, by the debugger's way into valgrind.
    fn ask(&self, words: &[&str]) -> Result<()> {
        let mut vgdb = Command::new("vgdb");
        vgdb.arg(format!("--vgdb-prefix={}", self.directory.join("vgdb").display()));
        vgdb.arg(format!("--pid={}", self.agent.pid())).args(words);
        let output = vgdb.output().context("cannot run vgdb, which comes with valgrind")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "vgdb {}: {said}", words.join(" "));
        Ok(())
    }
}

impl Threads {
    /// Waits until every thread sleeps: nothing is left to do.
    pub(super) fn wait_idle(self) -> Result<()> {
        self.wait_idle_for(Duration::ZERO)
    }

    fn wait_idle_for(self, quiet: Duration) -> Result<()> {
        let begin = Instant::now();
        let mut idle_since = None;
        loop {
            let since = if self.are_idle()? {
                *idle_since.get_or_insert_with(Instant::now)
            } else {
                idle_since = None;
                Instant::now()
            };
            // Seen idle twice: a wake-up may be under way the first time.
            if idle_since.is_some() && since.elapsed() > quiet {
                return Ok(());
            }
            ensure!(begin.elapsed() < IDLE, "the agent is still busy after {} s", IDLE.as_secs());
            sleep(PAUSE);
        }
    }

    fn are_idle(self) -> Result<bool> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid)).context("the agent has ended")?;
        for task in tasks {
            // A thread may end meanwhile.
            let stat = fs::read_to_string(task?.path().join("stat")).unwrap_or_default();
            if stat.rsplit_once(") ").is_some_and(|(_, fields)| !fields.starts_with('S')) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
