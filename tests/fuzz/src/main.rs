//! Runs a target under libFuzzer, which brings its own `main`. Built by `cargo xtask fuzz`, with
//! coverage.

#![no_main]

use std::env;
use std::sync::LazyLock;

use portcullis_fuzz::{TARGETS, Target, target};

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = env::var("PORTCULLIS_FUZZ").unwrap_or_default();
    let Some(target) = target(&name) else {
        let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
        eprintln!("PORTCULLIS_FUZZ={name} is no target; there are {}", names.join(", "));
        std::process::exit(2);
    };
    target
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    (TARGET.run)(bytes);
});
