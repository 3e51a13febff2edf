//! Takes away what agents leave on a node on purpose, so that the next one takes over: programs,
//! maps, VIPs and nftables rules. For a node that will have no next one, or one that does without
//! programs.

use std::fs::File;
use std::path::Path;

use crate::neighbours::{self, Silence};
use crate::notrack::{self, Untracked};
use crate::programs::pins::Pins;
use crate::syn_hold;
use crate::vips::addresses;

/// Lines for the operator: one for each thing that was taken away, or could not be.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Cleaned {
    pub removed: Vec<String>,
    pub problems: Vec<String>,
}

/// Cleans this network namespace. Pins of other namespaces below the same directory stay. Must not
/// run beside an agent.
pub fn clean(pin_dir: &Path) -> Cleaned {
    let mut cleaned = Cleaned::default();
    cleaned.remove_pins(pin_dir, |_| true);
    match addresses::remove_all() {
        Ok(changes) => {
            cleaned.removed.extend(changes.removed.iter().map(|address| format!("VIP {address} on lo")));
            cleaned.problems.extend(changes.problems.iter().map(ToString::to_string));
        }
        Err(error) => cleaned.problems.push(error.to_string()),
    }
    let untracked = notrack::set(&Untracked::default());
    let rules = [untracked, neighbours::set(&Silence::default()), syn_hold::remove()];
    let kept = rules.into_iter().filter_map(Result::err);
    cleaned.problems.extend(kept.map(|error| format!("cannot remove the nftables rules: {error}")));
    cleaned
}

/// Takes the programs of earlier agents, of any version, out of this network namespace: they would
/// not learn of new ports, and drop packets to them. Those of an agent that runs stay, and are a
/// problem.
pub fn detach(pin_dir: &Path) -> Cleaned {
    detach_beside(pin_dir, &[])
}

/// As [`detach`], and those of the agent that hands over these locks.
pub(crate) fn detach_beside(pin_dir: &Path, locks: &[File]) -> Cleaned {
    let mut cleaned = Cleaned::default();
    cleaned.remove_pins(pin_dir, |pins| pins.are_locked_by(locks) || !pins.are_in_use());
    cleaned
}

impl Cleaned {
    fn remove_pins(&mut self, pin_dir: &Path, may_go: impl Fn(&Pins) -> bool) {
        let pins = match Pins::of_all_versions(pin_dir) {
            Ok(pins) => pins,
            Err(error) => return self.problems.push(error.to_string()),
        };
        for pins in pins {
            if !may_go(&pins) {
                let directory = pins.directory().display();
                self.problems.push(format!("another agent uses the programs pinned in {directory}"));
                continue;
            }
            match pins.remove() {
                Ok(()) => self.removed.push(format!("programs and maps in {}", pins.directory().display())),
                Err(error) => self.problems.push(error.to_string()),
            }
        }
    }
}
