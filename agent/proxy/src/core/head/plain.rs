//! A head that no HTTP library knows, for tests: a list of names and values.

use super::*;

pub(crate) struct PlainHead {
    pub method: Method,
    pub version: Version,
    pub authority: Option<&'static str>,
    pub path: &'static str,
    pub query: Option<&'static str>,
    pub fields: PlainFields,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct PlainFields(Vec<(PlainName, Vec<u8>)>);

/// In lower case.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PlainName(String);

// === impl PlainHead ===

/// `GET path` of HTTP/1.1, with these fields.
pub(crate) fn get(path: &'static str, fields: &[(&str, &str)]) -> PlainHead {
    let (path, query) = path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query)));
    let fields = PlainFields::of(fields);
    PlainHead { method: Method::GET, version: Version::HTTP_11, authority: None, path, query, fields }
}

impl Head for PlainHead {
    type Fields = PlainFields;

    fn method(&self) -> &Method {
        &self.method
    }

    fn version(&self) -> Version {
        self.version
    }

    fn authority(&self) -> Option<&str> {
        self.authority
    }

    fn path(&self) -> &str {
        self.path
    }

    fn query(&self) -> Option<&str> {
        self.query
    }

    fn fields(&self) -> &PlainFields {
        &self.fields
    }
}

// === impl PlainFields ===

impl PlainFields {
    pub(crate) fn of(fields: &[(&str, &str)]) -> Self {
        let field =
            |(name, value): &(&str, &str)| (PlainName(name.to_ascii_lowercase()), value.as_bytes().into());
        Self(fields.iter().map(field).collect())
    }
}

impl Fields for PlainFields {
    type Name = PlainName;

    fn iter(&self) -> impl Iterator<Item = (&PlainName, &[u8])> {
        self.0.iter().map(|(name, value)| (name, value.as_slice()))
    }

    fn names(&self) -> impl Iterator<Item = &PlainName> {
        self.0.iter().map(|(name, _)| name)
    }

    fn get(&self, name: &HeaderName) -> Option<&[u8]> {
        self.get_all(name).next()
    }

    fn get_all(&self, name: &HeaderName) -> impl Iterator<Item = &[u8]> {
        self.iter().filter(move |(known, _)| known.0 == name.as_str()).map(|(_, value)| value)
    }

    fn copy(&self, name: &HeaderName) -> Option<HeaderValue> {
        HeaderValue::from_bytes(self.get(name)?).ok()
    }
}

impl FieldsMut for PlainFields {
    fn reserve(&mut self, additional: usize) {
        self.0.reserve(additional);
    }

    fn insert(&mut self, name: HeaderName, value: HeaderValue) {
        self.remove(&name);
        self.append(name, value);
    }

    fn append(&mut self, name: HeaderName, value: HeaderValue) {
        self.0.push((PlainName(name.as_str().to_owned()), value.as_bytes().to_vec()));
    }

    fn remove(&mut self, name: &HeaderName) {
        self.remove_if(|known| known.0 == name.as_str());
    }

    fn remove_if(&mut self, is_removed: impl Fn(&PlainName) -> bool) {
        self.0.retain(|(name, _)| !is_removed(name));
    }
}

// === impl PlainName ===

impl FieldName for PlainName {
    fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    fn known(&self) -> Option<KnownField> {
        HeaderName::from_bytes(self.0.as_bytes()).ok()?.known()
    }
}
