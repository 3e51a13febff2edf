//! The terms of listeners: the addresses of clients, budgets of new connections, and that neither
//! costs the listeners beside them anything.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use portcullis_model::{
    Admission, Budget, BudgetOwner, ClientList, ClientRules, FrontendKey, Gateway as ModelGateway,
    L4Protocol, Listener, ObjectName, ParentKind, Port, PortKey, PortListeners, Serves, Snapshot,
};
use portcullis_proxy::{BudgetStats, Ending, HandshakeFailure, NotAdmitted, Proxy, Settings, SocketMode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};

use crate::support::backend::{Backend, reserved_for_datagrams};
use crate::support::client;
use crate::support::fixture::{Gateway, ListenerSpec, RouteSpec, snapshot};
use crate::support::l4::{backends, echo, listener, passthrough, tcp, to};
use crate::support::settings::settings;
use crate::support::world::eventually;

const GOOD: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 1);
const BAD: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 66);

fn without(denied: &[&str]) -> Admission {
    let deny = denied.iter().map(|range| range.parse().unwrap()).collect();
    let clients = ClientRules::new(vec![ClientList { allow: Vec::new(), deny }]);
    Admission { clients: Some(Arc::new(clients)), ..Admission::default() }
}

/// So many connections, and no more for the time of a test.
fn budget(owner: &str, burst: u32) -> Admission {
    let name = ObjectName::new("infra", owner);
    let owner = BudgetOwner { kind: ParentKind::Gateway, name, listener: None };
    let [per_second, burst] = [1, burst].map(|number| NonZeroU32::new(number).unwrap());
    // One token a second is the slowest.
    Admission { budgets: vec![Budget { owner, per_second, burst }], ..Admission::default() }
}

/// The most that any budget has given back since then: a busy machine takes its time.
fn given_since(begun: Instant) -> usize {
    1 + begun.elapsed().as_secs() as usize
}

fn web(host: &'static str, tls: bool, admission: Admission) -> Listener {
    let routes = vec![RouteSpec::to("/", "app/echo:80")];
    Listener { admission: admission.into(), ..ListenerSpec::new(host, host, tls, routes).build() }
}

async fn gateway(listeners: Vec<Listener>) -> (Gateway, Backend) {
    let backend = Backend::echo().await;
    let gateway = Gateway::start();
    apply(&gateway, listeners, &backend).await;
    (gateway, backend)
}

async fn apply(gateway: &Gateway, listeners: Vec<Listener>, backend: &Backend) {
    let endpoints = [("app/echo:80", &[backend.address][..])];
    let snapshot = snapshot(gateway.address, listeners, &endpoints);
    assert!(gateway.proxy.apply(Arc::new(snapshot)).await.is_empty());
}

async fn connect(from: Ipv4Addr, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((from, 0).into())?;
    socket.connect(to).await
}

/// The status of a request to a host, on a connection of its own.
async fn asked(from: Ipv4Addr, gateway: &Gateway, host: &str, tls: bool) -> io::Result<u16> {
    let stream = connect(from, gateway.address).await?;
    if tls {
        let stream = client::tls(stream, Some(host), b"http/1.1").await?;
        let request = Request::get(format!("https://{host}/")).body(Bytes::new()).unwrap();
        return Ok(client::http1(stream, request).await.status().as_u16());
    }
    Ok(status(&answer(stream, &[host]).await?))
}

fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap()
}

/// Everything that comes for requests to these hosts, one after the other; the last one ends the
/// connection.
async fn answer(mut stream: TcpStream, hosts: &[&str]) -> io::Result<String> {
    for (at, host) in hosts.iter().enumerate() {
        let close = if at + 1 == hosts.len() { "Connection: close\r\n" } else { "" };
        stream.write_all(format!("GET / HTTP/1.1\r\nHost: {host}\r\n{close}\r\n").as_bytes()).await?;
    }
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    Ok(text)
}

fn is_reset(outcome: &io::Result<u16>) -> bool {
    outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::ConnectionReset)
}

/// Counts of a listener, or of its Gateway where the listener is not known yet.
async fn counted(gateway: &Gateway, listener: Option<&str>) -> BTreeMap<NotAdmitted, u64> {
    let stats = gateway.proxy.stats().await;
    match listener {
        Some(name) => {
            let found = stats.listeners.into_iter().find(|(id, _)| &*id.name == name);
            found.map(|(_, stats)| stats.not_admitted).unwrap_or_default()
        }
        None => stats.gateways.into_values().next().unwrap_or_default().not_admitted,
    }
}

/// A listener with terms of its own, which any tenant may attach, does not defer its Gateway's.
#[tokio::test]
async fn the_terms_of_what_is_above_all_listeners_hold_before_a_request() {
    let above = ["127.0.0.66"];
    let mut levels = vec![ClientList { allow: Vec::new(), deny: vec!["127.0.0.77".parse().unwrap()] }];
    let gateways = without(&above).clients.unwrap();
    levels.extend(gateways.levels().iter().cloned());
    let own = Admission { clients: Some(Arc::new(ClientRules::new(levels))), ..Admission::default() };
    let listeners = vec![web("a.com", false, without(&above)), web("b.com", false, own)];
    let (gateway, _backend) = gateway(listeners).await;
    for host in ["a.com", "b.com", "nowhere.net"] {
        assert!(is_reset(&asked(BAD, &gateway, host, false).await), "{host}");
    }
    assert_eq!(counted(&gateway, None).await[&NotAdmitted::Address], 3);
    let other = Ipv4Addr::new(127, 0, 0, 77);
    assert_eq!(asked(other, &gateway, "a.com", false).await.unwrap(), 200);
    assert_eq!(asked(other, &gateway, "b.com", false).await.unwrap(), 403);
}

/// By lists of which no two are the same: the client is for none of them, whatever it asks for.
#[tokio::test]
async fn a_client_that_no_listener_permits_is_kept_out_before_a_byte_is_read() {
    for tls in [false, true] {
        let listeners = vec![
            web("a.example.com", tls, without(&["127.0.0.64/26"])),
            web("b.example.com", tls, without(&["127.0.0.66", "127.0.0.77"])),
        ];
        let (gateway, _backend) = gateway(listeners).await;
        let ended = async { connect(BAD, gateway.address).await?.read(&mut [0]).await };
        assert_eq!(ended.await.map_err(|error| error.kind()), Err(ErrorKind::ConnectionReset), "tls: {tls}");
        assert_eq!(counted(&gateway, None).await, [(NotAdmitted::Address, 1)].into());
        // One of them permits this one.
        let other = Ipv4Addr::new(127, 0, 0, 78);
        assert_eq!(asked(other, &gateway, "b.example.com", tls).await.unwrap(), 200);
        match asked(other, &gateway, "a.example.com", tls).await {
            refused if tls => assert!(is_reset(&refused), "{refused:?}"),
            answered => assert_eq!(answered.unwrap(), 403),
        }
    }
}

#[tokio::test]
async fn a_client_is_kept_out_of_one_name_before_its_handshake_and_let_in_at_another() {
    let listeners = vec![
        web("closed.example.com", true, without(&["127.0.0.66"])),
        web("open.example.com", true, Admission::default()),
    ];
    let (gateway, _backend) = gateway(listeners).await;
    for _ in 0..3 {
        assert!(is_reset(&asked(BAD, &gateway, "closed.example.com", true).await));
        assert_eq!(asked(BAD, &gateway, "open.example.com", true).await.unwrap(), 200);
        assert_eq!(asked(GOOD, &gateway, "closed.example.com", true).await.unwrap(), 200);
    }
    assert_eq!(counted(&gateway, Some("closed.example.com")).await, [(NotAdmitted::Address, 3)].into());
    assert_eq!(gateway.proxy.stats().await.handshake_failures[&HandshakeFailure::NotAdmitted], 3);
}

#[tokio::test]
async fn terms_of_a_whole_port_hold_before_a_byte_is_read() {
    for tls in [false, true] {
        let hosts = ["a.example.com", "b.example.com"];
        let listeners = hosts.map(|host| web(host, tls, without(&["127.0.0.64/26"])));
        let (gateway, _backend) = gateway(listeners.into()).await;
        let ended = async { connect(BAD, gateway.address).await?.read(&mut [0]).await };
        assert_eq!(ended.await.map_err(|error| error.kind()), Err(ErrorKind::ConnectionReset), "tls: {tls}");
        assert_eq!(asked(GOOD, &gateway, "a.example.com", tls).await.unwrap(), 200);
        assert_eq!(counted(&gateway, None).await, [(NotAdmitted::Address, 1)].into());
    }
}

#[tokio::test]
async fn plain_requests_are_judged_by_their_host_and_by_the_newest_terms() {
    let open = || web("open.example.com", false, Admission::default());
    let closed = || web("closed.example.com", false, without(&["127.0.0.66"]));
    let (gateway, backend) = gateway(vec![open(), closed()]).await;
    let stream = connect(BAD, gateway.address).await.unwrap();
    let hosts = ["open.example.com", "closed.example.com", "open.example.com"];
    let text = answer(stream, &hosts).await.unwrap();
    let statuses: Vec<_> = text.match_indices("HTTP/1.1 ").map(|(at, _)| status(&text[at..])).collect();
    assert_eq!(statuses, [200, 403, 200]);
    assert_eq!(asked(GOOD, &gateway, "closed.example.com", false).await.unwrap(), 200);

    let mut kept = connect(BAD, gateway.address).await.unwrap();
    kept.write_all(b"GET / HTTP/1.1\r\nHost: open.example.com\r\n\r\n").await.unwrap();
    let mut head = [0; 12];
    kept.read_exact(&mut head).await.unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");
    let now_closed = Listener { admission: closed().admission, ..open() };
    apply(&gateway, vec![now_closed, closed()], &backend).await;
    let rest = answer(kept, &["open.example.com"]).await.unwrap();
    assert!(rest.contains("HTTP/1.1 403"), "on a connection from before: {rest}");
}

#[tokio::test]
async fn connections_over_the_budget_are_reset_before_their_handshake() {
    let listeners = vec![
        web("a.example.com", true, budget("shared", 3)),
        web("b.example.com", true, budget("shared", 3)),
        web("free.example.com", true, Admission::default()),
    ];
    let (gateway, backend) = gateway(listeners).await;
    let begun = Instant::now();
    let mut passed = 0;
    for host in ["a.example.com", "b.example.com"].repeat(6) {
        let outcome = asked(GOOD, &gateway, host, true).await;
        assert!(outcome.is_ok() || is_reset(&outcome), "{outcome:?}");
        passed += usize::from(outcome.is_ok());
        assert_eq!(asked(GOOD, &gateway, "free.example.com", true).await.unwrap(), 200);
    }
    let most = 3 + given_since(begun);
    assert!((3..=most).contains(&passed), "3 at once, and one a second, which is {most}: {passed}");

    // A policy that was deleted and made again gives nothing back.
    let open = || vec![web("a.example.com", true, Admission::default())];
    apply(&gateway, open(), &backend).await;
    assert_eq!(asked(GOOD, &gateway, "a.example.com", true).await.unwrap(), 200);
    apply(&gateway, vec![web("a.example.com", true, budget("shared", 3))], &backend).await;
    for _ in 0..4 {
        passed += usize::from(asked(GOOD, &gateway, "a.example.com", true).await.is_ok());
    }
    let most = 3 + given_since(begun);
    assert!(passed <= most, "{passed} of {most}");
}

#[tokio::test]
async fn plain_connections_are_taken_from_the_budget_that_all_listeners_share_at_once() {
    let hosts = ["a.example.com", "b.example.com"];
    let listeners = hosts.map(|host| web(host, false, budget("shared", 2)));
    let (gateway, _backend) = gateway(listeners.into()).await;
    let begun = Instant::now();
    let stream = connect(GOOD, gateway.address).await.unwrap();
    let text = answer(stream, &["a.example.com", "b.example.com", "a.example.com"]).await.unwrap();
    assert_eq!(text.matches("HTTP/1.1 200").count(), 3, "one connection: {text}");
    let mut reset = 0;
    for _ in 0..6 {
        reset += usize::from(is_reset(&asked(GOOD, &gateway, "a.example.com", false).await));
    }
    assert!(reset + 1 + given_since(begun) >= 6, "{reset} of 6 in {:?}", begun.elapsed());
    let stats = gateway.proxy.stats().await.budgets;
    let asked = BudgetStats { taken: 1 + 6 - reset as u64, refused: reset as u64 };
    assert_eq!(stats.into_values().collect::<Vec<_>>(), [asked]);
}

/// A listener with a budget of its own, which any tenant may attach, does not defer its Gateway's:
/// connections that ask for no listener are taken from that one, too, and all only once.
#[tokio::test]
async fn plain_connections_are_taken_from_the_budget_above_all_listeners_at_once() {
    let above = budget("above", 3);
    let budgets = above.budgets.iter().chain(&budget("own", 100).budgets).cloned().collect();
    let own = Admission { budgets, ..Admission::default() };
    let listeners = vec![web("a.example.com", false, own), web("b.example.com", false, above)];
    let (gateway, _backend) = gateway(listeners).await;
    let begun = Instant::now();
    let stream = connect(GOOD, gateway.address).await.unwrap();
    let hosts = ["b.example.com", "a.example.com", "b.example.com", "a.example.com"];
    let text = answer(stream, &hosts).await.unwrap();
    assert_eq!(text.matches("HTTP/1.1 200").count(), 4, "one connection: {text}");
    let mut reset = 0;
    for _ in 0..6 {
        reset += u64::from(is_reset(&asked(GOOD, &gateway, "nowhere.net", false).await));
    }
    assert!(reset as usize + 2 + given_since(begun) >= 6, "{reset} of 6 in {:?}", begun.elapsed());
    let budgets = gateway.proxy.stats().await.budgets;
    let counts = |name: &str| budgets.iter().find(|(owner, _)| &*owner.name.name == name).unwrap().1;
    assert_eq!(*counts("above"), BudgetStats { taken: 1 + 6 - reset, refused: reset });
    assert_eq!(*counts("own"), BudgetStats { taken: 1, refused: 0 });
    assert_eq!(counted(&gateway, None).await, [(NotAdmitted::Connections, reset)].into());
}

#[tokio::test]
async fn plain_connections_are_taken_from_budgets_by_host_with_their_first_request() {
    let listeners = vec![
        web("small.example.com", false, budget("small", 1)),
        web("large.example.com", false, budget("large", 100)),
    ];
    let (gateway, _backend) = gateway(listeners).await;
    let mut begun = Instant::now();
    let stream = connect(GOOD, gateway.address).await.unwrap();
    let text = answer(stream, &["small.example.com"; 5]).await.unwrap();
    assert_eq!(text.matches("HTTP/1.1 200").count(), 5, "one connection: {text}");
    let hosts = ["large.example.com", "small.example.com", "large.example.com"];
    let text = loop {
        let since = begun.elapsed();
        begun = Instant::now();
        let stream = connect(GOOD, gateway.address).await.unwrap();
        let text = answer(stream, &hosts).await.unwrap();
        if text.matches("HTTP/1.1 200").count() < hosts.len() {
            break text;
        }
        // On a busy machine the budget may have given one back meanwhile.
        assert!(since + begun.elapsed() >= Duration::from_secs(1), "{text}");
    };
    assert!(text.contains("HTTP/1.1 503") && text.contains("connection: close"), "{text}");
    assert_eq!(text.matches("HTTP/1.1 ").count(), 2, "nothing comes after it: {text}");
    assert_eq!(counted(&gateway, Some("small.example.com")).await, [(NotAdmitted::Connections, 1)].into());
}

#[tokio::test]
async fn tcp_and_passed_through_connections_are_held_to_the_terms() {
    let backend = echo("backend").await;
    let endpoints = [("app/echo:1", &[backend][..])];
    let admission = Admission { clients: without(&["127.0.0.66"]).clients, ..budget("tcp", 2) };
    for listeners in [vec![tcp("app/echo:1")], vec![passthrough("pass.example.com", "app/echo:1")]] {
        let gateway = Gateway::start();
        let with_terms =
            listeners.into_iter().map(|it| Listener { admission: admission.clone().into(), ..it });
        let snapshot = snapshot(gateway.address, with_terms, &endpoints);
        assert!(gateway.proxy.apply(Arc::new(snapshot)).await.is_empty());
        let said = async |from| {
            let mut stream = connect(from, gateway.address).await?;
            let mut hello = Vec::new();
            client::connection("pass.example.com").write_tls(&mut hello)?;
            stream.write_all(&hello).await?;
            let mut text = [0; 7];
            stream.read_exact(&mut text).await?;
            Ok::<_, io::Error>(text)
        };
        for _ in 0..3 {
            assert_eq!(said(BAD).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
        }
        let (begun, mut passed) = (Instant::now(), 0);
        for _ in 0..6 {
            match said(GOOD).await {
                Ok(text) => passed += usize::from(&text == b"backend"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
            }
        }
        let most = 2 + given_since(begun);
        assert!((2..=most).contains(&passed), "denied clients cost it nothing: {passed} of {most}");
    }
}

#[tokio::test]
async fn datagrams_are_dropped_and_sessions_counted() {
    let backend = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let endpoint = backend.local_addr().unwrap();
    tokio::spawn(async move {
        let mut buffer = [0; 64];
        while let Ok((length, client)) = backend.recv_from(&mut buffer).await {
            let _ = backend.send_to(&buffer[..length], client).await;
        }
    });
    let (address, held) = reserved_for_datagrams();
    let settings = Settings { cores: 1, sockets: SocketMode::Steered, ..settings() };
    let proxy = Proxy::start(settings).unwrap();
    let serve = async |admission: Admission| {
        let serves = Serves::Udp(to(&[("app/echo:1", 1)]));
        let listener = Listener { admission: admission.into(), ..listener("udp", "*", serves) };
        let gateway = Arc::new(ModelGateway::new(ObjectName::new("infra", "web")));
        let key = PortKey { number: address.port(), protocol: L4Protocol::Udp };
        let port = Port::new(gateway, key, PortListeners::of(Arc::new(listener)));
        let frontends = [(FrontendKey::new(address.ip(), key), Arc::new(port))].into();
        let snapshot =
            Snapshot { frontends, backends: backends(&[("app/echo:1", &[endpoint])]), ..Snapshot::default() };
        assert!(proxy.apply(Arc::new(snapshot)).await.is_empty());
    };
    serve(Admission { clients: without(&["127.0.0.66"]).clients, ..budget("udp", 2) }).await;
    drop(held);
    let socket = async |from: Ipv4Addr| {
        let socket = UdpSocket::bind((from, 0)).await.unwrap();
        socket.connect(address).await.unwrap();
        socket
    };
    let count = async || proxy.stats().await.listeners.into_values().next().unwrap_or_default();
    // Each is echoed, or counted as one that is not let in, or whose session is over.
    let turned_away = async || {
        let count = count().await;
        (count.not_admitted, count.forwarded.endings)
    };
    let echoed = async |socket: &UdpSocket| {
        let before = turned_away().await;
        socket.send(b"x").await.unwrap();
        let mut is_echoed = false;
        eventually("an echo, or none", async || {
            is_echoed = socket.try_recv(&mut [0; 8]).is_ok();
            is_echoed || turned_away().await != before
        })
        .await;
        is_echoed
    };
    assert!(!echoed(&socket(BAD).await).await);
    assert_eq!(count().await.not_admitted, [(NotAdmitted::Address, 1)].into());
    let session = socket(GOOD).await;
    let begun = Instant::now();
    for _ in 0..5 {
        assert!(echoed(&session).await, "a session is one connection");
    }
    assert!(echoed(&socket(GOOD).await).await);
    let mut passed = 0;
    for _ in 0..4 {
        passed += usize::from(echoed(&socket(GOOD).await).await);
    }
    assert!(passed <= given_since(begun), "{passed} of 4 in {:?}", begun.elapsed());
    serve(without(&["127.0.0.0/8"])).await;
    assert!(!echoed(&session).await, "a session ends when its client is no longer let in");
    eventually("the session is over", async || {
        count().await.forwarded.endings.contains_key(&Ending::NotAdmitted)
    })
    .await;
}

/// Not how long it takes, which a busy machine decides: all names are answered, those of the flood
/// as well as the others.
#[tokio::test]
async fn a_flood_of_handshakes_is_worked_off_beside_others() {
    let listeners = vec![
        web("flooded.example.com", true, Admission::default()),
        web("quiet.example.com", true, Admission::default()),
    ];
    let (gateway, _backend) = gateway(listeners).await;
    let address = gateway.address;
    let flood: Vec<_> = (0..100)
        .map(|_| {
            tokio::spawn(async move {
                let stream = connect(GOOD, address).await?;
                client::tls(stream, Some("flooded.example.com"), b"http/1.1").await.map(drop)
            })
        })
        .collect();
    for _ in 0..5 {
        assert_eq!(asked(GOOD, &gateway, "quiet.example.com", true).await.unwrap(), 200);
    }
    for handshake in flood {
        handshake.await.unwrap().unwrap();
    }
    assert_eq!(counted(&gateway, Some("flooded.example.com")).await, BTreeMap::new());
}

/// The core takes the first connection when all hellos are there, the quiet listener's last of all.
/// In the order of their coming it would be answered last.
#[tokio::test]
async fn a_handshake_goes_before_most_of_a_flood_for_another_listener() {
    const FLOOD: usize = 200;
    let backend = Backend::echo().await;
    let gateway = Gateway::start();
    let mut clients = Vec::new();
    for name in std::iter::repeat_n("flooded.example.com", FLOOD).chain(["quiet.example.com"]) {
        let mut stream = connect(GOOD, gateway.address).await.unwrap();
        let mut hello = Vec::new();
        client::connection(name).write_tls(&mut hello).unwrap();
        stream.write_all(&hello).await.unwrap();
        clients.push(stream);
    }
    let listeners = ["flooded.example.com", "quiet.example.com"];
    apply(&gateway, listeners.map(|host| web(host, true, Admission::default())).into(), &backend).await;
    for client in &clients {
        client.readable().await.unwrap();
        assert_ne!(client.try_read(&mut [0]).unwrap(), 0, "it is answered");
    }
    // What the kernel has noted, not what this test got to see of it.
    let ages = ages_of_answers(gateway.address);
    let age = |client: &TcpStream| ages[&client.local_addr().unwrap().port()];
    let quiet = age(clients.last().unwrap());
    let earlier = clients[..FLOOD].iter().filter(|client| age(client) > quiet).count();
    assert!(earlier < FLOOD / 2, "{earlier} of {FLOOD} were answered before");
}

/// Milliseconds since data came to each client's port.
fn ages_of_answers(server: SocketAddr) -> BTreeMap<u16, u64> {
    let filter = [&format!("{}", server.ip()), "dport", "=", &server.port().to_string()].map(str::to_owned);
    let output = Command::new("ss").args(["-Htni", "-O", "dst"]).args(filter).output();
    let output = output.expect("ss (package iproute2)");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let row = |line: &str| {
        let port = line.split_whitespace().nth(3)?.rsplit_once(':')?.1.parse().ok()?;
        let age = line.split_whitespace().find_map(|field| field.strip_prefix("lastrcv:"));
        Some((port, age.map_or(0, |age| age.parse().unwrap())))
    };
    text.lines().filter_map(row).collect()
}
