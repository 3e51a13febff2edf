//! Header fields as spans of the bytes that their head came in, in the order in which they came.
//! Fields that are added have memory of their own.

use std::ops::Range;

use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, HeaderValue};

use crate::core::head::{FieldName, Fields, FieldsMut, KnownField};

/// Fields of a head that is read here.
pub(crate) const MOST_FIELDS: usize = 100;
/// Fields of a message that room is made for besides those that came.
const ADDED: usize = 8;

#[derive(Default)]
pub(crate) struct Spans<'b> {
    fields: Vec<Field<'b>>,
    marks: Marks,
}

/// A mark for each name that there is, and perhaps for others: most names that are asked for are of
/// no field, which is seen here without a look at all fields.
#[derive(Clone, Copy, Default)]
struct Marks(u64);

struct Field<'b> {
    name: Name<'b>,
    value: Value<'b>,
}

pub(crate) enum Name<'b> {
    /// In lower case.
    Came(&'b [u8], Option<KnownField>),
    Ours(HeaderName),
}

enum Value<'b> {
    Came(&'b [u8]),
    Ours(HeaderValue),
}

/// Extents of names and values in the bytes of a head.
pub(crate) struct Extents(Vec<(Extent, Extent)>);

/// A place in the bytes of a head, which are few.
#[derive(Clone, Copy)]
pub(crate) struct Extent {
    start: u32,
    end: u32,
}

// === impl Extent ===

impl Extent {
    /// Of a part of the bytes; `None` if it is none.
    pub(crate) fn of(bytes: &[u8], part: &[u8]) -> Option<Self> {
        let start = part.as_ptr().addr().checked_sub(bytes.as_ptr().addr())?;
        let end = start + part.len();
        (end <= bytes.len()).then_some(Self { start: start.try_into().ok()?, end: end.try_into().ok()? })
    }

    pub(crate) fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

// === impl Extents ===

impl Extents {
    /// `None` if there are too many bytes.
    pub(crate) fn of(bytes: &[u8], headers: &[httparse::Header<'_>]) -> Option<Self> {
        // An iterator of options would not say how many there are.
        let mut places = Vec::with_capacity(headers.len());
        for header in headers {
            places.push((Extent::of(bytes, header.name.as_bytes())?, Extent::of(bytes, header.value)?));
        }
        Some(Self(places))
    }

    /// The fields, and the bytes that they are spans of. Their names are made lower case where they
    /// are, which is the same head to any reader.
    pub(crate) fn spans<'b>(&self, bytes: &'b mut [u8]) -> Option<(Spans<'b>, &'b [u8])> {
        let Self(places) = self;
        for (name, _) in places {
            make_lower_case(bytes.get_mut(name.range())?);
        }
        let bytes: &'b [u8] = bytes;
        let mut spans = Spans::with_room_for(places.len());
        for (name, value) in places {
            let name = bytes.get(name.range())?;
            let value = Value::Came(bytes.get(value.range())?);
            spans.push(Field { name: Name::Came(name, KnownField::of(name)), value });
        }
        Some((spans, bytes))
    }

    /// True if each name begins a line, and the bytes end with an empty one: after CR and LF, as
    /// some readers take LF alone for an end of a line.
    pub(crate) fn are_lines_of(&self, bytes: &[u8]) -> bool {
        let mut names = self.0.iter().map(|(name, _)| name.start as usize);
        let is_begun = |start| bytes.get(..start).is_some_and(|before| before.ends_with(b"\r\n"));
        bytes.ends_with(b"\r\n\r\n") && names.all(is_begun)
    }
}

/// As [`u8::make_ascii_lowercase`] does, eight bytes at a time: names are short.
fn make_lower_case(name: &mut [u8]) {
    let lower = |eight: &mut [u8; 8]| *eight = lower_case(u64::from_le_bytes(*eight)).to_le_bytes();
    let (eights, rest) = name.as_chunks_mut();
    eights.iter_mut().for_each(lower);
    if rest.is_empty() {
        return;
    }
    match name.last_chunk_mut() {
        // Some of them are lower case already.
        Some(last) => lower(last),
        None => name.make_ascii_lowercase(),
    }
}

/// Of eight bytes, whichever of them are upper case.
fn lower_case(bytes: u64) -> u64 {
    const EACH: u64 = u64::from_le_bytes([1; 8]);
    // Without the eighth bit, a sum does not carry into the next byte.
    let low = bytes & (EACH * 0x7f);
    let (from_a, beyond_z) = (low + EACH * (0x80 - 0x41), low + EACH * (0x7f - 0x5a));
    let is_upper = (from_a ^ beyond_z) & !bytes & (EACH * 0x80);
    bytes | is_upper >> 2
}

// === impl Spans ===

impl<'b> Spans<'b> {
    /// The fields of a map.
    pub(crate) fn of(map: &'b HeaderMap) -> Self {
        let mut spans = Self::with_room_for(map.len());
        for (name, value) in map {
            let name = Name::Came(name.as_bytes(), name.known());
            spans.push(Field { name, value: Value::Came(value.as_bytes()) });
        }
        spans
    }

    /// Room for so many fields that came, and those that are added to them.
    fn with_room_for(fields: usize) -> Self {
        Self { fields: Vec::with_capacity(fields + ADDED), marks: Marks::default() }
    }

    fn push(&mut self, field: Field<'b>) {
        self.marks.add(field.name.as_bytes());
        self.fields.push(field);
    }

    /// The fields of a name.
    fn named<'f>(&'f self, name: &HeaderName) -> impl Iterator<Item = &'f Field<'b>> {
        let name = name.as_bytes();
        let fields = if self.marks.may_have(name) { &self.fields[..] } else { &[] };
        fields.iter().filter(move |field| field.name.as_bytes() == name)
    }

    /// A map of them. Values that are spans of the bytes that came share the memory of the copy.
    /// `None` if there is a field that it cannot have.
    pub(crate) fn to_map(&self, came: &[u8], copy: &Bytes) -> Option<HeaderMap> {
        let mut map = HeaderMap::with_capacity(self.fields.len());
        for field in &self.fields {
            let name = match &field.name {
                Name::Came(name, _) => HeaderName::from_bytes(name).ok()?,
                Name::Ours(name) => name.clone(),
            };
            let value = match &field.value {
                Value::Came(value) => match Extent::of(came, value) {
                    Some(extent) => HeaderValue::from_maybe_shared(copy.slice(extent.range())).ok()?,
                    None => HeaderValue::from_bytes(value).ok()?,
                },
                Value::Ours(value) => value.clone(),
            };
            map.append(name, value);
        }
        Some(map)
    }
}

impl<'b> Fields for Spans<'b> {
    type Name = Name<'b>;

    fn iter(&self) -> impl Iterator<Item = (&Name<'b>, &[u8])> {
        self.fields.iter().map(|field| (&field.name, field.value.as_bytes()))
    }

    fn names(&self) -> impl Iterator<Item = &Name<'b>> {
        self.fields.iter().map(|field| &field.name)
    }

    fn get(&self, name: &HeaderName) -> Option<&[u8]> {
        self.get_all(name).next()
    }

    fn get_all(&self, name: &HeaderName) -> impl Iterator<Item = &[u8]> {
        self.named(name).map(|field| field.value.as_bytes())
    }

    fn copy(&self, name: &HeaderName) -> Option<HeaderValue> {
        match &self.named(name).next()?.value {
            Value::Came(bytes) => HeaderValue::from_bytes(bytes).ok(),
            Value::Ours(value) => Some(value.clone()),
        }
    }
}

impl<'b> FieldsMut for Spans<'b> {
    fn reserve(&mut self, more: usize) {
        self.fields.reserve(more);
    }

    fn insert(&mut self, name: HeaderName, value: HeaderValue) {
        self.remove(&name);
        self.append(name, value);
    }

    fn append(&mut self, name: HeaderName, value: HeaderValue) {
        self.push(Field { name: Name::Ours(name), value: Value::Ours(value) });
    }

    fn remove(&mut self, name: &HeaderName) {
        let name = name.as_bytes();
        if self.marks.may_have(name) {
            self.fields.retain(|field| field.name.as_bytes() != name);
        }
    }

    fn remove_if(&mut self, is_removed: impl Fn(&Name<'b>) -> bool) {
        self.fields.retain(|field| !is_removed(&field.name));
    }
}

// === impl Marks ===

impl Marks {
    fn add(&mut self, name: &[u8]) {
        self.0 |= Self::of(name);
    }

    fn may_have(self, name: &[u8]) -> bool {
        self.0 & Self::of(name) != 0
    }

    /// One of 64, by length and ends: those of a head mostly differ.
    fn of(name: &[u8]) -> u64 {
        let end = |byte: Option<&u8>| byte.map_or(0, |byte| usize::from(*byte));
        let place = name.len() * 5 + end(name.first()) + end(name.last()) * 3;
        1 << (place % 64)
    }
}

// === impl Name ===

impl FieldName for Name<'_> {
    fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Came(name, _) => name,
            Self::Ours(name) => name.as_bytes(),
        }
    }

    fn known(&self) -> Option<KnownField> {
        match self {
            Self::Came(_, known) => *known,
            Self::Ours(name) => name.known(),
        }
    }
}

// === impl Value ===

impl Value<'_> {
    fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Came(bytes) => bytes,
            Self::Ours(value) => value.as_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::header;

    use super::*;

    #[test]
    fn lower_case_is_that_of_ascii() {
        let all: Vec<u8> = (0..=255).collect();
        for length in 1..=24 {
            for part in all.windows(length) {
                let mut name = part.to_vec();
                make_lower_case(&mut name);
                assert_eq!(name, part.to_ascii_lowercase());
            }
        }
    }

    #[test]
    fn names_that_are_there_are_found() {
        let mut bytes = *b"Host: a\r\nX-A: b\r\nx-a: c\r\n\r\n";
        let mut headers = [httparse::EMPTY_HEADER; 3];
        let places = match httparse::parse_headers(&bytes, &mut headers) {
            Ok(httparse::Status::Complete((_, headers))) => Extents::of(&bytes, headers).unwrap(),
            other => panic!("{other:?}"),
        };
        let (mut fields, _) = places.spans(&mut bytes).unwrap();
        let name = HeaderName::from_static;
        fields.append(name("x-b"), HeaderValue::from_static("d"));
        let all = |fields: &Spans<'_>, name| fields.get_all(&name).map(<[u8]>::to_vec).collect::<Vec<_>>();
        assert_eq!(all(&fields, name("x-a")), [b"b", b"c"]);
        assert_eq!(all(&fields, name("x-b")), [b"d"]);
        assert_eq!(fields.get(&header::HOST), Some(&b"a"[..]));
        for absent in ["x-c", "hose", "h", "x-forwarded-for"] {
            assert_eq!(fields.get(&name(absent)), None, "{absent}");
        }
        fields.remove(&name("x-a"));
        assert_eq!(all(&fields, name("x-a")), Vec::<Vec<u8>>::new());
        fields.insert(name("x-a"), HeaderValue::from_static("e"));
        assert_eq!(all(&fields, name("x-a")), [b"e"]);
    }
}
