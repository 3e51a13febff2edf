//! The header of PROXY protocol, of a client that a proxy in front names.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use portcullis_proxy::fuzzing::{proxy_client, proxy_headers};

pub(crate) fn run(bytes: &[u8]) {
    let seen = proxy_client(bytes);
    let Ok(Some((length, client))) = seen else { return };
    assert!(length <= bytes.len() && length <= 4096, "{length} bytes");
    // It is a header alone, and not before its end: not a byte more is read than it has.
    assert_eq!(proxy_client(&bytes[..length]), seen);
    for cut in 0..length {
        assert_eq!(proxy_client(&bytes[..cut]), Ok(None), "{cut} of {length} bytes");
    }
    let Some(client) = client else { return };
    let local: SocketAddr = match client {
        SocketAddr::V4(_) => (Ipv4Addr::LOCALHOST, 80).into(),
        SocketAddr::V6(_) => (Ipv6Addr::LOCALHOST, 80).into(),
    };
    for header in proxy_headers(client, local) {
        let Ok(Some((length, Some(again)))) = proxy_client(&header) else {
            unreachable!("we do not read {}, which names {client}", header.escape_ascii())
        };
        assert_eq!(
            (length, again.ip().to_canonical(), again.port()),
            (header.len(), client.ip().to_canonical(), client.port())
        );
    }
}
