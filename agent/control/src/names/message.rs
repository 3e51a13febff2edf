//! Questions to DNS servers and their answers as octets (RFC 1035): as much of it as addresses
//! need. Answers come from the network: nothing in them is believed before it is found to be there.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Octets of a header, which both have.
const HEADER: usize = 12;
const INTERNET: u16 = 1;
const CNAME: u16 = 5;
/// Aliases on the way to an address; real ones are few.
const MOST_ALIASES: usize = 16;
/// Labels of a name and pointers to them: a name has no more than 127 labels (RFC 1035, section
/// 3.1), and no use for more pointers.
const MOST_PARTS: usize = 255;
const LONGEST_NAME: usize = 255;

/// A family of addresses, by the type of its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Family {
    V4 = 1,
    V6 = 28,
}

/// A question for the addresses of a name.
pub(super) struct Question {
    pub(super) octets: Vec<u8>,
    family: Family,
}

/// A server's answer to a question.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// There may be none, of this family at least. Their lives in seconds.
    Addresses(BTreeSet<IpAddr>, u32),
    /// There is no such name.
    NoName,
    /// There is more than a datagram holds: it is to be asked for over TCP.
    Truncated,
    /// The server cannot say.
    Failed(&'static str),
}

/// A message, which is read up to an octet of it.
struct Reader<'m> {
    message: &'m [u8],
    at: usize,
}

/// The octets of a name in lower case: labels with their lengths, and the root.
type Name = Vec<u8>;

/// The records of an answer that addresses follow from.
#[derive(Default)]
struct Records {
    aliases: BTreeMap<Name, (Name, Life)>,
    addresses: Vec<(Name, IpAddr, Life)>,
}

/// In seconds.
type Life = u32;

// === impl Question ===

impl Question {
    /// `None` if that cannot be a name.
    pub(super) fn new(id: u16, name: &str, family: Family) -> Option<Self> {
        let mut octets = Vec::with_capacity(HEADER + name.len() + 6);
        octets.extend(id.to_be_bytes());
        // One question, and the server is to find out for us ("recursion desired").
        octets.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
        for label in name.split('.') {
            let length = u8::try_from(label.len()).ok().filter(|length| (1..64).contains(length))?;
            octets.push(length);
            octets.extend(label.as_bytes());
        }
        octets.push(0);
        let is_name = octets.len() - HEADER <= LONGEST_NAME;
        octets.extend((family as u16).to_be_bytes());
        octets.extend(INTERNET.to_be_bytes());
        is_name.then_some(Self { octets, family })
    }

    /// The answer that a message holds; `None` if it is none to this question, but a guess, or
    /// the answer to another.
    pub(super) fn answer(&self, message: &[u8]) -> Option<Answer> {
        let (header, rest) = message.split_at_checked(HEADER)?;
        let (id, asked) = (&self.octets[..2], &self.octets[HEADER..]);
        let is_answer = header[2] & 0xf8 == 0x80;
        if header[..2] != *id || !is_answer {
            return None;
        }
        let failure = match header[3] & 0xf {
            0 | 3 => None,
            1 => Some("the DNS server does not understand the question"),
            2 => Some("the DNS server cannot find out (SERVFAIL)"),
            5 => Some("the DNS server refuses to answer"),
            _ => Some("the DNS server fails"),
        };
        let [questions, answers] = [4, 6].map(|at| u16::from_be_bytes([header[at], header[at + 1]]));
        if let Some(failure) = failure.filter(|_| questions == 0) {
            return Some(Answer::Failed(failure));
        }
        let question = rest.get(..asked.len())?;
        if questions != 1 || !question.eq_ignore_ascii_case(asked) {
            return None;
        }
        if let Some(failure) = failure {
            return Some(Answer::Failed(failure));
        }
        if header[2] & 2 != 0 {
            return Some(Answer::Truncated);
        }
        if header[3] & 0xf == 3 {
            return Some(Answer::NoName);
        }
        let (is_authority, recurses) = (header[2] & 4 != 0, header[3] & 0x80 != 0);
        let name = asked[..asked.len() - 4].to_ascii_lowercase();
        let records = Reader { message, at: HEADER + asked.len() }.records(answers, self.family);
        Some(match records.and_then(|records| records.addresses_of(name)) {
            None => Answer::Failed("the DNS server's answer is malformed"),
            // It names the servers to ask in its place, which says nothing about the name.
            Some((found, _)) if found.is_empty() && !is_authority && !recurses => {
                Answer::Failed("the DNS server does not look names up for others")
            }
            Some((found, life)) => Answer::Addresses(found, life),
        })
    }
}

// === impl Records ===

impl Records {
    /// The addresses of a name, and the shortest life of the records that they follow from. Those
    /// of other names, which were not asked for, are none of them.
    fn addresses_of(&self, mut name: Name) -> Option<(BTreeSet<IpAddr>, Life)> {
        let mut life = Life::MAX;
        for _ in 0..=MOST_ALIASES {
            if let Some((target, seconds)) = self.aliases.get(&name) {
                life = life.min(*seconds);
                name.clone_from(target);
                continue;
            }
            let mut found = BTreeSet::new();
            for (_, address, seconds) in self.addresses.iter().filter(|(owner, ..)| *owner == name) {
                found.insert(*address);
                life = life.min(*seconds);
            }
            return Some((found, life));
        }
        None
    }
}

// === impl Reader ===

impl Reader<'_> {
    /// So many records, of which those count that lead to addresses of the family.
    fn records(mut self, count: u16, family: Family) -> Option<Records> {
        let mut records = Records::default();
        for _ in 0..count {
            let owner = self.name()?;
            let [kind, class] = [self.number()?, self.number()?];
            let seconds = u32::from(self.number()?) << 16 | u32::from(self.number()?);
            // "Implementations should treat TTL values received with the most significant bit set
            // as if the entire value received was zero" (RFC 2181, section 8).
            let life = if seconds >> 31 == 0 { seconds } else { 0 };
            let length = self.number()?;
            let end = self.at + usize::from(length);
            let content = self.message.get(self.at..end)?;
            if class == INTERNET && kind == CNAME {
                let target = self.name()?;
                if self.at != end {
                    return None;
                }
                records.aliases.entry(owner).or_insert((target, life));
            } else if class == INTERNET && kind == family as u16 {
                let address = match family {
                    Family::V4 => Ipv4Addr::from(<[u8; 4]>::try_from(content).ok()?).into(),
                    Family::V6 => Ipv6Addr::from(<[u8; 16]>::try_from(content).ok()?).into(),
                };
                records.addresses.push((owner, address, life));
            }
            self.at = end;
        }
        Some(records)
    }

    /// A name ends with the root, or with a pointer to "a prior occurrence of the same name" (RFC
    /// 1035, section 4.1.4). Each pointer leads back from where the last one led, so that none
    /// leads in a circle.
    fn name(&mut self) -> Option<Name> {
        let mut name = Name::new();
        let (mut at, mut begin, mut end) = (self.at, self.at, None);
        for _ in 0..MOST_PARTS {
            match *self.message.get(at)? {
                0 => {
                    name.push(0);
                    self.at = end.unwrap_or(at + 1);
                    return (name.len() <= LONGEST_NAME).then_some(name);
                }
                length @ 1..64 => {
                    let next = at + 1 + usize::from(length);
                    // Lengths are no letters.
                    name.extend(self.message.get(at..next)?.to_ascii_lowercase());
                    at = next;
                }
                high @ 0xc0.. => {
                    let low = *self.message.get(at + 1)?;
                    end = end.or(Some(at + 2));
                    at = usize::from(high & 0x3f) << 8 | usize::from(low);
                    if at >= begin {
                        return None;
                    }
                    begin = at;
                }
                _ => return None,
            }
        }
        None
    }

    fn number(&mut self) -> Option<u16> {
        let octets = self.message.get(self.at..self.at + 2)?;
        self.at += 2;
        Some(u16::from_be_bytes([octets[0], octets[1]]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: [u8; 16] = [0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 1];

    fn question() -> Question {
        Question::new(0x1234, "a.example", Family::V4).unwrap()
    }

    /// An answer with these flags and records.
    fn message(flags: [u8; 2], records: &[&[u8]]) -> Vec<u8> {
        let mut message = question().octets;
        message[2..4].copy_from_slice(&flags);
        message[7] = u8::try_from(records.len()).unwrap();
        message.extend(records.concat());
        message
    }

    const ALIAS: [u8; 16] = [0xc0, 12, 0, 5, 0, 1, 0, 0, 0, 5, 0, 4, 1, b'b', 0xc0, 14];
    const OF_B: [u8; 18] = [1, b'B', 0xc0, 14, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 2];
    /// An alias of `b.example`, for `a.example`.
    const BACK: [u8; 16] = [1, b'b', 0xc0, 14, 0, 5, 0, 1, 0, 0, 0, 60, 0, 2, 0xc0, 12];

    fn answered(records: &[&[u8]]) -> Answer {
        question().answer(&message([0x81, 0x80], records)).unwrap()
    }

    fn addresses(all: &[&str], life: u32) -> Answer {
        Answer::Addresses(all.iter().map(|address| address.parse().unwrap()).collect(), life)
    }

    #[test]
    fn addresses_live_as_long_as_what_leads_to_them() {
        let text = [0, 0, 16, 0, 1, 0, 0, 0, 0, 0, 0];
        let mut negative = ADDRESS;
        negative[6] = 0x80;
        assert_eq!(answered(&[&ADDRESS]), addresses(&["192.0.2.1"], 60));
        assert_eq!(answered(&[&ADDRESS, &text]), addresses(&["192.0.2.1"], 60));
        assert_eq!(answered(&[&ALIAS, &OF_B]), addresses(&["192.0.2.2"], 5));
        assert_eq!(answered(&[&OF_B, &ALIAS]), addresses(&["192.0.2.2"], 5));
        assert_eq!(answered(&[&ADDRESS, &negative]), addresses(&["192.0.2.1"], 0));
        assert_eq!(answered(&[]), addresses(&[], u32::MAX));
    }

    #[test]
    fn addresses_of_other_names_are_not_the_names() {
        assert_eq!(answered(&[&ADDRESS, &OF_B]), addresses(&["192.0.2.1"], 60));
        assert_eq!(answered(&[&OF_B]), addresses(&[], u32::MAX));
        assert_eq!(answered(&[&ALIAS, &ADDRESS]), addresses(&[], 5));
        let (mut chaos, mut v6) = (ADDRESS, ADDRESS);
        (chaos[5], v6[3]) = (3, 28);
        assert_eq!(answered(&[&chaos, &v6]), addresses(&[], u32::MAX));
    }

    #[test]
    fn aliases_and_pointers_in_circles_lead_nowhere() {
        let begin = u8::try_from(question().octets.len()).unwrap();
        let pointer = |to: u8| {
            let mut record = ADDRESS;
            record[1] = to;
            record
        };
        let is_failure = |records: &[&[u8]]| matches!(answered(records), Answer::Failed(_));
        assert!(is_failure(&[&ALIAS, &BACK]));
        assert!(is_failure(&[&pointer(begin)]), "to itself");
        assert!(is_failure(&[&pointer(begin + 2)]), "ahead");
        // A label, and a pointer back to it.
        let around = [&[1, b'a', 0xc0, begin][..], &ADDRESS[2..]].concat();
        assert!(is_failure(&[&around]));
    }

    #[test]
    fn aliases_are_followed_only_so_far() {
        // From `a.example` to `n.example`, which is alias for the one after it.
        let alias = |at: usize| {
            let label = |at: usize| u8::try_from(at).unwrap() + b'A';
            [&[1, label(at), 0xc0, 14, 0, 5, 0, 1, 0, 0, 0, 60, 0, 4][..], &[1, label(at + 1), 0xc0, 14]]
                .concat()
        };
        let chain: Vec<_> = (0..=MOST_ALIASES).map(alias).collect();
        let last = |at: usize| [&[1, b'A' + u8::try_from(at).unwrap()][..], &OF_B[2..]].concat();
        let answered_by = |aliases: usize| {
            let end = last(aliases);
            let records: Vec<_> = chain[..aliases].iter().chain([&end]).map(Vec::as_slice).collect();
            answered(&records)
        };
        assert_eq!(answered_by(MOST_ALIASES), addresses(&["192.0.2.2"], 60));
        assert!(matches!(answered_by(MOST_ALIASES + 1), Answer::Failed(_)));
    }

    #[test]
    fn answers_without_addresses_are_told_from_servers_that_cannot_say() {
        let answer = |flags| question().answer(&message(flags, &[]));
        assert_eq!(answer([0x81, 0x83]), Some(Answer::NoName));
        assert_eq!(answer([0x83, 0x80]), Some(Answer::Truncated));
        assert!(matches!(answer([0x81, 0x82]), Some(Answer::Failed(_))), "SERVFAIL");
        assert!(matches!(answer([0x81, 0x05]), Some(Answer::Failed(_))), "refused");
        assert!(matches!(answer([0x80, 0x00]), Some(Answer::Failed(_))), "a referral");
        assert!(matches!(answer([0x84, 0x00]), Some(Answer::Addresses(..))), "of an authority");
    }

    #[test]
    fn messages_that_answer_nothing_asked_are_none() {
        let answer = message([0x81, 0x80], &[&ADDRESS]);
        for (at, octet) in [(0, 0x13), (2, 0x01), (2, 0x91), (5, 2), (13, b'b'), (24, 28)] {
            let mut other = answer.clone();
            other[at] = octet;
            assert_eq!(question().answer(&other), None, "{at}");
        }
        let mut shouted = answer.clone();
        shouted[13] = b'A';
        assert!(question().answer(&shouted).is_some(), "names have no case");
    }

    /// However it ends, and whatever an octet is: no panic, and no address that is not there.
    #[test]
    fn malformed_messages_are_failures() {
        let answer = message([0x81, 0x80], &[&ADDRESS, &ADDRESS]);
        for length in 0..answer.len() {
            let is_failure = matches!(question().answer(&answer[..length]), None | Some(Answer::Failed(_)));
            assert!(is_failure, "{length}");
        }
        for at in 0..answer.len() {
            for octet in 0..=255 {
                let mut other = answer.clone();
                other[at] = octet;
                let _ = question().answer(&other);
            }
        }
    }

    #[test]
    fn only_names_are_asked_for() {
        let long = ["a".repeat(63).as_str(); 4].join(".");
        for name in ["", "a..example", ".a", "a.", &"a".repeat(64), &long] {
            assert!(Question::new(0, name, Family::V6).is_none(), "{name}");
        }
        assert!(Question::new(0, &long[1..255 - 1], Family::V6).is_some());
    }
}
