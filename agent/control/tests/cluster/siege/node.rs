//! Nodes on which agents run and clients ask, seen from the first, where this program runs.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    First,
    Second,
}

impl Node {
    pub(crate) const ALL: [Self; 2] = [Self::First, Self::Second];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::First => "node-1",
            Self::Second => "node-2",
        }
    }

    /// Runs a program in the node's network; files are those of the first.
    pub(crate) fn command(self, program: impl AsRef<OsStr>) -> Command {
        match self {
            Self::First => Command::new(program),
            Self::Second => {
                let mut command = Command::new("nsenter");
                command.arg(format!("--net={}", path(self.name()))).arg("--").arg(program);
                command
            }
        }
    }

    /// Has every socket made on this node that the thread makes from now on.
    pub(crate) fn enter(self) {
        match self {
            Self::First => {}
            Self::Second => enter(self.name()),
        }
    }

    /// Runs it on this node.
    pub(crate) fn run<T: Send>(self, run: impl FnOnce() -> T + Send) -> T {
        let inside = || {
            self.enter();
            run()
        };
        std::thread::scope(|scope| scope.spawn(inside).join()).unwrap()
    }
}

/// Has every socket made in a network namespace that the thread makes from now on.
pub(super) fn enter(namespace: &str) {
    let path = path(namespace);
    assert!(Path::new(&path).exists(), "{path} is missing: this needs a cluster of two nodes");
    let namespace = File::open(path).unwrap();
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
}

fn path(namespace: &str) -> String {
    format!("/run/netns/{namespace}")
}
