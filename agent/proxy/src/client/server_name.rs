//! The server name of a ClientHello, read without the TLS library. The library refuses a hello that
//! it could not answer, as those of TLS 1.1 without `signature_algorithms`; a backend that gets the
//! connection as it is may answer it.

use rustls::pki_types::ServerName;

/// `ContentType.handshake`, `HandshakeType.client_hello`, `ExtensionType.server_name` and
/// `NameType.host_name` (RFC 8446 section 5.1 and 4, RFC 6066 section 3).
const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;
const RANDOM: usize = 32;

/// The bytes are no whole ClientHello, or what it has for a server name is none.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NoHello;

/// The server name that a ClientHello asks for, from the records that it came in. An address is no
/// name: "Literal IPv4 and IPv6 addresses are not permitted" (RFC 6066 section 3), and the TLS
/// library takes one for no name, too.
pub(crate) fn server_name(records: &[u8]) -> Result<Option<String>, NoHello> {
    let hello = hello(records)?;
    let Some(name) = host_name(&hello)? else { return Ok(None) };
    let name = std::str::from_utf8(name).map_err(|_| NoHello)?;
    match ServerName::try_from(name).map_err(|_| NoHello)? {
        ServerName::DnsName(name) => Ok(Some(name.as_ref().to_owned())),
        _ => Ok(None),
    }
}

/// The message without its header.
fn hello(records: &[u8]) -> Result<Vec<u8>, NoHello> {
    let mut records = Reader(records);
    let mut message = Vec::new();
    loop {
        let ([HANDSHAKE, 3, _], fragment) = (records.array()?, records.vector16()?) else {
            return Err(NoHello);
        };
        message.extend_from_slice(fragment);
        if let [kind, length @ ..] = &message[..message.len().min(4)]
            && let [a, b, c] = *length
        {
            let end = 4 + u32::from_be_bytes([0, a, b, c]) as usize;
            if *kind != CLIENT_HELLO {
                return Err(NoHello);
            }
            if message.len() >= end {
                return Ok(message[4..end].to_vec());
            }
        }
    }
}

/// Of a list of names that has one.
fn host_name(hello: &[u8]) -> Result<Option<&[u8]>, NoHello> {
    let mut hello = Reader(hello);
    let _version: [u8; 2] = hello.array()?;
    hello.take(RANDOM)?;
    let (_session, _suites, _compression) = (hello.vector8()?, hello.vector16()?, hello.vector8()?);
    if hello.is_empty() {
        // Before TLS 1.3 there need not be any extensions.
        return Ok(None);
    }
    let mut extensions = Reader(hello.vector16()?);
    let mut found = None;
    while !extensions.is_empty() {
        let (kind, body) = (u16::from_be_bytes(extensions.array()?), extensions.vector16()?);
        if kind != SERVER_NAME {
            continue;
        }
        let mut names = Reader(Reader(body).vector16()?);
        let ([HOST_NAME], name) = (names.array()?, names.vector16()?) else { return Err(NoHello) };
        if !names.is_empty() || found.replace(name).is_some() {
            return Err(NoHello);
        }
    }
    Ok(found)
}

/// Bytes that are yet to be read.
struct Reader<'b>(&'b [u8]);

impl<'b> Reader<'b> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn take(&mut self, count: usize) -> Result<&'b [u8], NoHello> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(NoHello)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], NoHello> {
        self.take(N)?.try_into().map_err(|_| NoHello)
    }

    /// Bytes behind their number, which has one byte.
    fn vector8(&mut self) -> Result<&'b [u8], NoHello> {
        let [length] = self.array()?;
        self.take(length.into())
    }

    /// Bytes behind their number, which has two bytes.
    fn vector16(&mut self) -> Result<&'b [u8], NoHello> {
        let length = u16::from_be_bytes(self.array()?);
        self.take(length.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vector16(bytes: &[u8]) -> Vec<u8> {
        let length = u16::try_from(bytes.len()).unwrap();
        [&length.to_be_bytes(), bytes].concat()
    }

    /// Of TLS 1.1, with these extensions.
    fn message(extensions: Option<&[u8]>) -> Vec<u8> {
        let mut body = [&[3, 2][..], &[7; RANDOM], &[0], &vector16(&[0, 53]), &[1, 0]].concat();
        body.extend(extensions.map(vector16).into_iter().flatten());
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        [&[CLIENT_HELLO], &length[1..], &body].concat()
    }

    fn records(message: &[u8], size: usize) -> Vec<u8> {
        let records = message.chunks(size).map(|part| [&[HANDSHAKE, 3, 1][..], &vector16(part)].concat());
        records.collect::<Vec<_>>().concat()
    }

    fn extension(kind: u16, body: &[u8]) -> Vec<u8> {
        [&kind.to_be_bytes()[..], &vector16(body)].concat()
    }

    fn host(name: &str) -> Vec<u8> {
        [&[HOST_NAME][..], &vector16(name.as_bytes())].concat()
    }

    fn names(names: &[&str]) -> Vec<u8> {
        let list = names.iter().flat_map(|name| host(name)).collect::<Vec<_>>();
        extension(SERVER_NAME, &vector16(&list))
    }

    #[test]
    fn the_name_is_found_however_the_hello_is_cut() {
        let extensions = [extension(16, b"x"), names(&["a.Example.com"]), extension(43, b"")].concat();
        let message = message(Some(&extensions));
        for size in [1, 2, 3, 4, 5, 50, message.len()] {
            let records = records(&message, size);
            assert_eq!(server_name(&records), Ok(Some("a.Example.com".to_owned())), "{size}");
            // Followed by another record, or by anything.
            assert!(server_name(&[&records[..], b"early"].concat()).is_ok());
            for cut in 0..records.len() {
                assert_eq!(server_name(&records[..cut]), Err(NoHello), "{cut} of {size}");
            }
        }
    }

    #[test]
    fn a_hello_need_not_have_a_name() {
        let without = [None, Some(&[][..]), Some(&extension(16, b"x")), Some(&names(&["10.0.0.1"]))];
        for extensions in without {
            assert_eq!(server_name(&records(&message(extensions), 100)), Ok(None), "{extensions:?}");
        }
    }

    #[test]
    fn what_is_no_name_is_no_hello() {
        let twice = [names(&["a.com"]), names(&["a.com"])].concat();
        let of_kind_1 = extension(SERVER_NAME, &vector16(&[&[1][..], &vector16(b"a.com")].concat()));
        for extensions in [names(&["a.com", "b.com"]), twice, of_kind_1, names(&["a b"]), names(&[""])] {
            assert_eq!(server_name(&records(&message(Some(&extensions)), 100)), Err(NoHello));
        }
        let mut other = records(&message(None), 100);
        other[5] = 2;
        assert_eq!(server_name(&other), Err(NoHello), "another message");
        assert_eq!(server_name(b"GET / HTTP/1.1\r\n\r\n"), Err(NoHello));
        assert_eq!(server_name(&[0x80, 0x2e, 1, 3, 1]), Err(NoHello), "as of SSL 2");
    }
}
