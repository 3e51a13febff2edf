//! Streams that end when their client takes nothing of an answer: one that only asks would hold
//! what others wait for.

use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// A stream whose writes fail once no byte was taken for a time.
pub(crate) struct Taken<S> {
    stream: S,
    time: Duration,
    /// Of the write that waits.
    waits: Option<Pin<Box<Sleep>>>,
}

// === impl Taken ===

impl<S> Taken<S> {
    pub(crate) fn within(time: Duration, stream: S) -> Self {
        Self { stream, time, waits: None }
    }

    fn watched<T>(&mut self, context: &mut Context<'_>, done: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if done.is_ready() {
            self.waits = None;
            return done;
        }
        let time = self.time;
        let waits = self.waits.get_or_insert_with(|| Box::pin(sleep(time)));
        ready!(waits.as_mut().poll(context));
        let why = format!("the client took nothing for {time:?}");
        Poll::Ready(Err(io::Error::new(ErrorKind::TimedOut, why)))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Taken<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Taken<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watched(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        self.watched(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.watched(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(context);
        self.watched(context, shut)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    const TIME: Duration = Duration::from_secs(2);

    #[tokio::test]
    async fn a_client_that_takes_nothing_is_not_waited_for() {
        let (mut client, server) = duplex(10);
        let mut server = Taken::within(TIME, server);
        let error = server.write_all(&[0; 20]).await.unwrap_err();
        assert_eq!(error.to_string(), "the client took nothing for 2s");
        assert_eq!(client.read(&mut [0; 20]).await.unwrap(), 10);
    }

    #[tokio::test]
    async fn a_slow_client_gets_all() {
        let (mut client, server) = duplex(10);
        let mut server = Taken::within(TIME, server);
        let writing = tokio::spawn(async move { server.write_all(&[0; 60]).await });
        for _ in 0..6 {
            sleep(TIME / 4).await;
            client.read_exact(&mut [0; 10]).await.unwrap();
        }
        writing.await.unwrap().unwrap();
    }
}
