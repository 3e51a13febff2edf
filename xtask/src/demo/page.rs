//! The agent's page, by `portcullis ui`, as long as the demo runs.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use anyhow::{Context, Result, ensure};
use portcullis_testbed::Agent;

/// Ends with its value.
pub(super) struct Page {
    ui: Child,
    address: String,
}

impl Page {
    pub(super) fn open(agent: &Agent) -> Result<Self> {
        let mut command = agent.asking("ui");
        command.arg("--no-open").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut page =
            Self { ui: command.spawn().context("cannot run `portcullis ui`")?, address: String::new() };
        let output = page.ui.stdout.as_mut().context("`portcullis ui` without output")?;
        BufReader::new(output).read_line(&mut page.address)?;
        ensure!(page.address.starts_with("http://127."), "`portcullis ui` printed no address");
        Ok(page)
    }

    pub(super) fn address(&self) -> &str {
        self.address.trim_end()
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = self.ui.kill();
        let _ = self.ui.wait();
    }
}
