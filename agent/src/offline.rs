//! Manifests to an outcome without an agent: the same reading and the same translation.

use std::path::PathBuf;

use anyhow::{Result, bail};
use portcullis_control::source::Batch;
use portcullis_control::source::built_in::with_built_in;
use portcullis_gateway::infra::{Parameters, Pods};
use portcullis_gateway::{Outcome, Settings, Translator};

use crate::cli::Offline;
use crate::output;

/// Image of pods of mode Dedicated; offline none is given.
const IMAGE: &str = concat!("portcullis.dev/portcullis:", env!("CARGO_PKG_VERSION"));

/// The input and its outcome.
pub(crate) struct Translated {
    pub batch: Batch,
    pub outcome: Outcome,
}

/// Reads and translates; what is wrong with the input goes to standard error.
pub(crate) fn translate(paths: &[PathBuf], offline: &Offline) -> Translated {
    let batch = Batch::read(paths, offline.limits.max_file_size());
    for problem in &batch.problems {
        output::error(&problem.to_string());
    }
    for kind in &batch.ignored {
        output::error(&format!("{kind}: ignored, Portcullis does not use this kind"));
    }
    let mut translator = Translator::new(settings(offline));
    let outcome = translator.apply(with_built_in(batch.changes()));
    Translated { batch, outcome }
}

/// As [`translate`], for commands that have nothing to say about a part of the input.
pub(crate) fn translate_readable(paths: &[PathBuf], offline: &Offline) -> Result<Outcome> {
    let translated = translate(paths, offline);
    if !translated.batch.is_readable() {
        bail!("the input cannot be read");
    }
    Ok(translated.outcome)
}

pub(crate) fn settings(offline: &Offline) -> Settings {
    Settings {
        controller_name: offline.controller_name.clone(),
        default_addresses: offline.address.clone(),
        generated: Parameters { pods: Some(Pods::new(IMAGE)), ..Parameters::default() },
        ..Settings::default()
    }
}

#[cfg(test)]
pub(crate) fn translate_text(text: &str) -> Outcome {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("input.yaml");
    std::fs::write(&file, text).unwrap();
    let changes = with_built_in(Batch::read(&[file], u64::MAX).changes());
    Translator::new(Settings::default()).apply(changes)
}
