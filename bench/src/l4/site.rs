//! The ports that every proxy forwards, the server names there, and what clients send.

use std::sync::Arc;

use anyhow::{Context, Result};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

/// Of the backend.
pub(super) const BACKEND: &str = "127.0.0.90";
pub(super) const BACKEND_TCP: u16 = 9092;
pub(super) const BACKEND_UDP: u16 = 9093;

/// Of every proxy, at its address.
pub(super) const TCP: u16 = 7001;
pub(super) const ONE_NAME: u16 = 7002;
pub(super) const MANY_NAMES: u16 = 7003;
pub(super) const UDP: u16 = 7004;

pub(super) const NAMES: usize = 10_000;
/// Bytes of a request: its ClientHello's record header.
const RECORD_HEADER: usize = 5;
/// Asks the backend for all that it will have got.
pub(super) const ECHO: u64 = u64::MAX;

/// Forwarded are ClientHellos by any port, so that the backend is the same for all.
pub(super) struct Site {
    hello: Vec<u8>,
    /// Offset of the first name in it.
    name: usize,
}

impl Site {
    pub(super) fn create() -> Result<Self> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let config = builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
        let first = name(0);
        let mut client = ClientConnection::new(Arc::new(config), first.clone().try_into()?)?;
        let mut hello = Vec::new();
        client.write_tls(&mut hello)?;
        let at = hello.windows(first.len()).position(|window| window == first.as_bytes());
        Ok(Self { hello, name: at.context("a ClientHello without server name")? })
    }

    pub(super) fn names() -> impl Iterator<Item = String> {
        (0..NAMES).map(name)
    }

    /// A ClientHello with that server name, and the number of bytes that the backend is to send.
    pub(super) fn request(&self, number: usize, bytes: u64) -> Vec<u8> {
        let name = name(number);
        let mut request = self.hello.clone();
        request[self.name..self.name + name.len()].copy_from_slice(name.as_bytes());
        request.extend(bytes.to_be_bytes());
        request
    }
}

/// All are as long.
pub(super) fn name(number: usize) -> String {
    format!("n{number:05}.example.com")
}

/// Reads a request; returns what it asks for.
pub(super) fn read_request(stream: &mut impl std::io::Read) -> std::io::Result<u64> {
    let mut header = [0; RECORD_HEADER];
    stream.read_exact(&mut header)?;
    let mut rest = vec![0; usize::from(u16::from_be_bytes([header[3], header[4]]))];
    stream.read_exact(&mut rest)?;
    let mut number = [0; 8];
    stream.read_exact(&mut number)?;
    Ok(u64::from_be_bytes(number))
}
