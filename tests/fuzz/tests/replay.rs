//! Every file of every corpus, which is what once was odd, and what reaches most of each parser.

use std::fs;
use std::path::Path;

use portcullis_fuzz::TARGETS;

#[test]
fn corpora_hold() {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for target in TARGETS {
        let corpus = corpora.join(target.name);
        let files: Vec<_> = fs::read_dir(&corpus)
            .unwrap_or_else(|error| panic!("{}: {error}", corpus.display()))
            .map(|entry| entry.unwrap().path())
            .collect();
        assert!(!files.is_empty(), "{} is empty", corpus.display());
        for file in files {
            // Should it fail, the last line says of which bytes.
            eprintln!("{}", file.display());
            (target.run)(&fs::read(&file).unwrap());
        }
    }
}

/// A corpus without a target would never be replayed.
#[test]
fn every_corpus_has_a_target() {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for entry in fs::read_dir(corpora).unwrap() {
        let name = entry.unwrap().file_name();
        assert!(portcullis_fuzz::target(&name.to_string_lossy()).is_some(), "{name:?}");
    }
}
