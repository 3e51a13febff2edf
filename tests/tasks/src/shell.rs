//! A reader's shell: bash in namespaces of its own, where every port is free, as a user without
//! any right. It takes root, or user namespaces. Everything that was started in it ends with it.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use portcullis_testbed::{build, workspace};
use tempfile::TempDir;

/// `nobody`, which no file belongs to.
const READER: u32 = 65534;

const LAST_LINES: usize = 12;

/// No command takes longer.
const LIMIT: Duration = Duration::from_secs(120);

/// Arguments: the agent, the examples, the scratch directory, and what the shell runs by. The agent
/// may be where the reader may not look, so that it is mounted where they may.
const BEGIN: &str = r#"
set -e
ip link set lo up
mount --bind "$1" "$3/bin/portcullis"
mount --bind -o ro "$2" "$3/reader/examples"
cd "$3/reader"
shift 3
exec "$@" bash
"#;

pub(crate) struct Shell {
    child: Child,
    input: ChildStdin,
    statuses: Receiver<String>,
    scratch: TempDir,
    commands: usize,
}

impl Shell {
    pub(crate) fn start() -> Result<Self> {
        let agent = build::debug_program();
        ensure!(agent.is_file(), "no {}: run `cargo build -p portcullis`", agent.display());
        let scratch = tempfile::Builder::new().prefix("portcullis-task-").tempdir()?;
        for name in ["", "bin", "reader", "reader/examples", "run", "output"] {
            let directory = scratch.path().join(name);
            fs::create_dir_all(&directory)?;
            hand_over(&directory)?;
        }
        fs::write(scratch.path().join("bin/portcullis"), "")?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "unshare"]).args(user()).args(["--net", "--mount", "--pid"]);
        command.args(["--fork", "--kill-child=KILL", "--mount-proc", "bash", "-c", BEGIN, "bash"]);
        command.arg(agent).arg(workspace::root().join("examples")).arg(scratch.path()).args(becoming());
        let path = portcullis_testbed::command::path_with(&[&scratch.path().join("bin")])?;
        command.env("PATH", path).env("HOME", scratch.path().join("reader")).env("LC_ALL", "C.UTF-8");
        command.env("XDG_RUNTIME_DIR", scratch.path().join("run")).env("TZ", "UTC");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("cannot run setpriv")?;
        let input = child.stdin.take().context("a shell without input")?;
        let output = child.stdout.take().context("a shell without output")?;
        let (sender, statuses) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self { child, input, statuses, scratch, commands: 0 })
    }

    /// The directory that it is in.
    pub(crate) fn directory(&self) -> std::path::PathBuf {
        self.scratch.path().join("reader")
    }

    /// Runs a command, and returns its status and output. What it leaves in the background writes
    /// to the same output.
    pub(crate) fn run(&mut self, command: &str) -> Result<(i32, String)> {
        self.commands += 1;
        let name = self.commands.to_string();
        let output = self.scratch.path().join("output").join(&name);
        let source = output.with_extension("sh");
        fs::write(&source, command)?;
        let [from, to] = [&source, &output].map(|path| path.display());
        writeln!(self.input, ". {from} > {to} 2>&1 < /dev/null; echo $?")?;
        let status = self.statuses.recv_timeout(LIMIT).context("the shell does not answer")?;
        let output = fs::read(&output).with_context(|| output.display().to_string())?;
        Ok((status.parse()?, String::from_utf8_lossy(&output).into_owned()))
    }

    /// The ends of the logs in its directory.
    pub(crate) fn logs(&self) -> String {
        let entries = fs::read_dir(self.directory()).into_iter().flatten().flatten();
        let mut logs = String::new();
        for path in entries.map(|entry| entry.path()) {
            if path.extension().is_some_and(|extension| extension == "log") {
                let text = fs::read_to_string(&path).unwrap_or_default();
                let lines: Vec<_> = text.lines().collect();
                let last = &lines[lines.len().saturating_sub(LAST_LINES)..];
                logs += &format!("\n--- {}\n{}\n", path.display(), last.join("\n"));
            }
        }
        logs
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // Already gone is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The command that takes from the shell all rights that its namespaces were made with.
fn becoming() -> Vec<String> {
    let id = READER.to_string();
    let root = ["--reuid", &id, "--regid", &id, "--clear-groups", "--bounding-set", "-all"];
    let user = ["--inh-caps", "-all", "--ambient-caps", "-all", "--bounding-set", "-all"];
    let arguments = if is_root() { root.as_slice() } else { &user };
    ["setpriv"].iter().chain(arguments).map(|argument| (*argument).to_owned()).collect()
}

/// A user may make the other namespaces in one of users, where they have the reader's number.
fn user() -> Vec<String> {
    let arguments = ["--user", "--keep-caps", &format!("--map-user={READER}")].map(str::to_owned);
    if is_root() { Vec::new() } else { arguments.into() }
}

fn is_root() -> bool {
    rustix::process::getuid().is_root()
}

/// Gives a file or directory to the reader.
pub(crate) fn hand_over(path: &Path) -> Result<()> {
    if is_root() {
        std::os::unix::fs::chown(path, Some(READER), Some(READER))?;
    }
    Ok(())
}
