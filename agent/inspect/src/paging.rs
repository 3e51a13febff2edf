//! Questions of the API, and answers that come in parts: nothing is listed without an end.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::explain::request::pairs;

/// Entries of an answer that asks for no number, and the most of any.
const USUAL: usize = 200;
const MOST: usize = 1000;
/// Of `q`: each word is looked for in all that is configured.
const MOST_WORDS: usize = 8;
const LONGEST_WORDS: usize = 256;

/// The parameters of a question, decoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    pairs: Vec<(String, String)>,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    #[error("there is no parameter {name:?}; there are {known}")]
    Unknown { name: String, known: String },
    #[error("{name}={value:?} is no number")]
    Number { name: &'static str, value: String },
    #[error("the parameter {0} is missing")]
    Missing(&'static str),
    #[error(
        "q has {words} words of {bytes} bytes together: name at most {MOST_WORDS}, of {LONGEST_WORDS} bytes"
    )]
    Words { words: usize, bytes: usize },
}

/// The part of a list that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub offset: usize,
    pub limit: usize,
}

/// A part of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Page<T> {
    /// Number of entries of the whole list, as far as they are asked for.
    pub total: usize,
    pub offset: usize,
    pub items: Vec<T>,
}

/// Words that an entry has to have, all of them, in any case and order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Words(Vec<String>);

// === impl Query ===

impl Query {
    /// # Errors
    /// When there is a parameter besides these: a typing error would ask for everything; and when
    /// `q` has more words than are looked for.
    pub fn parse(text: &str, known: &[&str]) -> Result<Self, QueryError> {
        let pairs = pairs(text);
        match pairs.iter().find(|(name, _)| !known.contains(&name.as_str())) {
            Some((name, _)) => {
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                Err(QueryError::Unknown { name: name.clone(), known })
            }
            None => Self { pairs }.with_few_words(),
        }
    }

    fn with_few_words(self) -> Result<Self, QueryError> {
        let text = self.get("q").unwrap_or_default();
        let (words, bytes) = (text.split_whitespace().count(), text.len());
        if words > MOST_WORDS || bytes > LONGEST_WORDS {
            return Err(QueryError::Words { words, bytes });
        }
        Ok(self)
    }

    /// The first value of this name that is not empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.pairs
            .iter()
            .find(|(key, value)| key == name && !value.is_empty())
            .map(|(_, value)| value.as_str())
    }

    /// The values of a parameter that may be repeated.
    pub fn all(&self, name: &str) -> Vec<String> {
        self.pairs.iter().filter(|(key, _)| key == name).map(|(_, value)| value.clone()).collect()
    }

    /// # Errors
    /// When `offset` or `limit` is no number.
    pub fn window(&self) -> Result<Window, QueryError> {
        let number = |name: &'static str, usual: usize| match self.get(name) {
            None => Ok(usual),
            Some(value) => value.parse().map_err(|_| QueryError::Number { name, value: value.to_owned() }),
        };
        Ok(Window { offset: number("offset", 0)?, limit: number("limit", USUAL)?.min(MOST) })
    }

    pub(crate) fn words(&self) -> Words {
        let text = self.get("q").unwrap_or_default();
        let words: BTreeSet<_> = text.split_whitespace().map(str::to_lowercase).collect();
        Words(words.into_iter().collect())
    }
}

// === impl Window ===

impl Window {
    pub fn of<T>(self, all: impl IntoIterator<Item = T>) -> Page<T> {
        let Self { offset, limit } = self;
        let (mut total, mut items) = (0, Vec::new());
        for item in all {
            if total >= offset && items.len() < limit {
                items.push(item);
            }
            total += 1;
        }
        Page { total, offset, items }
    }
}

// === impl Words ===

impl Words {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if each word is in one of the texts.
    pub(crate) fn are_in(&self, texts: &[&str]) -> bool {
        if self.0.is_empty() {
            return true;
        }
        let texts: Vec<_> = texts.iter().map(|text| text.to_lowercase()).collect();
        self.0.iter().all(|word| texts.iter().any(|text| text.contains(word)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_ends_however_much_is_asked_for() {
        let query = |text| Query::parse(text, &["q", "offset", "limit"]);
        let window = query("offset=2&limit=99999999").unwrap().window().unwrap();
        assert_eq!(window, Window { offset: 2, limit: MOST });
        let page = window.of(0..5000);
        assert_eq!((page.total, page.items.len(), page.items.first()), (5000, MOST, Some(&2)));
        assert_eq!(query("").unwrap().window().unwrap().limit, USUAL);
        assert!(query("limit=-1").unwrap().window().is_err());
        let error = query("limits=1").unwrap_err().to_string();
        assert_eq!(error, "there is no parameter \"limits\"; there are q, offset, limit");
    }

    #[test]
    fn all_words_are_wanted() {
        let words = Query::parse("q=Shop+%2Fcart", &["q"]).unwrap().words();
        assert!(words.are_in(&["HTTPRoute SHOP/web", "PathPrefix /cart"]));
        assert!(!words.are_in(&["HTTPRoute shop/web", "PathPrefix /"]));
        assert!(Words::default().are_in(&[]));
    }

    #[test]
    fn words_are_few_and_each_is_looked_for_once() {
        let query = |q: &str| Query::parse(&format!("q={q}"), &["q"]);
        assert_eq!(query("h+H+g+h").unwrap().words(), Words(vec!["g".to_owned(), "h".to_owned()]));
        assert!(query("h+h+h+h+h+h+h+h").is_ok() && query(&"h".repeat(LONGEST_WORDS)).is_ok());
        let error = query(&"h+".repeat(3000)).unwrap_err().to_string();
        let expected = "q has 3000 words of 6000 bytes together: name at most 8, of 256 bytes";
        assert_eq!(error, expected);
        assert!(query(&"h".repeat(LONGEST_WORDS + 1)).is_err());
    }
}
