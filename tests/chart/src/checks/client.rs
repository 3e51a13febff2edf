//! From where requests are made: a pod, a node, or outside of the cluster.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, ensure};
use portcullis_test_cluster::{Cluster, Node, wait};
use portcullis_testbed::command;

use super::outside;
use super::words::TIMEOUT;
use crate::TESTED;

#[derive(Clone, Copy)]
pub(super) enum Client {
    Pod(&'static str),
    Node(Node),
    Outside,
}

/// The manifests have a pod on each node.
pub(super) const PODS: [Client; 2] = [Client::Pod("client-1"), Client::Pod("client-2")];

impl Client {
    pub(super) fn command(self, cluster: &Cluster, program: &str) -> Result<Command> {
        match self {
            Self::Pod(pod) => cluster.command_of_pod(TESTED, pod, program),
            Self::Node(node) => Ok(cluster.command_on(node, program)),
            Self::Outside => Ok(outside::command(cluster, program)),
        }
    }

    /// One request, whatever the certificate says. An answer that is no success is an error.
    pub(super) fn get(self, cluster: &Cluster, url: &str) -> Result<String> {
        let mut curl = self.command(cluster, "curl")?;
        command::output(curl.args(["-sSk", "--fail", "--max-time", "2", "-H", "host: example.com", url]))
    }

    /// As many as it takes.
    pub(super) fn await_answer(self, cluster: &Cluster, url: &str) -> Result<String> {
        let what = format!("an answer of {url}");
        let mut last = None;
        wait::until(&what, TIMEOUT, || match self.get(cluster, url) {
            Ok(answer) => Ok(Some(answer)),
            Err(error) => {
                last = Some(error);
                Ok(None)
            }
        })
        .with_context(|| last.map(|error| format!("{error:#}")).unwrap_or_default())
    }

    /// Waits until no process listens there: neither an answer nor silence will do.
    pub(super) fn await_refusal(self, cluster: &Cluster, url: &str) -> Result<()> {
        wait::until_true(&format!("refusal at {url}"), TIMEOUT, || {
            self.get(cluster, url).is_err_and(|error| format!("{error:#}").contains("Couldn't connect"))
        })
    }
}

/// Asks twice over one connection, and waits for a line in between.
const TALK: &str = r#"
ask() {
    printf 'GET /%s HTTP/1.1\r\nHost: example.com\r\n\r\n' "$1" >&3
    while IFS= read -r -t 5 line <&3; do
        line=${line%$'\r'}
        case ${line,,} in http/*) echo "$line" ;; content-length:*) length=${line##* } ;; '') break ;; esac
    done
    read -r -t 5 -N "$length" body <&3
}
exec 3<>"/dev/tcp/$0/$1" && ask first && read -r && ask second
"#;

/// A connection with a question and an answer behind it, and one more to come.
pub(super) struct Conversation {
    talk: Child,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Conversation {
    pub(super) fn begin(cluster: &Cluster, client: Client, address: &str, port: u16) -> Result<Self> {
        let mut talk = client.command(cluster, "bash")?;
        talk.args(["-c", TALK, address, &port.to_string()]);
        let mut talk = talk.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let answers = BufReader::new(talk.stdout.take().context("no output")?).lines();
        let mut conversation = Self { talk, answers };
        conversation.expect_success("first")?;
        Ok(conversation)
    }

    pub(super) fn go_on(mut self) -> Result<()> {
        self.talk.stdin.take().context("no input")?.write_all(b"\n")?;
        self.expect_success("second")?;
        self.talk.wait()?;
        Ok(())
    }

    fn expect_success(&mut self, which: &str) -> Result<()> {
        let answer = self.answers.next().transpose()?.unwrap_or_default();
        ensure!(answer == "HTTP/1.1 200 OK", "the {which} answer on the connection is {answer:?}");
        Ok(())
    }
}
