//! Compression of responses that backends send as they are.

use std::fmt;

/// A default: that of the most specific policy counts, as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compression {
    /// In order of preference, where a client has none; none of them: nothing is compressed.
    pub codings: Box<[Coding]>,
    /// The shortest body that is worth it, in bytes. One of unknown length always is.
    pub least_bytes: u64,
}

/// A content coding (RFC 9110 section 8.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    Brotli,
    Gzip,
    Zstd,
}

// === impl Coding ===

impl Coding {
    pub const ALL: [Self; 3] = [Self::Brotli, Self::Gzip, Self::Zstd];

    /// As IANA has it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Brotli => "br",
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        }
    }
}

/// `zstd, br, gzip from 1024 bytes`
impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.codings.is_empty() {
            return f.write_str("none");
        }
        let names: Vec<_> = self.codings.iter().map(|coding| coding.name()).collect();
        write!(f, "{} from {} bytes", names.join(", "), self.least_bytes)
    }
}
