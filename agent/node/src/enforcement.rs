//! The places on a node at which the terms of listeners hold.

use std::fmt;

/// The earliest place for each kind of terms. User space holds to all of them as well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enforcement {
    /// The addresses that some listener of the port permits.
    pub port_clients: EnforcedAt,
    /// The addresses that the listener permits, where those are fewer.
    pub clients: EnforcedAt,
    /// New connections a second.
    pub budgets: EnforcedAt,
}

/// Connections that came to a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetUse {
    pub taken: u64,
    pub refused: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EnforcedAt {
    /// The packet guard on these interfaces, and on others sk_lookup.
    Xdp(Vec<String>),
    /// The reader of names on these interfaces, and on others user space.
    Tc(Vec<String>),
    /// The kernel's look-up of a socket.
    SkLookup,
    /// User space.
    Accept,
}

impl Enforcement {
    /// Without kernel programs.
    pub const USER_SPACE: Self =
        Self { port_clients: EnforcedAt::Accept, clients: EnforcedAt::Accept, budgets: EnforcedAt::Accept };
}

impl EnforcedAt {
    /// For metrics.
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Xdp(_) => "xdp",
            Self::Tc(_) => "tc",
            Self::SkLookup => "sk_lookup",
            Self::Accept => "userspace",
        }
    }
}

impl fmt::Display for EnforcedAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Xdp(interfaces) => write!(f, "xdp on {}", interfaces.join(", ")),
            Self::Tc(interfaces) => write!(f, "tc on {}", interfaces.join(", ")),
            Self::SkLookup => f.write_str("sk_lookup"),
            Self::Accept => f.write_str("accept"),
        }
    }
}
