//! The filter of the log, in tracing's syntax, but for words by themselves that are no level: to
//! tracing those are targets, and `warning` would be one without a line.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, bail};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

#[derive(Clone, Debug)]
pub(crate) struct LogFilter(String);

// === impl LogFilter ===

impl FromStr for LogFilter {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        text.split(',').filter(|directive| !directive.is_empty()).try_for_each(check)?;
        EnvFilter::try_new(text)?;
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn check(directive: &str) -> Result<()> {
    let word = directive.split(['=', '[']).next().unwrap_or_default();
    match word.parse::<LevelFilter>() {
        Err(_) if word == directive => {
            bail!("{word:?} is none of the levels {}{}", LEVELS.join(", "), suggestion(word))
        }
        Ok(level) if word != directive && !word.is_empty() => {
            bail!("{directive:?} has the level {level} in the place of a target: write TARGET={level}")
        }
        Ok(_) | Err(_) => Ok(()),
    }
}

/// No two levels have the same first letter.
fn suggestion(word: &str) -> String {
    let first = word.trim().chars().next().map(|first| first.to_ascii_lowercase());
    let level = LEVELS.iter().find(|level| level.chars().next() == first);
    level.map_or_else(
        || format!("; of a target, write {word}=trace"),
        |level| format!("; did you mean {level}?"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_targets_with_levels_are_filters() {
        for text in [
            "",
            "info",
            "OFF",
            "2",
            "info,portcullis_ebpf=trace",
            "portcullis_proxy=trace",
            "warn,[request]=trace",
            "info,",
        ] {
            assert_eq!(text.parse::<LogFilter>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn words_that_are_no_level_are_refused() {
        for (text, says) in [
            ("warning", "did you mean warn?"),
            ("debgu", "did you mean debug?"),
            ("info, debug", "did you mean debug?"),
            ("info,portcullis_proxy", "write portcullis_proxy=trace"),
            ("trace=1", "write TARGET=trace"),
            ("portcullis=inof", "expected one of"),
        ] {
            let error = text.parse::<LogFilter>().unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
