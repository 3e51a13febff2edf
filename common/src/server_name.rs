//! Server names in the form in which the kernel looks them up: in lower case, without a trailing
//! dot, from the last byte to the first, so that a longest prefix is a longest suffix.

use crate::client_hello::{LONGEST_NAME, Window};

/// A name from its last byte to its first, and a NUL, which no name has: a prefix that includes it
/// is for this name alone, and one that ends with a dot is for all names below.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReversedName(pub [u8; LONGEST_NAME + 1]);

/// Of each byte its lower case, what it is in a name, and whether a label goes on with it. No
/// `static`, whose name in the kernel programs would tell in which directory they were built.
const BYTES: &[u32; 256] = &bytes();

const DOT: u32 = 8;
const HYPHEN: u32 = 9;
/// Any but a digit.
const LETTER: u32 = 10;
/// Not in names.
const ODD: u32 = 11;
/// Eight bits, all of them set but for a dot.
const GOES_ON: u32 = 16;

impl ReversedName {
    pub const EMPTY: Self = Self([0; LONGEST_NAME + 1]);

    /// Puts here the name in the window, and returns its length without the NUL; `None` if the TLS
    /// library takes it for no DNS name. An IPv4 address is none.
    ///
    /// Without a branch for any kind of byte: the verifier would follow all that may come together.
    #[inline(always)]
    pub fn read(&mut self, window: &(impl Window + ?Sized), offset: usize, length: usize) -> Option<usize> {
        let [last] = window.at::<1>(offset + length.checked_sub(1)?)?;
        let length = length - (BYTES[usize::from(*last)] >> DOT & 1) as usize;
        let mut labels = Labels::default();
        let mut read = 0;
        while read < LONGEST_NAME {
            if read == length {
                break;
            }
            let [byte] = window.at::<1>((offset + length).wrapping_sub(read + 1))?;
            let byte = BYTES[usize::from(*byte)];
            labels.push(byte);
            *self.0.get_mut(read)? = byte as u8;
            read += 1;
        }
        // None, if there is no room for all of it.
        *self.0.get_mut(length)? = 0;
        labels.are_a_name().then_some(length)
    }
}

/// The grammar of names, read backwards. Of the numbers only bit 0 counts, but for the length.
struct Labels {
    /// The byte before, as in [`BYTES`].
    before: u32,
    /// Of the label so far.
    length: u32,
    /// Not 0 once the name cannot be one.
    faults: u32,
    /// While in the last label, which comes first.
    last: u32,
    /// If that has something other than digits.
    letters: u32,
}

impl Default for Labels {
    /// The end of a name is like a dot.
    fn default() -> Self {
        Self { before: 1 << DOT, length: 0, faults: 0, last: 1, letters: 0 }
    }
}

impl Labels {
    #[inline(always)]
    fn push(&mut self, byte: u32) {
        // A label is not empty, neither ends nor begins with a hyphen, and has 63 bytes at most.
        let is_edge = (byte >> DOT | byte >> HYPHEN) & self.before >> DOT;
        let is_begun = byte >> DOT & self.before >> HYPHEN;
        self.length = (self.length + 1) & byte >> GOES_ON;
        self.faults |= (is_edge | is_begun | byte >> ODD) & 1 | self.length >> 6;
        self.last &= !(byte >> DOT);
        self.letters |= byte >> LETTER & self.last;
        self.before = byte;
    }

    /// The name's first label is like one after a dot.
    #[inline(always)]
    const fn are_a_name(&self) -> bool {
        let is_edge = (self.before >> DOT | self.before >> HYPHEN) & 1 != 0;
        self.faults == 0 && !is_edge && self.letters & 1 != 0
    }
}

const fn bytes() -> [u32; 256] {
    let mut bytes = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let ascii = byte as u8;
        let kind = match ascii {
            b'a'..=b'z' | b'A'..=b'Z' | b'_' => 1 << LETTER | 0xff << GOES_ON,
            b'0'..=b'9' => 0xff << GOES_ON,
            b'-' => 1 << HYPHEN | 1 << LETTER | 0xff << GOES_ON,
            b'.' => 1 << DOT,
            _ => 1 << ODD | 0xff << GOES_ON,
        };
        bytes[byte] = ascii.to_ascii_lowercase() as u32 | kind;
        byte += 1;
    }
    bytes
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::format;

    use super::*;

    fn reversed(name: &str) -> Option<ReversedName> {
        let mut reversed = ReversedName::EMPTY;
        reversed.read(name.as_bytes(), 0, name.len()).map(|_| reversed)
    }

    fn is_name(name: &str) -> bool {
        reversed(name).is_some()
    }

    #[test]
    fn names_end_first_and_with_nul() {
        let ReversedName(bytes) = reversed("App.Example.COM.").unwrap();
        assert_eq!(&bytes[..17], b"moc.elpmaxe.ppa\0\0");
    }

    #[test]
    fn a_prefix_with_a_dot_is_for_names_below() {
        let ReversedName(below) = reversed("x.example.com").unwrap();
        let ReversedName(other) = reversed("badexample.com").unwrap();
        let ReversedName(itself) = reversed("example.com").unwrap();
        let wildcard = b"moc.elpmaxe.";
        assert!(below.starts_with(wildcard));
        assert!(!other.starts_with(wildcard) && !itself.starts_with(wildcard));
    }

    #[test]
    fn what_is_no_dns_name_is_refused() {
        let label = "a".repeat(63);
        for name in ["a", "a.b", "a_b.c", "1.b", "1-2", "a.1b", "a.b.", &label, &format!("{label}.{label}")] {
            assert!(is_name(name), "{name}");
        }
        let long = "a".repeat(64);
        let odd = ["", ".", "..", ".a", "a..b", "-a.b", "a-.b", "a.-b", "a.b-", "a.1", "10.0.0.1", "::1"];
        let long = [&long, &format!("{long}.b"), &format!("b.{long}")];
        for name in odd.into_iter().chain(long.map(|it| &**it)).chain(["a b", "a\0", "é.com", "a/b", "a.."])
        {
            assert!(!is_name(name), "{name}");
        }
    }

    #[test]
    fn the_longest_name_has_room() {
        let label = "a".repeat(63);
        let name = format!("{label}.{label}.{label}.{}", "b".repeat(61));
        assert_eq!(name.len(), LONGEST_NAME);
        assert!(is_name(&name));
        assert!(!is_name(&format!("{name}b")), "one byte more");
    }
}
