//! Printing. A reader that goes away (`| head`) is no error.

use std::io::{self, Write};

use anyhow::Result;
use clap::ValueEnum;
use serde_json::Value;

/// Format of objects.
#[derive(Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    #[default]
    Yaml,
    Json,
}

pub(crate) fn text(text: &str) {
    bytes(text.as_bytes());
}

pub(crate) fn bytes(bytes: &[u8]) {
    // Nothing can be done about a closed pipe.
    let _ = io::stdout().lock().write_all(bytes);
}

pub(crate) fn error(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// A line of a comment; JSON has none.
pub(crate) fn comment(line: &str, format: Format) {
    if format == Format::Yaml {
        text(&format!("# {line}\n"));
    }
}

/// YAML documents, or one JSON array.
pub(crate) fn objects(objects: &[Value], format: Format) -> Result<()> {
    text(&match format {
        Format::Yaml => yaml_documents(objects)?,
        Format::Json => format!("{}\n", serde_json::to_string_pretty(objects)?),
    });
    Ok(())
}

fn yaml_documents(objects: &[Value]) -> Result<String> {
    let documents = objects.iter().map(|object| Ok(serde_saphyr::to_string(object)?));
    Ok(documents.collect::<Result<Vec<_>>>()?.join("---\n"))
}
