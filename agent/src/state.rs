//! The files that an agent keeps on its node's disk.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use portcullis_control::source::LastGood;
use portcullis_control::status::remove_statuses;
use portcullis_node::network_namespace;

#[derive(Args)]
pub(crate) struct StateDir {
    /// Directory of what an agent leaves to the next: in a cluster the last good configuration and
    /// the statuses, without keys; without a cluster the keys of sessions; and the socket at which
    /// one takes over from the other
    #[arg(long, value_name = "DIR", default_value = "/var/lib/portcullis", env = "PORTCULLIS_STATE_DIR")]
    state_dir: PathBuf,
}

impl StateDir {
    pub(crate) fn last_good(&self) -> PathBuf {
        self.state_dir.join("last-good.jsonl")
    }

    pub(crate) fn statuses(&self) -> PathBuf {
        self.state_dir.join("status")
    }

    /// Of the keys of agents that are in no cluster.
    pub(crate) fn keys(&self) -> PathBuf {
        self.state_dir.join("keys")
    }

    /// Of the sockets at which agents hand over.
    pub(crate) fn hand_over(&self) -> PathBuf {
        self.state_dir.join("hand-over")
    }

    /// Removes all of it, and the directory if nothing else is in it. Statuses may be elsewhere.
    /// Returns what was there.
    pub(crate) fn remove(&self, statuses: Option<&Path>) -> Result<Vec<String>> {
        let (last_good, own) = (self.last_good(), self.statuses());
        let removed = LastGood::new(last_good.clone()).remove();
        let removed = removed.with_context(|| format!("cannot remove {}", last_good.display()))?;
        let mut removed: Vec<_> = removed.iter().map(|file| file.display().to_string()).collect();
        let statuses = statuses.unwrap_or(&own);
        if remove_statuses(statuses).with_context(|| format!("cannot remove {}", statuses.display()))? {
            removed.push(format!("statuses in {}", statuses.display()));
        }
        let keys = self.keys();
        match fs::remove_file(&keys) {
            Ok(()) => removed.push(keys.display().to_string()),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("cannot remove {}", keys.display())),
        }
        // Agents of other network namespaces may have theirs beside it.
        if let Ok(namespace) = network_namespace() {
            let _ = fs::remove_file(self.hand_over().join(namespace));
        }
        let _ = fs::remove_dir(self.hand_over());
        // A volume is not the agent's, nor is a directory with files of others.
        let _ = fs::remove_dir(&self.state_dir);
        Ok(removed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_others_stays() {
        let parent = tempfile::tempdir().unwrap();
        let state = StateDir { state_dir: parent.path().join("portcullis") };
        assert_eq!(state.remove(None).unwrap(), Vec::<String>::new(), "there is nothing yet");

        let gateways = state.statuses().join("Gateway/infra");
        fs::create_dir_all(&gateways).unwrap();
        fs::create_dir_all(state.hand_over()).unwrap();
        fs::write(state.hand_over().join(network_namespace().unwrap()), "").unwrap();
        let theirs = state.state_dir.join("theirs");
        let ours = [state.last_good(), state.state_dir.join("last-good.tmp"), gateways.join("web.yaml")];
        ours.iter().chain([&theirs]).for_each(|file| fs::write(file, "x").unwrap());
        assert_eq!(state.remove(None).unwrap().len(), 3);
        assert!(theirs.exists() && !state.statuses().exists() && !state.last_good().exists());

        fs::remove_file(theirs).unwrap();
        state.remove(None).unwrap();
        assert!(!state.state_dir.exists());
    }
}
