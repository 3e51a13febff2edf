//! Requests one after the other, each over a connection of its own, while something else happens.

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use portcullis_test_cluster::Cluster;

use super::client::Client;

pub(super) struct Load {
    curl: Child,
    /// Code and seconds of each.
    answers: Lines<BufReader<ChildStdout>>,
}

impl Load {
    /// Returns when the first request was answered.
    pub(super) fn begin(cluster: &Cluster, client: Client, url: &str) -> Result<Self> {
        let mut curl = client.command(cluster, "stdbuf")?;
        // 000 is written for a request without an answer.
        curl.args([
            "-oL",
            "curl",
            "-s",
            "--max-time",
            "2",
            "-o",
            "/dev/null",
            "-w",
            "%{http_code} %{time_total}\n",
        ]);
        curl.args(["-H", "host: example.com", "-H", "connection: close", &format!("{url}?[1-1000000]")]);
        let mut curl = curl.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let mut answers = BufReader::new(curl.stdout.take().context("no output")?).lines();
        let first = answers.next().transpose()?.unwrap_or_default();
        ensure!(first.starts_with("200 "), "{url} does not answer: {first}");
        Ok(Self { curl, answers })
    }

    /// Not one may have failed. Returns how long the slowest took.
    pub(super) fn end(mut self) -> Result<Duration> {
        self.curl.kill()?;
        self.curl.wait()?;
        let answers: Vec<String> = self.answers.collect::<Result<_, _>>()?;
        let failed: Vec<_> = answers.iter().filter(|answer| !answer.starts_with("200 ")).collect();
        let all = answers.len();
        ensure!(failed.is_empty() && all > 0, "{} of {all} requests failed: {failed:?}", failed.len());
        let seconds = answers.iter().filter_map(|answer| answer.split_once(' ')?.1.parse().ok());
        Ok(Duration::from_secs_f64(seconds.fold(0.0, f64::max)))
    }
}
