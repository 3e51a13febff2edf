//! Readiness, and the list of problems.

use std::fmt::{Display, Write};

use portcullis_model::{Snapshot, Unserved};

use crate::key_sets::FailingKeySet;

/// An agent's progress with its configuration.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Number of changes that took effect.
    pub applied: u64,
    /// Number of frontends that are served.
    pub served: usize,
    /// The configuration was read from its source, not from what was kept on disk.
    pub is_current: bool,
    /// Without a Gateway, traffic should not come here. An agent of a whole cluster waits for
    /// Gateways; one of a directory or of a single Gateway has nothing to do without.
    pub needs_gateway: bool,
}

/// The number of frontends of a snapshot that the data plane did not refuse.
pub fn served_frontends(snapshot: &Snapshot, refused: &Unserved) -> usize {
    snapshot.frontends.keys().filter(|key| !refused.frontends.contains_key(key)).count()
}

impl Progress {
    /// A line with the number of frontends that are served.
    ///
    /// # Errors
    /// While the agent is not ready: a line with the reason. It never is before the configuration
    /// is read and applied; what was kept on disk is served, but it may be out of date.
    pub fn readiness(&self) -> Result<String, String> {
        let missing = match self {
            Self { applied: 0, .. } => "the configuration is being read",
            Self { is_current: false, .. } => {
                "the last good configuration is served until everything is read from the API server; the log says what is in the way"
            }
            Self { served: 0, needs_gateway: true, .. } => {
                "no Gateway is served; /problems and /status say why"
            }
            Self { served, .. } => return Ok(format!("ok: {served} frontends are served\n")),
        };
        Err(format!("not ready: {missing}\n"))
    }
}

/// A line for each problem: of the input, of objects whose status cannot say it, of traffic that is
/// not served, of key sets that cannot be fetched, and of statuses that cannot be written.
pub fn problems<'a>(
    input: impl IntoIterator<Item = impl Display>,
    objects: impl IntoIterator<Item = (impl Display, &'a Vec<String>)>,
    refused: &Unserved,
    key_sets: &[FailingKeySet],
    unwritten: Option<&str>,
) -> String {
    let mut text = String::new();
    for problem in input {
        let _ = writeln!(text, "{problem}");
    }
    for (object, problems) in objects {
        for problem in problems {
            let _ = writeln!(text, "{object}: {problem}");
        }
    }
    for (frontend, why) in refused.reasons() {
        let _ = writeln!(text, "{frontend}: not served: {why}");
    }
    for set in key_sets {
        let _ = writeln!(text, "{}: {}", set.object(), set.message());
    }
    if let Some(why) = unwritten {
        let _ = writeln!(text, "statuses: {why}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_is_ready_when_what_it_read_is_applied() {
        let ready = Progress { applied: 1, served: 2, is_current: true, needs_gateway: true };
        assert_eq!(ready.readiness(), Ok("ok: 2 frontends are served\n".to_owned()));
        for (progress, why) in [
            (Progress { applied: 0, ..ready }, "being read"),
            (Progress { is_current: false, ..ready }, "last good configuration"),
            (Progress { served: 0, ..ready }, "no Gateway is served"),
        ] {
            let line = progress.readiness().unwrap_err();
            assert!(line.starts_with("not ready: ") && line.contains(why), "{line}");
        }
        let of_a_cluster = Progress { served: 0, needs_gateway: false, ..ready };
        assert!(of_a_cluster.readiness().is_ok(), "Gateways come later");
    }
}
