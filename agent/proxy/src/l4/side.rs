//! The two sides of what is forwarded.

use std::io;
use std::time::Duration;

use socket2::SockRef;
use tokio::net::TcpStream;

use crate::core::ending::Ending;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Backend,
}

/// The side whose connection failed, and how.
#[derive(Debug)]
pub(crate) struct Broken {
    pub side: Side,
    pub error: io::Error,
}

// === impl Side ===

impl Side {
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Client => Self::Backend,
            Self::Backend => Self::Client,
        }
    }

    pub(crate) fn broken(self, error: io::Error) -> Broken {
        Broken { side: self, error }
    }
}

// === impl Broken ===

impl Broken {
    pub(crate) fn ending(&self) -> Ending {
        match self.side {
            Side::Client => Ending::ClientReset,
            Side::Backend => Ending::BackendReset,
        }
    }
}

/// Makes a socket end with a reset when it is closed, so that its peer does not take what came for
/// all there was.
pub(crate) fn reset_on_close(stream: &TcpStream) {
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}
