//! Sessions one after the other, while something else happens: WebSockets and TCP streams of a few
//! seconds, which are shorter than a drain, and UDP clients with several questions each.

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Stdio};

use anyhow::{Context, Result, ensure};
use portcullis_test_cluster::Cluster;

use super::client::Client;

/// The exchange of a session. Each of its questions is answered, or the session has failed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    WebSocket,
    Tcp,
    Udp,
}

pub(super) struct Sessions {
    kind: Kind,
    bash: Child,
    /// `ok`, or the question that was not answered, of each.
    ends: Lines<BufReader<ChildStdout>>,
}

/// Ten questions in two seconds, and the next session.
const FOREVER: &str = r#"
export LC_ALL=C
session() {
    open || { echo "cannot open: $?"; return; }
    for ((number = 1; number <= 10; number++)); do
        ask || { echo "question $number is not answered"; return; }
        sleep 0.2
    done
    exec 3>&-
    echo ok
}
while :; do session; done
"#;

const HTTP: &str = r#"
head() {
    while IFS= read -r -t 5 line <&3; do
        line=${line%$'\r'}
        case ${line,,} in http/*) status=${line#* } ;; content-length:*) length=${line##* } ;; '') return 0 ;; esac
    done
    return 1
}
"#;

/// A frame with a text of four letters (RFC 6455), masked by bytes of 1.
const WEBSOCKET: &str = r#"
open() {
    exec 3<>"/dev/tcp/$address/$port" || return
    printf '%s\r\n' 'GET /ws HTTP/1.1' 'Host: example.com' 'Origin: http://example.com' 'Connection: Upgrade' \
        'Upgrade: websocket' 'Sec-WebSocket-Version: 13' 'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==' '' >&3
    head && [ "${status%% *}" = 101 ]
}
ask() {
    printf '\x81\x84\x01\x01\x01\x01qhof' >&3
    IFS= read -r -t 5 -N 6 answer <&3 && [ "$answer" = $'\x81\x04ping' ]
}
"#;

/// HTTP is what the backend talks; the agent does not know.
const TCP: &str = r#"
open() { exec 3<>"/dev/tcp/$address/$port"; }
ask() {
    printf 'GET / HTTP/1.1\r\nHost: example.com\r\n\r\n' >&3
    head && [ "${status%% *}" = 200 ] && read -r -t 5 -N "$length" body <&3
}
"#;

/// A question of the DNS for `foo.bar`.
const UDP: &str = r#"
open() { exec 3<>"/dev/udp/$address/$port"; }
ask() {
    printf '\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03foo\x03bar\x00\x00\x01\x00\x01' >&3
    length=$(timeout 5 dd bs=512 count=1 status=none <&3 | wc -c)
    [ "$length" -gt 12 ]
}
"#;

impl Sessions {
    /// Returns when the first one has ended well.
    pub(super) fn begin(
        cluster: &Cluster,
        client: Client,
        kind: Kind,
        address: &str,
        port: u16,
    ) -> Result<Self> {
        let talk = match kind {
            Kind::WebSocket => WEBSOCKET,
            Kind::Tcp => TCP,
            Kind::Udp => UDP,
        };
        let script = format!("address=$0 port=$1\n{HTTP}{talk}{FOREVER}");
        let mut bash = client.command(cluster, "bash")?;
        bash.args(["-c", &script, address, &port.to_string()]);
        let mut bash = bash.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let mut ends = BufReader::new(bash.stdout.take().context("no output")?).lines();
        let first = ends.next().transpose()?.unwrap_or_default();
        let sessions = Self { kind, bash, ends };
        ensure!(first == "ok", "{kind:?} at {address}:{port}: {first}");
        Ok(sessions)
    }

    /// Not one may have failed. Returns how many there were.
    pub(super) fn end(mut self) -> Result<String> {
        self.bash.kill()?;
        self.bash.wait()?;
        let kind = self.kind;
        let ends: Vec<String> = self.ends.by_ref().collect::<Result<_, _>>()?;
        let failed: Vec<_> = ends.iter().filter(|end| *end != "ok").collect();
        let all = ends.len();
        ensure!(
            failed.is_empty() && all > 0,
            "{kind:?}: {} of {all} sessions failed: {failed:?}",
            failed.len()
        );
        Ok(format!("{all} sessions of {kind:?}"))
    }
}

impl Drop for Sessions {
    fn drop(&mut self) {
        let _ = self.bash.kill();
        let _ = self.bash.wait();
    }
}
