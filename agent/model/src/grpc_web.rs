//! Translation of gRPC-Web, which browsers speak, to gRPC.

use std::fmt;

/// A default: that of the most specific policy counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrpcWeb {
    /// Backends that speak HTTP/2 get gRPC.
    Translate,
    /// Backends get what the client sends.
    Pass,
}

// === impl GrpcWeb ===

impl GrpcWeb {
    pub const ALL: [Self; 2] = [Self::Translate, Self::Pass];

    /// As policies write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Translate => "Translate",
            Self::Pass => "Pass",
        }
    }
}

/// `translated to gRPC`
impl fmt::Display for GrpcWeb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Translate => "translated to gRPC",
            Self::Pass => "passed on",
        })
    }
}
