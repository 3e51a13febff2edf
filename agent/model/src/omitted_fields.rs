//! Fields that lines of an access log are written without.

use std::fmt;

use serde::{Serialize, Serializer};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogField {
    /// Of the target; the path stays.
    Query,
    Referer,
    UserAgent,
    Client,
    ForwardedFor,
}

/// A set of them.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct OmittedFields(u8);

// === impl LogField ===

impl LogField {
    pub const ALL: [Self; 5] =
        [Self::Query, Self::Referer, Self::UserAgent, Self::Client, Self::ForwardedFor];

    /// As lines have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Query => "query",
            Self::Referer => "referer",
            Self::UserAgent => "user_agent",
            Self::Client => "client",
            Self::ForwardedFor => "forwarded_for",
        }
    }
}

// === impl OmittedFields ===

impl OmittedFields {
    pub fn is_empty(&self) -> bool {
        self.0 == 0
    }

    pub fn has(self, field: LogField) -> bool {
        self.0 & (1 << field as u8) != 0
    }

    pub fn iter(self) -> impl Iterator<Item = LogField> {
        LogField::ALL.into_iter().filter(move |field| self.has(*field))
    }
}

impl FromIterator<LogField> for OmittedFields {
    fn from_iter<I: IntoIterator<Item = LogField>>(fields: I) -> Self {
        Self(fields.into_iter().fold(0, |set, field| set | 1 << field as u8))
    }
}

impl fmt::Debug for OmittedFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl Serialize for OmittedFields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter().map(LogField::name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_what_it_is_made_of() {
        let set: OmittedFields =
            [LogField::Query, LogField::ForwardedFor, LogField::Query].into_iter().collect();
        assert!(set.has(LogField::Query) && !set.has(LogField::Client) && !set.is_empty());
        assert_eq!(set.iter().map(LogField::name).collect::<Vec<_>>(), ["query", "forwarded_for"]);
        assert!(OmittedFields::default().is_empty());
    }
}
