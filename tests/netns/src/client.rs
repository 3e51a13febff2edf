//! A client's requests, made by curl in the client's namespace.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::namespace::Namespace;

/// Address of the agent's Gateways, which every request goes to.
pub const VIP: &str = "10.9.0.1";

pub struct Request<'a> {
    client: &'a Namespace,
    pub(crate) url: &'a str,
    authority: PathBuf,
    arguments: Vec<String>,
}

#[derive(Debug)]
pub struct Answer {
    /// 0 without an answer.
    pub status: u16,
    /// Head and body.
    pub text: String,
    /// curl's exit code: 7 refused, 28 timed out, 35 handshake failed.
    pub code: Option<i32>,
}

impl<'a> Request<'a> {
    pub(crate) fn new(client: &'a Namespace, url: &'a str, authority: PathBuf) -> Self {
        Self { client, url, authority, arguments: Vec::new() }
    }

    /// Further arguments of curl's.
    pub fn with(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        self
    }

    pub fn send(&self) -> Result<Answer> {
        let output = self.command(self.url).arg("--globoff").output().context("cannot run curl")?;
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        let status = text.split_whitespace().nth(1).and_then(|status| status.parse().ok());
        let status = if text.starts_with("HTTP/") { status.unwrap_or(0) } else { 0 };
        Ok(Answer { status, text, code: output.status.code() })
    }

    pub(crate) fn command(&self, url: &str) -> Command {
        let mut command = self.client.command("curl");
        command.args(["-sS", "-i", "--cacert"]).arg(&self.authority);
        // Whatever the name, the VIP it is.
        command.args(["--connect-to", &format!("::{VIP}:"), "--max-time", "20"]);
        command.args(&self.arguments).arg(url);
        command
    }
}
