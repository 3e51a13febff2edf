//! A parser that one reads once and believes: from the front to the back of one slice.

use crate::Verdict;

/// Bytes of which more may come.
struct Reader<'b> {
    bytes: &'b [u8],
    at: usize,
    /// No element lies beyond.
    end: usize,
}

type Read<T> = Result<T, Verdict>;

pub(crate) fn read(bytes: &[u8]) -> Verdict {
    client_hello(bytes).unwrap_or_else(|verdict| verdict)
}

fn client_hello(bytes: &[u8]) -> Read<Verdict> {
    let mut reader = Reader { bytes, at: 0, end: bytes.len() + 1 };
    let [22] = reader.header::<1>(0)? else { return Err(Verdict::Unreadable) };
    let [_, major, _, record @ .., handshake] = *reader.header::<6>(0)?;
    if (major, handshake) != (3, 1) {
        return Err(Verdict::Unreadable);
    }
    let record = u16::from_be_bytes(record) as usize;
    let [top, high, low] = *reader.header::<3>(6)?;
    if record > 16_384 || u32::from_be_bytes([0, top, high, low]) as usize + 4 != record {
        return Err(Verdict::Unreadable);
    }
    let [session] = *reader.header::<1>(43)?;
    if session > 32 {
        return Err(Verdict::Unreadable);
    }
    reader.end = 5 + record;
    reader.skip(44 + session as usize)?;
    let suites = reader.number(2)?;
    reader.skip(suites)?;
    // One byte, of which a method follows.
    let methods = reader.number(2)? >> 8;
    if methods == 0 {
        return Err(Verdict::Unreadable);
    }
    reader.at -= 1;
    reader.skip(methods)?;
    if reader.at == reader.end {
        return Ok(Verdict::NoName);
    }
    let extensions = reader.number(2)?;
    if reader.at + extensions != reader.end {
        return Err(Verdict::Unreadable);
    }
    for _ in 0..32 {
        if reader.at == reader.end {
            return Ok(Verdict::NoName);
        }
        reader.header::<4>(reader.at)?;
        let (kind, length) = (reader.number(2)?, reader.number(2)?);
        if kind == 0 {
            return server_name(&mut reader, length);
        }
        reader.skip(length)?;
    }
    if reader.at == reader.end { Ok(Verdict::NoName) } else { Err(Verdict::Unreadable) }
}

fn server_name(reader: &mut Reader<'_>, extension: usize) -> Read<Verdict> {
    if reader.at + extension > reader.end {
        return Err(Verdict::Unreadable);
    }
    reader.header::<5>(reader.at)?;
    let list = reader.number(2)?;
    let [kind] = *reader.header::<1>(reader.at)?;
    reader.skip(1)?;
    let length = reader.number(2)?;
    if kind != 0 || list != length + 3 || extension != list + 2 || !(1..=253).contains(&length) {
        return Err(Verdict::Unreadable);
    }
    let from = reader.at;
    reader.skip(length)?;
    let name = reader.bytes.get(from..from + length).ok_or(Verdict::Incomplete)?;
    Ok(dns_name(name).map_or(Verdict::NotAName, Verdict::Name))
}

fn dns_name(bytes: &[u8]) -> Option<String> {
    let name = std::str::from_utf8(bytes).ok()?.to_ascii_lowercase();
    let name = name.strip_suffix('.').unwrap_or(&name);
    let is_label = |label: &str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let hyphen = label.starts_with('-') || label.ends_with('-');
        (1..=63).contains(&label.len()) && label.chars().all(allowed) && !hyphen
    };
    let last = name.rsplit('.').next()?;
    let is_number = last.chars().all(|c| c.is_ascii_digit());
    (name.split('.').all(is_label) && !is_number).then(|| name.to_owned())
}

impl<'b> Reader<'b> {
    /// Bytes that nothing is said of yet.
    fn header<const N: usize>(&self, at: usize) -> Read<&'b [u8; N]> {
        self.bytes.get(at..).and_then(|rest| rest.first_chunk()).ok_or(Verdict::Incomplete)
    }

    fn number(&mut self, length: usize) -> Read<usize> {
        let bytes = self.bytes.get(self.at..self.at + length).ok_or(Verdict::Incomplete)?;
        self.skip(length)?;
        Ok(bytes.iter().fold(0, |number, byte| number << 8 | usize::from(*byte)))
    }

    /// Skipped bytes need not have come.
    fn skip(&mut self, length: usize) -> Read<()> {
        self.at += length;
        if self.at > self.end { Err(Verdict::Unreadable) } else { Ok(()) }
    }
}
