//! TLS ports whose listeners do different things: the ClientHello decides.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use portcullis_model::{L4Action, Listener, ServerNames, Serves};
use portcullis_proxy::{Ending, HandshakeFailure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::support;
use crate::support::backend::Backend;
use crate::support::client;
use crate::support::fixture::{Gateway, ListenerSpec, RouteSpec, pattern, snapshot};
use crate::support::l4::{backend, echo, listener, passthrough, rule, terminated, tls_backend};
use crate::support::world::eventually;

async fn gateway(listeners: Vec<Listener>, backends: &[(&str, &[SocketAddr])]) -> Gateway {
    let gateway = Gateway::start();
    let snapshot = snapshot(gateway.address, listeners, backends);
    assert!(gateway.proxy.apply(Arc::new(snapshot)).await.is_empty());
    gateway
}

async fn connect(
    gateway: &Gateway,
    name: Option<&str>,
    alpn: &[u8],
) -> std::io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
    client::tls(TcpStream::connect(gateway.address).await.unwrap(), name, alpn).await
}

/// The text that the server says until it ends.
async fn said(mut stream: impl tokio::io::AsyncRead + Unpin) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::test]
async fn one_port_serves_https_and_ends_tls_and_passes_it_through() {
    let web = Backend::echo().await;
    let [a, wild, any] = ["a.pass.net", "wild", "any"].map(tls_backend);
    let (a, wild, any) = tokio::join!(a, wild, any);
    let plain = backend(|mut stream| async move {
        let _ = stream.write_all(b"inside").await;
    })
    .await;
    let https =
        ListenerSpec::new("web", "web.example.com", true, vec![RouteSpec::to("/", "app/web:80")]).build();
    let listeners = vec![
        https,
        terminated("*.example.com", "app/plain:1"),
        passthrough("a.pass.net", "app/a:1"),
        passthrough("*.pass.net", "app/wild:1"),
        passthrough("*", "app/any:1"),
    ];
    let backends: [(&str, &[_]); 5] = [
        ("app/web:80", &[web.address]),
        ("app/plain:1", &[plain]),
        ("app/a:1", &[a]),
        ("app/wild:1", &[wild]),
        ("app/any:1", &[any]),
    ];
    let gateway = gateway(listeners, &backends).await;
    for _ in 0..20 {
        for (name, text) in [
            (Some("x.example.com"), "inside"),
            (Some("a.pass.net"), "a.pass.net"),
            (Some("b.pass.net"), "wild"),
            (Some("x.b.pass.net"), "wild"),
            (Some("pass.net"), "any"),
            (None, "any"),
        ] {
            // A protocol that the gateway does not know is none of its business.
            assert_eq!(said(connect(&gateway, name, b"other/1").await.unwrap()).await, text, "{name:?}");
        }
        for alpn in [&b"h2"[..], b"http/1.1"] {
            let stream = connect(&gateway, Some("web.example.com"), alpn).await.unwrap();
            let request = Request::get("https://web.example.com/").body(Bytes::new()).unwrap();
            let answer = match alpn {
                b"h2" => client::http2(stream, request).await,
                _ => client::http1(stream, request).await,
            };
            assert_eq!(answer.status(), 200);
        }
    }
    let stats = gateway.proxy.stats().await;
    let connections =
        stats.listeners.iter().map(|(id, stats)| (&*id.name, stats.connections, stats.forwarded.begun));
    let expected = [
        ("*", 0, 40),
        ("*.example.com", 20, 20),
        ("*.pass.net", 0, 40),
        ("a.pass.net", 0, 20),
        ("web", 40, 0),
    ];
    let mut connections: Vec<_> = connections.collect();
    connections.sort_unstable();
    assert_eq!(connections, expected);
}

/// The backend gets the hello as it was, however it was cut, and what came with it.
#[tokio::test]
async fn a_hello_in_segments_is_passed_on_whole() {
    let (seen, mut hellos) = mpsc::unbounded_channel();
    let address = backend(move |mut stream| {
        let seen = seen.clone();
        async move {
            let mut bytes = Vec::new();
            let _ = stream.read_to_end(&mut bytes).await;
            let _ = seen.send(bytes);
        }
    })
    .await;
    let gateway = gateway(vec![passthrough("a.pass.net", "app/a:1")], &[("app/a:1", &[address])]).await;
    let mut hello = Vec::new();
    client::connection("a.pass.net").write_tls(&mut hello).unwrap();
    // The same in records of 100 bytes, which is allowed.
    let records = hello[5..].chunks(100).flat_map(|part| {
        let [high, low] = u16::try_from(part.len()).unwrap().to_be_bytes();
        [&[22, 3, 1, high, low], part].concat()
    });
    let records: Vec<u8> = records.collect();
    for hello in [hello, records] {
        for cuts in
            [vec![], vec![1], vec![5], vec![6, 40, 41], vec![hello.len() - 1], (1..hello.len()).collect()]
        {
            let sent = [&hello[..], b"and early data"].concat();
            let mut client = TcpStream::connect(gateway.address).await.unwrap();
            client.set_nodelay(true).unwrap();
            let ends = cuts.iter().copied().chain([sent.len()]);
            let starts = [0].into_iter().chain(cuts.iter().copied());
            for (start, end) in starts.zip(ends) {
                client.write_all(&sent[start..end]).await.unwrap();
                tokio::task::yield_now().await;
            }
            client.shutdown().await.unwrap();
            client.read_to_end(&mut Vec::new()).await.unwrap();
            assert!(hellos.recv().await.unwrap() == sent, "cut at {cuts:?}");
        }
    }
}

/// With HTTPS the port speaks TLS, and says so; without, it is as if nothing were there.
#[tokio::test]
async fn names_that_no_listener_or_rule_has_are_refused() {
    let backend = tls_backend("a.pass.net").await;
    for with_https in [true, false] {
        // The listeners are for more names than their rules are.
        let mut names = ServerNames::default();
        names.insert(&pattern("a.pass.net"), support::l4::to(&[("app/a:1", 1)]));
        let passed = listener("pass", "*.pass.net", Serves::TlsPassthrough(Arc::new(names)));
        let mut ended = terminated("*.end.net", "app/a:1");
        if let Serves::TlsTerminated { rules, .. } = &mut ended.serves {
            *rules = Arc::default();
        }
        let mut listeners = vec![passed, ended];
        if with_https {
            listeners.push(ListenerSpec::new("web", "web.net", true, Vec::new()).build());
        }
        let gateway = gateway(listeners, &[("app/a:1", &[backend])]).await;
        assert_eq!(said(connect(&gateway, Some("a.pass.net"), b"h2").await.unwrap()).await, "a.pass.net");
        for name in [Some("b.pass.net"), Some("x.end.net")] {
            let error = connect(&gateway, name, b"h2").await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{name:?}: {error}");
        }
        for name in [Some("nowhere.net"), None] {
            let error = connect(&gateway, name, b"h2").await.unwrap_err();
            if with_https {
                assert!(error.to_string().contains("UnrecognisedName"), "{name:?}: {error}");
            } else {
                assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{name:?}: {error}");
            }
        }
        let stats = gateway.proxy.stats().await;
        assert_eq!(stats.handshake_failures[&HandshakeFailure::UnknownName], 2);
        let unrouted: u64 =
            stats.listeners.values().filter_map(|it| it.forwarded.endings.get(&Ending::NoRoute)).sum();
        assert_eq!(unrouted, 2);
    }
}

/// A hello of TLS 1.1, which says nothing of signatures: no server of today's libraries answers it.
fn old_hello(name: &str) -> Vec<u8> {
    let vector16 = |bytes: &[u8]| [&u16::try_from(bytes.len()).unwrap().to_be_bytes(), bytes].concat();
    let names = vector16(&vector16(&[&[0][..], &vector16(name.as_bytes())].concat()));
    let extensions = vector16(&[&[0, 0][..], &names].concat());
    let body = [&[3, 2][..], &[7; 32], &[0], &vector16(&[0, 53]), &[1, 0], &extensions].concat();
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    let message = [&[1], &length[1..], &body].concat();
    [&[22, 3, 1][..], &vector16(&message)].concat()
}

/// It is the backend's to say which TLS it speaks.
#[tokio::test]
async fn a_hello_that_only_the_backend_can_answer_is_passed_on() {
    let address = backend(|mut stream| async move {
        let (mut reader, mut writer) = stream.split();
        let _ = tokio::io::copy(&mut reader, &mut writer).await;
    })
    .await;
    let listeners = vec![passthrough("a.pass.net", "app/a:1"), terminated("a.end.net", "app/a:1")];
    let gateway = gateway(listeners, &[("app/a:1", &[address])]).await;
    let hello = old_hello("A.pass.net");
    assert!(support::l4::exchange(gateway.address, &hello).await.unwrap() == hello);
    let mut client = TcpStream::connect(gateway.address).await.unwrap();
    client.write_all(&old_hello("a.end.net")).await.unwrap();
    assert_eq!(client.read_u8().await.unwrap(), 21, "an alert of the library");
    let mut client = TcpStream::connect(gateway.address).await.unwrap();
    client.write_all(&old_hello("nowhere.net")).await.unwrap();
    assert_eq!(client.read_u8().await.unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn what_is_no_hello_gets_an_alert() {
    let gateway = gateway(vec![passthrough("a.pass.net", "app/a:1")], &[]).await;
    for bytes in
        [&b"GET / HTTP/1.1\r\nhost: a.pass.net\r\n\r\n"[..], &[22, 3, 1, 255, 255, 1], &[22, 3, 1, 0, 0]]
    {
        let mut client = TcpStream::connect(gateway.address).await.unwrap();
        client.write_all(bytes).await.unwrap();
        assert_eq!(client.read_u8().await.unwrap(), 21, "{bytes:?}");
    }
    // One that goes on for ever: records of a hello of 16 MiB.
    let mut client = TcpStream::connect(gateway.address).await.unwrap();
    let record = [&[22, 3, 1, 0x40, 0][..], &[1, 255, 255, 255], &[0; 0x4000 - 4]].concat();
    let written = async {
        for _ in 0..1024 {
            client.write_all(&record).await?;
        }
        std::io::Result::Ok(())
    };
    assert!(written.await.is_err());
    eventually("the failures are counted", async || {
        gateway.proxy.stats().await.handshake_failures.get(&HandshakeFailure::Protocol) == Some(&4)
    })
    .await;
}

#[tokio::test]
async fn rules_without_backend_reset_connections() {
    let mut listeners = vec![passthrough("a.pass.net", "app/none:1"), terminated("a.end.net", "app/none:1")];
    let refuse = rule(L4Action::Refuse("the rule has no backendRefs".into()));
    let mut names = ServerNames::default();
    names.insert(&pattern("b.pass.net"), refuse);
    listeners.push(listener("b", "b.pass.net", Serves::TlsPassthrough(Arc::new(names))));
    let gateway = gateway(listeners, &[]).await;
    for name in ["a.pass.net", "b.pass.net", "a.end.net"] {
        let error = match connect(&gateway, Some(name), b"h2").await {
            Ok(mut stream) => stream.read_u8().await.unwrap_err(),
            Err(error) => error,
        };
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{name}");
    }
}

/// Inside TLS, as on the wire: bytes, ends, resets.
#[tokio::test]
async fn terminated_streams_are_forwarded_whole() {
    let address = echo("hello").await;
    let gateway = gateway(vec![terminated("a.end.net", "app/a:1")], &[("app/a:1", &[address])]).await;
    let mut exchanges = tokio::task::JoinSet::new();
    for seed in 0..100_u64 {
        let stream = connect(&gateway, Some("a.end.net"), b"h2").await.unwrap();
        exchanges.spawn(async move {
            let mut random = fastrand::Rng::with_seed(seed);
            let sent: Vec<u8> = (0..random.usize(1..2_000_000)).map(|_| random.u8(..)).collect();
            let (mut reader, mut writer) = tokio::io::split(stream);
            let mut answer = Vec::new();
            let writing = async {
                writer.write_all(&sent).await.unwrap();
                writer.shutdown().await.unwrap();
            };
            tokio::join!(writing, async { reader.read_to_end(&mut answer).await.unwrap() });
            assert!(answer == [b"hello", &sent[..]].concat(), "{} of {}", answer.len(), sent.len() + 5);
        });
        if exchanges.len() >= 10 {
            exchanges.join_next().await.unwrap().unwrap();
        }
    }
    while let Some(exchanged) = exchanges.join_next().await {
        exchanged.unwrap();
    }
}

/// An end that TLS does not vouch for may be an attacker's: the backend must not take what came for
/// all there was.
#[tokio::test]
async fn a_truncated_stream_is_a_reset() {
    let (seen, mut results) = mpsc::unbounded_channel();
    let address = backend(move |mut stream| {
        let seen = seen.clone();
        async move {
            stream.write_all(b"x").await.unwrap();
            let ended = stream.read_to_end(&mut Vec::new()).await;
            seen.send(ended.map_err(|error| error.kind())).unwrap();
        }
    })
    .await;
    let gateway = gateway(vec![terminated("a.end.net", "app/a:1")], &[("app/a:1", &[address])]).await;
    let mut stream = connect(&gateway, Some("a.end.net"), b"h2").await.unwrap();
    assert_eq!(stream.read_u8().await.unwrap(), b'x');
    let (mut bare, _) = stream.into_inner();
    bare.shutdown().await.unwrap();
    assert_eq!(results.recv().await.unwrap(), Err(ErrorKind::ConnectionReset));
    // An end that TLS vouches for is one.
    let mut stream = connect(&gateway, Some("a.end.net"), b"h2").await.unwrap();
    assert_eq!(stream.read_u8().await.unwrap(), b'x');
    stream.shutdown().await.unwrap();
    assert_eq!(results.recv().await.unwrap(), Ok(0));
}

/// The mode of a listener may change while it keeps its name.
#[tokio::test]
async fn a_listener_may_become_one_of_another_kind() {
    let (inside, behind, web) = (echo("inside").await, tls_backend("behind").await, Backend::echo().await);
    let backends: [(&str, &[_]); 3] =
        [("app/in:1", &[inside]), ("app/be:1", &[behind]), ("app/web:80", &[web.address])];
    let gateway = gateway(vec![terminated("a.net", "app/in:1")], &backends).await;
    let apply = async |listener| {
        let snapshot = snapshot(gateway.address, [listener], &backends);
        assert!(gateway.proxy.apply(Arc::new(snapshot)).await.is_empty());
    };
    let connect = async || connect(&gateway, Some("a.net"), b"http/1.1").await.unwrap();
    let mut old = connect().await;
    let mut text = [0; 6];
    old.read_exact(&mut text).await.unwrap();
    assert_eq!(&text, b"inside");
    apply(passthrough("a.net", "app/be:1")).await;
    assert_eq!(said(connect().await).await, "behind");
    let https = ListenerSpec::new("a.net", "a.net", true, vec![RouteSpec::to("/", "app/web:80")]);
    apply(https.build()).await;
    let request = Request::get("https://a.net/").body(Bytes::new()).unwrap();
    assert_eq!(client::http1(connect().await, request).await.status(), 200);
    // It is the same listener, and the connection goes on.
    old.write_all(b"x").await.unwrap();
    assert_eq!(old.read_u8().await.unwrap(), b'x');
}
