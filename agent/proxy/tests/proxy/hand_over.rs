//! One data plane takes over from another: every connection is taken by either, and every request
//! is answered.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use portcullis_model::{
    FrontendKey, Gateway, L4Protocol, ObjectName, Port, PortKey, PortListeners, Serves, Snapshot,
    SpeaksFirst, Unserved,
};
use portcullis_proxy::{CoreSockets, Proxy, Settings, SocketMode, Sockets};
use socket2::{Domain, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::backend::{Backend, reserved, reserved_for_datagrams};
use crate::support::fixture::{ListenerSpec, RouteSpec, snapshot};
use crate::support::l4::{backends, listener, to};
use crate::support::settings::settings;

fn with(sockets: SocketMode, cores: usize) -> Settings {
    Settings { cores, sockets, ..settings() }
}

async fn serve(proxy: &Proxy, address: SocketAddr, backend: SocketAddr) {
    let listener = ListenerSpec::new("main", "*", false, vec![RouteSpec::to("/", "app/echo:80")]);
    let served = snapshot(address, [listener.build()], &[("app/echo:80", &[backend])]);
    assert_eq!(proxy.apply(Arc::new(served)).await, Unserved::default());
}

/// The head of the answer.
async fn ask(stream: &mut TcpStream) -> std::io::Result<String> {
    stream.write_all(b"HEAD / HTTP/1.1\r\nhost: a\r\n\r\n").await?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    Ok(String::from_utf8(head).unwrap().to_lowercase())
}

/// Requests one after the other, on one connection for as long as it is said to last.
async fn ask_forever(address: SocketAddr, stop: Arc<AtomicBool>, answered: Arc<AtomicUsize>) {
    while !stop.load(Ordering::SeqCst) {
        let mut stream = TcpStream::connect(address).await.unwrap();
        while !stop.load(Ordering::SeqCst) {
            let head = ask(&mut stream).await.unwrap();
            assert!(head.starts_with("http/1.1 200"), "{head}");
            answered.fetch_add(1, Ordering::SeqCst);
            if head.contains("connection: close") {
                break;
            }
        }
    }
}

/// The numbers of cores may differ.
#[tokio::test]
async fn no_request_fails_when_sockets_go_to_another() {
    let backend = Backend::echo().await;
    for (mode, cores) in [
        (SocketMode::Steered, [2, 3]),
        (SocketMode::Steered, [3, 1]),
        (SocketMode::Bound, [2, 3]),
        (SocketMode::Bound, [3, 1]),
    ] {
        let (free, _held) = reserved();
        let first = Proxy::start(with(mode, cores[0])).unwrap();
        let address = first.sockets().first().map_or(free, |core| core.v4.local_addr().unwrap());
        serve(&first, address, backend.address).await;
        let (stop, answered) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let clients: Vec<_> =
            (0..8).map(|_| tokio::spawn(ask_forever(address, stop.clone(), answered.clone()))).collect();
        let progress = async |count| {
            let until = answered.load(Ordering::SeqCst) + count;
            while answered.load(Ordering::SeqCst) < until {
                assert!(!clients.iter().any(tokio::task::JoinHandle::is_finished), "a client failed");
                tokio::task::yield_now().await;
            }
        };
        progress(100).await;

        let second = Proxy::start_without_sockets(with(mode, cores[1])).unwrap();
        second.listen(first.share().await.unwrap(), &[SpeaksFirst::Either]).unwrap();
        serve(&second, address, backend.address).await;
        first.stop_accepting().await;
        let before = first.stats().await.accepted;
        progress(100).await;
        let fresh = TcpStream::connect(address).await.unwrap();
        drop(fresh);
        assert_eq!(first.stats().await.accepted, before, "{mode:?}: it takes connections still");
        first.drain().await;
        drop(first);
        progress(100).await;

        stop.store(true, Ordering::SeqCst);
        for client in clients {
            client.await.unwrap();
        }
        second.drain().await;
    }
}

/// Clients may have begun connections that the next data plane would take elsewhere.
#[tokio::test]
async fn connections_begun_at_sockets_of_the_other_kind_are_served() {
    let backend = Backend::echo().await;
    for mode in [SocketMode::Steered, SocketMode::Bound] {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_reuse_port(true).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        socket.listen(16).unwrap();
        let listener = std::net::TcpListener::from(socket);
        let address = listener.local_addr().unwrap();
        let inherited = match mode {
            SocketMode::Bound => Sockets {
                steered: vec![CoreSockets { speaks_first: SpeaksFirst::Either, v4: listener, v6: None }],
                ..Sockets::default()
            },
            SocketMode::Steered => Sockets { bound: vec![listener], ..Sockets::default() },
        };
        let mut waiting = TcpStream::connect(address).await.unwrap();
        let proxy = Proxy::start_without_sockets(with(mode, 2)).unwrap();
        proxy.listen(inherited, &[SpeaksFirst::Either]).unwrap();
        serve(&proxy, address, backend.address).await;
        let answer = tokio::time::timeout(Duration::from_secs(50), ask(&mut waiting)).await;
        let head = answer.expect("it is not accepted").unwrap();
        assert!(head.starts_with("http/1.1 200"), "{mode:?}: {head}");
        proxy.drain().await;
    }
}

/// A client whose request is on its way when the connection ends loses it.
#[tokio::test]
async fn a_drain_ends_a_connection_with_an_answer_that_says_so() {
    let backend = Backend::echo().await;
    let (free, _held) = reserved();
    let proxy = Arc::new(Proxy::start(with(SocketMode::Bound, 1)).unwrap());
    serve(&proxy, free, backend.address).await;
    let mut stream = TcpStream::connect(free).await.unwrap();
    assert!(!ask(&mut stream).await.unwrap().contains("connection: close"));
    let draining = proxy.clone();
    let drain = tokio::spawn(async move { draining.drain().await });
    while TcpStream::connect(free).await.is_ok() {
        tokio::task::yield_now().await;
    }
    assert!(ask(&mut stream).await.unwrap().contains("connection: close"));
    assert_eq!(stream.read(&mut [0; 1]).await.unwrap(), 0);
    drain.await.unwrap();
}

/// Datagrams wait at the same sockets, and no core of either has to be told of a client.
#[tokio::test]
async fn no_datagram_is_lost_when_sockets_go_to_another() {
    let backend = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let endpoint = backend.local_addr().unwrap();
    tokio::spawn(async move {
        let mut buffer = [0; 64];
        while let Ok((length, peer)) = backend.recv_from(&mut buffer).await {
            backend.send_to(&buffer[..length], peer).await.unwrap();
        }
    });
    for cores in [[2, 3], [3, 1]] {
        let (address, held) = reserved_for_datagrams();
        let [old, new] =
            cores.map(|cores| Proxy::start_without_sockets(with(SocketMode::Steered, cores)).unwrap());
        old.listen(Sockets::default(), &[SpeaksFirst::Either]).unwrap();
        let served = udp_snapshot(address, endpoint);
        assert_eq!(old.apply(served.clone()).await, Unserved::default());
        drop(held);
        let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let clients: Vec<_> =
            (0..16).map(|_| tokio::spawn(ask_datagrams(address, stop.clone(), answered.clone()))).collect();
        let progress = async |more: usize| {
            let wanted = answered.load(Ordering::SeqCst) + more;
            while answered.load(Ordering::SeqCst) < wanted {
                tokio::task::yield_now().await;
            }
        };
        progress(200).await;
        new.listen(old.share().await.unwrap(), &[SpeaksFirst::Either]).unwrap();
        assert_eq!(new.apply(served).await, Unserved::default());
        progress(200).await;
        old.stop_accepting().await;
        progress(200).await;
        old.drain().await;
        progress(200).await;
        stop.store(true, Ordering::SeqCst);
        for client in clients {
            client.await.unwrap();
        }
    }
}

fn udp_snapshot(address: SocketAddr, endpoint: SocketAddr) -> Arc<Snapshot> {
    let udp = listener("udp", "*", Serves::Udp(to(&[("app/echo:1", 1)])));
    let key = PortKey { number: address.port(), protocol: L4Protocol::Udp };
    let gateway = Arc::new(Gateway::new(ObjectName::new("infra", "web")));
    let port = Port::new(gateway, key, PortListeners::of(Arc::new(udp)));
    let frontends = [(FrontendKey::new(address.ip(), key), Arc::new(port))].into();
    let backends = backends(&[("app/echo:1", &[endpoint])]);
    Arc::new(Snapshot { frontends, backends, ..Snapshot::default() })
}

async fn ask_datagrams(address: SocketAddr, stop: Arc<AtomicBool>, answered: Arc<AtomicUsize>) {
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.connect(address).await.unwrap();
    let mut number = 0_u64;
    while !stop.load(Ordering::SeqCst) {
        number += 1;
        socket.send(&number.to_be_bytes()).await.unwrap();
        let mut buffer = [0; 64];
        let received = tokio::time::timeout(Duration::from_secs(50), socket.recv(&mut buffer));
        let length = received.await.expect("a datagram is lost").unwrap();
        assert_eq!(buffer[..length], number.to_be_bytes());
        answered.fetch_add(1, Ordering::SeqCst);
    }
}
