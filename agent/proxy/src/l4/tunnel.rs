//! A tunnel: two streams, each of which gets what the other one sends, until both have ended.

use std::io::ErrorKind;

use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Both sides have sent all they had; or one is gone that speaks TLS, as many end without a
    /// word.
    Closed,
    /// One side failed: the other one is not to take what came for all there was.
    Broken,
}

/// The failure of either side ends both.
pub(crate) async fn join(
    client: &mut (impl AsyncRead + AsyncWrite + Unpin),
    backend: &mut (impl AsyncRead + AsyncWrite + Unpin),
) -> Ending {
    match copy_bidirectional(client, backend).await {
        Ok(_) => Ending::Closed,
        Err(error) => {
            tracing::debug!(%error, "tunnel ended");
            if error.kind() == ErrorKind::UnexpectedEof { Ending::Closed } else { Ending::Broken }
        }
    }
}
