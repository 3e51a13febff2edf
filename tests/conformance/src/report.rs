//! The suite's own reports: what they count per profile, and which are kept.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use portcullis_test_cluster::Cluster;
use portcullis_testbed::workspace;
use serde::Deserialize;

use super::Args;
use super::profile::{Run, Timeouts};

const REPORTS: &str = "docs/conformance";

/// Of all runs, one line a profile.
#[derive(Default)]
pub(super) struct Reports {
    profiles: Vec<Profile>,
}

#[derive(Deserialize)]
struct Report {
    #[serde(default)]
    profiles: Vec<Profile>,
}

#[derive(Deserialize)]
struct Profile {
    name: String,
    core: Part,
    extended: Option<Part>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Part {
    statistics: Statistics,
    supported_features: Vec<String>,
    unsupported_features: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Statistics {
    passed: u32,
    failed: u32,
    skipped: u32,
}

impl Reports {
    /// A suite that was ended before its time has written none.
    pub(super) fn add(&mut self, cluster: &Cluster, args: &Args, run: &Run) -> Result<()> {
        let place = place(cluster, run);
        let Ok(text) = fs::read_to_string(&place) else { return Ok(()) };
        let report: Report =
            serde_saphyr::from_str(&text).with_context(|| format!("cannot read {}", place.display()))?;
        if let Some(target) = target(args, run, &report)? {
            fs::write(&target, &text).with_context(|| format!("cannot write {}", target.display()))?;
            println!("report: {}", target.display());
        }
        self.profiles.extend(report.profiles);
        Ok(())
    }

    pub(super) fn print(&mut self) {
        self.profiles.sort_by(|a, b| a.name.cmp(&b.name));
        self.profiles.iter().for_each(|profile| println!("{}", profile.line()));
    }
}

impl Report {
    fn is_success(&self) -> bool {
        !self.profiles.is_empty() && self.profiles.iter().all(Profile::is_success)
    }
}

impl Profile {
    fn is_success(&self) -> bool {
        let parts = [Some(&self.core), self.extended.as_ref()];
        parts.into_iter().flatten().all(|part| part.statistics.passed == part.statistics.total())
    }

    fn line(&self) -> String {
        let none = Part::default();
        let extended = self.extended.as_ref().unwrap_or(&none);
        let claimed = extended.supported_features.len();
        format!(
            "{:<14}core {}, extended {}, features {claimed} of {}{}",
            self.name,
            self.core.statistics.line(),
            extended.statistics.line(),
            claimed + extended.unsupported_features.len(),
            if self.is_success() { "" } else { "; FAILED" }
        )
    }
}

impl Statistics {
    fn total(&self) -> u32 {
        self.passed + self.failed + self.skipped
    }

    fn line(&self) -> String {
        format!("{} of {}", self.passed, self.total())
    }
}

/// Path at which the suite writes.
pub(super) fn place(cluster: &Cluster, run: &Run) -> PathBuf {
    cluster.layout().path(&format!("{}.yaml", run.profiles.join("-").to_lowercase()))
}

/// Path at which the report is kept, if it is. One of a single test, of another gateway, or of
/// what is not claimed says nothing about our conformance, nor does one of a suite that was
/// changed.
fn target(args: &Args, run: &Run, report: &Report) -> Result<Option<PathBuf>> {
    let path = match &args.report {
        Some(_) if args.all && run.timeouts == Timeouts::Short => return Ok(None),
        Some(path) => std::path::absolute(path)?,
        None if is_ours(args) && run.timeouts == Timeouts::Published && report.is_success() => {
            workspace::root().join(REPORTS).join(name(run)?)
        }
        None => return Ok(None),
    };
    fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))?;
    Ok(Some(path))
}

fn is_ours(args: &Args) -> bool {
    let is_published = args.suite_version.is_none();
    is_published && !args.no_agent && args.run_test.is_none() && args.supported_features.is_none()
}

fn name(run: &Run) -> Result<String> {
    Ok(format!(
        "{}-{}.yaml",
        portcullis_test_cluster::suite_version()?,
        run.profiles.join("-").to_lowercase()
    ))
}

/// Flags for what a report must say about its origin.
pub(super) fn implementation() -> [String; 5] {
    [
        "-organization=portcullis".to_owned(),
        "-project=portcullis".to_owned(),
        "-url=https://portcullis.dev".to_owned(),
        format!("-version=v{}", env!("CARGO_PKG_VERSION")),
        "-contact=https://portcullis.dev/issues".to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "\
kind: ConformanceReport
profiles:
- core:
    failedTests: [TLSRouteSimple]
    result: failure
    statistics: {Failed: 1, Passed: 14, Skipped: 0}
  extended:
    result: success
    statistics: {Failed: 0, Passed: 11, Skipped: 0}
    supportedFeatures: [GatewayPort8080]
    unsupportedFeatures: [TLSRouteModeMixed, TLSRouteModeTerminate]
  name: GATEWAY-TLS
- core:
    result: success
    statistics: {Failed: 0, Passed: 14, Skipped: 0}
  name: GATEWAY-GRPC
";

    #[test]
    fn every_profile_is_a_line() {
        let report: Report = serde_saphyr::from_str(REPORT).unwrap();
        let lines: Vec<_> = report.profiles.iter().map(Profile::line).collect();
        assert_eq!(
            lines,
            [
                "GATEWAY-TLS   core 14 of 15, extended 11 of 11, features 1 of 3; FAILED",
                "GATEWAY-GRPC  core 14 of 14, extended 0 of 0, features 0 of 0"
            ]
        );
        assert!(!report.is_success());
    }
}
