//! Requests one after the other, each over a connection of its own, while something else happens.

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Stdio};

use anyhow::{Context, Result, ensure};
use portcullis_test_cluster::Cluster;

use super::client::Client;

pub(super) struct Load {
    curl: Child,
    codes: Lines<BufReader<ChildStdout>>,
}

impl Load {
    /// Returns when the first request was answered.
    pub(super) fn begin(cluster: &Cluster, client: Client, url: &str) -> Result<Self> {
        let mut curl = client.command(cluster, "stdbuf")?;
        // 000 is written for a request without an answer.
        curl.args(["-oL", "curl", "-s", "--max-time", "2", "-o", "/dev/null", "-w", "%{http_code}\n"]);
        curl.args(["-H", "host: example.com", "-H", "connection: close", &format!("{url}?[1-1000000]")]);
        let mut curl = curl.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let mut codes = BufReader::new(curl.stdout.take().context("no output")?).lines();
        ensure!(codes.next().transpose()?.as_deref() == Some("200"), "{url} does not answer");
        Ok(Self { curl, codes })
    }

    /// Not one may have failed.
    pub(super) fn end(mut self) -> Result<()> {
        self.curl.kill()?;
        self.curl.wait()?;
        let codes: Vec<String> = self.codes.collect::<Result<_, _>>()?;
        let failed = codes.iter().filter(|code| *code != "200").count();
        ensure!(failed == 0 && !codes.is_empty(), "{failed} of {} requests failed", codes.len());
        Ok(())
    }
}
