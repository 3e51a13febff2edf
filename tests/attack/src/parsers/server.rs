//! Servers that say of each request what it was to them: Go's net/http, Node.js, nginx and HAProxy,
//! as far as they are installed.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use portcullis_testbed::{command, go, until, workspace};
use tempfile::TempDir;

use crate::backend::Request;
use crate::wire;
use crate::world::address;

/// Behind what a server is to read.
pub(super) const END: &str = "GET /end";
const START: Duration = Duration::from_secs(60);
/// Relative to the workspace.
const GO_SOURCE: &str = "tests/attack/src/parsers/server.go";
const NODE_SOURCE: &str = "tests/attack/src/parsers/server.js";

/// Killed when dropped.
pub(super) struct Server {
    pub(super) name: &'static str,
    says: Says,
    behind_upgrade: BehindUpgrade,
    address: SocketAddr,
    child: Child,
    /// Goes last.
    _directory: TempDir,
}

/// Writes what a server needs into a directory, and says how to run it.
type Prepare = fn(&Path, SocketAddr) -> Result<Command>;

/// The parts of a request that a server tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Says {
    Target,
    /// The length of the body, too.
    TargetAndLength,
}

/// The fate of a connection on which another protocol was asked for in vain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BehindUpgrade {
    Reads,
    Ends,
}

/// Those that are not are named.
pub(super) fn installed() -> Result<Vec<Server>> {
    let mut servers = Vec::new();
    if go::ensure().is_ok() {
        servers.push(Server::start("Go", Says::TargetAndLength, BehindUpgrade::Reads, 9003, go)?);
    } else {
        println!("attack: no Go here");
    }
    let others: [(_, _, _, _, _, Prepare); 3] = [
        ("nginx", "nginx", Says::Target, BehindUpgrade::Reads, 9004, nginx),
        ("HAProxy", "haproxy", Says::Target, BehindUpgrade::Reads, 9005, haproxy),
        ("Node.js", "node", Says::TargetAndLength, BehindUpgrade::Ends, 9006, node),
    ];
    for (name, program, says, behind_upgrade, port, prepare) in others {
        match command::find(program) {
            Some(_) => servers.push(Server::start(name, says, behind_upgrade, port, prepare)?),
            None => println!("attack: no {name} here"),
        }
    }
    Ok(servers)
}

fn go(directory: &Path, address: SocketAddr) -> Result<Command> {
    let program = directory.join("server");
    let mut build = go::command(directory);
    command::run(build.args(["build", "-o"]).arg(&program).arg(workspace::root().join(GO_SOURCE)))?;
    let mut server = Command::new(program);
    server.arg(address.to_string());
    Ok(server)
}

fn node(_: &Path, address: SocketAddr) -> Result<Command> {
    let mut server = Command::new("node");
    server.arg(workspace::root().join(NODE_SOURCE));
    server.args([address.ip().to_string(), address.port().to_string()]);
    Ok(server)
}

fn nginx(directory: &Path, address: SocketAddr) -> Result<Command> {
    let paths = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let paths: String = paths.iter().map(|name| format!("  {name}_temp_path {name};\n")).collect();
    let configuration = format!(
        "daemon off;\nmaster_process off;\npid nginx.pid;\nerror_log stderr crit;\nevents {{}}\nhttp {{
  access_log off;\n{paths}  server {{
    listen {address};
    keepalive_requests 1000000;
    large_client_header_buffers 8 64k;
    add_header X-Seen \"$request_method $request_uri\";
    location / {{ return 204; }}\n  }}\n}}\n"
    );
    let file = directory.join("nginx.conf");
    fs::write(&file, configuration)?;
    let mut server = Command::new("nginx");
    server.arg("-p").arg(directory).arg("-c").arg(file);
    Ok(server)
}

fn haproxy(directory: &Path, address: SocketAddr) -> Result<Command> {
    let configuration = format!(
        "global\n  tune.bufsize 65536\n  tune.http.maxhdr 200\ndefaults\n  mode http\n  timeout client 1m\n  timeout http-request 1m\nfrontend all\n  bind {address}
  http-request wait-for-body time 1m
  http-request return status 200 hdr X-Seen \"%[method] %[url]\"\n"
    );
    let file = directory.join("haproxy.cfg");
    fs::write(&file, configuration)?;
    let mut server = Command::new("haproxy");
    server.arg("-db").arg("-f").arg(file);
    Ok(server)
}

// === impl Server ===

impl Server {
    fn start(
        name: &'static str,
        says: Says,
        behind_upgrade: BehindUpgrade,
        port: u16,
        prepare: Prepare,
    ) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("portcullis-attack-").tempdir()?;
        let address = address(port)?;
        let mut server = prepare(directory.path(), address)?;
        let log = fs::File::create(directory.path().join("log"))?;
        server.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = server.spawn().with_context(|| format!("cannot start {name}"))?;
        let server = Self { name, says, behind_upgrade, address, child, _directory: directory };
        until(START, || Ok(TcpStream::connect(address)?))
            .with_context(|| format!("{name} does not start"))?;
        Ok(server)
    }

    /// The line by which it has to tell a request.
    pub(super) fn line(&self, request: &Request) -> String {
        let target = request.head.split_once(" http/1.1\r\n").unwrap_or_default().0;
        match self.says {
            Says::Target => target.to_owned(),
            Says::TargetAndLength => format!("{target} {}", request.body),
        }
    }

    /// True if the server has to close the connection behind the request.
    pub(super) fn ends_behind(&self, request: &Request) -> bool {
        self.behind_upgrade == BehindUpgrade::Ends && request.head.contains("\r\nupgrade:")
    }

    /// The requests that these bytes are to it, and the statuses by which it refuses some; the last
    /// is [`END`], if it comes to that.
    pub(super) fn read(&self, bytes: &[u8]) -> Result<Vec<String>> {
        let mut stream = wire::connect(self.address)?;
        let mut writing = stream.try_clone()?;
        let answers = thread::scope(|scope| {
            scope.spawn(move || {
                let end = format!("{END} HTTP/1.1\r\nHost: end\r\nConnection: close\r\n\r\n");
                let _ = writing.write_all(bytes).and_then(|()| writing.write_all(end.as_bytes()));
            });
            let mut answers = Vec::new();
            // Of a connection that breaks, what there was.
            let _ = stream.read_to_end(&mut answers);
            answers
        });
        let text = String::from_utf8_lossy(&answers).to_ascii_lowercase();
        let status = |line: &str| line.strip_prefix("http/1.")?.get(2..5).map(str::to_owned);
        let seen = text.lines().filter_map(|line| match line.strip_prefix("x-seen: ") {
            Some(seen) if seen.starts_with("get /end") => Some(END.to_owned()),
            Some(seen) => Some(seen.to_owned()),
            None => status(line).filter(|status| !status.starts_with(['1', '2'])),
        });
        Ok(seen.collect())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
