//! `bench/instructions.json`: what a request cost when that was last recorded. Better numbers
//! replace it by `--update`; where a rise is wanted, its line is deleted first, so that the commit
//! shows it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::Measured;

/// A request that costs more than this share of what is recorded is a regression.
const DEARER: f64 = 1.02;
/// Below this share, what is recorded would hide the next regression.
const CHEAPER: f64 = 0.98;
/// No change makes a request so much cheaper; rather, nothing was counted.
const BROKEN: f64 = 0.5;

/// Instructions by the workload's name.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub(super) struct Recorded(BTreeMap<String, u64>);

impl Recorded {
    pub(super) fn read() -> Result<Self> {
        match fs::read(path()) {
            Ok(text) => serde_json::from_slice(&text).context("bench/instructions.json"),
            Err(_) => Ok(Self::default()),
        }
    }

    pub(super) fn write(&self) -> Result<()> {
        Ok(fs::write(path(), serde_json::to_string_pretty(self)? + "\n")?)
    }

    /// Compares in both directions: an improvement that is not recorded would allow a later
    /// regression of the same size.
    pub(super) fn check(&self, measured: &[Measured]) -> Result<()> {
        self.refuse_broken(measured)?;
        let names: BTreeSet<_> = measured.iter().map(|measured| measured.workload.name()).collect();
        if let Some(name) = self.0.keys().find(|name| !names.contains(name.as_str())) {
            bail!("bench/instructions.json has {name}, which is not measured: delete its line");
        }
        let mut wrong = Vec::new();
        for measured in measured {
            let (name, now) = (measured.workload.name(), measured.median());
            let Some(before) = self.0.get(name) else {
                bail!(
                    "bench/instructions.json has no {name}: record it by `cargo xtask bench instructions --update`"
                );
            };
            let ratio = now / *before as f64;
            println!("bench: {name}: {now:.0} of {before} recorded, × {ratio:.4}");
            if ratio > DEARER {
                wrong.push(format!("{name} takes {now:.0} instructions, {before} are recorded"));
            } else if ratio < CHEAPER {
                wrong.push(format!(
                    "{name} got cheaper: `cargo xtask bench instructions --update` records it"
                ));
            }
        }
        if !wrong.is_empty() {
            bail!("over 2 % from what bench/instructions.json has: {}", wrong.join("; "));
        }
        Ok(())
    }

    /// With what got cheaper and what is new, and without what is no longer measured.
    pub(super) fn updated(mut self, measured: &[Measured]) -> Result<Self> {
        self.refuse_broken(measured)?;
        self.0.retain(|name, _| measured.iter().any(|measured| measured.workload.name() == name));
        for measured in measured {
            let now = measured.median().round() as u64;
            let recorded = self.0.entry(measured.workload.name().to_owned()).or_insert(now);
            *recorded = now.min(*recorded);
        }
        Ok(self)
    }

    fn refuse_broken(&self, measured: &[Measured]) -> Result<()> {
        for measured in measured {
            let (name, now) = (measured.workload.name(), measured.median());
            let least = self.0.get(name).map_or(1.0, |before| *before as f64 * BROKEN);
            ensure!(
                now.is_finite() && now >= least,
                "{name} takes {now:.0} instructions, which cannot be: see what callgrind counted, and delete its \
                 line in bench/instructions.json if it is true"
            );
        }
        Ok(())
    }
}

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("instructions.json")
}

#[cfg(test)]
mod tests {
    use super::super::Workload;
    use super::*;

    fn measured(instructions: f64) -> [Measured; 1] {
        [Measured { workload: Workload::Http1, pairs: vec![instructions] }]
    }

    fn recorded(instructions: u64) -> Recorded {
        Recorded(BTreeMap::from([("http1".to_owned(), instructions)]))
    }

    #[test]
    fn two_in_a_hundred_more_are_too_many() {
        assert!(recorded(10_000).check(&measured(10_190.0)).is_ok());
        assert!(recorded(10_000).check(&measured(10_210.0)).is_err());
        assert!(Recorded::default().check(&measured(1.0)).is_err());
    }

    #[test]
    fn two_in_a_hundred_less_have_to_be_recorded() {
        assert!(recorded(10_000).check(&measured(9_810.0)).is_ok());
        let error = recorded(10_000).check(&measured(9_790.0)).unwrap_err().to_string();
        assert!(error.contains("--update"), "{error}");
    }

    #[test]
    fn what_is_recorded_is_measured() {
        let mut recorded = recorded(10_000);
        recorded.0.insert("http0".to_owned(), 1);
        assert!(recorded.check(&measured(10_000.0)).is_err());
        assert_eq!(recorded.updated(&measured(10_000.0)).unwrap(), self::recorded(10_000));
    }

    #[test]
    fn broken_measurements_are_neither_passed_nor_recorded() {
        for instructions in [f64::NAN, f64::INFINITY, -3.0, 0.0, 4_990.0] {
            assert!(recorded(10_000).check(&measured(instructions)).is_err(), "{instructions}");
            assert!(recorded(10_000).updated(&measured(instructions)).is_err(), "{instructions}");
        }
        assert!(Recorded::default().updated(&measured(0.0)).is_err());
        let none = [Measured { workload: Workload::Http1, pairs: Vec::new() }];
        assert!(recorded(10_000).check(&none).is_err());
    }

    #[test]
    fn only_improvements_and_new_workloads_are_recorded() {
        let updated = |recorded: Recorded, instructions| recorded.updated(&measured(instructions)).unwrap();
        assert_eq!(updated(recorded(10_000), 9_000.0), recorded(9_000));
        assert_eq!(updated(recorded(10_000), 10_100.0), recorded(10_000));
        assert_eq!(updated(Recorded::default(), 7.0), recorded(7));
    }
}
