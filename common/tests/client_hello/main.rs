//! The parser of ClientHellos against hellos of real clients, cut at every byte, and against two
//! other parsers: a straightforward one, and the TLS library that has the last word in user space.
#![cfg(test)]

mod corpus;
mod library;
mod pieces;
mod random;
mod reference;

use corpus::{Hello, corpus};
use library::Library;
use pieces::{read, read_by};

/// A parser's view of the first bytes of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// In lower case, without a trailing dot.
    Name(String),
    /// A hello for what is no DNS name.
    NotAName,
    NoName,
    Incomplete,
    Unreadable,
}

impl Verdict {
    pub(crate) fn of(name: Option<&str>) -> Self {
        name.map_or(Self::NoName, |name| Self::Name(name.to_owned()))
    }
}

#[test]
fn every_hello_has_its_name() {
    for Hello { client, bytes, name } in corpus() {
        let expected = Verdict::of(name.as_deref());
        assert_eq!(read([&bytes[..]]), expected, "{client}");
        assert_eq!(reference::read(&bytes), expected, "{client}");
        assert_eq!(Library::read(&bytes), Library::Hello(name), "{client}");
    }
}

#[test]
fn it_does_not_matter_where_a_hello_is_cut() {
    for Hello { client, bytes, name } in corpus() {
        let expected = Verdict::of(name.as_deref());
        for cut in 0..=bytes.len() {
            let (first, second) = bytes.split_at(cut);
            assert_eq!(read([first, second]), expected, "{client}, cut at {cut}");
        }
    }
}

#[test]
fn it_does_not_matter_how_large_segments_are() {
    for Hello { client, bytes, name } in corpus() {
        let expected = Verdict::of(name.as_deref());
        for size in [1, 2, 3, 5, 16, 44, 100, 262, 536, 1208, 1398, 1448] {
            assert_eq!(read_by(size, &bytes), expected, "{client}, segments of {size}");
        }
    }
}

/// Before all of its name has come, or its end, a hello is undecided.
#[test]
fn a_hello_that_ends_early_is_incomplete() {
    for Hello { client, bytes, .. } in corpus() {
        let lengths = 0..bytes.len();
        let (verdicts, complete): (Vec<_>, Vec<_>) =
            lengths.map(|length| read([&bytes[..length]])).partition(|it| *it == Verdict::Incomplete);
        let first = verdicts.len();
        assert!(first > 43, "{client}");
        assert!(
            (first..bytes.len()).all(|length| read([&bytes[..length]]) != Verdict::Incomplete),
            "{client}"
        );
        assert_eq!(complete.len(), bytes.len() - first, "{client}");
    }
}

/// A corpus in which every name were in the first segment would show nothing.
#[test]
fn the_corpus_has_names_in_second_segments() {
    let corpus = corpus();
    for size in [1208, 1398, 1448] {
        let late = corpus.iter().filter(|hello| {
            let first = hello.bytes.get(..size);
            first.is_some_and(|first| read([first]) == Verdict::Incomplete)
        });
        assert!(late.count() >= 3, "in segments of {size}");
    }
}
