//! UDP listeners: sessions of clients, their answers, and their end.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket as StdUdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use portcullis_model::{
    AccessLog, FrontendKey, Gateway, L4Action, L4Protocol, L4Rule, ObjectName, Port, PortKey, PortListeners,
    Serves, Snapshot, Unserved,
};
use portcullis_proxy::{Ending, Forwarded, L4, LogOutput, Proxy, Settings, SocketMode};
use socket2::SockRef;
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::support::l4::{backends, listener, rule, to};
use crate::support::world::eventually;

/// A proxy with one UDP frontend.
struct Udp {
    proxy: Proxy,
    address: SocketAddr,
    /// Keeps the address from other sockets until the proxy has it.
    reserved: Option<StdUdpSocket>,
    log: Option<AccessLog>,
}

/// A socket at a port of its own.
fn bound(ip: IpAddr) -> StdUdpSocket {
    StdUdpSocket::bind((ip, 0)).unwrap()
}

/// Lets the proxy bind the same address. Not before the port is chosen: the kernel would choose one
/// of another test's proxy, too.
fn share(socket: StdUdpSocket) -> StdUdpSocket {
    SockRef::from(&socket).set_reuse_port(true).unwrap();
    socket
}

impl Udp {
    fn with(settings: Settings) -> Self {
        Self::at(share(bound(Ipv4Addr::LOCALHOST.into())), settings)
    }

    fn at(reserved: StdUdpSocket, settings: Settings) -> Self {
        let settings = Settings { sockets: SocketMode::Steered, ..settings };
        let address = reserved.local_addr().unwrap();
        Self { proxy: Proxy::start(settings).unwrap(), address, reserved: Some(reserved), log: None }
    }

    /// With several cores, in front of this rule and these endpoints.
    async fn start(rule: Arc<L4Rule>, endpoints: &[(&str, &[SocketAddr])]) -> Self {
        let mut udp = Self::with(Settings { cores: 2, ..Settings::default() });
        assert_eq!(udp.apply(rule, endpoints).await, Unserved::default());
        udp
    }

    async fn apply(&mut self, rule: Arc<L4Rule>, endpoints: &[(&str, &[SocketAddr])]) -> Unserved {
        self.apply_all(&[(self.address, rule)], endpoints).await
    }

    /// Several frontends, of one listener each.
    async fn apply_all(
        &mut self,
        frontends: &[(SocketAddr, Arc<L4Rule>)],
        endpoints: &[(&str, &[SocketAddr])],
    ) -> Unserved {
        let mut snapshot = Snapshot { backends: backends(endpoints), ..Snapshot::default() };
        for (number, (address, rule)) in frontends.iter().enumerate() {
            let serves = Serves::Udp(rule.clone());
            let listeners = PortListeners::of(Arc::new(listener(&format!("udp-{number}"), "*", serves)));
            let mut gateway = Gateway::new(ObjectName::new("infra", "web"));
            gateway.access_log = self.log;
            let key = PortKey { number: address.port(), protocol: L4Protocol::Udp };
            let port = Port::new(gateway.into(), key, listeners);
            snapshot.frontends.insert(FrontendKey::new(address.ip(), key), Arc::new(port));
        }
        let unserved = self.proxy.apply(Arc::new(snapshot)).await;
        self.reserved = None;
        unserved
    }

    async fn forwarded(&self) -> Forwarded {
        let stats = self.proxy.stats().await;
        stats.listeners.into_values().next().unwrap_or_default().forwarded
    }

    async fn ended(&self, ending: Ending) -> u64 {
        self.ended_of(0, ending).await
    }

    /// Of one of several listeners.
    async fn ended_of(&self, listener: usize, ending: Ending) -> u64 {
        let stats = self.proxy.stats().await;
        let name = format!("udp-{listener}");
        let of_listener = stats.listeners.iter().find(|(id, _)| *id.name == *name);
        of_listener.and_then(|(_, it)| it.forwarded.endings.get(&ending).copied()).unwrap_or_default()
    }

    /// A client, which takes answers from nowhere else.
    async fn client(&self) -> UdpSocket {
        client_of(self.address).await
    }
}

async fn client_of(address: SocketAddr) -> UdpSocket {
    let any: IpAddr = if address.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
    let socket = UdpSocket::bind((any, 0)).await.unwrap();
    socket.connect(address).await.unwrap();
    socket
}

async fn ask(client: &UdpSocket, text: &str) -> String {
    client.send(text.as_bytes()).await.unwrap();
    let mut buffer = [0; 2048];
    let length = timeout(Duration::from_secs(50), client.recv(&mut buffer)).await.unwrap().unwrap();
    String::from_utf8_lossy(&buffer[..length]).into_owned()
}

/// Asks until there is an answer, for what may be lost.
async fn ask_again(client: &UdpSocket, text: &str) -> String {
    let mut buffer = [0; 2048];
    for _ in 0..40 {
        client.send(text.as_bytes()).await.unwrap();
        if let Ok(length) = timeout(Duration::from_millis(250), client.recv(&mut buffer)).await {
            return String::from_utf8_lossy(&buffer[..length.unwrap()]).into_owned();
        }
    }
    panic!("no answer");
}

/// Answers with its name, the sender it sees and what was sent; nothing to `quiet`.
async fn echo(name: &'static str) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut buffer = [0; 2048];
        while let Ok((length, peer)) = socket.recv_from(&mut buffer).await {
            let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
            if text != "quiet" {
                let _ = socket.send_to(format!("{name} {peer} {text}").as_bytes(), peer).await;
            }
        }
    });
    address
}

/// The endpoint that answered, and the sender that it saw.
fn way(answer: &str) -> String {
    answer.rsplit_once(' ').unwrap().0.to_owned()
}

#[tokio::test]
async fn no_answer_reaches_another_client() {
    let (one, two) = (echo("1").await, echo("2").await);
    let udp = Udp::start(to(&[("app/one:1", 1)]), &[("app/one:1", &[one, two])]).await;
    let mut clients = Vec::new();
    for _ in 0..300 {
        clients.push(udp.client().await);
    }
    let mut ways = vec![BTreeSet::new(); clients.len()];
    for round in 0..20 {
        // All questions are on their way before an answer is read.
        for (number, client) in clients.iter().enumerate() {
            client.send(format!("{number}/{round}").as_bytes()).await.unwrap();
        }
        for (number, client) in clients.iter().enumerate() {
            let mut buffer = [0; 2048];
            let length = timeout(Duration::from_secs(50), client.recv(&mut buffer)).await.unwrap().unwrap();
            let answer = String::from_utf8_lossy(&buffer[..length]).into_owned();
            assert!(answer.ends_with(&format!(" {number}/{round}")), "client {number} got {answer}");
            ways[number].insert(way(&answer));
        }
    }
    assert!(ways.iter().all(|ways| ways.len() == 1), "a session keeps its endpoint and socket");
    let all: BTreeSet<_> = ways.into_iter().flatten().collect();
    assert_eq!(all.len(), 300, "no two clients share a socket");
    for name in ["1", "2"] {
        let share = all.iter().filter(|way| way.starts_with(name)).count();
        assert!((100..=200).contains(&share), "endpoint {name} has {share} of 300");
    }
    let forwarded = udp.forwarded().await;
    assert_eq!((forwarded.begun, forwarded.open), (300, 300));
}

/// Clients do not take answers from anywhere else than they asked.
#[tokio::test]
async fn answers_come_from_the_address_that_was_asked() {
    let backend = echo("1").await;
    for any in ["0.0.0.0", "::"] {
        let mut udp =
            Udp::at(share(bound(any.parse().unwrap())), Settings { cores: 2, ..Settings::default() });
        let unserved = udp.apply(to(&[("app/one:1", 1)]), &[("app/one:1", &[backend])]).await;
        assert_eq!(unserved, Unserved::default());
        let addresses: &[&str] =
            if any == "::" { &["::1"] } else { &["127.0.0.1", "127.0.0.2", "127.1.2.3"] };
        let mut ways = BTreeSet::new();
        // One client's socket, which asks at each of the addresses: sessions of their own.
        let socket = UdpSocket::bind((any.parse::<IpAddr>().unwrap(), 0)).await.unwrap();
        for address in addresses {
            let at = SocketAddr::new(address.parse().unwrap(), udp.address.port());
            for _ in 0..3 {
                socket.send_to(b"x", at).await.unwrap();
                let mut buffer = [0; 2048];
                let received = timeout(Duration::from_secs(50), socket.recv_from(&mut buffer)).await;
                let (length, from) = received.unwrap().unwrap();
                assert_eq!(from, at);
                ways.insert(way(&String::from_utf8_lossy(&buffer[..length])));
            }
        }
        assert_eq!(ways.len(), addresses.len());
    }
}

#[tokio::test]
async fn datagrams_of_all_sizes_pass() {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut buffer = vec![0; 1 << 16];
        while let Ok((length, peer)) = socket.recv_from(&mut buffer).await {
            let _ = socket.send_to(&buffer[..length], peer).await;
        }
    });
    let udp = Udp::start(to(&[("app/one:1", 1)]), &[("app/one:1", &[address])]).await;
    let client = udp.client().await;
    for length in [0, 1, 512, 1472, 9000, 65_507] {
        let sent: Vec<u8> = (0..length).map(|_| fastrand::u8(..)).collect();
        client.send(&sent).await.unwrap();
        let mut buffer = vec![0; 1 << 16];
        let received = timeout(Duration::from_secs(50), client.recv(&mut buffer)).await.unwrap().unwrap();
        assert!(buffer[..received] == sent, "{received} of {length} bytes");
    }
}

#[tokio::test]
async fn sessions_end_when_they_are_idle() {
    let backend = echo("1").await;
    let l4 = L4 { udp_idle: Duration::from_secs(2), udp_unanswered: Duration::from_secs(1), ..L4::default() };
    let mut udp = Udp::with(Settings { cores: 1, l4, ..Settings::default() });
    udp.apply(to(&[("app/one:1", 1)]), &[("app/one:1", &[backend])]).await;
    let (idle, busy, unanswered) = (udp.client().await, udp.client().await, udp.client().await);
    let first = way(&ask(&idle, "x").await);
    let kept = way(&ask(&busy, "x").await);
    unanswered.send(b"quiet").await.unwrap();
    let began = Instant::now();
    while udp.ended(Ending::Idle).await == 0 {
        assert_eq!(way(&ask(&busy, "x").await), kept);
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(began.elapsed() < Duration::from_secs(50));
    }
    assert!(began.elapsed() >= Duration::from_secs(2), "{:?}", began.elapsed());
    assert_eq!((udp.ended(Ending::Unanswered).await, udp.forwarded().await.open), (1, 1));
    assert_ne!(way(&ask(&idle, "x").await), first);
    assert_eq!(way(&ask(&busy, "x").await), kept);
}

/// Senders without an answer are as many as there are ports; sessions with one stay.
#[tokio::test]
async fn a_flood_evicts_no_session_that_was_answered() {
    let backend = echo("1").await;
    // None ends by itself, however long this takes.
    let long = Duration::from_secs(3600);
    let l4 = L4 { udp_sessions: 64, udp_idle: long, udp_unanswered: long, ..L4::default() };
    let mut udp = Udp::with(Settings { cores: 1, l4, ..Settings::default() });
    udp.apply(to(&[("app/one:1", 1)]), &[("app/one:1", &[backend])]).await;
    let mut live = Vec::new();
    for number in 0..48 {
        let client = udp.client().await;
        let mut kept = way(&ask(&client, "x").await);
        // Some have asked once, some go on.
        if number % 2 == 0 {
            kept = way(&ask(&client, "x").await);
        }
        live.push((client, kept));
    }
    // They keep their ports, so that none is used twice.
    let mut flood = Vec::new();
    for round in 0..20 {
        for _ in 0..100 {
            let spoofed = udp.client().await;
            spoofed.send(b"quiet").await.unwrap();
            flood.push(spoofed);
        }
        if round % 5 == 0 {
            for (client, kept) in live.iter().step_by(2) {
                assert_eq!(way(&ask(client, "x").await), *kept);
            }
        }
        eventually("the flood is read", async || udp.forwarded().await.begun >= 48 + 100 * (round + 1)).await;
    }
    for (client, kept) in &live {
        assert_eq!(way(&ask(client, "x").await), *kept);
    }
    let forwarded = udp.forwarded().await;
    assert!(forwarded.open <= 64, "{forwarded:?}");
    assert_eq!(forwarded.endings, BTreeMap::from([(Ending::Evicted, 2048 - forwarded.open)]));
    drop(flood);
}

/// A client that has all sessions, each with an answer and a question after it.
async fn busy_clients(udp: &Udp, at: SocketAddr, number: usize) -> Vec<UdpSocket> {
    let mut clients = Vec::new();
    for _ in 0..number {
        let client = client_of(at).await;
        ask(&client, "x").await;
        ask(&client, "x").await;
        clients.push(client);
    }
    assert!(udp.forwarded().await.open > 0);
    clients
}

#[tokio::test]
async fn one_client_cannot_have_all_sessions() {
    let backend = echo("1").await;
    let l4 = L4 { udp_sessions: 16, ..L4::default() };
    let mut udp = Udp::with(Settings { cores: 1, l4, ..Settings::default() });
    udp.apply(to(&[("app/one:1", 1)]), &[("app/one:1", &[backend])]).await;
    let _others = busy_clients(&udp, udp.address, 16).await;
    for number in 0..8 {
        let other = UdpSocket::bind(("127.0.0.2", 0)).await.unwrap();
        other.connect(udp.address).await.unwrap();
        let kept = way(&ask(&other, "x").await);
        assert_eq!(way(&ask(&other, "x").await), kept, "{number}");
    }
    assert_eq!((udp.ended(Ending::Full).await, udp.ended(Ending::Evicted).await), (0, 8));
}

/// Of the ports of this machine the sessions have a part, whichever listeners they are of.
#[tokio::test]
async fn a_frontend_with_many_sessions_leaves_room_for_others() {
    let backend = echo("1").await;
    let l4 = L4 { udp_all_sessions: 16, ..L4::default() };
    let mut udp = Udp::with(Settings { cores: 1, l4, ..Settings::default() });
    let reserved = share(bound(Ipv4Addr::LOCALHOST.into()));
    let other = reserved.local_addr().unwrap();
    let rule = || to(&[("app/one:1", 1)]);
    let frontends = [(udp.address, rule()), (other, rule())];
    assert_eq!(udp.apply_all(&frontends, &[("app/one:1", &[backend])]).await, Unserved::default());
    drop(reserved);
    let _others = busy_clients(&udp, udp.address, 16).await;
    let mut flood = Vec::new();
    for _ in 0..8 {
        let client = client_of(other).await;
        assert!(ask(&client, "x").await.starts_with("1 "));
        flood.push(client);
    }
    assert_eq!(udp.ended_of(1, Ending::Full).await, 0);
    assert_eq!(udp.ended_of(0, Ending::Evicted).await, 8);
}

/// Each session sends to the other frontend, which begins another session.
#[tokio::test]
async fn datagrams_that_come_back_end() {
    let mut udp = Udp::with(Settings { cores: 2, ..Settings::default() });
    let reserved = share(bound(Ipv4Addr::LOCALHOST.into()));
    let there = reserved.local_addr().unwrap();
    let rules = [to(&[("app/there:1", 1)]), to(&[("app/here:1", 1)])];
    let frontends = [(udp.address, rules[0].clone()), (there, rules[1].clone())];
    let endpoints: [(&str, &[_]); 2] = [("app/there:1", &[there]), ("app/here:1", &[udp.address])];
    assert_eq!(udp.apply_all(&frontends, &endpoints).await, Unserved::default());
    drop(reserved);
    let client = udp.client().await;
    for round in 1..=5 {
        client.send(b"x").await.unwrap();
        eventually("it has come to an end", async || {
            udp.ended_of(0, Ending::Looped).await + udp.ended_of(1, Ending::Looped).await == round
        })
        .await;
    }
    let begun: u64 = udp.proxy.stats().await.listeners.values().map(|it| it.forwarded.begun).sum();
    assert!(begun <= 16, "{begun}");
}

/// Two services that answer whatever they get would do so for ever.
#[tokio::test]
async fn a_forged_sender_sets_no_two_frontends_on_each_other() {
    let backend = echo("1").await;
    for any in [false, true] {
        let mut udp = Udp::with(Settings { cores: 1, ..Settings::default() });
        // What an attacker does without a socket there.
        let forger = share(bound(Ipv4Addr::LOCALHOST.into()));
        forger.set_nonblocking(true).unwrap();
        let other = forger.local_addr().unwrap();
        let served = if any { SocketAddr::from(([0, 0, 0, 0], other.port())) } else { other };
        let frontends = [(udp.address, to(&[("app/one:1", 1)])), (served, to(&[("app/one:1", 1)]))];
        assert_eq!(udp.apply_all(&frontends, &[("app/one:1", &[backend])]).await, Unserved::default());
        let forger = UdpSocket::from_std(forger).unwrap();
        forger.send_to(b"x", udp.address).await.unwrap();
        eventually("it is lost", async || udp.ended(Ending::Looped).await == 1).await;
        assert!(ask(&udp.client().await, "x").await.starts_with("1 "));
        assert_eq!(udp.forwarded().await.begun, 1);
    }
}

/// One forged datagram to all of a network would have as many answers as there are nodes.
#[tokio::test]
async fn what_is_sent_to_all_is_for_none() {
    let backend = echo("1").await;
    let reserved = share(bound(Ipv4Addr::UNSPECIFIED.into()));
    let mut udp = Udp::at(reserved, Settings { cores: 1, ..Settings::default() });
    let unserved = udp.apply(to(&[("app/one:1", 1)]), &[("app/one:1", &[backend])]).await;
    assert_eq!(unserved, Unserved::default());
    let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    client.set_broadcast(true).unwrap();
    client.send_to(b"x", ("127.255.255.255", udp.address.port())).await.unwrap();
    client.connect(("127.0.0.1", udp.address.port())).await.unwrap();
    assert!(ask(&client, "y").await.ends_with(" y"));
    assert_eq!(udp.forwarded().await.begun, 1);
}

#[tokio::test]
async fn a_backend_that_sends_without_end_leaves_others_their_turn() {
    let backend = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let endpoint = backend.local_addr().unwrap();
    let other = echo("1").await;
    let mut udp = Udp::with(Settings { cores: 1, ..Settings::default() });
    let reserved = share(bound(Ipv4Addr::LOCALHOST.into()));
    let at = reserved.local_addr().unwrap();
    let frontends = [(udp.address, to(&[("app/one:1", 1)])), (at, to(&[("app/two:1", 1)]))];
    let endpoints: [(&str, &[_]); 2] = [("app/one:1", &[endpoint]), ("app/two:1", &[other])];
    assert_eq!(udp.apply_all(&frontends, &endpoints).await, Unserved::default());
    drop(reserved);
    let client = udp.client().await;
    client.send(b"x").await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let flood = {
        let stop = stop.clone();
        std::thread::spawn(move || {
            let (_, session) = backend.recv_from(&mut [0; 16]).unwrap();
            backend.connect(session).unwrap();
            while !stop.load(Relaxed) {
                let _ = backend.send(&[0; 16]);
            }
        })
    };
    let asked = client_of(at).await;
    for _ in 0..20 {
        assert!(ask(&asked, "x").await.starts_with("1 "));
    }
    stop.store(true, Relaxed);
    flood.join().unwrap();
}

#[tokio::test]
async fn an_endpoint_that_is_not_there_is_left() {
    // No other socket gets the port, and what this one is not connected to does not reach it.
    let elsewhere = bound(Ipv4Addr::LOCALHOST.into());
    let reserved = bound(Ipv4Addr::LOCALHOST.into());
    reserved.connect(elsewhere.local_addr().unwrap()).unwrap();
    let closed = reserved.local_addr().unwrap();
    let open = echo("1").await;
    let udp = Udp::start(to(&[("app/one:1", 1)]), &[("app/one:1", &[closed, open])]).await;
    for _ in 0..20 {
        let client = udp.client().await;
        assert!(ask_again(&client, "x").await.starts_with("1 "));
    }
    assert!(udp.ended(Ending::BackendUnreachable).await >= 1);
}

#[tokio::test]
async fn sessions_keep_their_endpoint_as_long_as_there_is_one() {
    let (one, two, three) = (echo("1").await, echo("2").await, echo("3").await);
    let rule = || to(&[("app/one:1", 1)]);
    let mut udp = Udp::start(rule(), &[("app/one:1", &[one, two])]).await;
    let mut clients = Vec::new();
    for _ in 0..20 {
        let client = udp.client().await;
        let kept = way(&ask(&client, "x").await);
        clients.push((client, kept));
    }
    // Another endpoint, and another rule that leads to the same.
    udp.apply(
        to(&[("app/one:1", 1), ("app/two:1", 1)]),
        &[("app/one:1", &[one, two, three]), ("app/two:1", &[three])],
    )
    .await;
    for (client, kept) in &clients {
        assert_eq!(way(&ask(client, "x").await), *kept);
    }
    // One endpoint less.
    udp.apply(rule(), &[("app/one:1", &[two, three])]).await;
    for (client, kept) in &clients {
        let now = way(&ask(client, "x").await);
        assert!(!now.starts_with('1'), "{now}");
        assert!(now == *kept || kept.starts_with('1'), "{now}");
    }
    // Another backend, at the same endpoint.
    let before = udp.forwarded().await.begun;
    udp.apply(to(&[("app/two:1", 1)]), &[("app/one:1", &[two, three]), ("app/two:1", &[three])]).await;
    for (client, _) in &clients {
        assert!(ask(client, "x").await.starts_with('3'));
    }
    assert_eq!(udp.forwarded().await.begun, before + 20);
}

#[tokio::test]
async fn backends_get_their_share_and_what_has_none_is_counted() {
    let (one, two) = (echo("1").await, echo("2").await);
    let rule = to(&[("app/one:1", 1), ("app/two:1", 3), ("", 4)]);
    let mut udp = Udp::start(rule, &[("app/one:1", &[one]), ("app/two:1", &[two])]).await;
    let (mut counts, mut refused) = (BTreeMap::<u8, u64>::new(), 0);
    for round in 1..=16 {
        // No more at once than sockets hold.
        let mut waiting = Vec::new();
        for _ in 0..50 {
            let client = udp.client().await;
            client.send(b"x").await.unwrap();
            waiting.push(client);
        }
        eventually("each is answered or counted", async || {
            let mut buffer = [0; 2048];
            waiting.retain(|client| {
                let answered = client.try_recv(&mut buffer).is_ok();
                if answered {
                    *counts.entry(buffer[0]).or_default() += 1;
                }
                !answered
            });
            refused = udp.ended(Ending::Rule).await;
            refused + counts.values().sum::<u64>() >= 50 * round
        })
        .await;
    }
    counts.insert(b'-', refused);
    assert_eq!(counts.values().sum::<u64>(), 800, "{counts:?}");
    for (answer, expected) in [(b'1', 100), (b'2', 300), (b'-', 400)] {
        assert!((expected - 80..=expected + 80).contains(&counts[&answer]), "{counts:?}");
    }
    let refuse = rule_without_backend();
    udp.apply(refuse, &[]).await;
    let client = udp.client().await;
    client.send(b"x").await.unwrap();
    eventually("it is counted", async || udp.ended(Ending::Rule).await == refused + 1).await;
}

fn rule_without_backend() -> Arc<L4Rule> {
    rule(L4Action::Refuse("the rule has no backendRefs".into()))
}

/// The address is free at once or nearly, and an answer that is on its way arrives.
#[tokio::test]
async fn a_listener_that_is_gone_gives_its_last_answers() {
    let backend = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let endpoint = backend.local_addr().unwrap();
    let udp = Udp::start(to(&[("app/one:1", 1)]), &[("app/one:1", &[endpoint])]).await;
    let client = udp.client().await;
    client.send(b"x").await.unwrap();
    let mut buffer = [0; 16];
    let (_, session) = backend.recv_from(&mut buffer).await.unwrap();
    assert_eq!(udp.proxy.apply(Arc::default()).await, Unserved::default());
    backend.send_to(b"late", session).await.unwrap();
    let length = timeout(Duration::from_secs(50), client.recv(&mut buffer)).await.unwrap().unwrap();
    assert_eq!(&buffer[..length], b"late");
    eventually("the address is free", async || StdUdpSocket::bind(udp.address).is_ok()).await;
}

#[tokio::test]
async fn a_drain_takes_no_longer_than_the_last_answers() {
    let backend = echo("1").await;
    let udp = Udp::start(to(&[("app/one:1", 1)]), &[("app/one:1", &[backend])]).await;
    let (answered, waiting) = (udp.client().await, udp.client().await);
    ask(&answered, "x").await;
    waiting.send(b"quiet").await.unwrap();
    eventually("it has a session", async || udp.forwarded().await.open == 2).await;
    let began = Instant::now();
    udp.proxy.drain().await;
    // Others have half a minute.
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
}

#[tokio::test]
async fn an_address_that_is_taken_is_not_served() {
    let taken = bound(Ipv4Addr::LOCALHOST.into());
    let mut udp = Udp::at(taken.try_clone().unwrap(), Settings { cores: 2, ..Settings::default() });
    let unserved = udp.apply(to(&[("app/one:1", 1)]), &[]).await;
    let [(frontend, why)] = unserved.frontends.iter().collect::<Vec<_>>()[..] else { panic!("{unserved:?}") };
    assert_eq!((frontend.protocol, frontend.socket_address()), (L4Protocol::Udp, udp.address));
    assert!(why.starts_with(&format!("cannot bind {}: ", udp.address)), "{why}");
    // The next snapshot tries again.
    udp.reserved = Some(share(taken));
    let backend = echo("1").await;
    let unserved = udp.apply(to(&[("app/one:1", 1)]), &[("app/one:1", &[backend])]).await;
    assert_eq!(unserved, Unserved::default());
    assert!(ask(&udp.client().await, "x").await.starts_with("1 "));
}

#[tokio::test]
async fn sessions_have_lines_in_the_access_log() {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let access_log = LogOutput::File(Arc::new(File::from(OwnedFd::from(writer))));
    let mut udp = Udp::with(Settings { cores: 1, access_log, ..Settings::default() });
    udp.log = Some(AccessLog::default());
    let backend = echo("1").await;
    udp.apply(to(&[("app/one:1", 1)]), &[("app/one:1", &[backend])]).await;
    let client = udp.client().await;
    let sent = ask(&client, "hello").await.len();
    udp.proxy.drain().await;
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    let line: serde_json::Value = serde_json::from_str(text.trim_end()).unwrap();
    for (field, value) in [
        ("listener", "Gateway infra/web listener udp-0"),
        ("protocol", "UDP"),
        ("backend", "app/one:1"),
        ("ended", "stopped"),
        ("client", &client.local_addr().unwrap().to_string()),
        ("endpoint", &backend.to_string()),
    ] {
        assert_eq!(line[field], value, "{line}");
    }
    assert_eq!((&line["received"], &line["sent"]), (&5.into(), &sent.into()), "{line}");
}

/// A frontend of all cores is one address: whichever core has the client keeps it.
#[tokio::test]
async fn what_backends_send_by_themselves_reaches_no_client() {
    let (seen, mut sessions) = mpsc::unbounded_channel();
    let backend = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let endpoint = backend.local_addr().unwrap();
    let udp = Udp::start(to(&[("app/one:1", 1)]), &[("app/one:1", &[endpoint])]).await;
    tokio::spawn(async move {
        let mut buffer = [0; 16];
        while let Ok((_, peer)) = backend.recv_from(&mut buffer).await {
            let _ = backend.send_to(b"answer", peer).await;
            seen.send(peer).unwrap();
        }
    });
    let client = udp.client().await;
    assert_eq!(ask(&client, "x").await, "answer");
    let session = sessions.recv().await.unwrap();
    // Another process that knows the session's port.
    let stranger = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    stranger.send_to(b"forged", session).await.unwrap();
    assert_eq!(ask(&client, "x").await, "answer");
    assert_eq!(client.try_recv(&mut [0; 16]).unwrap_err().kind(), ErrorKind::WouldBlock);
}
