//! Connections that wait in the kernel until their clients have spoken.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use portcullis_model::{FrontendKey, SpeaksFirst};
use portcullis_node::{CoreSockets, Datapath, Desired};

use crate::support;
use crate::support::{Cores, isolated, open, options, tcp};

const ADDRESSES: [&str; 2] = ["127.0.0.1:8080", "[::1]:8080"];

/// Sockets of both kinds.
struct Kinds {
    either: Cores,
    client: Cores,
}

impl Kinds {
    fn new() -> Self {
        Self { either: Cores::new(1), client: Cores::new(1) }
    }

    fn sockets(&self) -> Vec<CoreSockets<'_>> {
        [self.either.sockets(), self.client.sockets_where(SpeaksFirst::Client)].concat()
    }
}

fn serving(datapath: &mut Datapath, speaks_first: SpeaksFirst) -> [FrontendKey; 2] {
    let frontends = ADDRESSES.map(tcp);
    let mut desired = Desired::new(frontends, []);
    if speaks_first == SpeaksFirst::Client {
        desired.clients_speak = frontends.into();
    }
    datapath.apply(&desired).unwrap();
    frontends
}

fn connect(address: &str) -> TcpStream {
    let address: SocketAddr = address.parse().unwrap();
    TcpStream::connect_timeout(&address, Duration::from_secs(60)).unwrap()
}

#[test]
fn a_connection_comes_with_the_first_bytes_of_its_client() {
    isolated(|pin_dir| {
        let mut datapath = open(&options(pin_dir));
        let kinds = Kinds::new();
        datapath.set_sockets(&kinds.sockets()).unwrap();
        let frontends = serving(&mut datapath, SpeaksFirst::Client);
        assert!(frontends.iter().all(|frontend| datapath.steers(frontend)));
        for address in ADDRESSES {
            let mut stream = connect(address);
            assert!(kinds.client.is_idle() && kinds.either.is_idle(), "{address}");
            stream.write_all(b"hello").unwrap();
            let (_, mut accepted) = kinds.client.accept();
            accepted.set_nonblocking(true).unwrap();
            let mut bytes = [0; 5];
            accepted.read_exact(&mut bytes).unwrap();
            assert_eq!(&bytes, b"hello", "{address}: they are there at once");
        }
    });
}

#[test]
fn clients_that_say_nothing_come_later_and_those_that_are_gone_never() {
    isolated(|pin_dir| {
        let mut datapath = open(&options(pin_dir));
        let kinds = Kinds::new();
        datapath.set_sockets(&kinds.sockets()).unwrap();
        serving(&mut datapath, SpeaksFirst::Client);
        for address in ADDRESSES {
            let begun = Instant::now();
            let silent = connect(address);
            let (_, accepted) = kinds.client.accept();
            assert!(begun.elapsed() >= Duration::from_millis(500), "{address}: it was let in at once");
            assert_eq!(accepted.peer_addr().unwrap(), silent.local_addr().unwrap());

            // A check that something listens: it has its answer, and ends.
            let closed = connect(address);
            let peer = closed.local_addr().unwrap();
            drop(closed);
            let (_, mut accepted) = kinds.client.accept();
            assert_eq!(accepted.peer_addr().unwrap(), peer);
            assert_eq!(accepted.read(&mut [0; 1]).unwrap(), 0, "{address}");

            let aborted = connect(address);
            support::abort(&aborted);
            drop(aborted);
            let mut next = connect(address);
            next.write_all(b"x").unwrap();
            let (_, accepted) = kinds.client.accept();
            assert_eq!(accepted.peer_addr().unwrap(), next.local_addr().unwrap(), "the aborted one is gone");
            drop((silent, next));
        }
        assert!(kinds.client.is_idle() && kinds.either.is_idle());
    });
}

/// As a listener of TCP may come in the place of one of HTTP.
#[test]
fn a_server_that_may_speak_first_gets_its_connections_at_once() {
    isolated(|pin_dir| {
        let mut datapath = open(&options(pin_dir));
        let kinds = Kinds::new();
        datapath.set_sockets(&kinds.sockets()).unwrap();
        for speaks_first in [SpeaksFirst::Client, SpeaksFirst::Either, SpeaksFirst::Client] {
            let [frontend, _] = serving(&mut datapath, speaks_first);
            let mut stream = connect(ADDRESSES[0]);
            let sockets = match speaks_first {
                SpeaksFirst::Client => {
                    stream.write_all(b"x").unwrap();
                    &kinds.client
                }
                SpeaksFirst::Either => &kinds.either,
            };
            let (_, mut accepted) = sockets.accept();
            accepted.write_all(b"220").unwrap();
            stream.read_exact(&mut [0; 3]).unwrap();
            assert!(datapath.steers(&frontend));
        }
        datapath.apply(&Desired::default()).unwrap();
        let refused = TcpStream::connect(ADDRESSES[0]).map_err(|error| error.kind());
        assert_eq!(refused.unwrap_err(), ErrorKind::ConnectionRefused);
    });
}
