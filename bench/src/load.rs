//! Load generators: wrk for HTTP/1, h2load for HTTP/2. Both saturate the proxy from CPU 1.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use super::process::LOAD_CPU;
use super::site::{HTTP_PORT, HTTPS_PORT, MANY, ONE, host_name, large, path};
use super::workload::{Asked, BROWSER, Load, Protocol};

const H2_STREAMS: &str = "10";
/// Bytes of a request's body.
pub(super) const POST: usize = 512;

/// Addition to wrk's script: what is wrong with an answer. A response is parsed for it, which costs
/// too much for measurements.
const TELL_ODD_ANSWERS: &str = "local odd = 0
function response(status, headers, body)
  if status ~= 200 and odd < 10 then odd = odd + 1; print('ODD ' .. status .. ' ' .. body) end
end
";

/// One run against one address.
pub(super) struct Run<'a> {
    pub(super) load: Load,
    pub(super) address: &'a str,
    pub(super) duration: Duration,
    /// Numbers of routes and certificates to choose from.
    pub(super) routes: usize,
    pub(super) certificates: usize,
    /// Different in each round: chooses the certificate.
    pub(super) round: usize,
    pub(super) scratch: &'a Path,
}

/// The generator's counts and times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Seen {
    pub(super) requests: u64,
    pub(super) failed: u64,
    pub(super) seconds: f64,
    pub(super) p50: Duration,
    pub(super) p99: Duration,
}

impl Run<'_> {
    pub(super) fn make(&self) -> Result<Seen> {
        match (self.load.protocol, self.load.rate) {
            (Protocol::Http2, _) | (_, Some(_)) => self.h2load(),
            _ => self.wrk(),
        }
    }

    fn wrk(&self) -> Result<Seen> {
        parse_wrk(&text(self.wrk_command(&self.script())?.output())?)
    }

    fn wrk_command(&self, script: &str) -> Result<Command> {
        let Load { protocol, asked, connections, .. } = self.load;
        let file = self.scratch.join(format!("{protocol:?}-{asked:?}.lua"));
        fs::write(&file, script)?;
        let mut wrk = pinned("wrk");
        wrk.args(["--threads", "1", "--connections", &connections.to_string(), "--timeout", "5s"]);
        wrk.args(["--duration", &format!("{}s", self.duration.as_secs().max(1))]);
        wrk.args(["--header", &format!("Host: {}", self.host())]).arg("--script").arg(&file);
        if asked == Asked::Browser {
            let headers = BROWSER.iter().map(|(name, value)| format!("{name}: {value}"));
            wrk.args(headers.flat_map(|header| ["--header".to_owned(), header]));
        }
        if protocol == Protocol::Handshakes {
            wrk.args(["--header", "Connection: close"]);
        }
        wrk.arg(self.url());
        Ok(wrk)
    }

    /// Connects to the proxy whatever the name says, and prints its result for us.
    fn script(&self) -> String {
        let address = self.address;
        let mut script = format!(
            "function wrk.resolve(host, service) wrk.addrs = wrk.lookup('{address}', service) end\n\
             function done(summary, latency)\n  local e = summary.errors\n  \
             print(string.format('RESULT %d %d %d %d %d', summary.requests, summary.duration,\n    \
             e.connect + e.read + e.write + e.status + e.timeout, latency:percentile(50), latency:percentile(99)))\nend\n"
        );
        match self.load.asked {
            Asked::Root | Asked::Browser | Asked::Large(_) => {}
            Asked::Post => script += &format!("wrk.method = 'POST'\nwrk.body = string.rep('x', {POST})\n"),
            Asked::Routes => {
                let prefix = path(0).trim_end_matches('0').to_owned();
                script += &format!(
                    "local requests = {{}}\nfunction init()\n  math.randomseed({})\n  \
                     for i = 1, {} do requests[i] = wrk.format('GET', '{prefix}' .. (i - 1)) end\nend\n\
                     function request() return requests[math.random(#requests)] end\n",
                    self.round + 1,
                    self.routes
                );
            }
        }
        script
    }

    fn h2load(&self) -> Result<Seen> {
        let Load { protocol, connections, rate, .. } = self.load;
        let log = self.scratch.join("h2load.tsv");
        let mut h2load = pinned("h2load");
        h2load.args(["--clients", &connections.to_string(), "--threads", "1"]);
        h2load.args(["--duration", &self.duration.as_secs().max(1).to_string()]);
        if protocol == Protocol::Http2 {
            h2load.args(["--max-concurrent-streams", H2_STREAMS]);
        } else {
            h2load.arg("--h1");
        }
        if let Some(rate) = rate {
            h2load.arg(format!("--rps={}", rate / connections));
        }
        h2load.arg(format!("--connect-to={}:{}", self.address, self.port()));
        h2load.arg(log_file(&log)).arg(self.url());
        if log.exists() {
            fs::remove_file(&log)?;
        }
        text(h2load.output())?;
        parse_log(&fs::read_to_string(&log).context("h2load wrote no log")?, self.duration)
    }

    fn url(&self) -> String {
        let scheme = if self.load.protocol == Protocol::Http1 { "http" } else { "https" };
        let path = match self.load.asked {
            Asked::Large(kib) => large(kib),
            Asked::Root | Asked::Browser | Asked::Post | Asked::Routes => "/".to_owned(),
        };
        format!("{scheme}://{}:{}{path}", self.host(), self.port())
    }

    fn port(&self) -> u16 {
        if self.load.protocol == Protocol::Http1 { HTTP_PORT } else { HTTPS_PORT }
    }

    fn host(&self) -> String {
        match (self.load.protocol, self.load.asked) {
            (Protocol::Http1, Asked::Routes) => MANY.to_owned(),
            (Protocol::Http1, _) => ONE.to_owned(),
            // A step that is no divisor: neighbours in a round are far apart in any table.
            _ => host_name((self.round * 379) % self.certificates.max(1)),
        }
    }
}

/// Load until it is told to finish.
pub(super) struct Background(Child);

impl Background {
    pub(super) fn start(load: Load, address: &str, scratch: &Path) -> Result<Self> {
        const LONG: Duration = Duration::from_secs(24 * 60 * 60);
        let run = Run { load, address, duration: LONG, routes: 1, certificates: 1, round: 0, scratch };
        let wrk = run.wrk_command(&(run.script() + TELL_ODD_ANSWERS))?;
        let child = polite(&wrk).stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        Ok(Self(child.context("cannot run wrk: `cargo xtask setup --bench` installs it")?))
    }

    /// wrk takes Ctrl-C for the end of its time.
    pub(super) fn finish(mut self) -> Result<Seen> {
        let pid = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw).context("wrk has no process id")?;
        kill_process(pid, Signal::INT)?;
        let mut text = String::new();
        self.0.stdout.take().context("wrk has no output")?.read_to_string(&mut text)?;
        let odd = |line: &&str| ["errors:", "Non-2xx", "ODD"].iter().any(|mark| line.contains(mark));
        text.lines().filter(odd).for_each(|line| println!("load: {}", line.trim()));
        parse_wrk(&text)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn pinned(program: &str) -> Command {
    let mut command = Command::new("taskset");
    command.args(["--cpu-list", LOAD_CPU, program]);
    command
}

/// The same command, giving way to what is measured on the same CPU, and gone when we are.
fn polite(command: &Command) -> Command {
    let mut nice = Command::new("setpriv");
    nice.args(["--pdeathsig", "KILL", "nice", "--adjustment", "10"])
        .arg(command.get_program())
        .args(command.get_args());
    nice
}

fn log_file(path: &Path) -> String {
    format!("--log-file={}", PathBuf::from(path).display())
}

fn text(output: std::io::Result<Output>) -> Result<String> {
    let output = output.context("cannot run the load generator: `cargo xtask setup --bench` installs it")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!("the load generator: {}: {text}{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(text)
}

fn parse_wrk(text: &str) -> Result<Seen> {
    let line = text.lines().find_map(|line| line.strip_prefix("RESULT ")).context("wrk printed no result")?;
    let numbers: Vec<u64> = line.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    let [requests, duration, failed, p50, p99] = numbers[..] else { bail!("wrk printed {line:?}") };
    let seconds = Duration::from_micros(duration).as_secs_f64();
    Ok(Seen { requests, failed, seconds, p50: Duration::from_micros(p50), p99: Duration::from_micros(p99) })
}

/// h2load's log: start, status, microseconds.
fn parse_log(log: &str, duration: Duration) -> Result<Seen> {
    let rows = log.lines().filter_map(|line| {
        let mut columns = line.split('\t').skip(1);
        Some((columns.next()?, columns.next()?.parse::<u64>().ok()?))
    });
    let (good, bad): (Vec<_>, Vec<_>) = rows.partition(|(status, _)| *status == "200");
    let mut latencies: Vec<_> = good.into_iter().map(|(_, latency)| latency).collect();
    latencies.sort_unstable();
    let at =
        |part: usize| latencies.get(latencies.len() * part / 100).copied().context("h2load had no answer");
    Ok(Seen {
        requests: latencies.len() as u64,
        failed: bad.len() as u64,
        seconds: duration.as_secs_f64(),
        p50: Duration::from_micros(at(50)?),
        p99: Duration::from_micros(at(99)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_wrk_prints() {
        let seen = parse_wrk("Running 1s test\nRESULT 2000 1000000 1 450 3000\n").unwrap();
        assert_eq!((seen.requests, seen.failed, seen.seconds), (2000, 1, 1.0));
        assert_eq!(seen.p99, Duration::from_millis(3));
    }

    #[test]
    fn reads_h2loads_log() {
        let log: String =
            (1..=100).map(|n| format!("0\t{}\t{n}\n", if n == 100 { 503 } else { 200 })).collect();
        let seen = parse_log(&log, Duration::from_secs(2)).unwrap();
        assert_eq!((seen.requests, seen.failed), (99, 1));
        assert_eq!((seen.p50, seen.p99), (Duration::from_micros(50), Duration::from_micros(99)));
    }
}
