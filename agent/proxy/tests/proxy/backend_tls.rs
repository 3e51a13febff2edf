//! TLS to backends: who is believed, what is spoken inside, and that nothing is sent otherwise.

use std::net::SocketAddr;
use std::sync::Arc;

use portcullis_model::{BackendProtocol, Encryption, ObjectName, Snapshot};
use portcullis_proxy::{Ending, Reason};
use rcgen::date_time_ymd;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support;
use crate::support::fixture::{Gateway, snapshot};
use crate::support::l4::{passthrough, terminated, tls_backend};
use crate::support::origin::Origin;
use crate::support::rules::rule;
use crate::support::tls_origin::{Authority, Setup, TlsOrigin, self_signed};
use crate::support::via::{Client, Reply, Via};
use crate::support::world::{World, eventually};

const BOTH: [&str; 2] = ["h2", "http/1.1"];

async fn world(protocol: BackendProtocol, encryption: Encryption, endpoint: SocketAddr) -> World {
    let mut world = World::new();
    world.encrypted("echo", protocol, encryption, &[endpoint]);
    world.http("*", vec![rule()]);
    world.apply().await;
    world
}

async fn get(world: &World) -> Reply {
    world.send(Via::Http1, "GET /").await
}

async fn refused(world: &World) -> u64 {
    world.proxy.stats().await.answers.get(&Reason::BackendTls).copied().unwrap_or_default()
}

/// Requests with a valid certificate by one name, sent by a policy of some others.
#[tokio::test]
async fn a_backend_is_believed_by_its_names() {
    let authority = Authority::new();
    let names = ["a.example", "*.w.example", "spiffe://d.example/app"];
    let origin = TlsOrigin::new(Setup::new(authority.issue(&names), &BOTH)).await;
    for (server_name, identities, is_believed) in [
        ("a.example", &[][..], true),
        ("b.example", &[], false),
        ("x.w.example", &[], true),
        ("y.x.w.example", &[], false),
        // The names of the policy count in its hostname's place, be that right or wrong.
        ("b.example", &["a.example"], true),
        ("a.example", &["b.example"], false),
        ("b.example", &["spiffe://d.example/app"], true),
        ("a.example", &["spiffe://d.example/other"], false),
        ("a.example", &["spiffe://d.example/App"], false),
        ("a.example", &["spiffe://d.example/other", "c.example"], false),
        ("b.example", &["spiffe://d.example/other", "a.example"], true),
        ("b.example", &["*.w.example"], true),
        ("b.example", &["*.example"], true),
        ("b.example", &["*.other.example"], false),
        ("b.example", &["x.w.example"], true),
    ] {
        let before = origin.requests();
        let world =
            world(BackendProtocol::Negotiated, authority.policy(server_name, identities), origin.address)
                .await;
        let status = get(&world).await.status;
        assert_eq!(status, if is_believed { 200 } else { 502 }, "{server_name} {identities:?}");
        assert_eq!(origin.requests() - before, usize::from(is_believed));
        assert_eq!(refused(&world).await, u64::from(!is_believed));
        if is_believed {
            assert_eq!(origin.seen().last().unwrap().server_name.as_deref(), Some(server_name));
        }
    }
}

#[tokio::test]
async fn certificates_of_others_or_of_other_times_are_not_believed() {
    let (authority, other) = (Authority::new(), Authority::new());
    let at = |from: i32, to: i32| {
        authority.issue_with(&["a.example"], |params| {
            (params.not_before, params.not_after) = (date_time_ymd(from, 1, 1), date_time_ymd(to, 1, 1));
        })
    };
    for (what, certificate) in [
        ("another authority", other.issue(&["a.example"])),
        ("itself", self_signed(&["a.example"])),
        ("expired", at(2000, 2020)),
        ("not yet valid", at(2100, 2120)),
    ] {
        let origin = TlsOrigin::new(Setup::new(certificate, &BOTH)).await;
        for identities in [&[][..], &["b.example", "a.example"]] {
            let policy = authority.policy("a.example", identities);
            let world = world(BackendProtocol::Negotiated, policy, origin.address).await;
            assert_eq!(get(&world).await.status, 502, "{what}");
            assert_eq!(refused(&world).await, 1, "{what}");
        }
        assert_eq!(origin.requests(), 0, "{what}");
    }
}

#[tokio::test]
async fn nothing_is_sent_in_plaintext() {
    let (authority, origin) = (Authority::new(), Origin::http1().await);
    for encryption in [authority.policy("a.example", &[]), Encryption::Unavailable] {
        for protocol in [BackendProtocol::Http1, BackendProtocol::H2c, BackendProtocol::Negotiated] {
            let world = world(protocol, encryption.clone(), origin.address).await;
            let reply = get(&world).await;
            assert!(matches!(reply.status.as_u16(), 502 | 503), "{reply:?}");
        }
    }
    assert_eq!(origin.requests(), 0);
}

#[tokio::test]
async fn the_backend_chooses_the_protocol_from_what_it_may_speak() {
    use BackendProtocol::{H2c, Http1, Negotiated};
    let authority = Authority::new();
    for (protocol, theirs, is_http2, chosen) in [
        (Negotiated, &BOTH[..], false, Some("h2")),
        (Negotiated, &["http/1.1"], false, Some("http/1.1")),
        (Negotiated, &[], false, None),
        (Http1, &BOTH, false, Some("http/1.1")),
        (Http1, &[], false, None),
        (H2c, &BOTH, false, Some("h2")),
        // By prior knowledge.
        (H2c, &[], true, None),
    ] {
        let setup = Setup { is_http2, ..Setup::new(authority.issue(&["a.example"]), theirs) };
        let origin = TlsOrigin::new(setup).await;
        let world = world(protocol, authority.policy("a.example", &[]), origin.address).await;
        for _ in 0..3 {
            assert_eq!(get(&world).await.status, 200, "{protocol:?} {theirs:?}");
        }
        let seen = origin.seen();
        assert_eq!(seen.len(), 1, "kept: {protocol:?} {theirs:?}");
        assert_eq!(seen[0].protocol.as_deref(), chosen);
    }
    let origin = TlsOrigin::new(Setup::new(authority.issue(&["a.example"]), &["http/1.1"])).await;
    let world = world(H2c, authority.policy("a.example", &[]), origin.address).await;
    assert_eq!(get(&world).await.status, 502);
}

#[tokio::test]
async fn a_burst_waits_for_the_choice_and_shares_http2() {
    let authority = Authority::new();
    let origin = TlsOrigin::new(Setup::new(authority.issue(&["a.example"]), &BOTH)).await;
    let world = world(BackendProtocol::Negotiated, authority.policy("a.example", &[]), origin.address).await;
    let mut clients = Vec::new();
    for _ in 0..20 {
        clients.push(Client::connect(Via::Http1, world.plain, "any.test").await);
    }
    let burst = clients
        .into_iter()
        .map(|mut client| tokio::spawn(async move { client.send("GET /?delay=20").await.status.as_u16() }));
    for status in burst.collect::<Vec<_>>() {
        assert_eq!(status.await.unwrap(), 200);
    }
    assert_eq!((origin.seen().len(), origin.requests()), (1, 20));
}

#[tokio::test]
async fn bodies_pass_in_both_directions() {
    let authority = Authority::new();
    for theirs in [&BOTH[..], &["http/1.1"]] {
        let origin = TlsOrigin::new(Setup::new(authority.issue(&["a.example"]), theirs)).await;
        let world =
            world(BackendProtocol::Negotiated, authority.policy("a.example", &[]), origin.address).await;
        let down = world.send(Via::Http1, "GET /?size=3000000").await;
        assert_eq!((down.status.as_u16(), down.body.len()), (200, 3_000_000));
        let body = "x".repeat(3_000_000);
        for framing in [format!("content-length: {}", body.len()), "transfer-encoding: chunked".to_owned()] {
            let mut stream = TcpStream::connect(world.plain).await.unwrap();
            let head = format!("POST / HTTP/1.1\r\nhost: any.test\r\nconnection: close\r\n{framing}\r\n\r\n");
            let body = match framing.starts_with('t') {
                true => format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len()),
                false => body.clone(),
            };
            let (mut reader, mut writer) = stream.split();
            let sending = async {
                writer.write_all(head.as_bytes()).await.unwrap();
                writer.write_all(body.as_bytes()).await.unwrap();
            };
            let mut answer = String::new();
            let reading = reader.read_to_string(&mut answer);
            let ((), read) = tokio::join!(sending, reading);
            read.unwrap();
            assert!(answer.starts_with("HTTP/1.1 200") && answer.len() > 3_000_000, "{}", answer.len());
        }
    }
}

/// HTTP/2 has no upgrades: a backend that would choose it is asked for HTTP/1.1 then.
#[tokio::test]
async fn websockets_pass_whatever_the_backend_would_choose() {
    let authority = Authority::new();
    let origin = TlsOrigin::new(Setup::new(authority.issue(&["a.example"]), &BOTH)).await;
    let world = world(BackendProtocol::Negotiated, authority.policy("a.example", &[]), origin.address).await;
    assert_eq!(get(&world).await.status, 200);
    let mut stream = TcpStream::connect(world.plain).await.unwrap();
    let request = "GET / HTTP/1.1\r\nhost: any.test\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    assert!(head.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&head));
    stream.write_all(b"hello").await.unwrap();
    let mut echoed = [0; 5];
    stream.read_exact(&mut echoed).await.unwrap();
    assert_eq!(&echoed, b"hello");
    stream.shutdown().await.unwrap();
    assert_eq!(stream.read(&mut echoed).await.unwrap(), 0, "both sides end");
    let protocols: Vec<_> = origin.seen().into_iter().map(|seen| seen.protocol.unwrap()).collect();
    assert_eq!(protocols, ["h2", "http/1.1"]);
}

#[tokio::test]
async fn a_gateway_shows_the_certificate_that_it_has_at_the_time() {
    let (authority, clients) = (Authority::new(), Authority::new());
    let [first, second, foreign] =
        [clients.issue(&["gateway"]), clients.issue(&["gateway"]), authority.issue(&["gateway"])];
    let setup = Setup {
        clients: Some(clients.certificate()),
        ..Setup::new(authority.issue(&["a.example"]), &["http/1.1"])
    };
    let origin = TlsOrigin::new(setup).await;
    let mut world =
        world(BackendProtocol::Negotiated, authority.policy("a.example", &[]), origin.address).await;
    assert!(get(&world).await.status.is_server_error());
    let gateway = ObjectName::new("test", "gateway");
    for shown in [&first, &second] {
        world.client_certificates.insert(gateway.clone(), shown.clone());
        world.apply().await;
        for _ in 0..2 {
            assert_eq!(get(&world).await.status, 200);
        }
        let last = origin.seen().pop().unwrap();
        assert_eq!((last.client.as_ref(), last.resumed), (shown.key.cert.first(), false));
    }
    assert_eq!(origin.seen().len(), 2, "connections are kept as long as the certificate is the same");
    for others in [Some(foreign), None] {
        world.client_certificates = others.map(|it| (gateway.clone(), it)).into_iter().collect();
        world.apply().await;
        assert!(get(&world).await.status.is_server_error());
    }
    // What another Gateway shows is its own.
    world.client_certificates.insert(ObjectName::new("test", "other"), first);
    world.apply().await;
    assert!(get(&world).await.status.is_server_error());
    assert_eq!(origin.requests(), 4);
}

#[tokio::test]
async fn neither_connections_nor_sessions_outlive_the_policy_they_were_made_by() {
    let authority = Authority::new();
    let names = ["a.example", "b.example"];
    let origin = TlsOrigin::new(Setup::new(authority.issue(&names), &["http/1.1"])).await;
    let mut world =
        world(BackendProtocol::Negotiated, authority.policy("a.example", &[]), origin.address).await;
    assert_eq!(get(&world).await.status, 200);
    // Another endpoint changes nothing of the first one's connections.
    let other = TlsOrigin::new(Setup::new(authority.issue(&names), &["http/1.1"])).await;
    let policy = authority.policy("a.example", &[]);
    world.encrypted("echo", BackendProtocol::Negotiated, policy, &[origin.address, other.address]);
    world.apply().await;
    for _ in 0..20 {
        assert_eq!(get(&world).await.status, 200);
    }
    assert_eq!((origin.seen().len(), other.seen().len()), (1, 1));

    // Other names, by the same server name and authority.
    let policy = authority.policy("a.example", &["b.example"]);
    world.encrypted("echo", BackendProtocol::Negotiated, policy, &[origin.address]);
    world.apply().await;
    assert_eq!(get(&world).await.status, 200);
    assert_eq!(origin.seen().len(), 2);
    assert!(!origin.seen()[1].resumed, "the session was verified by other terms");
    // Another authority, which did not issue it: what is kept must not be used.
    let before = origin.requests();
    let policy = Authority::new().policy("a.example", &[]);
    world.encrypted("echo", BackendProtocol::Negotiated, policy, &[origin.address]);
    world.apply().await;
    assert_eq!(get(&world).await.status, 502);
    world.encrypted("echo", BackendProtocol::Negotiated, Encryption::Unavailable, &[origin.address]);
    world.apply().await;
    assert_eq!(get(&world).await.status, 502);
    assert_eq!(origin.requests(), before);
}

#[tokio::test]
async fn a_connection_in_plaintext_is_not_kept_for_a_policy_that_comes() {
    let (authority, origin) = (Authority::new(), Origin::http1().await);
    let mut world = world(BackendProtocol::Http1, Encryption::None, origin.address).await;
    assert_eq!(get(&world).await.status, 200);
    world.encrypted("echo", BackendProtocol::Http1, authority.policy("a.example", &[]), &[origin.address]);
    world.apply().await;
    assert!(get(&world).await.status.is_server_error());
    assert_eq!(origin.requests(), 1);
}

#[tokio::test]
async fn sessions_are_resumed_under_the_same_policy() {
    let authority = Authority::new();
    let origin = TlsOrigin::new(Setup::new(authority.issue(&["a.example"]), &["http/1.1"])).await;
    let world = world(BackendProtocol::Http1, authority.policy("a.example", &[]), origin.address).await;
    // Each takes a connection of its own.
    let upgrade = "GET / HTTP/1.1\r\nhost: any.test\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n";
    let mut open = Vec::new();
    for _ in 0..3 {
        let mut stream = TcpStream::connect(world.plain).await.unwrap();
        stream.write_all(upgrade.as_bytes()).await.unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 101");
        open.push(stream);
    }
    let resumed: Vec<_> = origin.seen().iter().map(|seen| seen.resumed).collect();
    assert_eq!(resumed, [false, true, true]);
}

fn with_encryption(mut snapshot: Snapshot, name: &str, encryption: Encryption) -> Snapshot {
    let backend = snapshot.backends.get(name).unwrap();
    let mut backend = (**backend).clone();
    backend.encryption = encryption;
    snapshot.backends.insert(name.into(), Arc::new(backend));
    snapshot
}

async fn said(gateway: &Gateway, name: &str) -> std::io::Result<String> {
    let stream = TcpStream::connect(gateway.address).await?;
    let mut stream = support::client::tls(stream, Some(name), b"other/1").await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    Ok(text)
}

/// TLS that ends here goes on in TLS of ours; TLS that is passed through is not ours.
#[tokio::test]
async fn streams_whose_tls_ends_here_go_on_in_tls() {
    let authority = Authority::new();
    let certificate = authority.issue(&["a.example"]);
    let mut config = rustls::ServerConfig::builder().with_no_client_auth().with_cert_resolver(Arc::new(
        rustls::sign::SingleCertAndKey::from(rustls::sign::CertifiedKey::clone(&certificate.key)),
    ));
    config.alpn_protocols = vec![b"something".to_vec()];
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let inside = support::l4::backend(move |stream| {
        let acceptor = acceptor.clone();
        async move {
            let Ok(mut stream) = acceptor.accept(stream).await else { return };
            let name = stream.get_ref().1.server_name().unwrap_or_default().to_owned();
            let _ = stream.write_all(format!("inside {name}").as_bytes()).await;
            let _ = stream.shutdown().await;
        }
    })
    .await;
    let through = tls_backend("through").await;
    let gateway = Gateway::start();
    let listeners = [terminated("ended.example", "app/a:1"), passthrough("passed.example", "app/b:1")];
    let backends: [(&str, &[_]); 2] = [("app/a:1", &[inside]), ("app/b:1", &[through])];
    let served = snapshot(gateway.address, listeners.clone(), &backends);
    let policy = || authority.policy("a.example", &[]);
    let served = with_encryption(with_encryption(served, "app/a:1", policy()), "app/b:1", policy());
    assert!(gateway.proxy.apply(Arc::new(served.clone())).await.is_empty());
    assert_eq!(said(&gateway, "ended.example").await.unwrap(), "inside a.example");
    assert_eq!(said(&gateway, "passed.example").await.unwrap(), "through");

    for (wrong, ending) in [
        (authority.policy("b.example", &[]), Ending::BackendTls),
        (Authority::new().policy("a.example", &[]), Ending::BackendTls),
        (Encryption::Unavailable, Ending::BackendTls),
    ] {
        let served = with_encryption(served.clone(), "app/a:1", wrong.clone());
        let served = with_encryption(served, "app/b:1", wrong);
        assert!(gateway.proxy.apply(Arc::new(served)).await.is_empty());
        let before = ended(&gateway, ending).await;
        said(&gateway, "ended.example").await.unwrap_err();
        eventually("its end is counted", async || ended(&gateway, ending).await == before + 1).await;
        assert_eq!(said(&gateway, "passed.example").await.unwrap(), "through");
    }
}

async fn ended(gateway: &Gateway, ending: Ending) -> u64 {
    let stats = gateway.proxy.stats().await;
    let of_listeners = stats
        .listeners
        .values()
        .map(|listener| listener.forwarded.endings.get(&ending).copied().unwrap_or_default());
    of_listeners.sum()
}
