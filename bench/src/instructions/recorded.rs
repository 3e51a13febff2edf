//! `bench/instructions.json`: what a request cost when that was last recorded. Better numbers
//! replace it by `--update`; where a rise is wanted, its line is deleted first, so that the commit
//! shows it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::Measured;

/// By how much a request may cost more than recorded.
const LIMIT: f64 = 1.02;

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

    /// Says what is dearer than it may be.
    pub(super) fn check(&self, measured: &[Measured]) -> Result<()> {
        let mut dearer = Vec::new();
        for measured in measured {
            let (name, now) = (measured.workload.name(), measured.median());
            let Some(before) = self.0.get(name) else {
                bail!(
                    "bench/instructions.json has no {name}: record it by `cargo xtask bench instructions --update`"
                );
            };
            let ratio = now / *before as f64;
            println!("bench: {name}: {now:.0} of {before} recorded, × {ratio:.4}");
            if ratio > LIMIT {
                dearer.push(format!("{name} takes {now:.0} instructions, {before} are recorded"));
            }
        }
        if !dearer.is_empty() {
            bail!("over 2 % more than recorded in bench/instructions.json: {}", dearer.join("; "));
        }
        Ok(())
    }

    /// With what got cheaper and what is new.
    pub(super) fn updated(mut self, measured: &[Measured]) -> Self {
        for measured in measured {
            let now = measured.median().round() as u64;
            let recorded = self.0.entry(measured.workload.name().to_owned()).or_insert(now);
            *recorded = now.min(*recorded);
        }
        self
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
        assert!(recorded(10_000).check(&measured(5_000.0)).is_ok());
        assert!(Recorded::default().check(&measured(1.0)).is_err());
    }

    #[test]
    fn only_improvements_and_new_workloads_are_recorded() {
        assert_eq!(recorded(10_000).updated(&measured(9_000.0)), recorded(9_000));
        assert_eq!(recorded(10_000).updated(&measured(10_100.0)), recorded(10_000));
        assert_eq!(Recorded::default().updated(&measured(7.0)), recorded(7));
    }
}
