//! Files of users and hashes of their passwords, as `htpasswd` writes them.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// The largest work factor of bcrypt. With each step a password takes twice as long; this one takes
/// about a quarter of a second, in which no other is checked.
const MOST_COST: u32 = 12;

/// Compared by content.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordFile {
    users: BTreeMap<Box<str>, PasswordHash>,
}

#[derive(Clone, PartialEq, Eq)]
pub enum PasswordHash {
    /// `{SHA}`, without salt.
    Sha1([u8; 20]),
    /// In the form of crypt(3).
    Bcrypt(Box<str>),
}

/// Names no user: who may write a policy may not be who may read the Secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PasswordFileError {
    #[error("is not text")]
    NotText,
    #[error("has no users")]
    Empty,
    #[error("has in line {0} no `user:hash`")]
    Line(usize),
    #[error("has in line {0} a user who is there already")]
    Twice(usize),
    #[error("has in line {0} a password in a form that is not supported; use `htpasswd -B`")]
    Form(usize),
    #[error("has in line {0} a password of a cost over {MOST_COST}; use `htpasswd -B -C 10`")]
    Cost(usize),
}

// === impl PasswordFile ===

impl PasswordFile {
    /// # Errors
    /// When a line is wrong: a user who is left out would go unnoticed.
    pub fn parse(file: &[u8]) -> Result<Self, PasswordFileError> {
        let text = std::str::from_utf8(file).map_err(|_| PasswordFileError::NotText)?;
        let mut users = BTreeMap::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (user, hash) = line.split_once(':').ok_or(PasswordFileError::Line(number))?;
            if user.is_empty() || user.chars().any(char::is_control) {
                return Err(PasswordFileError::Line(number));
            }
            let hash = match PasswordHash::parse(hash) {
                Some(PasswordHash::Bcrypt(hash)) if cost(&hash).is_none_or(|cost| cost > MOST_COST) => {
                    return Err(PasswordFileError::Cost(number));
                }
                Some(hash) => hash,
                None => return Err(PasswordFileError::Form(number)),
            };
            if users.insert(Box::from(user), hash).is_some() {
                return Err(PasswordFileError::Twice(number));
            }
        }
        if users.is_empty() { Err(PasswordFileError::Empty) } else { Ok(Self { users }) }
    }

    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.users.len()
    }

    pub fn hash(&self, user: &str) -> Option<&PasswordHash> {
        self.users.get(user)
    }

    /// The hash that takes longest, to compare the password of an unknown user with: the time of
    /// the answer is not to tell users from others.
    pub fn slowest_hash(&self) -> Option<&PasswordHash> {
        self.users.values().max_by_key(|hash| match hash {
            PasswordHash::Sha1(_) => None,
            PasswordHash::Bcrypt(hash) => cost(hash),
        })
    }
}

impl fmt::Debug for PasswordFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PasswordFile({})", self.users.len())
    }
}

// === impl PasswordHash ===

impl PasswordHash {
    fn parse(hash: &str) -> Option<Self> {
        if let Some(encoded) = hash.strip_prefix("{SHA}") {
            return Some(Self::Sha1(STANDARD.decode(encoded).ok()?.try_into().ok()?));
        }
        let rest = ["$2y$", "$2b$", "$2a$"].iter().find_map(|prefix| hash.strip_prefix(prefix))?;
        let (cost, salt_and_hash) = rest.split_once('$')?;
        let is_digit = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'.' || byte == b'/';
        let is_bcrypt = cost.len() == 2
            && cost.parse::<u32>().is_ok_and(|cost| cost >= 4)
            && salt_and_hash.len() == 53
            && salt_and_hash.bytes().all(is_digit);
        is_bcrypt.then(|| Self::Bcrypt(hash.into()))
    }
}

fn cost(bcrypt: &str) -> Option<u32> {
    bcrypt.get(4..6)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BCRYPT: &str = "$2y$05$bvIG6Nmid91Mu9RcmmWZfO5HJIMCT8riNW0hEp8f6/FuA2/mHZFpe";

    #[test]
    fn files_are_those_of_htpasswd() {
        let file = format!("# staff\n\nann:{BCRYPT}\r\nbob:{{SHA}}W6ph5Mm5Pz8GgiULbPgzG37mj9g=\n");
        let file = PasswordFile::parse(file.as_bytes()).unwrap();
        assert!(matches!(file.hash("ann"), Some(PasswordHash::Bcrypt(hash)) if **hash == *BCRYPT));
        assert!(matches!(file.hash("bob"), Some(PasswordHash::Sha1(_))));
        assert!(file.hash("eve").is_none());
        assert!(matches!(file.slowest_hash(), Some(PasswordHash::Bcrypt(_))));
        assert_eq!(format!("{file:?}"), "PasswordFile(2)");
    }

    #[test]
    fn a_wrong_line_is_named_without_what_is_on_it() {
        for (file, problem) in [
            ("".to_owned(), "has no users"),
            ("ann".to_owned(), "has in line 1 no `user:hash`"),
            (":x".to_owned(), "has in line 1 no `user:hash`"),
            (format!("ann:{BCRYPT}\nann:{BCRYPT}"), "has in line 2 a user who is there already"),
            ("ann:secret".to_owned(), "has in line 1 a password in a form that is not supported"),
            ("ann:$apr1$x$y".to_owned(), "in a form that is not supported; use `htpasswd -B`"),
            (format!("ann:{}", BCRYPT.replace("$05$", "$13$")), "has in line 1 a password of a cost over 12"),
            (format!("ann:{}", BCRYPT.replace("$05$", "$03$")), "in a form that is not supported"),
        ] {
            let error = PasswordFile::parse(file.as_bytes()).unwrap_err().to_string();
            assert!(
                error.contains(problem) && !error.contains("secret") && !error.contains("ann"),
                "{file}: {error}"
            );
        }
        assert_eq!(PasswordFile::parse(&[0xff]), Err(PasswordFileError::NotText));
    }
}
