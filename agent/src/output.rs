//! Printing. A reader that goes away (`| head`) is no error; a file that cannot be written is, and
//! is told of when the command ends. Nothing that a terminal obeys reaches one, but for our own
//! colours.

use std::io::{self, ErrorKind, IsTerminal, Write};
use std::sync::OnceLock;

use anstream::{AutoStream, ColorChoice};
use anyhow::{Result, bail};
use clap::ValueEnum;
use portcullis_inspect::{Colours, Look, escaped};
use portcullis_model::is_obeyed;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;
use terminal_size::{Width, terminal_size_of};

/// The first error of standard output. After it, nothing more is printed.
static FAILURE: OnceLock<io::Error> = OnceLock::new();

/// Format of objects.
#[derive(Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    #[default]
    Yaml,
    Json,
}

/// Format of an answer that is text by itself.
#[derive(Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum View {
    /// Text for people
    #[default]
    Table,
    /// The same as values
    Yaml,
    Json,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Colour {
    /// On a terminal, unless NO_COLOR is set
    #[default]
    Auto,
    Always,
    Never,
}

/// For all that is printed from now on.
pub(crate) fn set_colour(colour: Colour) {
    let choice = match colour {
        Colour::Auto => ColorChoice::Auto,
        Colour::Always => ColorChoice::Always,
        Colour::Never => ColorChoice::Never,
    };
    choice.write_global();
}

/// The form of text on standard output.
pub(crate) fn look() -> Look {
    let stdout = io::stdout();
    let width = terminal_size_of(&stdout).map(|(Width(width), _)| usize::from(width));
    let colours = match AutoStream::choice(&stdout) {
        ColorChoice::Never => Colours::None,
        ColorChoice::Auto | ColorChoice::AlwaysAnsi | ColorChoice::Always => Colours::Ansi,
    };
    Look { width: width.filter(|width| *width > 0), colours }
}

/// Text of ours, in which that of others is escaped.
pub(crate) fn text(text: &str) {
    bytes(text.as_bytes());
}

/// Returns `false` once standard output has no reader, or cannot be written: a command that goes on
/// by itself ends then.
pub(crate) fn is_read() -> bool {
    if FAILURE.get().is_some() {
        return false;
    }
    let stdout = io::stdout();
    let mut asked = [PollFd::new(&stdout, PollFlags::empty())];
    let answered = poll(&mut asked, Some(&Timespec::default()));
    let [asked] = asked;
    answered.is_err() || !asked.revents().intersects(PollFlags::ERR | PollFlags::HUP)
}

pub(crate) fn bytes(bytes: &[u8]) {
    if FAILURE.get().is_some() {
        return;
    }
    let mut stdout = io::stdout().lock();
    // What is left in the buffer would be written, or not, when nothing can be said of it.
    if let Err(error) = stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        let _ = FAILURE.set(error);
    }
}

/// Tells whether all that was printed has been written, as far as it was read.
///
/// # Errors
/// When it has not, on a full disk for instance.
pub(crate) fn finish() -> Result<()> {
    match FAILURE.get() {
        Some(error) if error.kind() != ErrorKind::BrokenPipe => {
            bail!("cannot write to standard output: {error}: what is there is not complete")
        }
        _ => Ok(()),
    }
}

pub(crate) fn error(lines: &str) {
    for line in lines.lines() {
        let _ = writeln!(io::stderr().lock(), "{}", escaped(line));
    }
}

/// A line of a comment; JSON has none.
pub(crate) fn comment(line: &str, format: Format) {
    if format == Format::Yaml {
        text(&format!("# {}\n", escaped(line)));
    }
}

/// YAML documents, or one JSON array.
pub(crate) fn objects(objects: &[Value], format: Format) -> Result<()> {
    match format {
        Format::Yaml => yaml(&yaml_documents(objects)?),
        Format::Json => json(&Value::from(objects))?,
    }
    Ok(())
}

pub(crate) fn value(value: &Value, format: Format) -> Result<()> {
    match format {
        Format::Yaml => yaml(&serde_saphyr::to_string(value)?),
        Format::Json => json(value)?,
    }
    Ok(())
}

/// Strings may have any character as an escape.
fn json(value: &Value) -> Result<()> {
    let mut pretty = String::new();
    for c in serde_json::to_string_pretty(value)?.chars() {
        if is_obeyed(c) && c != '\n' {
            pretty += &format!("\\u{:04x}", u32::from(c));
        } else {
            pretty.push(c);
        }
    }
    text(&format!("{pretty}\n"));
    Ok(())
}

/// The emitter escapes control characters, and leaves those that turn the direction of text.
fn yaml(documents: &str) {
    if !io::stdout().is_terminal() {
        return text(documents);
    }
    documents.lines().for_each(|line| text(&format!("{}\n", escaped(line))));
}

fn yaml_documents(objects: &[Value]) -> Result<String> {
    let documents = objects.iter().map(|object| Ok(serde_saphyr::to_string(object)?));
    Ok(documents.collect::<Result<Vec<_>>>()?.join("---\n"))
}

// === impl View ===

impl View {
    /// `None` if people read it.
    pub(crate) fn format(self) -> Option<Format> {
        match self {
            Self::Table => None,
            Self::Yaml => Some(Format::Yaml),
            Self::Json => Some(Format::Json),
        }
    }
}
