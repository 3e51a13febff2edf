//! The place of the server name in a TLS ClientHello (RFC 8446, section 4.1.2; RFC 6066, section
//! 3), read from a stream whose bytes come in pieces: packets in the kernel, slices in tests. It
//! steps over what it does not need, which is nearly everything, and goes on where the bytes ended.
//!
//! In user space the TLS library stays the authority: it reads every byte of a hello before the
//! handshake. What is found here is at most a hint, so all that is odd is [`Reading::Unreadable`]
//! instead of guessed at: hellos in several records, lists of several names, lengths that
//! contradict each other.

/// Bytes of a stream that lie in memory, from wherever the caller kept them.
pub trait Window {
    fn length(&self) -> usize;
    /// `N` bytes at `offset`, if they have come.
    fn at<const N: usize>(&self, offset: usize) -> Option<&[u8; N]>;
}

impl Window for [u8] {
    fn length(&self) -> usize {
        self.len()
    }

    fn at<const N: usize>(&self, offset: usize) -> Option<&[u8; N]> {
        self.get(offset..)?.first_chunk()
    }
}

/// The element of a hello that is read next, and where it begins. All offsets count from the start
/// of the window.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// Lies beyond the window if the element before it does not end there.
    offset: u32,
    /// The end of the hello; unknown before its start has been read.
    end: u32,
    /// One of the constants below: a plain integer, because the cursor is kept in a map.
    element: u32,
    /// Extensions that may still come.
    extensions: u32,
}

const START: u32 = 0;
const CIPHER_SUITES: u32 = 1;
const COMPRESSION: u32 = 2;
const EXTENSIONS: u32 = 3;
const EXTENSION: u32 = 4;

/// Returns `false` if no hello begins with these bytes, so many of which have come: a look to be
/// taken before the rest is.
#[inline(always)]
pub const fn may_begin(first: &[u8; 8], come: usize) -> bool {
    first[0] == HANDSHAKE && (come < 6 || first[1] == 3 && first[5] == CLIENT_HELLO)
}

/// The outcome of reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// A hello for this name, which is not empty. It lies in the window, and has not been checked.
    Name { offset: usize, length: usize },
    /// A whole hello without a server name.
    NoName,
    /// So far a hello; to be gone on with when more has come.
    Incomplete(Cursor),
    /// No hello, or not one of this simple form.
    Unreadable,
}

/// The bytes that have to be kept for the next reading, and the cursor into what follows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The first of them, a multiple of 8, so that they can be copied by words; they reach to the
    /// end of the window, and are [`MOST_KEPT`] at most.
    pub from: usize,
    /// Counts from the first of them.
    pub cursor: Cursor,
}

/// The largest element, an extension with the longest name, and what comes before it in a word.
pub const MOST_KEPT: usize = (7 + NAME + LONGEST_NAME).next_multiple_of(8);
/// "253 in all": a DNS name without its trailing dot.
pub const LONGEST_NAME: usize = 253;
/// Real clients send about twenty.
const MOST_EXTENSIONS: u32 = 32;
/// A record of plain text has no more (RFC 8446, section 5.1).
const LARGEST_RECORD: usize = 1 << 14;

const RECORD_HEADER: usize = 5;
const HANDSHAKE_HEADER: usize = 4;
/// Both headers, version, random, and the length of the session's name.
const START_LENGTH: usize = RECORD_HEADER + HANDSHAKE_HEADER + 2 + 32 + 1;
const LONGEST_SESSION_ID: u8 = 32;
/// Type and length of an extension.
const EXTENSION_HEADER: usize = 4;
/// The same, then the length of the list, the type of name, and its length.
const NAME: usize = EXTENSION_HEADER + 5;

const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;

/// The reasons for which reading ends without a name.
enum Unnamed {
    NoName,
    Incomplete(Cursor),
    Unreadable,
}

impl Cursor {
    /// The first byte of a stream.
    pub const BEGIN: Self = Self { offset: 0, end: 0, element: START, extensions: MOST_EXTENSIONS };

    /// Reads on.
    #[inline(always)]
    pub fn read(self, window: &(impl Window + ?Sized)) -> Reading {
        match self.server_name(window) {
            Ok((offset, length)) => Reading::Name { offset, length },
            Err(Unnamed::NoName) => Reading::NoName,
            Err(Unnamed::Incomplete(cursor)) => Reading::Incomplete(cursor),
            Err(Unnamed::Unreadable) => Reading::Unreadable,
        }
    }

    /// The part of a window of this length that the next reading needs.
    #[inline(always)]
    pub const fn keep(self, length: usize) -> Kept {
        let offset = self.offset as usize;
        let from = (if offset < length { offset } else { length }) & !7;
        let moved = from as u32;
        // Before the start has been read there is no end to move.
        let end = if self.element == START { 0 } else { self.end.wrapping_sub(moved) };
        Kept { from, cursor: Self { offset: self.offset.wrapping_sub(moved), end, ..self } }
    }

    #[inline(always)]
    fn server_name(mut self, window: &(impl Window + ?Sized)) -> Result<(usize, usize), Unnamed> {
        if self.element == START {
            self = self.start(window)?;
        }
        if self.element == CIPHER_SUITES {
            let length = usize::from(self.two_bytes(window, 0)?);
            self = self.advance(2 + length, COMPRESSION)?;
        }
        if self.element == COMPRESSION {
            // A hello without a method is none, so there is a second byte, too.
            let [length, _] = self.two_bytes(window, 0)?.to_be_bytes();
            if length == 0 {
                return Err(Unnamed::Unreadable);
            }
            self = self.advance(1 + usize::from(length), EXTENSIONS)?;
        }
        if self.element == EXTENSIONS {
            if self.offset == self.end {
                return Err(Unnamed::NoName);
            }
            let length = usize::from(self.two_bytes(window, 0)?);
            self = self.advance(2, EXTENSION)?;
            if self.offset as usize + length != self.end as usize {
                return Err(Unnamed::Unreadable);
            }
        }
        for _ in 0..=MOST_EXTENSIONS {
            if self.offset == self.end {
                return Err(Unnamed::NoName);
            }
            if self.extensions == 0 {
                break;
            }
            let Some([k1, k2, l1, l2]) = window.at::<EXTENSION_HEADER>(self.offset as usize) else {
                return Err(Unnamed::Incomplete(self));
            };
            let length = usize::from(u16::from_be_bytes([*l1, *l2]));
            if u16::from_be_bytes([*k1, *k2]) == SERVER_NAME {
                return self.name(window, length);
            }
            // It counts once it has been read.
            self.extensions -= 1;
            self = self.advance(EXTENSION_HEADER + length, EXTENSION)?;
        }
        Err(Unnamed::Unreadable)
    }

    /// The headers, which say how long the hello is, and the name of the session.
    #[inline(always)]
    fn start(self, window: &(impl Window + ?Sized)) -> Result<Self, Unnamed> {
        let Some([HANDSHAKE]) = window.at::<1>(0) else { return Err(self.unless_come::<1>(window)) };
        let Some([_, 3, _, high, low, CLIENT_HELLO]) = window.at::<6>(0) else {
            return Err(self.unless_come::<6>(window));
        };
        let record = usize::from(u16::from_be_bytes([*high, *low]));
        let Some([top, high, low]) = window.at::<3>(RECORD_HEADER + 1) else {
            return Err(Unnamed::Incomplete(self));
        };
        let hello = usize::from(u16::from_be_bytes([*high, *low]));
        if *top != 0 || record > LARGEST_RECORD || record != HANDSHAKE_HEADER + hello {
            return Err(Unnamed::Unreadable);
        }
        let Some([session_id]) = window.at::<1>(START_LENGTH - 1) else {
            return Err(Unnamed::Incomplete(self));
        };
        if *session_id > LONGEST_SESSION_ID {
            return Err(Unnamed::Unreadable);
        }
        let end = (RECORD_HEADER + record) as u32;
        Self { end, ..self }.advance(START_LENGTH + usize::from(*session_id), CIPHER_SUITES)
    }

    /// The first `N` bytes are not those of a hello, or have not come.
    #[inline(always)]
    fn unless_come<const N: usize>(self, window: &(impl Window + ?Sized)) -> Unnamed {
        if window.length() < N { Unnamed::Incomplete(self) } else { Unnamed::Unreadable }
    }

    /// The extension at the cursor, whose body is so long, if it has just one name in it.
    #[inline(always)]
    fn name(self, window: &(impl Window + ?Sized), body: usize) -> Result<(usize, usize), Unnamed> {
        let offset = self.offset as usize;
        if offset + EXTENSION_HEADER + body > self.end as usize {
            return Err(Unnamed::Unreadable);
        }
        let Some([_, _, _, _, list_high, list_low, kind, high, low]) = window.at::<NAME>(offset) else {
            return Err(Unnamed::Incomplete(self));
        };
        let list = usize::from(u16::from_be_bytes([*list_high, *list_low]));
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        let is_single = *kind == HOST_NAME && list == 3 + length && body == 2 + list;
        if !is_single || length == 0 || length > LONGEST_NAME {
            return Err(Unnamed::Unreadable);
        }
        if offset + NAME + length > window.length() {
            return Err(Unnamed::Incomplete(self));
        }
        Ok((offset + NAME, length))
    }

    /// Behind an element of this length.
    #[inline(always)]
    fn advance(self, length: usize, element: u32) -> Result<Self, Unnamed> {
        let offset = self.offset + length as u32;
        if offset > self.end {
            return Err(Unnamed::Unreadable);
        }
        Ok(Self { offset, element, ..self })
    }

    /// A number in the element at the cursor.
    #[inline(always)]
    fn two_bytes(self, window: &(impl Window + ?Sized), at: usize) -> Result<u16, Unnamed> {
        let bytes = window.at::<2>(self.offset as usize + at);
        bytes.map(|bytes| u16::from_be_bytes(*bytes)).ok_or(Unnamed::Incomplete(self))
    }
}
