//! Chromium: a page that fetches from each name and reports what it got.

use std::fs::{self, File};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use portcullis_testbed::command;

use super::backends::{Backends, PAGE};
use super::tally::Tally;
use super::world::{Kind, World};

const PROGRAM: &str = "chromium";
/// For all that a page asks for.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Killed when dropped.
struct Browser(Child);

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(super) fn version(_world: &World) -> Result<Option<String>> {
    if command::find(PROGRAM).is_none() {
        return Ok(None);
    }
    let version = command::ask(PROGRAM, &["--version"]).unwrap_or_default();
    Ok(Some(version.split(' ').nth(1).map(|number| format!(" {number}")).unwrap_or_default()))
}

pub(super) fn run(world: &World, backends: &Backends, connections: usize) -> Result<Tally> {
    let hosts: Vec<_> = world.hosts(connections).collect();
    let (ip, port) = (world.address.ip(), world.address.port());
    let origin = world.names.iter().find(|name| name.kind == Kind::Https).context("no HTTPS")?;
    let origin = format!("https://{}:{port}", origin.host);
    backends.set_page(page(&hosts, &origin, port));
    let profile = world.directory.join("chromium");
    fs::create_dir_all(&profile)?;
    let log = File::create(world.directory.join("chromium.log"))?;
    let mut browser = Command::new("setpriv");
    browser.args(["--pdeathsig", "KILL", PROGRAM, "--headless", "--no-sandbox", "--disable-gpu"]);
    browser.args(["--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking"]);
    // It does not know the authority. The answer tells whose certificate it was: only the backend
    // or listener of a name has the name's.
    browser.arg("--ignore-certificate-errors").arg(format!("--host-resolver-rules=MAP * {ip}"));
    browser.arg(format!("--user-data-dir={}", profile.display())).arg(format!("{origin}{PAGE}"));
    browser.env("HOME", &profile).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    let browser = Browser(browser.spawn().context("cannot run chromium")?);
    let mut tally = Tally::default();
    for _ in 0..hosts.len() {
        let report = backends.reports.recv_timeout(TIMEOUT).context("the page reports no more")?;
        let parts: Vec<_> = report.split('&').collect();
        match parts[..] {
            [host, "answer", answer] => tally.note(host, Ok(answer)),
            [host, _, error] => tally.note(host, Err(&error)),
            _ => tally.note("a page", Err(&report)),
        }
    }
    drop(browser);
    Ok(tally)
}

/// Six fetches at a time; each report is a request, too, to the page's own origin.
fn page(hosts: &[&str], origin: &str, port: u16) -> String {
    let hosts = hosts.join(" ");
    format!(
        "<!doctype html><script>
const hosts = '{hosts}'.split(' ');
async function ask(host) {{
  let told;
  try {{
    const answer = await fetch(`https://${{host}}:{port}/`, {{cache: 'no-store'}});
    told = 'answer&' + encodeURIComponent(await answer.text());
  }} catch (error) {{
    told = 'error&' + encodeURIComponent(String(error));
  }}
  await fetch(`{origin}/report?${{host}}&${{told}}`);
}}
async function run() {{
  while (hosts.length > 0) await ask(hosts.shift());
}}
for (let i = 0; i < 6; i++) run();
</script>"
    )
}
