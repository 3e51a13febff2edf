//! Requests without end, in the background, until one fails.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::client::Request;

/// Ends when dropped.
pub struct Load {
    child: Child,
    log: PathBuf,
}

impl Request<'_> {
    /// Repeats the request, on one connection as long as that is open. The first failure ends it.
    pub fn repeat(&self, log: PathBuf) -> Result<Load> {
        let output = File::create(&log)?;
        let mut curl = self.command(&format!("{}?[1-1000000000]", self.url));
        curl.args(["--fail", "--fail-early", "--no-include", "--output", "/dev/null"]);
        // It asks as fast as it can. What it asks goes first, or agents do not get to start.
        let mut command = Command::new("nice");
        command.args(["--adjustment", "10"]).arg(curl.get_program()).args(curl.get_args());
        let child = command.stdout(output.try_clone()?).stderr(output).stdin(Stdio::null()).spawn();
        Ok(Load { child: child.context("cannot run curl")?, log })
    }
}

impl Load {
    /// Ends it. An error if a request failed before.
    pub fn finish(mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            let log = fs::read_to_string(&self.log)?;
            bail!("curl ended: {status}: {log}");
        }
        Ok(())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
