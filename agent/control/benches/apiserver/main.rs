//! Measures an agent, the real program, against a real API server. `cargo xtask bench cluster` runs
//! this inside the test cluster; what it prints is Markdown. What only a process outside of the
//! cluster can do is asked for, see [`ask`].

#![expect(clippy::expect_used, clippy::unwrap_used, reason = "a measurement that fails says where, and ends")]

mod agent;
mod http;
mod latency;
mod leadership;
mod load;
mod outage;
mod secrets;
mod site;
mod tenants;
mod writes;

#[expect(dead_code, reason = "the tests use all of it")]
#[path = "../../tests/cluster/fixture.rs"]
mod fixture;
#[expect(dead_code, reason = "the tests use all of it")]
#[path = "../../tests/cluster/agent.rs"]
mod in_process;
#[path = "../../tests/cluster/siege/mod.rs"]
mod siege;

use std::io::BufRead;
use std::path::PathBuf;

/// The measurement to be made, its means, and its number of repetitions.
pub(crate) struct Bench {
    agent: PathBuf,
    /// For state, sockets and logs of agents.
    directory: PathBuf,
    is_quick: bool,
}

#[tokio::main]
async fn main() -> Result<(), String> {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let mut next = || arguments.next().ok_or("run `cargo xtask bench cluster`");
    let part = next()?;
    let bench = Bench { agent: next()?.into(), directory: next()?.into(), is_quick: next()? == "quick" };
    match part.as_str() {
        "latency" => latency::measure(&bench).await,
        "writes" => writes::measure(&bench).await,
        "secrets" => secrets::measure(&bench).await,
        "outage" => outage::measure(&bench).await,
        "leadership" => leadership::measure(&bench).await,
        "tenants" => tenants::measure(&bench).await,
        part => return Err(format!("there is no part {part}")),
    }
    Ok(())
}

impl Bench {
    fn choose<T>(&self, whole: T, quick: T) -> T {
        if self.is_quick { quick } else { whole }
    }
}

/// Has `cargo xtask` do something to the cluster, and waits until it is done.
pub(crate) fn ask(what: &str) {
    println!("@ {what}");
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer).unwrap();
    assert_eq!(answer.trim(), "done", "{what}");
}
