//! A golden case of `agent/gateway/tests/cases/delegation`, running: every Service has a backend of
//! its name.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use portcullis_netns_tests::{Answer, Scenario};
use portcullis_testbed::{Agent, Backend};

/// Fields are dropped in this order.
pub(crate) struct Family {
    agent: Option<Agent>,
    _backends: Vec<Backend>,
    pub(crate) scenario: Scenario,
}

impl Family {
    pub(crate) fn start(test: &str, case: &str) -> Result<Self> {
        let scenario = Scenario::without_configuration(test)?;
        let (text, endpoints) =
            addressed(&fs::read_to_string(cases().join("delegation").join(case).join("in.yaml"))?)?;
        fs::write(scenario.config().join("family.yaml"), text)?;
        fs::copy(cases().join("base.yaml"), scenario.config().join("base.yaml"))?;
        let backends = endpoints.iter().map(|(name, address)| scenario.backend(name, address));
        let backends = backends.collect::<Result<_>>()?;
        Ok(Self { agent: Some(scenario.start_agent()?), _backends: backends, scenario })
    }

    /// Another agent, on the directory as it is now.
    pub(crate) fn restart(&mut self) -> Result<()> {
        drop(self.agent.take());
        self.agent = Some(self.scenario.start_agent()?);
        Ok(())
    }

    /// Answer to a GET: the backend's name, or the status.
    pub(crate) fn ask(&self, url: &str, headers: &[&str]) -> Result<String> {
        Ok(who(&self.get(url, headers)?))
    }

    pub(crate) fn get(&self, url: &str, headers: &[&str]) -> Result<Answer> {
        let headers: Vec<_> = headers.iter().flat_map(|header| ["--header", *header]).collect();
        self.scenario.request(url).with(&headers).send()
    }
}

fn cases() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../agent/gateway/tests/cases")
}

pub(crate) fn who(answer: &Answer) -> String {
    let body = answer.text.rsplit("\r\n\r\n").next().unwrap_or_default();
    match (answer.status, body.split_once(": GET ")) {
        (200, Some((name, _))) => name.to_owned(),
        (status, _) => status.to_string(),
    }
}

/// The case with addresses of this network, and whose they are.
fn addressed(case: &str) -> Result<(String, Vec<(String, String)>)> {
    let (mut text, mut endpoints) = (case.to_owned(), Vec::new());
    let mut service = "";
    for line in case.lines() {
        service = between(line, "kubernetes.io/service-name: ", "}").unwrap_or(service);
        if let Some(address) = between(line, "addresses: [", "]") {
            let here = format!("10.2.0.{}", 10 + endpoints.len());
            text = text.replace(&format!("[{address}]"), &format!("[{here}]"));
            endpoints.push((service.to_owned(), here));
        }
    }
    endpoints.first().context("a case without endpoints")?;
    Ok((text, endpoints))
}

fn between<'l>(line: &'l str, begin: &str, end: &str) -> Option<&'l str> {
    line.split_once(begin)?.1.split_once(end).map(|(found, _)| found)
}
