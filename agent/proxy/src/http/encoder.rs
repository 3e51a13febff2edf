//! Encoders of content codings, fed and emptied by the response body. Each response that is being
//! compressed has one of them in memory, and no more are made than there is memory for, nor than
//! the share of the route's namespace is.

use std::cell::Cell;
use std::io;
use std::mem;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use async_compression::Level;
use async_compression::brotli::EncoderParams;
use async_compression::tokio::write::{BrotliEncoder, GzipEncoder, ZstdEncoder};
use async_compression::zstd::CParameter;
use bytes::Bytes;
use portcullis_model::Coding;
use tokio::io::AsyncWrite;

use crate::core::shares::{CoreShares, Share};

/// The next level of Brotli takes twice the memory for one percent less, the one after 33 MiB.
const GZIP_LEVEL: i32 = 4;
const BROTLI_LEVEL: i32 = 3;
const ZSTD_LEVEL: i32 = 3;
/// Windows of 64 KiB, and tables of 32,768 entries, as powers of two: by default an encoder of
/// Brotli or zstd takes 3 MiB and more. The window of gzip is 32 KiB.
const WINDOW: u8 = 16;
const ZSTD_TABLE: u32 = 15;

/// The encoders of a core.
pub(crate) struct Encoders {
    /// Bytes that they may take together.
    room: CoreShares,
    in_use: Cell<usize>,
}

pub(crate) struct Encoder {
    sink: Box<dyn Sink>,
    /// It holds bytes back that nothing has been made of yet.
    is_holding: bool,
    /// Bytes of memory that are counted for it.
    size: usize,
    share: Share,
    encoders: Rc<Encoders>,
}

/// An encoder that writes to memory, and so never waits.
trait Sink: AsyncWrite + Unpin {
    fn made(&mut self) -> &mut Vec<u8>;
}

impl Sink for BrotliEncoder<Vec<u8>> {
    fn made(&mut self) -> &mut Vec<u8> {
        self.get_mut()
    }
}

impl Sink for GzipEncoder<Vec<u8>> {
    fn made(&mut self) -> &mut Vec<u8> {
        self.get_mut()
    }
}

impl Sink for ZstdEncoder<Vec<u8>> {
    fn made(&mut self) -> &mut Vec<u8> {
        self.get_mut()
    }
}

// === impl Encoders ===

impl Encoders {
    pub(crate) fn new(most: usize) -> Self {
        Self { room: CoreShares::new(most), in_use: Cell::default() }
    }

    /// Bytes that they take now.
    pub(crate) fn in_use(&self) -> usize {
        self.in_use.get()
    }

    /// For a response of a route of the namespace. `None` if there is no memory for one more: its
    /// clients may read as slowly as they like.
    pub(crate) fn make(self: &Rc<Self>, coding: Coding, namespace: &str) -> Option<Encoder> {
        let (size, share) = (size(coding), self.room.of(namespace));
        share.take(size).then(|| {
            self.in_use.set(self.in_use.get() + size);
            Encoder { sink: sink(coding), is_holding: false, size, share, encoders: self.clone() }
        })
    }
}

// === impl Encoder ===

impl Encoder {
    /// Takes bytes, and returns those that came of it, if any did.
    pub(crate) fn write(&mut self, cx: &mut Context<'_>, mut bytes: &[u8]) -> io::Result<Option<Bytes>> {
        while !bytes.is_empty() {
            let written = ready(Pin::new(&mut *self.sink).poll_write(cx, bytes))?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            bytes = &bytes[written..];
            self.is_holding = true;
        }
        Ok(self.take())
    }

    /// All that can be made of the bytes so far: the client is not to wait for what the backend has
    /// not sent yet.
    pub(crate) fn flush(&mut self, cx: &mut Context<'_>) -> io::Result<Option<Bytes>> {
        if mem::take(&mut self.is_holding) {
            ready(Pin::new(&mut *self.sink).poll_flush(cx))?;
        }
        Ok(self.take())
    }

    pub(crate) fn finish(&mut self, cx: &mut Context<'_>) -> io::Result<Option<Bytes>> {
        ready(Pin::new(&mut *self.sink).poll_shutdown(cx))?;
        Ok(self.take())
    }

    fn take(&mut self) -> Option<Bytes> {
        let made = mem::take(self.sink.made());
        (!made.is_empty()).then(|| made.into())
    }
}

impl Drop for Encoder {
    fn drop(&mut self) {
        self.share.give_back(self.size);
        self.encoders.in_use.set(self.encoders.in_use.get() - self.size);
    }
}

/// Bytes that an encoder takes, measured with text and with what cannot be compressed.
fn size(coding: Coding) -> usize {
    match coding {
        Coding::Brotli => 784 << 10,
        Coding::Gzip => 336 << 10,
        Coding::Zstd => 576 << 10,
    }
}

fn sink(coding: Coding) -> Box<dyn Sink> {
    match coding {
        Coding::Brotli => {
            let params = EncoderParams::default().quality(Level::Precise(BROTLI_LEVEL));
            Box::new(BrotliEncoder::with_params(Vec::new(), params.window_size(WINDOW.into())))
        }
        Coding::Gzip => Box::new(GzipEncoder::with_quality(Vec::new(), Level::Precise(GZIP_LEVEL))),
        Coding::Zstd => {
            let params = [
                CParameter::window_log(WINDOW.into()),
                CParameter::hash_log(ZSTD_TABLE),
                CParameter::chain_log(ZSTD_TABLE),
            ];
            let level = Level::Precise(ZSTD_LEVEL);
            Box::new(ZstdEncoder::with_quality_and_params(Vec::new(), level, &params))
        }
    }
}

/// Memory has always room.
fn ready<T>(polled: Poll<io::Result<T>>) -> io::Result<T> {
    match polled {
        Poll::Ready(done) => done,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_namespace_takes_what_all_encoders_may_have() {
        let encoders = Rc::new(Encoders::new(20 * size(Coding::Gzip)));
        let made =
            |namespace| std::iter::from_fn(|| encoders.make(Coding::Gzip, namespace)).collect::<Vec<_>>();
        let (one, other) = (made("one"), made("other"));
        assert_eq!((one.len(), other.len()), (10, 5));
        assert_eq!(encoders.in_use(), 15 * size(Coding::Gzip));
        drop((one, other));
        assert_eq!((encoders.in_use(), made("other").len()), (0, 10));
    }
}
