//! A tunnel: two streams, each of which gets what the other one sends, until both have ended.

use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};

/// The failure of either side ends both.
pub(crate) async fn join(
    mut client: impl AsyncRead + AsyncWrite + Unpin,
    mut backend: impl AsyncRead + AsyncWrite + Unpin,
) {
    if let Err(error) = copy_bidirectional(&mut client, &mut backend).await {
        tracing::debug!(%error, "tunnel ended");
    }
}
