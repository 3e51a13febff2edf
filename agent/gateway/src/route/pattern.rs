//! Regular expressions of users: RE2-like syntax without look-around and back-references, matched
//! in linear time, anchored at both ends, and limited in compiled size.

use std::cell::RefCell;
use std::collections::HashMap;

use regex::{Regex, RegexBuilder, bytes};

use crate::Fault;

/// Of the compiled program, in bytes. A bomb such as `((a{100}){100}){100}` needs gigabytes; real
/// expressions stay below 50 kB.
const PROGRAM_BYTES: usize = 256 * 1024;
/// Of the lazily built automaton, in bytes and per thread; beyond it, matching is slower, not
/// wrong.
const CACHE_BYTES: usize = 1024 * 1024;

/// Expressions that were compiled already.
#[derive(Default)]
struct Compiled {
    text: HashMap<String, Regex>,
    octets: HashMap<String, bytes::Regex>,
}

thread_local! {
    /// Set while [`compiling_once`] runs.
    static COMPILED: RefCell<Option<Compiled>> = const { RefCell::new(None) };
}

/// Compiles equal expressions once while `run` runs, and lets them share their memory. One rule of
/// a parent route and one of a child have the same ones in each of thousands of combinations.
pub(crate) fn compiling_once<T>(run: impl FnOnce() -> T) -> T {
    COMPILED.set(Some(Compiled::default()));
    let result = run();
    COMPILED.set(None);
    result
}

pub(crate) fn text(pattern: &str) -> Result<Regex, Fault> {
    once(
        pattern,
        |compiled| &mut compiled.text,
        |pattern| {
            // Alone first: `a)|(b` is no expression, but would be one between our anchoring
            // parentheses.
            compile(pattern)?;
            compile(&anchored(pattern))
        },
    )
}

pub(crate) fn octets(pattern: &str) -> Result<bytes::Regex, Fault> {
    once(
        pattern,
        |compiled| &mut compiled.octets,
        |pattern| {
            compile(pattern)?;
            bytes::RegexBuilder::new(&anchored(pattern))
                .size_limit(PROGRAM_BYTES)
                .dfa_size_limit(CACHE_BYTES)
                .build()
                .map_err(|error| refusal(pattern, &error))
        },
    )
}

fn once<R: Clone>(
    pattern: &str,
    list: fn(&mut Compiled) -> &mut HashMap<String, R>,
    compile: fn(&str) -> Result<R, Fault>,
) -> Result<R, Fault> {
    COMPILED.with_borrow_mut(|compiled| {
        let Some(known) = compiled.as_mut().map(list) else { return compile(pattern) };
        if let Some(regex) = known.get(pattern) {
            return Ok(regex.clone());
        }
        let regex = compile(pattern)?;
        known.insert(pattern.to_owned(), regex.clone());
        Ok(regex)
    })
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
    fn equal_expressions_are_compiled_once_where_that_is_asked_for() {
        let count = || {
            COMPILED.with_borrow(|compiled| compiled.as_ref().map_or(0, |it| it.text.len() + it.octets.len()))
        };
        let compile = || {
            assert!(text("/a+").unwrap().is_match("/aa") && octets("a+").unwrap().is_match(b"aa"));
            assert!(text("(").is_err());
            count()
        };
        assert_eq!(compiling_once(|| [compile(), compile()]), [2, 2]);
        assert_eq!((compile(), count()), (0, 0));
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
                Err(fault) => {
                    assert!(!part.is_empty() && fault.message.contains(part), "{}", fault.message)
                }
                Ok(_) => assert!(part.is_empty(), "{pattern}"),
            }
        }
    }
}
