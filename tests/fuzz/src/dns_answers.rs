//! Answers of DNS servers: names lead only where a message says that they lead, which a second,
//! strict reader says again; what it has of other names, kinds and classes is not believed.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use portcullis_control::names::fuzzing::{Family, Outcome, answer};

const NAME: &str = "a.example";
const IN: u16 = 1;
const CNAME: u16 = 5;
/// Aliases that are followed for certain. Servers follow some ten.
const FOLLOWED: usize = 18;
/// Bytes of a message at each of which it is cut.
const CUT: usize = 128;

/// A message as far as it matters, by the reader here.
struct Strict<'m> {
    message: &'m [u8],
    at: usize,
}

struct Record {
    owner: Vec<u8>,
    kind: u16,
    class: u16,
    seconds: u32,
    data: Data,
}

enum Data {
    Address(IpAddr),
    Alias(Vec<u8>),
    Other,
}

pub(crate) fn run(bytes: &[u8]) {
    for (family, kind) in [(Family::V4, 1), (Family::V6, 28)] {
        let Some(said) = answer(NAME, family, bytes) else { continue };
        judge(bytes, kind, &said);
        // What is behind it is none of it, unless that is what it lacks.
        if said != Outcome::Nothing {
            let longer = [bytes, b"\x01a\x07example\0"].concat();
            assert_eq!(answer(NAME, family, &longer).as_ref(), Some(&said), "with more behind it");
        }
        for cut in 0..bytes.len().min(CUT) {
            let cut = answer(NAME, family, &bytes[..cut]);
            assert!(cut.is_none() || cut == Some(Outcome::Nothing) || cut == Some(said.clone()), "{cut:?}");
        }
    }
}

fn judge(bytes: &[u8], kind: u16, said: &Outcome) {
    let flags = [bytes[2], bytes[3]];
    let (is_authority, is_cut, recurses) = (flags[0] & 4 != 0, flags[0] & 2 != 0, flags[1] & 0x80 != 0);
    match flags[1] & 15 {
        3 => return assert_eq!(*said, Outcome::NoName),
        0 if !is_cut => {}
        _ => return assert_eq!(*said, Outcome::Nothing),
    }
    let expected = addresses(bytes, kind);
    match (said, expected) {
        (Outcome::Addresses(found, seconds), Some((expected, least, _))) => {
            assert_eq!(*found, expected);
            assert!(*seconds <= least, "{seconds} seconds, where what leads there has {least}");
            assert!(!found.is_empty() || is_authority || recurses, "a referral");
        }
        (Outcome::Nothing, Some((expected, _, aliases))) => {
            let is_referral = expected.is_empty() && !is_authority && !recurses;
            assert!(is_referral || aliases > FOLLOWED, "{expected:?} are not read");
        }
        (Outcome::Addresses(..) | Outcome::NoName, None) => unreachable!("{said:?} of a malformed message"),
        (Outcome::NoName, Some(_)) => unreachable!("there is such a name"),
        (Outcome::Nothing, None) => {}
    }
}

/// The addresses of the name, the shortest life on the way to them, and the number of aliases.
/// `None` if the message is malformed, or its aliases lead in a circle.
fn addresses(message: &[u8], kind: u16) -> Option<(BTreeSet<IpAddr>, u32, usize)> {
    let mut reader = Strict { message, at: 4 };
    let [questions, answers, ..] = [(); 4].map(|()| reader.number()).map(Option::unwrap_or_default);
    // Of an answer without an error, it is the one that was asked.
    let mut name = (questions == 1).then(|| reader.name())??;
    reader.at += 4;
    let records = (0..answers).map(|_| reader.record(kind)).collect::<Option<Vec<_>>>()?;
    let mut least = u32::MAX;
    let mut aliases = 0;
    loop {
        let alias = records.iter().find_map(|record| match &record.data {
            Data::Alias(target) if record.owner == name => Some((target, record.seconds)),
            _ => None,
        });
        let Some((target, seconds)) = alias else { break };
        (name, least, aliases) = (target.clone(), least.min(seconds), aliases + 1);
        if aliases > records.len() {
            return None;
        }
    }
    let mut found = BTreeSet::new();
    for record in &records {
        if let Data::Address(address) = record.data
            && (record.kind, record.class) == (kind, IN)
            && record.owner == name
        {
            found.insert(address);
            least = least.min(record.seconds);
        }
    }
    Some((found, least, aliases))
}

// === impl Strict ===

impl Strict<'_> {
    fn take(&mut self, length: usize) -> Option<&[u8]> {
        let taken = self.message.get(self.at..self.at + length)?;
        self.at += length;
        Some(taken)
    }

    fn number(&mut self) -> Option<u16> {
        self.take(2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    /// In lower case, as labels with their lengths.
    fn name(&mut self) -> Option<Vec<u8>> {
        let mut name = Vec::new();
        let mut at = self.at;
        let mut end = None;
        loop {
            let length = *self.message.get(at)?;
            match length {
                0 => {
                    self.at = end.unwrap_or(at + 1);
                    return (name.len() < 255).then_some(name);
                }
                1..=63 => {
                    let label = self.message.get(at + 1..at + 1 + usize::from(length))?;
                    name.push(length);
                    name.extend(label.to_ascii_lowercase());
                    at += 1 + usize::from(length);
                }
                0xc0.. => {
                    end = end.or(Some(at + 2));
                    let to = usize::from(length & 63) << 8 | usize::from(*self.message.get(at + 1)?);
                    // "A prior occurrence": there is no circle of those.
                    at = Some(to).filter(|to| *to < at)?;
                }
                _ => return None,
            }
            if name.len() > 255 {
                return None;
            }
        }
    }

    /// Data of other kinds than the one that was asked for is not looked at.
    fn record(&mut self, asked: u16) -> Option<Record> {
        let owner = self.name()?;
        let (kind, class) = (self.number()?, self.number()?);
        let seconds = u32::from(self.number()?) << 16 | u32::from(self.number()?);
        // RFC 2181 section 8.
        let seconds = if seconds >> 31 == 0 { seconds } else { 0 };
        let length = usize::from(self.number()?);
        let end = self.at + length;
        let data = match (kind, class) {
            (1, IN) if asked == 1 => {
                let octets = <[u8; 4]>::try_from(self.take(length)?).ok()?;
                Data::Address(Ipv4Addr::from(octets).into())
            }
            (28, IN) if asked == 28 => {
                let octets = <[u8; 16]>::try_from(self.take(length)?).ok()?;
                Data::Address(Ipv6Addr::from(octets).into())
            }
            (CNAME, IN) => Data::Alias(self.name()?),
            _ => self.take(length).map(|_| Data::Other)?,
        };
        (self.at == end).then_some(Record { owner, kind, class, seconds, data })
    }
}
