//! Regular expressions of users: RE2-like syntax without look-around and back-references, matched
//! in linear time, anchored at both ends, and limited in compiled size.

use regex::{Regex, RegexBuilder, bytes};

use crate::Fault;

/// Of the compiled program, in bytes. A bomb such as `((a{100}){100}){100}` needs gigabytes; real
/// expressions stay below 50 kB.
const PROGRAM_BYTES: usize = 256 * 1024;
/// Of the lazily built automaton, in bytes and per thread; beyond it, matching is slower, not
/// wrong.
const CACHE_BYTES: usize = 1024 * 1024;

pub(crate) fn text(pattern: &str) -> Result<Regex, Fault> {
    // Alone first: `a)|(b` is no expression, but would be one between our anchoring parentheses.
    compile(pattern)?;
    compile(&anchored(pattern))
}

pub(crate) fn octets(pattern: &str) -> Result<bytes::Regex, Fault> {
    compile(pattern)?;
    bytes::RegexBuilder::new(&anchored(pattern))
        .size_limit(PROGRAM_BYTES)
        .dfa_size_limit(CACHE_BYTES)
        .build()
        .map_err(|error| refusal(pattern, &error))
}

fn anchored(pattern: &str) -> String {
    format!("^(?:{pattern})$")
}

fn compile(pattern: &str) -> Result<Regex, Fault> {
    RegexBuilder::new(pattern)
        .size_limit(PROGRAM_BYTES)
        .dfa_size_limit(CACHE_BYTES)
        .build()
        .map_err(|error| refusal(pattern, &error))
}

fn refusal(pattern: &str, error: &regex::Error) -> Fault {
    let shown: String = pattern.chars().take(60).collect();
    Fault::unsupported(match error {
        regex::Error::CompiledTooBig(limit) => format!(
            "regular expression {shown:?} is too complex: it compiles to more than {} KiB; use fewer or smaller repetitions",
            limit / 1024
        ),
        // The parser's message draws the expression over several lines; its last line says what is
        // wrong.
        other => format!("regular expression {shown:?} cannot be used: {}", last_line(&other.to_string())),
    })
}

fn last_line(message: &str) -> &str {
    message.lines().last().unwrap_or(message).trim().trim_start_matches("error: ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_match_as_a_whole() {
        let regex = text("/a|/b+").unwrap();
        assert!(regex.is_match("/a") && regex.is_match("/bbb"));
        assert!(!regex.is_match("/ab") && !regex.is_match("x/a"));
        assert!(octets("v[0-9]").unwrap().is_match(b"v2") && !octets("v[0-9]").unwrap().is_match(b"v22"));
    }

    #[test]
    fn what_cannot_be_used_says_why() {
        for (pattern, part) in [
            ("a)|(b", "unopened group"),
            ("(a", "unclosed group"),
            ("((((a{99}){99}){99}){99})", "too complex"),
            ("(?=a)", "look-around"),
            ("(?m)^a", ""),
        ] {
            match text(pattern) {
                Err(problem) => {
                    assert!(!part.is_empty() && problem.message.contains(part), "{}", problem.message)
                }
                Ok(_) => assert!(part.is_empty(), "{pattern}"),
            }
        }
    }
}
