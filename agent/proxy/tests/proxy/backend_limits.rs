//! Limits of backends: exact under several cores, and clear to clients.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use portcullis_model::{BackendLimits, Resilience, Serves};
use portcullis_proxy::{Ending, Reason};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::support;
use crate::support::fixture::{Gateway, snapshot};
use crate::support::l4::{echo, listener, to};
use crate::support::resilience::{Endpoint, limits, outliers, stats, world};
use crate::support::rules::rule;
use crate::support::via::{Client, Via};
use crate::support::world::{World, eventually};

/// So many requests at once, by both cores; their statuses.
async fn burst(world: &World, requests: usize) -> Vec<u16> {
    let mut sending = JoinSet::new();
    for index in 0..requests {
        let via = if index % 2 == 0 { Via::Http1 } else { Via::Http1Tls };
        let address = world.address(via);
        sending.spawn(async move {
            let mut client = Client::connect(via, address, "any.test").await;
            client.send("GET /").await.status.as_u16()
        });
    }
    sending.join_all().await
}

#[tokio::test]
async fn no_more_requests_are_sent_at_once_than_may_be() {
    let endpoint = Endpoint::with_pause(200, Duration::from_millis(20)).await;
    let world = world(rule(), limits(3, 1000), &[endpoint.address()]).await;
    let statuses = burst(&world, 100).await;
    assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
    assert_eq!(endpoint.most_at_once.load(Ordering::SeqCst), 3);
    let stats = stats(&world).await;
    assert_eq!((stats.requests, stats.pending, stats.refused_requests), (0, 0, 0), "{stats:?}");
}

/// More come all the time than are answered: most wait in vain, which is not the endpoint's doing.
#[tokio::test]
async fn requests_that_wait_have_no_endpoint_ejected_and_leave_time_to_others() {
    let endpoints = [(); 2].map(|()| Endpoint::with_pause(200, Duration::from_millis(450)));
    let [one, other] = endpoints;
    let (one, other) = (one.await, other.await);
    let terms = Resilience { outliers: outliers(1).outliers, ..limits(4, 100) };
    let attempts = [rule().request_timeout(3000), rule().backend_timeout(3000).retry(1, &[])];
    for rule in attempts {
        let world = world(rule, terms.clone(), &[one.address(), other.address()]).await;
        let mut sending = JoinSet::new();
        for index in 0..40 {
            let via = if index % 2 == 0 { Via::Http1 } else { Via::Http1Tls };
            let address = world.address(via);
            sending.spawn(async move {
                let mut client = Client::connect(via, address, "any.test").await;
                let mut answered = 0;
                for _ in 0..3 {
                    // A response that has begun when the time is over breaks off.
                    match client.try_send("GET /").await {
                        Ok(reply) => answered += usize::from(reply.status == 200),
                        Err(_) => client = Client::connect(via, address, "any.test").await,
                    }
                }
                answered
            });
        }
        let answered: usize = sending.join_all().await.into_iter().sum();
        assert_eq!(stats(&world).await.ejections, 0);
        // Some 80 are possible in the nine seconds that this takes.
        assert!(answered >= 16, "{answered} of 120");
    }
}

#[tokio::test]
async fn what_may_not_wait_is_refused_with_a_reason() {
    let endpoint = Endpoint::with_pause(200, Duration::from_secs(3600)).await;
    let world = world(rule(), limits(2, 1), &[endpoint.address()]).await;
    let mut waiting = JoinSet::new();
    for (index, via) in [Via::Http1, Via::Http1Tls, Via::Http1].into_iter().enumerate() {
        let address = world.address(via);
        waiting.spawn(async move { Client::connect(via, address, "any.test").await.send("GET /").await });
        eventually("the request has its place", async || {
            let stats = stats(&world).await;
            stats.requests + stats.pending == index as u64 + 1
        })
        .await;
    }
    for via in Via::ALL {
        let reply = world.send(via, "GET /").await;
        assert_eq!(reply.status, 503, "{via:?}");
        assert_eq!(reply.headers["retry-after"], "1");
        assert_eq!(reply.body, "the backend has too many requests\n");
    }
    let all = world.proxy.stats().await;
    assert_eq!(all.answers[&Reason::BackendFull], Via::ALL.len() as u64);
    assert_eq!(stats(&world).await.refused_requests, Via::ALL.len() as u64);
    // Clients that go give their places back.
    waiting.shutdown().await;
    eventually("all places are free", async || {
        let stats = stats(&world).await;
        (stats.requests, stats.pending) == (0, 0)
    })
    .await;
}

/// A response that is not read has its place, as has a tunnel.
#[tokio::test]
async fn tunnels_and_slow_readers_have_their_places() {
    let origin = support::origin::Origin::http1().await;
    let world = world(rule(), limits(2, 0), &[origin.address]).await;
    let mut tunnel = TcpStream::connect(world.plain).await.unwrap();
    let upgrade = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
    tunnel.write_all(upgrade).await.unwrap();
    let mut answer = [0; 12];
    tunnel.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 101");
    let mut stalled = TcpStream::connect(world.plain).await.unwrap();
    stalled.write_all(b"GET /?stall HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    stalled.read_exact(&mut answer).await.unwrap();
    assert_eq!(world.send(Via::Http1Tls, "GET /").await.status, 503);
    drop(stalled);
    eventually("a place is free", async || world.send(Via::Http1Tls, "GET /").await.status == 200).await;
    drop(tunnel);
    eventually("all places are free", async || stats(&world).await.requests == 0).await;
}

#[tokio::test]
async fn a_limit_that_rises_lets_those_in_that_wait() {
    let answers = Arc::new(Semaphore::new(0));
    let endpoint = Endpoint::held(200, answers.clone()).await;
    let mut world = world(rule(), limits(1, 10), &[endpoint.address()]).await;
    let address = world.plain;
    let mut waiting = JoinSet::new();
    for _ in 0..6 {
        waiting.spawn(async move {
            Client::connect(Via::Http1, address, "any.test").await.send("GET /").await.status
        });
    }
    eventually("requests wait", async || stats(&world).await.pending == 5).await;
    world.backends[0].resilience = Some(limits(6, 10).into());
    world.apply().await;
    // A core takes the terms of a backend with its next request.
    waiting.spawn(async move {
        Client::connect(Via::Http1, address, "any.test").await.send("GET /").await.status
    });
    eventually("those that waited are let in", async || endpoint.most_at_once.load(Ordering::SeqCst) > 1)
        .await;
    answers.add_permits(7);
    assert!(waiting.join_all().await.iter().all(|status| *status == 200));
}

#[tokio::test]
async fn connections_beyond_the_limit_are_reset() {
    let gateway = Gateway::start();
    let address = echo("hello").await;
    let serves = Serves::Tcp(to(&[("app/one:1", 1)]));
    let mut snapshot =
        snapshot(gateway.address, [listener("tcp", "*", serves)], &[("app/one:1", &[address])]);
    let mut backend = (**snapshot.backends.get("app/one:1").unwrap()).clone();
    let limits = BackendLimits { connections: 2.try_into().ok(), ..BackendLimits::default() };
    backend.resilience = Some(Resilience { limits, ..Resilience::default() }.into());
    snapshot.backends.insert("app/one:1".into(), Arc::new(backend));
    assert!(gateway.proxy.apply(Arc::new(snapshot)).await.is_empty());
    // The reset may come while the client is connecting.
    let greeted = async || {
        let mut client = TcpStream::connect(gateway.address).await?;
        client.read_exact(&mut [0; 5]).await.map(|_| client)
    };
    let mut open = vec![greeted().await.unwrap(), greeted().await.unwrap()];
    greeted().await.unwrap_err();
    let stats = gateway.proxy.stats().await;
    let endings = stats.listeners.values().map(|listener| listener.forwarded.endings.clone());
    assert_eq!(endings.collect::<Vec<_>>(), [[(Ending::BackendFull, 1)].into()]);
    drop(open.pop());
    eventually("a place is free", async || greeted().await.is_ok()).await;
}
