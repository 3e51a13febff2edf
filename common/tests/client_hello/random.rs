//! Hellos as no client sends them: made at random, and real ones damaged.
//!
//! `PROPTEST_CASES=1000000 cargo test --profile quick -p portcullis-common random_hellos`
//! goes on for ten minutes or more.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::Verdict;
use crate::corpus::corpus;
use crate::library::Library;
use crate::{pieces, reference};

/// A change to one place of a hello.
#[derive(Clone, Debug)]
enum Damage {
    Set(Index, u8),
    Add(Index, i8),
    Insert(Index, Vec<u8>),
    Remove(Index, usize),
    CutOff(Index),
}

impl Damage {
    fn apply(&self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        let length = bytes.len();
        match self {
            Self::Set(at, byte) => bytes[at.index(length)] = *byte,
            Self::Add(at, more) => {
                let at = at.index(length);
                bytes[at] = bytes[at].wrapping_add_signed(*more);
            }
            Self::Insert(at, more) => {
                let at = at.index(length);
                bytes.splice(at..at, more.iter().copied());
            }
            Self::Remove(at, count) => {
                let at = at.index(length);
                bytes.drain(at..(at + count).min(length));
            }
            Self::CutOff(at) => bytes.truncate(at.index(length)),
        }
    }
}

fn damage() -> impl Strategy<Value = Damage> {
    let index = any::<Index>;
    prop_oneof![
        (index(), any::<u8>()).prop_map(|(at, byte)| Damage::Set(at, byte)),
        (index(), -4..=4i8).prop_map(|(at, more)| Damage::Add(at, more)),
        (index(), vec(any::<u8>(), 1..6)).prop_map(|(at, more)| Damage::Insert(at, more)),
        (index(), 1..40usize).prop_map(|(at, count)| Damage::Remove(at, count)),
        index().prop_map(Damage::CutOff),
    ]
}

const ODD_NAMES: &[&str] =
    &["", ".", "a.", "A.b", "-a.b", "a-.b", "a..b", "10.0.0.1", "a.1", "1-2", "::1", "a_b", "a b"];

/// Names that are, nearly are, and are not.
fn name() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => "[a-zA-Z0-9_-]{1,12}(\\.[a-z0-9-]{1,9}){0,4}\\.?".prop_map(String::into_bytes),
        2 => select(ODD_NAMES).prop_map(|name| name.as_bytes().to_vec()),
        1 => "[a-z]{60,65}(\\.[a-z]{60,64}){0,3}".prop_map(String::into_bytes),
        1 => vec(any::<u8>(), 0..20),
    ]
}

/// The body of an extension for a name, with lengths that are wrong now and then.
fn server_name() -> impl Strategy<Value = Vec<u8>> {
    let wrong = || prop_oneof![9 => Just(0i16), 1 => -3..=3i16];
    (name(), wrong(), wrong(), prop_oneof![9 => Just(0u8), 1 => any::<u8>()]).prop_map(
        |(name, list, length, kind)| {
            let sum = |length: usize, wrong: i16| (length as u16).wrapping_add_signed(wrong).to_be_bytes();
            let [list, length] = [sum(name.len() + 3, list), sum(name.len(), length)];
            [&list[..], &[kind], &length, &name].concat()
        },
    )
}

#[derive(Clone, Debug)]
enum Extension {
    Name(Vec<u8>),
    Unknown(Vec<u8>),
}

impl Extension {
    /// Unknown types differ, as they have to.
    fn bytes(&self, index: u16) -> Vec<u8> {
        let (kind, body) = match self {
            Self::Name(body) => (0, &body[..]),
            Self::Unknown(body) => (0x5000 + index, &body[..]),
        };
        [&kind.to_be_bytes()[..], &sized(body)].concat()
    }
}

fn extension() -> impl Strategy<Value = Extension> {
    prop_oneof![
        2 => server_name().prop_map(Extension::Name),
        6 => vec(any::<u8>(), 0..40).prop_map(Extension::Unknown),
        // As long as a key share.
        1 => vec(any::<u8>(), 1000..1300).prop_map(Extension::Unknown),
    ]
}

/// A hello that is well formed but for its name.
fn made() -> impl Strategy<Value = Vec<u8>> {
    let extensions = prop_oneof![9 => vec(extension(), 0..12), 1 => vec(extension(), 28..36)];
    let suites = (1..40usize).prop_map(|count| vec![0x13; count * 2]);
    (vec(any::<u8>(), 0..36), suites, 1..3usize, proptest::option::weighted(0.95, extensions)).prop_map(
        |(session, suites, methods, extensions)| {
            let mut hello = vec![3, 3];
            hello.extend([7; 32]);
            hello.push(session.len() as u8);
            hello.extend(session);
            hello.extend(sized(&suites));
            hello.push(methods as u8);
            hello.resize(hello.len() + methods, 0);
            if let Some(extensions) = extensions {
                // The library takes no hello without signature algorithms.
                let each = (0..).zip(&extensions).map(|(index, extension)| extension.bytes(index));
                let each = each.chain([vec![0, 13, 0, 4, 0, 2, 4, 3]]);
                hello.extend(sized(&each.collect::<Vec<_>>().concat()));
            }
            let handshake = [&[1, 0][..], &sized(&hello)].concat();
            [&[22, 3, 1][..], &sized(&handshake)].concat()
        },
    )
}

fn sized(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u16).to_be_bytes(), bytes].concat()
}

/// Damaged up to three times, or not at all.
fn hello() -> impl Strategy<Value = Vec<u8>> {
    let real: Vec<_> = corpus().into_iter().map(|hello| hello.bytes).collect();
    let damages = prop_oneof![Just(vec![]), vec(damage(), 1..4)];
    (prop_oneof![made(), select(real)], damages).prop_map(|(mut bytes, damages)| {
        damages.iter().for_each(|damage| damage.apply(&mut bytes));
        bytes
    })
}

fn cut<'b>(bytes: &'b [u8], cuts: &[Index]) -> Vec<&'b [u8]> {
    let mut at: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
    at.sort_unstable();
    let from = std::iter::once(0).chain(at.iter().copied());
    let to = at.iter().copied().chain([bytes.len()]);
    from.zip(to).map(|(from, to)| &bytes[from..to]).collect()
}

/// Nothing but garbage would show nothing.
#[test]
fn random_hellos_are_of_every_kind() {
    let mut runner = TestRunner::deterministic();
    let hellos: Vec<_> = (0..500).map(|_| hello().new_tree(&mut runner).unwrap().current()).collect();
    let verdicts: Vec<_> = hellos.iter().map(|bytes| reference::read(bytes)).collect();
    assert!(verdicts.iter().filter(|verdict| matches!(verdict, Verdict::Name(_))).count() > 100);
    for kind in [Verdict::NotAName, Verdict::NoName, Verdict::Incomplete, Verdict::Unreadable] {
        let count = verdicts.iter().filter(|verdict| **verdict == kind).count();
        assert!(count > 15, "{kind:?}: {count}");
    }
    let taken = hellos.iter().filter(|bytes| matches!(Library::read(bytes), Library::Hello(_))).count();
    assert!(taken > 100, "the library takes {taken}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever comes, and however it is cut, the parsers agree; and no name is one that user space
    /// would not find.
    #[test]
    fn random_hellos(bytes in hello(), cuts in vec(any::<Index>(), 0..5)) {
        let verdict = pieces::read(cut(&bytes, &cuts));
        prop_assert_eq!(&verdict, &reference::read(&bytes));
        match Library::read(&bytes) {
            Library::Hello(Some(name)) => {
                prop_assert!(verdict == Verdict::Name(name) || verdict == Verdict::Unreadable, "{verdict:?}");
            }
            // An address is a name for neither.
            Library::Hello(None) => {
                let unnamed = [Verdict::NoName, Verdict::NotAName, Verdict::Unreadable];
                prop_assert!(unnamed.contains(&verdict), "{verdict:?}");
            }
            Library::Incomplete | Library::Refused => {}
        }
    }
}
