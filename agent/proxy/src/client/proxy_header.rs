//! The header of PROXY protocol (HAProxy's `proxy-protocol.txt`, versions 1 and 2): the client that
//! a connection of a proxy is for. Not a byte more is read than it has, so that what follows is
//! read as on any other connection. It is the caller's to know that the peer may say so.

use std::io;
use std::net::{IpAddr, SocketAddr};

use ppp::{v1, v2};
use tokio::net::TcpStream;

const V1: &[u8] = b"PROXY ";
/// Bytes of the longest header of version 1, with its end of line.
const LONGEST_V1: usize = 107;
const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Version 2, of a connection that the proxy makes for itself.
const LOCAL: u8 = 0x20;
/// Bytes of version 2 up to the length of what follows.
const FIXED_V2: usize = 16;
/// The longest header of version 2 that is taken: the largest addresses, which are those of Unix
/// sockets, take 232 bytes, and what proxies tell of TLS and of themselves some hundreds.
const LONGEST_V2: usize = 4096;

/// The fault of bytes that are no header.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoHeader {
    #[error("neither version 1 nor version 2 begins like that")]
    Unknown,
    #[error("it is longer than any header has to be")]
    TooLong,
    #[error("it is malformed")]
    Malformed,
    #[error("its client has no address of IPv4 or IPv6, or does not use TCP")]
    Family,
    #[error("the connection ended before it was complete: {0}")]
    Io(#[from] io::Error),
}

/// Reads the header. `None`: the proxy speaks for itself, or does not know for whom.
pub(crate) async fn read(stream: &TcpStream) -> Result<Option<SocketAddr>, NoHeader> {
    let mut header = Vec::new();
    let mut ahead = [0; 256];
    loop {
        let known = header.len();
        let seen = stream.peek(&mut ahead).await?;
        if seen == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        header.extend_from_slice(&ahead[..seen]);
        let length = length(&header)?;
        if let Some(length) = length {
            header.truncate(length.max(known));
        }
        take(stream, &mut ahead, header.len() - known).await?;
        if length == Some(header.len()) {
            return client(&header);
        }
    }
}

/// Takes bytes that are there.
async fn take(stream: &TcpStream, buffer: &mut [u8], count: usize) -> io::Result<()> {
    let mut left = count;
    while left > 0 {
        match stream.try_read(&mut buffer[..left]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(taken) => left -= taken,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => stream.readable().await?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The length of a header that begins with these bytes; `None` as long as they do not tell.
pub(crate) fn length(bytes: &[u8]) -> Result<Option<usize>, NoHeader> {
    let begins = |with: &[u8]| bytes.iter().zip(with).all(|(byte, expected)| byte == expected);
    if begins(V2) {
        let Some([high, low]) = bytes.get(FIXED_V2 - 2..FIXED_V2) else { return Ok(None) };
        let length = FIXED_V2 + usize::from(u16::from_be_bytes([*high, *low]));
        return if length > LONGEST_V2 { Err(NoHeader::TooLong) } else { Ok(Some(length)) };
    }
    if !begins(V1) {
        return Err(NoHeader::Unknown);
    }
    match bytes.iter().take(LONGEST_V1).position(|byte| *byte == b'\n') {
        Some(end) => Ok(Some(end + 1)),
        None if bytes.len() >= LONGEST_V1 => Err(NoHeader::TooLong),
        None => Ok(None),
    }
}

/// The client of a whole header.
pub(crate) fn client(header: &[u8]) -> Result<Option<SocketAddr>, NoHeader> {
    if header.starts_with(V2) {
        // "The receiver must accept this connection as valid and must use the real connection
        // endpoints and discard the protocol block".
        if header.get(V2.len()) == Some(&LOCAL) {
            return Ok(None);
        }
        let header = v2::Header::try_from(header).map_err(|_| NoHeader::Malformed)?;
        let client = match (header.command, header.protocol, header.addresses) {
            (v2::Command::Local, ..) | (_, _, v2::Addresses::Unspecified) => return Ok(None),
            (_, v2::Protocol::Stream, v2::Addresses::IPv4(addresses)) => {
                (IpAddr::V4(addresses.source_address), addresses.source_port)
            }
            (_, v2::Protocol::Stream, v2::Addresses::IPv6(addresses)) => {
                (IpAddr::V6(addresses.source_address), addresses.source_port)
            }
            _ => return Err(NoHeader::Family),
        };
        return Ok(Some(client.into()));
    }
    let header = v1::Header::try_from(header).map_err(|_| NoHeader::Malformed)?;
    Ok(match header.addresses {
        v1::Addresses::Unknown => None,
        v1::Addresses::Tcp4(addresses) => Some((addresses.source_address, addresses.source_port).into()),
        v1::Addresses::Tcp6(addresses) => Some((addresses.source_address, addresses.source_port).into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<(usize, Option<SocketAddr>), NoHeader> {
        let length = length(bytes)?.ok_or(NoHeader::Malformed)?;
        Ok((length, client(bytes.get(..length).ok_or(NoHeader::Malformed)?)?))
    }

    fn v2(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
        let length = u16::try_from(body.len()).unwrap().to_be_bytes();
        [V2, &[0x20 | command, family], &length, body].concat()
    }

    #[test]
    fn headers_name_a_client_or_none() {
        let v4 = [192, 0, 2, 7, 10, 0, 0, 1, 0x1f, 0x90, 0, 80];
        let v6 = [&[0x20, 1, 0xd, 0xb8][..], &[0; 11], &[7], &[0; 16], &[0x1f, 0x90, 0, 80]].concat();
        // An authority, as a proxy of TLS tells.
        let told = [&v4[..], &[2, 0, 5], b"a.com"].concat();
        for (header, client) in [
            (b"PROXY TCP4 192.0.2.7 10.0.0.1 8080 80\r\n".to_vec(), Some("192.0.2.7:8080")),
            (b"PROXY TCP6 2001:db8::7 ::1 8080 80\r\n".to_vec(), Some("[2001:db8::7]:8080")),
            (b"PROXY UNKNOWN\r\n".to_vec(), None),
            (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n".to_vec(), None),
            (v2(1, 0x11, &v4), Some("192.0.2.7:8080")),
            (v2(1, 0x11, &told), Some("192.0.2.7:8080")),
            (v2(1, 0x21, &v6), Some("[2001:db8::7]:8080")),
            (v2(0, 0x11, &v4), None),
            (v2(0, 0, &[]), None),
            (v2(0, 0x11, &[]), None),
            (v2(1, 0, &[]), None),
        ] {
            let expected = client.map(|client| client.parse().unwrap());
            let followed = [&header[..], b"GET /\n"].concat();
            let read_all = read(&followed).unwrap();
            assert_eq!(read_all, (header.len(), expected), "{}", header.escape_ascii());
            for cut in 0..header.len() {
                let length = length(&header[..cut]).unwrap();
                assert!(length.is_none_or(|length| length == header.len()), "{cut}");
            }
        }
    }

    #[test]
    fn nothing_else_is_a_header() {
        let v4 = [192, 0, 2, 7, 10, 0, 0, 1, 0x1f, 0x90, 0, 80];
        let mut version_3 = v2(1, 0x11, &v4);
        version_3[12] = 0x31;
        let long = format!("PROXY UNKNOWN {}\r\n", "x".repeat(LONGEST_V1));
        for bytes in [
            b"GET / HTTP/1.1\r\n".to_vec(),
            b"\x16\x03\x01".to_vec(),
            b"proxy TCP4 192.0.2.7 10.0.0.1 1 2\r\n".to_vec(),
            b"PROXY TCP4 192.0.2.7 10.0.0.1 1 2\n".to_vec(),
            b"PROXY TCP4 192.0.2.7 10.0.0.1 1\r\n".to_vec(),
            b"PROXY TCP4 192.0.2.7 10.0.0.1 1 65536\r\n".to_vec(),
            b"PROXY TCP4 192.0.2.07 10.0.0.1 1 2\r\n".to_vec(),
            b"PROXY TCP4 192.0.2.7 10.0.0.1 1 2 3\r\n".to_vec(),
            b"PROXY TCP4 ::1 ::1 1 2\r\n".to_vec(),
            b"PROXY TCP6 192.0.2.7 10.0.0.1 1 2\r\n".to_vec(),
            b"PROXY UDP4 192.0.2.7 10.0.0.1 1 2\r\n".to_vec(),
            b"PROXY \r\n".to_vec(),
            long.into_bytes(),
            v2(1, 0x11, &v4[..11]),
            v2(1, 0x12, &v4),
            v2(1, 0x31, &[0; 216]),
            v2(2, 0x11, &v4),
            v2(1, 0x11, &vec![0; LONGEST_V2]),
            version_3,
        ] {
            assert!(read(&bytes).is_err(), "{}", bytes.escape_ascii());
        }
    }
}
