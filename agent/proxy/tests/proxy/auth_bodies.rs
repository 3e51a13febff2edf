//! Bodies that external auth services are to see: as a whole, and no more of them than there is
//! room for.

use std::time::Duration;

use portcullis_model::{BackendProtocol, ExternalAuth, FieldNames};
use portcullis_proxy::{Settings, Upstream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::auth::{HttpAuthService, over_grpc, over_http};
use crate::support::client::raw;
use crate::support::guarded::{answer, outcomes, seen, with_body, world};
use crate::support::origin::Origin;
use crate::support::rules::backend_name;
use crate::support::settings::settings;
use crate::support::via::{Client, Via};
use crate::support::world::{World, eventually};

#[tokio::test]
async fn a_body_goes_to_the_service_and_then_to_the_backend() {
    let auth = HttpAuthService::start(|request| match &request.body()[..] {
        b"" | b"good body!" => answer(200, &[], ""),
        _ => answer(403, &[], "bad body"),
    })
    .await;
    let (world, backend) =
        world(auth.address, BackendProtocol::Http1, vec![with_body(over_http(|_| {}), 10)]).await;
    for via in Via::ALL {
        let reply = world.send(via, "POST /\n\ngood body!").await;
        assert_eq!((reply.status.as_u16(), reply.body.ends_with("\ngood body!")), (200, true), "{via:?}");
        assert_eq!(seen(&reply, "content-length"), ["10"]);
        let [asked] = auth.asked().try_into().unwrap();
        assert_eq!(
            (&asked.body()[..], asked.headers()["content-length"].as_bytes()),
            (&b"good body!"[..], &b"10"[..])
        );
        let mut client = Client::connect(via, world.address(via), "any.test").await;
        let reply = client.send_unsized("POST /\n\ngood body!").await;
        assert_eq!((reply.status.as_u16(), reply.body.ends_with("\ngood body!")), (200, true), "{via:?}");
        assert_eq!(world.send(via, "POST /\n\nbad body!!").await.status, 403);
        assert_eq!(world.send(via, "GET /").await.status, 200);
        auth.asked();
        // Neither the service nor the backend has it.
        assert_eq!(world.send(via, "POST /\n\ngood body!!").await.status, 413);
        let mut client = Client::connect(via, world.address(via), "any.test").await;
        assert_eq!(client.send_unsized("POST /\n\ngood body!!").await.status, 413);
        assert!(auth.asked().is_empty());
    }
    assert_eq!(backend.requests(), 12);
    let chunked = "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n\
                   4\r\ngood\r\n6\r\n body!\r\n0\r\nx-sum: 1\r\n\r\n";
    let reply = raw(world.plain, chunked.as_bytes()).await;
    assert!(reply.contains("good body!") && reply.contains("x-sum: 1"), "{reply}");
}

#[tokio::test]
async fn a_body_that_breaks_off_authorises_nothing() {
    let auth = HttpAuthService::start(|_| answer(200, &[], "")).await;
    let (world, backend) =
        world(auth.address, BackendProtocol::Http1, vec![with_body(over_http(|_| {}), 100)]).await;
    let mut stream = tokio::net::TcpStream::connect(world.plain).await.unwrap();
    stream.write_all(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\nhalf").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
    assert!(!rest.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&rest));
    assert_eq!((auth.asked().len(), backend.requests()), (0, 0));
}

/// A thousand connections with 1 MiB each once ended an agent with 512 MiB within seconds.
#[tokio::test]
async fn no_more_bodies_are_held_than_there_is_room_for() {
    const BODY: usize = 1 << 20;
    const CLIENTS: usize = 60;
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let auth = HttpAuthService::start(|_| answer(200, &[], "")).await;
    let hanging = |auth| with_body(ExternalAuth { backend: backend_name("silent"), ..auth }, BODY as u32);
    let fine = |most: usize| with_body(over_http(|_| {}), most as u32);
    let rules = vec![
        hanging(over_http(|_| {})).prefix("/http"),
        hanging(over_grpc(FieldNames::All)).prefix("/grpc"),
        fine(BODY).prefix("/other").of("other"),
        fine(8 * BODY).prefix("/all"),
    ];
    let upstream = Upstream { auth: Duration::from_secs(60), ..Upstream::default() };
    // Half for the core that has the port; of that half for a namespace that is alone.
    let mut world = World::with(Settings { buffers: 2 * 16 * BODY as u64, upstream, ..settings() });
    let backend = Origin::http1().await;
    world.backend("echo", BackendProtocol::Http1, &[backend.address]);
    world.backend("auth", BackendProtocol::Http1, &[auth.address]);
    world.backend("silent", BackendProtocol::Http1, &[silent.local_addr().unwrap()]);
    world.http("*", rules);
    world.apply().await;
    let (body, all) = ("x".repeat(BODY), "x".repeat(8 * BODY));
    // A question in Envoy's protocol has a copy.
    for (path, room) in [("/http", 8), ("/grpc", 4)] {
        for via in [Via::Http1, Via::H2c] {
            let mut clients = tokio::task::JoinSet::new();
            for _ in 0..CLIENTS {
                let (to, request) = (world.plain, format!("POST {path}\n\n{body}"));
                clients.spawn(
                    async move { Client::connect(via, to, "any.test").await.try_send(&request).await },
                );
            }
            for _ in room..CLIENTS {
                let reply = clients.join_next().await.unwrap().unwrap().unwrap();
                assert_eq!(reply.status, 503, "{path} {via:?} {reply:?}");
                assert_eq!(reply.body, "too many request bodies at once\n");
                assert_eq!(reply.header("retry-after"), Some("1"));
            }
            // Before a byte of the body has come.
            let head = format!("POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: {BODY}\r\n\r\n");
            let mut stream = tokio::net::TcpStream::connect(world.plain).await.unwrap();
            stream.write_all(head.as_bytes()).await.unwrap();
            let mut status = [0; 12];
            stream.read_exact(&mut status).await.unwrap();
            assert_eq!(&status, b"HTTP/1.1 503", "{path}");
            // Not even a short one has room, nor one of unknown length.
            assert_eq!(world.send(via, "POST /all\n\nbody").await.status, 503, "{path} {via:?}");
            let mut client = Client::connect(via, world.plain, "any.test").await;
            assert_eq!(client.send_unsized("POST /all\n\nbody").await.status, 503, "{path} {via:?}");
            assert_eq!(world.send(via, "GET /all").await.status, 200, "{path} {via:?}");
            // Another namespace's has, of either kind.
            let other = format!("POST /other\n\n{body}");
            assert_eq!(world.send(via, &other).await.status, 200, "{path} {via:?}");
            let mut client = Client::connect(via, world.plain, "any.test").await;
            assert_eq!(client.send_unsized(&other).await.status, 200, "{path} {via:?}");
            drop(clients);
            eventually("there is as much room as before", async || {
                let mut client = Client::connect(via, world.plain, "any.test").await;
                client.try_send(&format!("POST /all\n\n{all}")).await.is_ok_and(|reply| reply.status == 200)
            })
            .await;
        }
    }
    assert_eq!(outcomes(&world).await[1..], [0, 0]);
}
