//! Commands of operators besides `run` and `check`, and their answers.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say so and stop")]

mod bugreport;
mod inspecting;
mod manual;
mod printing;
#[expect(dead_code, reason = "for the agent's traffic")]
#[path = "../support/mod.rs"]
mod support;

use std::process::{Command, Output};

fn portcullis(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_portcullis")).args(arguments).output().unwrap()
}

fn printed(arguments: &[&str]) -> String {
    let output = portcullis(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}
