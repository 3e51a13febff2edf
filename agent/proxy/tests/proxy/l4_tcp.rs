//! TCP listeners: bytes, ends and resets reach the other side, whichever side stalls.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use portcullis_model::{
    AccessLog, Backend, Balancing, HashKey, L4Action, L4Rule, LogFormat, Port, PortListeners, Serves,
};
use portcullis_proxy::{Ending, ExceededLimit, Forwarded, L4, LogOutput, Proxy, Settings, SocketMode};
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::support::backend::refusing;
use crate::support::fixture::{Gateway, snapshot, termination};
use crate::support::l4::{backend, echo, exchange, listener, rule, tcp, to};
use crate::support::world::eventually;

async fn gateway(serves: Serves, backends: &[(&str, &[SocketAddr])]) -> Gateway {
    let gateway = Gateway::start();
    let snapshot = snapshot(gateway.address, [listener("tcp", "*", serves)], backends);
    assert!(gateway.proxy.apply(Arc::new(snapshot)).await.is_empty());
    gateway
}

/// In front of one backend.
async fn before(address: SocketAddr) -> Gateway {
    gateway(Serves::Tcp(to(&[("app/one:1", 1)])), &[("app/one:1", &[address])]).await
}

async fn forwarded(gateway: &Gateway) -> Forwarded {
    let stats = gateway.proxy.stats().await;
    let [(_, listener)] = stats.listeners.iter().collect::<Vec<_>>()[..] else { panic!("{stats:?}") };
    listener.forwarded.clone()
}

async fn ended(gateway: &Gateway, ending: Ending, count: u64) {
    eventually("the connections have ended so", async || {
        forwarded(gateway).await.endings.get(&ending) == Some(&count)
    })
    .await;
}

/// Bytes that differ everywhere.
fn payload(seed: u64, length: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..length).map(|_| random.u8(..)).collect()
}

#[tokio::test]
async fn a_server_may_speak_first() {
    let gateway = before(echo("hello").await).await;
    let mut client = TcpStream::connect(gateway.address).await.unwrap();
    let mut greeting = [0; 5];
    client.read_exact(&mut greeting).await.unwrap();
    assert_eq!(&greeting, b"hello");
    client.write_all(b"again").await.unwrap();
    client.read_exact(&mut greeting).await.unwrap();
    assert_eq!(&greeting, b"again");
}

/// A thousand connections: the client sends and ends, and gets the answer after that.
#[tokio::test]
async fn clients_that_have_ended_get_everything() {
    let address = backend(|mut stream| async move {
        let mut request = Vec::new();
        stream.read_to_end(&mut request).await.unwrap();
        request.reverse();
        stream.write_all(&request).await.unwrap();
    })
    .await;
    let gateway = before(address).await;
    let mut exchanges = JoinSet::new();
    for seed in 0..1000 {
        let to = gateway.address;
        exchanges.spawn(async move {
            let mut bytes = payload(seed, 1 + (seed as usize * 397) % 300_000);
            let answer = exchange(to, &bytes).await.unwrap();
            bytes.reverse();
            assert!(answer == bytes, "connection {seed}: {} of {} bytes", answer.len(), bytes.len());
        });
        if exchanges.len() >= 50 {
            exchanges.join_next().await.unwrap().unwrap();
        }
    }
    while let Some(exchanged) = exchanges.join_next().await {
        exchanged.unwrap();
    }
    ended(&gateway, Ending::Closed, 1000).await;
    let total: u64 = (0..1000).map(|seed| 1 + (seed * 397) % 300_000).sum();
    let forwarded = forwarded(&gateway).await;
    assert_eq!((forwarded.received, forwarded.sent, forwarded.open), (total, total, 0));
}

/// A thousand connections: the backend sends and ends, and gets the answer after that.
#[tokio::test]
async fn backends_that_have_ended_get_everything() {
    let (seen, mut answers) = mpsc::unbounded_channel();
    let address = backend(move |mut stream| {
        let seen = seen.clone();
        async move {
            let seed = stream.read_u64().await.unwrap();
            let bytes = payload(seed, 1 + (seed as usize * 397) % 300_000);
            stream.write_all(&bytes).await.unwrap();
            stream.shutdown().await.unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await.unwrap();
            answer.reverse();
            assert!(answer == bytes, "connection {seed}");
            seen.send(seed).unwrap();
        }
    })
    .await;
    let gateway = before(address).await;
    let mut exchanges = JoinSet::new();
    for seed in 0_u64..1000 {
        let to = gateway.address;
        exchanges.spawn(async move {
            let mut stream = TcpStream::connect(to).await.unwrap();
            stream.write_u64(seed).await.unwrap();
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes).await.unwrap();
            bytes.reverse();
            stream.write_all(&bytes).await.unwrap();
            stream.shutdown().await.unwrap();
        });
        if exchanges.len() >= 50 {
            exchanges.join_next().await.unwrap().unwrap();
        }
    }
    while let Some(exchanged) = exchanges.join_next().await {
        exchanged.unwrap();
    }
    let mut seeds = Vec::new();
    for _ in 0..1000 {
        seeds.push(answers.recv().await.unwrap());
    }
    seeds.sort_unstable();
    assert!(seeds.into_iter().eq(0..1000));
}

/// Both sides send much at once, and read slowly.
#[tokio::test]
async fn nothing_is_lost_while_both_sides_stall() {
    const LENGTH: usize = 8 << 20;
    async fn both_ways(stream: TcpStream, send: u64, expect: u64) {
        let (mut reader, mut writer) = stream.into_split();
        let writing = tokio::spawn(async move {
            for part in payload(send, LENGTH).chunks(77_777) {
                writer.write_all(part).await.unwrap();
                tokio::task::yield_now().await;
            }
            writer.shutdown().await.unwrap();
            writer
        });
        let mut bytes = Vec::new();
        while reader.read_buf(&mut bytes).await.unwrap() > 0 {
            tokio::time::sleep(Duration::from_micros(fastrand::u64(..300))).await;
        }
        assert!(bytes == payload(expect, LENGTH), "{} bytes", bytes.len());
        writing.await.unwrap();
    }
    let address = backend(|stream| both_ways(stream, 1, 2)).await;
    let gateway = before(address).await;
    let mut clients = JoinSet::new();
    for _ in 0..4 {
        let stream = TcpStream::connect(gateway.address).await.unwrap();
        clients.spawn(both_ways(stream, 2, 1));
    }
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    ended(&gateway, Ending::Closed, 4).await;
}

fn reset(stream: TcpStream) {
    SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
}

/// The states that a connection may be in when one side is reset.
#[derive(Clone, Copy, Debug)]
enum When {
    Idle,
    /// The side that is reset had sent its end.
    Ended,
    /// The other side takes nothing of what it is sent.
    Stalled,
}

#[tokio::test]
async fn a_reset_of_one_side_is_one_of_the_other() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gateway = before(listener.local_addr().unwrap()).await;
    for when in [When::Idle, When::Ended, When::Stalled] {
        for client_resets in [true, false] {
            let client = TcpStream::connect(gateway.address).await.unwrap();
            let (server, _) = listener.accept().await.unwrap();
            let (mut one, mut other) = if client_resets { (client, server) } else { (server, client) };
            one.write_all(b"x").await.unwrap();
            other.read_u8().await.unwrap();
            match when {
                When::Idle => {}
                When::Ended => {
                    one.shutdown().await.unwrap();
                    assert_eq!(other.read(&mut [0]).await.unwrap(), 0);
                }
                When::Stalled => while !stalls(&mut one).await {},
            }
            reset(one);
            let error = tokio::time::timeout(Duration::from_secs(50), async {
                let read = match when {
                    // What had been sent before may be read.
                    When::Stalled => tokio::io::copy(&mut other, &mut tokio::io::sink()).await.err(),
                    When::Idle => other.read(&mut [0]).await.err(),
                    // It has read the end already.
                    When::Ended => {
                        other.ready(tokio::io::Interest::ERROR).await.unwrap();
                        other.take_error().unwrap()
                    }
                };
                read.expect("an orderly end")
            });
            let error = error.await.unwrap_or_else(|_| panic!("{when:?}: no reset of {other:?}"));
            // That is how the kernel says it to a side that has read the end.
            let kind =
                if let When::Ended = when { ErrorKind::BrokenPipe } else { ErrorKind::ConnectionReset };
            assert_eq!(error.kind(), kind, "{when:?}");
        }
    }
    ended(&gateway, Ending::ClientReset, 3).await;
    ended(&gateway, Ending::BackendReset, 3).await;
}

/// Writes as long as anything is taken; true once nothing is.
async fn stalls(stream: &mut TcpStream) -> bool {
    let writing = stream.write_all(&[b'x'; 64 << 10]);
    tokio::time::timeout(Duration::from_millis(500), writing).await.is_err()
}

/// The peers' own buffers are small, so what one gets rid of is in between.
#[tokio::test]
async fn a_side_that_does_not_read_holds_little() {
    const OWN: usize = 64 << 10;
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(OWN as u32).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(8).unwrap();
    let gateway = before(listener.local_addr().unwrap()).await;
    for client_reads in [true, false] {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(OWN as u32).unwrap();
        let client = socket.connect(gateway.address).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        let (mut reader, mut writer) = if client_reads { (client, server) } else { (server, client) };
        SockRef::from(&writer).set_send_buffer_size(OWN).unwrap();
        // First much that is taken, so that the kernel makes its buffers large.
        let taken = 64 << 20;
        let mut some = (&mut reader).take(taken);
        let mut sink = tokio::io::sink();
        let filling = async {
            let mut left = taken as usize;
            while left > 0 {
                left -= writer.write(&vec![b'x'; left.min(256 << 10)]).await.unwrap();
            }
        };
        tokio::join!(filling, async { tokio::io::copy(&mut some, &mut sink).await.unwrap() });
        let mut held = 0;
        loop {
            let write = writer.write(&[b'x'; 64 << 10]);
            match tokio::time::timeout(Duration::from_secs(1), write).await {
                Ok(count) => held += count.unwrap(),
                Err(_) => break,
            }
            assert!(held < 64 << 20, "there is no backpressure");
        }
        let stats = forwarded(&gateway).await;
        println!("held in between: {} KiB, {stats:?}", held / 1024);
        assert!(held <= (4 << 20) + 4 * OWN, "{held} bytes");
    }
}

#[tokio::test]
async fn connections_without_backend_are_reset() {
    let closed = refusing();
    let refuse = rule(L4Action::Refuse("the rule has no backendRefs".into()));
    let invalid = to(&[("", 1)]);
    let nothing = Arc::new(L4Rule { id: None, ..(*refuse).clone() });
    let [one, none] = ["app/one:1", "app/none:1"].map(|name| to(&[(name, 1)]));
    for (rule, ending) in [
        (refuse, Ending::Rule),
        (invalid, Ending::Rule),
        (nothing, Ending::NoRoute),
        (one, Ending::ConnectFailed),
        (none, Ending::NoEndpoint),
    ] {
        let gateway = gateway(Serves::Tcp(rule), &[("app/one:1", &[closed]), ("app/none:1", &[])]).await;
        // The reset may be there before the client knows that it is connected.
        let error = match TcpStream::connect(gateway.address).await {
            Ok(mut client) => client.read_u8().await.unwrap_err(),
            Err(error) => error,
        };
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{ending:?}");
        ended(&gateway, ending, 1).await;
    }
}

#[tokio::test]
async fn an_endpoint_that_refuses_is_passed_over() {
    let closed = refusing();
    let open = echo("x").await;
    let gateway = gateway(Serves::Tcp(to(&[("app/one:1", 1)])), &[("app/one:1", &[closed, open])]).await;
    for _ in 0..50 {
        assert_eq!(exchange(gateway.address, b"y").await.unwrap(), b"xy");
    }
    // It is not tried again at once.
    assert!(gateway.proxy.stats().await.upstream_connect_failures <= 2);
}

#[tokio::test]
async fn backends_get_their_share() {
    let (one, two) = (echo("1").await, echo("2").await);
    let rule = to(&[("app/one:1", 1), ("app/two:1", 3), ("", 4), ("app/never:1", 0)]);
    let gateway = gateway(Serves::Tcp(rule), &[("app/one:1", &[one]), ("app/two:1", &[two])]).await;
    let mut counts = [0; 3];
    for _ in 0..1600 {
        match exchange(gateway.address, b"").await.as_deref() {
            Ok(b"1") => counts[0] += 1,
            Ok(b"2") => counts[1] += 1,
            Ok(other) => panic!("{other:?}"),
            Err(_) => counts[2] += 1,
        }
    }
    for (count, expected) in counts.into_iter().zip([200, 600, 800]) {
        assert!((expected - 120..=expected + 120).contains(&count), "{counts:?}");
    }
}

#[tokio::test]
async fn endpoints_of_a_backend_share_its_connections() {
    let (one, two) = (echo("1").await, echo("2").await);
    let gateway = gateway(Serves::Tcp(to(&[("app/one:1", 1)])), &[("app/one:1", &[one, two])]).await;
    let mut open = Vec::new();
    let mut counts = [0; 2];
    for _ in 0..40 {
        let mut client = TcpStream::connect(gateway.address).await.unwrap();
        counts[usize::from(client.read_u8().await.unwrap() - b'1')] += 1;
        open.push(client);
    }
    assert_eq!(counts, [20, 20], "the one with fewer connections gets the next");
}

/// A connection outlives changes of everything but its listener.
#[tokio::test]
async fn connections_outlive_changes_and_their_backends_leaving() {
    let (one, two) = (echo("1").await, echo("2").await);
    let gateway = before(one).await;
    let mut old = TcpStream::connect(gateway.address).await.unwrap();
    assert_eq!(old.read_u8().await.unwrap(), b'1');
    let changed = snapshot(gateway.address, [tcp("app/two:1")], &[("app/two:1", &[two])]);
    gateway.proxy.apply(Arc::new(changed)).await;
    let mut new = TcpStream::connect(gateway.address).await.unwrap();
    assert_eq!(new.read_u8().await.unwrap(), b'2');
    old.write_all(b"x").await.unwrap();
    assert_eq!(old.read_u8().await.unwrap(), b'x');
}

/// A gateway with one core and these settings, in front of a backend that echoes.
async fn with(settings: Settings) -> Gateway {
    let settings = Settings { cores: 1, sockets: SocketMode::Steered, ..settings };
    let proxy = Proxy::start(settings).unwrap();
    let address = proxy.sockets()[0].v4.local_addr().unwrap();
    let gateway = Gateway { proxy, address };
    apply(&gateway, |_| {}).await;
    gateway
}

/// Applies a snapshot with the listener, after a change of its port.
async fn apply(gateway: &Gateway, change: impl FnOnce(&mut Port)) {
    let backend = echo("x").await;
    let mut snapshot = snapshot(gateway.address, [tcp("app/one:1")], &[("app/one:1", &[backend])]);
    change(Arc::make_mut(snapshot.frontends.values_mut().next().unwrap()));
    assert!(gateway.proxy.apply(Arc::new(snapshot)).await.is_empty());
}

async fn connected(gateway: &Gateway) -> TcpStream {
    let mut client = TcpStream::connect(gateway.address).await.unwrap();
    assert_eq!(client.read_u8().await.unwrap(), b'x');
    client
}

/// A side that is silent, and one that sends now and then.
#[tokio::test]
async fn connections_that_move_nothing_are_reset() {
    let idle = Duration::from_secs(2);
    let gateway = with(Settings { l4: L4 { idle, ..L4::default() }, ..Settings::default() }).await;
    let (mut silent, mut busy) = (connected(&gateway).await, connected(&gateway).await);
    let began = std::time::Instant::now();
    let talking = async {
        loop {
            busy.write_all(b"y").await.unwrap();
            assert_eq!(busy.read_u8().await.unwrap(), b'y');
            tokio::time::sleep(idle / 4).await;
        }
    };
    let error = tokio::select! {
        error = silent.read_u8() => error.unwrap_err(),
        () = talking => unreachable!(),
    };
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    // Others have an hour.
    assert!((idle..idle * 10).contains(&began.elapsed()), "{:?}", began.elapsed());
    ended(&gateway, Ending::Idle, 1).await;
    assert_eq!(forwarded(&gateway).await.open, 1);
}

/// As those of HTTP have the time to finish.
#[tokio::test]
async fn connections_of_a_withdrawn_listener_have_the_drain_time() {
    let gateway = with(Settings { drain: Duration::from_secs(2), ..Settings::default() }).await;
    let (mut ending, mut staying) = (connected(&gateway).await, connected(&gateway).await);
    let began = std::time::Instant::now();
    gateway.proxy.apply(Arc::default()).await;
    for client in [&mut ending, &mut staying] {
        client.write_all(b"y").await.unwrap();
        assert_eq!(client.read_u8().await.unwrap(), b'y');
    }
    ending.shutdown().await.unwrap();
    assert_eq!(ending.read(&mut [0]).await.unwrap(), 0);
    assert_eq!(staying.read_u8().await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert!(began.elapsed() >= Duration::from_secs(2));
}

#[tokio::test]
async fn a_drain_waits_for_connections_and_ends_them_when_it_is_over() {
    let gateway = with(Settings { drain: Duration::from_secs(1), ..Settings::default() }).await;
    let mut client = connected(&gateway).await;
    let drain = tokio::spawn(async move { gateway.proxy.drain().await });
    client.write_all(b"y").await.unwrap();
    assert_eq!(client.read_u8().await.unwrap(), b'y');
    assert_eq!(client.read_u8().await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    drain.await.unwrap();
}

/// The error by which a connection ends, which may come before it is looked at.
async fn reset_at(address: SocketAddr) -> std::io::Error {
    let read = async { TcpStream::connect(address).await?.read_u8().await };
    read.await.unwrap_err()
}

/// A listener before itself.
#[tokio::test]
async fn a_connection_that_comes_back_ends() {
    let gateway = Gateway::start();
    let snapshot = snapshot(gateway.address, [tcp("app/one:1")], &[("app/one:1", &[gateway.address])]);
    assert!(gateway.proxy.apply(Arc::new(snapshot)).await.is_empty());
    for round in 1..=3 {
        assert_eq!(reset_at(gateway.address).await.kind(), ErrorKind::ConnectionReset);
        ended(&gateway, Ending::Looped, round).await;
        eventually("all are over", async || forwarded(&gateway).await.open == 0).await;
        let begun = forwarded(&gateway).await.begun;
        assert!(begun <= 16 * round, "{begun}");
    }
}

/// The same listener by name, with another protocol.
#[tokio::test]
async fn connections_of_another_protocol_have_the_drain_time() {
    let gateway = with(Settings { drain: Duration::from_secs(1), ..Settings::default() }).await;
    let mut client = connected(&gateway).await;
    let http = Arc::new(listener("tcp", "*", Serves::Http(Arc::default())));
    apply(&gateway, |port| port.listeners = PortListeners::of(http.clone())).await;
    client.write_all(b"y").await.unwrap();
    assert_eq!(client.read_u8().await.unwrap(), b'y');
    assert_eq!(client.read_u8().await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    ended(&gateway, Ending::Withdrawn, 1).await;

    // Without TLS there is no listener of HTTPS.
    let mut client = TcpStream::connect(gateway.address).await.unwrap();
    let request = b"GET / HTTP/1.1\r\nhost: a.com\r\n\r\n";
    client.write_all(request).await.unwrap();
    assert_eq!(client.read_u8().await.unwrap(), b'H');
    let https = Serves::Https { tls: termination("a.com"), routes: Arc::default() };
    let https = Arc::new(listener("tcp", "*", https));
    apply(&gateway, |port| port.listeners = PortListeners::of(https.clone())).await;
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).await.unwrap();
    assert!(rest.starts_with(b"TTP/1.1 404"), "{}", String::from_utf8_lossy(&rest));
}

#[tokio::test]
async fn connections_count_towards_the_gateways_limit() {
    let gateway = with(Settings::default()).await;
    apply(&gateway, |port| Arc::make_mut(&mut port.gateway).limits.connections = Some(2)).await;
    let open = [connected(&gateway).await, connected(&gateway).await];
    assert_eq!(reset_at(gateway.address).await.kind(), ErrorKind::ConnectionReset);
    let stats = gateway.proxy.stats().await;
    let of_gateway = stats.gateways.values().next().unwrap();
    assert_eq!((of_gateway.open, &of_gateway.refused), (2, &[(ExceededLimit::Connections, 1)].into()));
    drop(open);
    eventually("there is room again", async || {
        exchange(gateway.address, b"y").await.is_ok_and(|it| it == b"xy")
    })
    .await;
}

#[tokio::test]
async fn connections_have_lines_in_the_access_log() {
    for format in [LogFormat::Json, LogFormat::Text] {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let access_log = LogOutput::File(Arc::new(File::from(OwnedFd::from(writer))));
        let gateway = with(Settings { access_log, ..Settings::default() }).await;
        let log = AccessLog { format, ..AccessLog::default() };
        apply(&gateway, |port| Arc::make_mut(&mut port.gateway).access_log = Some(log)).await;
        assert_eq!(exchange(gateway.address, b"hello").await.unwrap(), b"xhello");
        gateway.proxy.drain().await;
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        match format {
            LogFormat::Json => {
                let line: serde_json::Value = serde_json::from_str(text.trim_end()).unwrap();
                for (field, value) in [
                    ("gateway", "infra/web"),
                    ("listener", "Gateway infra/web listener tcp"),
                    ("protocol", "TCP"),
                    ("rule", "TCPRoute app/route rule 0"),
                    ("backend", "app/one:1"),
                    ("ended", "closed"),
                ] {
                    assert_eq!(line[field], value, "{line}");
                }
                assert_eq!((&line["received"], &line["sent"]), (&5.into(), &6.into()), "{line}");
                assert!(line["duration"].as_f64().unwrap() > 0.0, "{line}");
                assert!(line["client"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
                assert!(line["endpoint"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
            }
            LogFormat::Text => {
                assert!(text.contains("] \"TCP -\" - 6 \"-\" \"-\" gateway=\"infra/web\" "), "{text}");
                assert!(
                    text.contains(" received=5 duration=") && text.ends_with(" ended=closed\n"),
                    "{text}"
                );
            }
        }
    }
}

/// `sessionAffinity: ClientIP`.
#[tokio::test]
async fn a_client_keeps_its_endpoint() {
    let endpoints = [echo("a").await, echo("b").await, echo("c").await];
    let gateway = Gateway::start();
    let apply = async |endpoints: &[SocketAddr]| {
        let serves = Serves::Tcp(to(&[("app/one:1", 1)]));
        let backends = [("app/one:1", endpoints)];
        let mut snapshot = snapshot(gateway.address, [listener("tcp", "*", serves)], &backends);
        let backend = (**snapshot.backends.get("app/one:1").unwrap()).clone();
        let balancing = Balancing::Hash(HashKey::ClientAddress);
        let backend = Backend { balancing, ..backend };
        snapshot.backends.insert(backend.name.0.clone(), Arc::new(backend));
        assert!(gateway.proxy.apply(Arc::new(snapshot)).await.is_empty());
    };
    let ask = async |client: u8| {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 1, client], 0).into()).unwrap();
        let mut stream = socket.connect(gateway.address).await.unwrap();
        stream.read_u8().await.unwrap()
    };
    let ask_all = async || {
        let mut answers = Vec::new();
        for client in 1..=30 {
            answers.push(ask(client).await);
        }
        answers
    };
    apply(&endpoints).await;
    let first = ask_all().await;
    for name in *b"abc" {
        assert!(first.iter().filter(|it| **it == name).count() >= 3, "{first:?}");
    }
    assert_eq!(ask_all().await, first);
    // The clients of one that goes find others; and it again, when it comes back.
    apply(&endpoints[1..]).await;
    let second = ask_all().await;
    let is_kept = |(before, after): (&u8, &u8)| *before == b'a' || before == after;
    assert!(first.iter().zip(&second).all(is_kept) && !second.contains(&b'a'), "{first:?} {second:?}");
    apply(&endpoints).await;
    assert_eq!(ask_all().await, first);
}
