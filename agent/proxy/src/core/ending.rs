//! The reasons why a connection or session ended whose bytes are forwarded as they are, or why
//! there was none. One table: the name for logs and metrics, and the row of `docs/l4.md`.

macro_rules! endings {
    ($($(#[doc = $doc:literal])* $ending:ident = $name:literal,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Ending {
            $($(#[doc = $doc])* $ending,)*
        }

        impl Ending {
            pub const ALL: &'static [Self] = &[$(Self::$ending),*];

            /// The label of the metric and of the log line.
            pub fn name(self) -> &'static str {
                match self { $(Self::$ending => $name,)* }
            }
        }
    };
}

endings! {
    /// Both sides had sent everything.
    Closed = "closed",
    ClientReset = "client_reset",
    BackendReset = "backend_reset",
    /// No byte went either way for too long.
    Idle = "idle",
    /// Its bytes held the most memory for longest.
    Buffers = "buffers",
    /// Its listener is gone, and the time to end is over.
    Withdrawn = "withdrawn",
    /// The agent stopped.
    Stopped = "stopped",
    /// The listener has no route, or no rule for the server name.
    NoRoute = "no_route",
    /// The rule or the chosen backend reference is invalid; see the route's status.
    Rule = "rule",
    NoEndpoint = "no_endpoint",
    ConnectFailed = "connect_failed",
    ConnectTimeout = "connect_timeout",
    /// The endpoint is not who its BackendTLSPolicy wants, or speaks no TLS.
    BackendTls = "backend_tls",
    /// The backend has as many connections as its policy permits.
    BackendFull = "backend_full",
    /// It has passed as many listeners of this agent as it may. UDP: or it comes from one.
    Looped = "looped",
    /// UDP: the backend never answered, and the client has sent nothing for a while.
    Unanswered = "unanswered",
    /// UDP: a machine on the way says that the endpoint is not there.
    BackendUnreachable = "backend_unreachable",
    /// UDP: the rule no longer leads to the endpoint.
    EndpointGone = "endpoint_gone",
    /// UDP: the listener's terms no longer permit the client's address.
    NotAdmitted = "not_admitted",
    /// UDP: others needed the room.
    Evicted = "evicted",
    /// UDP: there was no room for it.
    Full = "full",
}

// === impl Ending ===

impl Ending {
    /// True if there was no backend for it.
    pub(crate) fn is_refusal(self) -> bool {
        match self {
            Self::NoRoute
            | Self::Rule
            | Self::NoEndpoint
            | Self::ConnectFailed
            | Self::ConnectTimeout
            | Self::BackendTls
            | Self::BackendFull
            | Self::Looped
            | Self::BackendUnreachable
            | Self::Full => true,
            Self::Closed
            | Self::ClientReset
            | Self::BackendReset
            | Self::Idle
            | Self::Buffers
            | Self::Withdrawn
            | Self::Stopped
            | Self::Unanswered
            | Self::EndpointGone
            | Self::NotAdmitted
            | Self::Evicted => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ending_has_a_name_of_its_own_and_its_place() {
        for (index, ending) in Ending::ALL.iter().enumerate() {
            assert_eq!(*ending as usize, index);
            assert!(Ending::ALL.iter().filter(|other| other.name() == ending.name()).count() == 1);
        }
    }
}
