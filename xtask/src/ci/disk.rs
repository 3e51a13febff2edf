//! Room on the disk. A linker that finds none is killed by a signal, and names no disk.

use portcullis_testbed::{command, workspace};

/// Bytes that a build from nothing and all tests leave there, caches of Go and cargo included.
const NEEDED: u64 = 26 << 30;
/// With less, whatever failed may have failed by that.
const FULL: u64 = 1 << 30;

/// Says so before the build, if the room is unlikely to do. What is built already may be most of
/// it, so nothing is refused.
pub(super) fn warn_early() {
    if let Some(free) = free().filter(|free| *free < NEEDED) {
        println!(
            "ci: {} GB are free at {}; a build from nothing and its tests take up to {} GB",
            free >> 30,
            workspace::root().display(),
            NEEDED >> 30
        );
    }
}

/// The cause of failures, perhaps.
pub(super) fn complaint() -> Option<String> {
    let free = free().filter(|free| *free < FULL)?;
    Some(format!("\nthe disk at {} is full: {} MB are free", workspace::root().display(), free >> 20))
}

fn free() -> Option<u64> {
    let root = workspace::root().to_str()?;
    let output = command::ask("df", &["--output=avail", "--block-size=1", root])?;
    output.lines().last()?.trim().parse().ok()
}
