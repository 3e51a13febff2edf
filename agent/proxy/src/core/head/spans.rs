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
pub(crate) struct Spans<'b>(Vec<Field<'b>>);

struct Field<'b> {
    name: Name<'b>,
    value: Value<'b>,
}

pub(crate) enum Name<'b> {
    /// In lower case.
    Came(&'b str, Option<KnownField>),
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
            bytes.get_mut(name.range())?.make_ascii_lowercase();
        }
        let bytes: &'b [u8] = bytes;
        // One look at all of them costs less than one at each name; values may be of other bytes.
        let text = std::str::from_utf8(bytes).ok();
        let mut spans = Spans(Vec::with_capacity(places.len() + ADDED));
        for (name, value) in places {
            let name = match text {
                Some(text) => text.get(name.range())?,
                None => std::str::from_utf8(bytes.get(name.range())?).ok()?,
            };
            let field = Field {
                name: Name::Came(name, KnownField::of(name)),
                value: Value::Came(bytes.get(value.range())?),
            };
            spans.0.push(field);
        }
        Some((spans, bytes))
    }
}

// === impl Spans ===

impl<'b> Spans<'b> {
    /// The fields of a map.
    pub(crate) fn of(map: &'b HeaderMap) -> Self {
        let mut spans = Self(Vec::with_capacity(map.len() + ADDED));
        spans.0.extend(map.iter().map(|(name, value)| Field {
            name: Name::Came(name.as_str(), name.known()),
            value: Value::Came(value.as_bytes()),
        }));
        spans
    }

    /// A map of them. Values that are spans of the bytes that came share the memory of the copy.
    /// `None` if there is a field that it cannot have.
    pub(crate) fn to_map(&self, came: &[u8], copy: &Bytes) -> Option<HeaderMap> {
        let mut map = HeaderMap::with_capacity(self.0.len());
        for field in &self.0 {
            let name = match &field.name {
                Name::Came(name, _) => HeaderName::from_bytes(name.as_bytes()).ok()?,
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
        self.0.iter().map(|field| (&field.name, field.value.as_bytes()))
    }

    fn names(&self) -> impl Iterator<Item = &Name<'b>> {
        self.0.iter().map(|field| &field.name)
    }

    fn get(&self, name: &HeaderName) -> Option<&[u8]> {
        self.get_all(name).next()
    }

    fn get_all(&self, name: &HeaderName) -> impl Iterator<Item = &[u8]> {
        let name = name.as_str();
        self.0.iter().filter(move |field| field.name.as_str() == name).map(|field| field.value.as_bytes())
    }

    fn copy(&self, name: &HeaderName) -> Option<HeaderValue> {
        let field = self.0.iter().find(|field| field.name.as_str() == name.as_str())?;
        match &field.value {
            Value::Came(bytes) => HeaderValue::from_bytes(bytes).ok(),
            Value::Ours(value) => Some(value.clone()),
        }
    }
}

impl<'b> FieldsMut for Spans<'b> {
    fn reserve(&mut self, more: usize) {
        self.0.reserve(more);
    }

    fn insert(&mut self, name: HeaderName, value: HeaderValue) {
        self.remove(&name);
        self.append(name, value);
    }

    fn append(&mut self, name: HeaderName, value: HeaderValue) {
        self.0.push(Field { name: Name::Ours(name), value: Value::Ours(value) });
    }

    fn remove(&mut self, name: &HeaderName) {
        let name = name.as_str();
        if self.0.iter().any(|field| field.name.as_str() == name) {
            self.0.retain(|field| field.name.as_str() != name);
        }
    }

    fn remove_if(&mut self, is_removed: impl Fn(&Name<'b>) -> bool) {
        self.0.retain(|field| !is_removed(&field.name));
    }
}

// === impl Name ===

impl FieldName for Name<'_> {
    fn as_str(&self) -> &str {
        match self {
            Self::Came(name, _) => name,
            Self::Ours(name) => name.as_str(),
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
