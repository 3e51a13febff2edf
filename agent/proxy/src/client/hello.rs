//! The ClientHello of a connection. Its bytes are kept: a connection that is passed through sends
//! them on.
//!
//! The TLS library reads it, and not the parser of the kernel programs, which steps over all but
//! the name: the handshake goes on from what the library has read, and what it refuses is answered
//! with its alert. `common/tests/client_hello` holds both to the same names.

use std::io;

use bytes::BufMut;
use rustls::server::{Accepted, Acceptor};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::server_name::server_name;

/// Bytes of a read: nearly every hello whole.
const READ: usize = 4 << 10;
/// Bytes from which on reads are small. What follows a hello in the same read must fit into the TLS
/// library's buffer, or it would be lost; the largest record, of 16 KiB, leaves it 2 KiB.
const LARGE: usize = 8 << 10;
const SMALL_READ: usize = 512;

pub(crate) struct Hello {
    /// As the client wrote it.
    pub server_name: Option<String>,
    pub answer: Result<Accepted, Refused>,
    /// Everything that was read: the hello, and what came with it.
    pub bytes: Vec<u8>,
}

/// The TLS library cannot answer a hello; a backend may.
pub(crate) struct Refused {
    error: rustls::Error,
    /// As it is sent.
    alert: Vec<u8>,
}

/// Reads a hello in however many segments and records; the TLS library limits it to 64 KiB. A
/// client that sends none gets the library's alert.
pub(crate) async fn read_hello(stream: &mut TcpStream) -> io::Result<Hello> {
    let mut acceptor = Acceptor::default();
    let mut bytes = Vec::new();
    loop {
        stream.readable().await?;
        let before = bytes.len();
        let most = if before < LARGE { READ } else { SMALL_READ };
        bytes.reserve_exact(most);
        if stream.read_buf(&mut (&mut bytes).limit(most)).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut unparsed = &bytes[before..];
        acceptor.read_tls(&mut unparsed)?;
        if !unparsed.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the ClientHello is too large"));
        }
        match acceptor.accept() {
            Ok(Some(accepted)) => {
                let server_name = accepted.client_hello().server_name().map(str::to_owned);
                return Ok(Hello { server_name, answer: Ok(accepted), bytes });
            }
            Ok(None) => {}
            Err((error, mut alert)) => {
                let mut message = Vec::new();
                alert.write_all(&mut message)?;
                let refused = Refused { error, alert: message };
                return match server_name(&bytes) {
                    Ok(server_name) => Ok(Hello { server_name, answer: Err(refused), bytes }),
                    Err(_) => Err(refused.send(stream).await),
                };
            }
        }
    }
}

// === impl Refused ===

impl Refused {
    pub(crate) async fn send(self, stream: &mut TcpStream) -> io::Error {
        let _ = stream.write_all(&self.alert).await;
        io::Error::new(io::ErrorKind::InvalidData, self.error)
    }
}
