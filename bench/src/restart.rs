//! `cargo xtask bench restart`: the agent is killed or told to end under load, and started again at
//! once, or another one takes over from it, many times. Clients open a connection for each request
//! all the while, or keep theirs; what they see says for how long connections are refused and how
//! long those wait that are not.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use portcullis_testbed::{Agent, Launch};

use super::peers::{self, Build, Peer, Portcullis, Running};
use super::report::machine;
use super::sample::median;
use super::site::{HTTP_PORT, ONE, Site, Size};
use super::{backend, document};

const CLIENTS: usize = 4;
const TIMEOUT: Duration = Duration::from_secs(10);
/// Between two connections of a client, so that refusals do not keep a CPU busy.
const PAUSE: Duration = Duration::from_micros(500);
/// Served in peace between two restarts: longer than a client waits before it sends a SYN again.
const PEACE: Duration = Duration::from_millis(1500);

#[derive(clap::Args)]
pub(super) struct Args {
    /// Ends of the agent, of each kind and on each site
    #[arg(long, default_value_t = 20)]
    times: usize,
    #[command(flatten)]
    build: Build,
    /// Also write the result into docs/performance.md
    #[arg(long)]
    write: bool,
}

/// The end of an agent, and what new connections do until the next one serves.
#[derive(Clone, Copy)]
struct End {
    name: &'static str,
    /// Returns the next agent once it serves.
    by: fn(Agent) -> Result<Agent>,
    /// Seconds for which they wait.
    hold: u16,
}

const ENDS: [End; 4] = [
    End { name: "SIGKILL, refusing", by: |agent| ready(agent.crash()?), hold: 0 },
    End { name: "SIGKILL, waiting", by: |agent| ready(agent.crash()?), hold: 10 },
    End { name: "SIGTERM, waiting", by: |agent| ready(agent.stop()?), hold: 10 },
    End { name: "taken over", by: take_over, hold: 10 },
];

fn ready(launch: Launch) -> Result<Agent> {
    launch.start()
}

fn take_over(agent: Agent) -> Result<Agent> {
    let mut next = agent.successor_beside("--take-over").spawn()?;
    agent.wait_succeeded()?;
    next.wait_ready()?;
    Ok(next)
}

/// A connection with one request.
struct Attempt {
    begin: Instant,
    end: Instant,
    outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Answered,
    Refused,
    /// There was a connection, but no answer.
    CutOff,
}

/// Consequences of one restart.
struct Gap {
    /// From the kill until the last refusal.
    refused_for: Duration,
    /// From the kill until a connection made since was answered.
    answered_after: Duration,
    refused: usize,
    cut_off: usize,
    /// Of what was answered.
    longest_wait: Duration,
}

pub(super) fn run(args: &Args) -> Result<()> {
    let scratch = super::scratch()?;
    let peer = args.build.portcullis()?;
    let _backend = backend::start(scratch.path())?;
    let mut text = format!("{}; {} restarts on each site, medians (maxima).\n\n", machine(), args.times);
    text += "| site | end | refused for ms | answered again after ms | connections refused | cut off | longest wait of the answered ms |\n";
    text += "|---|---|---|---|---|---|---|\n";
    for size in [Size::Small, Size::Full] {
        let directory = scratch.path().join(format!("{size:?}"));
        let site = Site::create(size, &directory.join("site"))?;
        for end in ENDS {
            let peer = peer.clone().with(&["--syn-hold", &end.hold.to_string()]);
            let gaps = restart(&peer, &site, &directory.join(end.name), end.by, args.times.max(1))?;
            let row = row(size, end.name, &gaps);
            eprint!("{row}");
            text += &row;
        }
    }
    println!("\n{text}");
    if args.write { document::replace("restart", &text) } else { Ok(()) }
}

fn restart(
    peer: &Portcullis,
    site: &Site,
    directory: &Path,
    end: fn(Agent) -> Result<Agent>,
    times: usize,
) -> Result<Vec<Gap>> {
    let mut running = peers::serve(peer, site, directory)?;
    let clients = Clients::start(SocketAddr::new(peer.address().parse()?, HTTP_PORT));
    let mut kills = Vec::new();
    for _ in 0..times {
        thread::sleep(PEACE);
        let Running::Agent(agent) = running else { continue };
        kills.push(Instant::now());
        running = Running::Agent(Box::new(end(*agent)?));
    }
    thread::sleep(PEACE);
    let attempts = clients.finish()?;
    let ends = kills.iter().skip(1).copied().chain([Instant::now()]);
    kills.iter().zip(ends).map(|(kill, end)| Gap::of(&attempts, *kill, end)).collect()
}

struct Clients {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Vec<Attempt>>>,
}

impl Clients {
    fn start(address: SocketAddr) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for client in 0..CLIENTS {
            let stop = stop.clone();
            threads.push(thread::spawn(move || {
                let mut attempts = Vec::new();
                let mut kept = None;
                while !stop.load(Ordering::Relaxed) {
                    attempts.push(match client % 2 {
                        0 => attempt(address, &mut None),
                        _ => attempt(address, &mut kept),
                    });
                    thread::sleep(PAUSE);
                }
                attempts
            }));
        }
        Self { stop, threads }
    }

    fn finish(self) -> Result<Vec<Attempt>> {
        self.stop.store(true, Ordering::Relaxed);
        let joined = self.threads.into_iter().map(|it| it.join().map_err(|_| anyhow!("a client panicked")));
        Ok(joined.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
    }
}

/// On the connection that is kept, or on a new one, which is kept then unless the server ends it.
fn attempt(address: SocketAddr, kept: &mut Option<TcpStream>) -> Attempt {
    let begin = Instant::now();
    let connected = match kept.take() {
        Some(stream) => Ok(stream),
        None => TcpStream::connect_timeout(&address, TIMEOUT),
    };
    let outcome = match connected {
        Err(_) => Outcome::Refused,
        Ok(stream) => match answer(&stream) {
            Ok(head) if head.starts_with("HTTP/1.1 200") => {
                if !head.to_ascii_lowercase().contains("connection: close") {
                    *kept = Some(stream);
                }
                Outcome::Answered
            }
            Ok(_) | Err(_) => Outcome::CutOff,
        },
    };
    Attempt { begin, end: Instant::now(), outcome }
}

/// The head of the answer, which has no body.
fn answer(mut stream: &TcpStream) -> io::Result<String> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(format!("HEAD / HTTP/1.1\r\nHost: {ONE}\r\n\r\n").as_bytes())?;
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut piece)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => head.extend_from_slice(&piece[..count]),
        }
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

impl Gap {
    /// Of the attempts that ended since the kill.
    fn of(attempts: &[Attempt], kill: Instant, until: Instant) -> Result<Self> {
        let concerned = || attempts.iter().filter(|it| it.end >= kill && it.end < until);
        let with = |outcome| concerned().filter(move |it| it.outcome == outcome);
        let since = |end: Instant| end.saturating_duration_since(kill);
        let answered = with(Outcome::Answered).filter(|it| it.begin >= kill).map(|it| since(it.end)).min();
        Ok(Self {
            refused_for: with(Outcome::Refused).map(|it| since(it.end)).max().unwrap_or_default(),
            answered_after: answered.context("nothing was answered after a restart")?,
            refused: with(Outcome::Refused).count(),
            cut_off: with(Outcome::CutOff).count(),
            longest_wait: with(Outcome::Answered).map(|it| it.end - it.begin).max().unwrap_or_default(),
        })
    }
}

fn row(size: Size, end: &str, gaps: &[Gap]) -> String {
    let of = |value: fn(&Gap) -> f64| {
        let values: Vec<_> = gaps.iter().map(value).collect();
        let most = values.iter().copied().fold(0.0, f64::max);
        format!("{:.0} ({most:.0})", median(values))
    };
    format!(
        "| {} routes, {} certificates | {end} | {} | {} | {} | {} | {} |\n",
        size.routes(),
        size.certificates(),
        of(|gap| gap.refused_for.as_secs_f64() * 1e3),
        of(|gap| gap.answered_after.as_secs_f64() * 1e3),
        of(|gap| gap.refused as f64),
        of(|gap| gap.cut_off as f64),
        of(|gap| gap.longest_wait.as_secs_f64() * 1e3),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_what_clients_saw_since_the_kill() {
        let zero = Instant::now();
        let at = |milliseconds| zero + Duration::from_millis(milliseconds);
        let attempt = |begin, end, outcome| Attempt { begin: at(begin), end: at(end), outcome };
        let attempts = [
            attempt(0, 5, Outcome::Answered),
            attempt(9, 11, Outcome::CutOff),
            attempt(12, 13, Outcome::Refused),
            attempt(20, 21, Outcome::Refused),
            attempt(22, 60, Outcome::Answered),
            attempt(61, 62, Outcome::Answered),
            attempt(99, 120, Outcome::CutOff),
        ];
        let gap = Gap::of(&attempts, at(10), at(100)).unwrap();
        assert_eq!((gap.refused, gap.cut_off), (2, 1));
        assert_eq!(gap.refused_for, Duration::from_millis(11));
        assert_eq!(gap.answered_after, Duration::from_millis(50));
        assert_eq!(gap.longest_wait, Duration::from_millis(38));
        assert!(Gap::of(&attempts, at(110), at(130)).is_err());
    }
}
