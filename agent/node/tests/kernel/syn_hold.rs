//! New connections while no agent serves: they wait for the next one, for a while.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use portcullis_model::FrontendKey;
use portcullis_node::vips::{Arp, Everywhere, Tracking};
use portcullis_node::{Choice, Interfaces, Node, Settings, clean};

use crate::support::{Client, Cores, close, isolated, nft, tcp};

/// On two VIPs, and on all addresses.
const ADDRESSES: [&str; 4] = ["10.50.0.1:443", "[fd50::1]:443", "10.99.0.1:8080", "[fd99::1]:8080"];
/// For what is held.
const SHORT: Duration = Duration::from_millis(300);
/// For what has an answer: sooner than the client's kernel asks again.
const SOON: Duration = Duration::from_millis(900);

fn frontends() -> BTreeSet<FrontendKey> {
    ["10.50.0.1:443", "[fd50::1]:443", "0.0.0.0:8080", "[::]:8080"].map(tcp).into()
}

fn agent(pin_dir: &Path, cores: &Cores, hold: Option<Duration>) -> Node {
    serving(pin_dir, cores, hold, &frontends())
}

fn serving(pin_dir: &Path, cores: &Cores, hold: Option<Duration>, frontends: &BTreeSet<FrontendKey>) -> Node {
    let settings = Settings {
        steering: Choice::Programs,
        pin_dir: pin_dir.to_owned(),
        interfaces: Interfaces::None,
        name_interfaces: Interfaces::None,
        unknown_names: None,
        tracking: Tracking::Off,
        arp: Arp::Untouched,
        syn_hold: hold,
        everywhere: Everywhere::All,
        forwarding: None,
        drain: Duration::ZERO,
        locks: Arc::default(),
    };
    let node = Node::open(&settings).unwrap();
    node.set_sockets(&cores.sockets()).unwrap();
    assert!(node.prepare(frontends, &BTreeSet::new()).is_empty());
    assert!(node.serve(frontends.clone()).is_empty());
    node
}

fn connect(client: &Client, address: &str) -> Result<(), ErrorKind> {
    connect_within(client, address, SOON)
}

/// The fate of a connection that is held, or is not.
fn connect_if_let(client: &Client, address: &str) -> Result<(), ErrorKind> {
    connect_within(client, address, SHORT)
}

fn connect_within(client: &Client, address: &str, time: Duration) -> Result<(), ErrorKind> {
    client.connect_within(address.parse().unwrap(), time).map(drop).map_err(|error| error.kind())
}

fn assert_served(client: &Client, cores: &Cores) {
    for address in ADDRESSES {
        assert_eq!(connect(client, address), Ok(()), "{address}");
        cores.accept();
    }
}

#[test]
fn connections_wait_for_the_next_agent() {
    isolated(|pin_dir| {
        let (client, hold) = (Client::new(), Some(Duration::from_secs(60)));
        let cores = Cores::new(1);
        let node = agent(pin_dir, &cores, hold);
        assert_served(&client, &cores);
        node.tend();
        assert_served(&client, &cores);
        let rules = nft("list table inet portcullis");
        assert!(rules.contains("tcp timeout 1m30s") && rules.contains("10.50.0.1 . tcp . 443"), "{rules}");

        // As after kill -9.
        close((node, cores));
        for address in ADDRESSES {
            assert_eq!(connect_if_let(&client, address), Err(ErrorKind::TimedOut), "{address}");
        }
        for address in ["10.50.0.1:444", "10.99.0.1:444", "[fd50::1]:444"] {
            assert_eq!(connect(&client, address), Err(ErrorKind::ConnectionRefused), "{address}");
        }
        let _ssh = TcpListener::bind("10.99.0.1:22").unwrap();
        assert_eq!(connect(&client, "10.99.0.1:22"), Ok(()));

        let (waited, started) = thread::scope(|scope| {
            let begun = Instant::now();
            let waiting = ADDRESSES.map(|address| {
                let client = &client;
                scope.spawn(move || client.connect(address.parse().unwrap()).map(|_| begun.elapsed()))
            });
            let cores = Cores::new(1);
            let node = agent(pin_dir, &cores, hold);
            let started = begun.elapsed();
            let waited = waiting.map(|waiting| waiting.join().unwrap().unwrap());
            ADDRESSES.iter().for_each(|_| drop(cores.accept()));
            assert_served(&client, &cores);
            close((node, cores));
            (waited, started)
        });
        // Sent again after one second, and after twice as long each time.
        let most = 2 * started + Duration::from_secs(3);
        assert!(waited.iter().all(|it| *it < most), "{waited:?}, {started:?} for the agent");
        assert_eq!(clean(pin_dir).problems, Vec::<String>::new());
        assert_eq!(nft("list ruleset"), "");
    });
}

#[test]
fn an_agent_that_drains_holds_what_comes() {
    isolated(|pin_dir| {
        let (client, cores) = (Client::new(), Cores::new(1));
        let node = agent(pin_dir, &cores, Some(Duration::from_secs(60)));
        node.stop_serving();
        assert_eq!(connect_if_let(&client, ADDRESSES[0]), Err(ErrorKind::TimedOut));
        let next_cores = Cores::new(1);
        close(node);
        let _next = agent(pin_dir, &next_cores, Some(Duration::from_secs(60)));
        assert_served(&client, &next_cores);
    });
}

#[test]
fn the_hold_ends_by_itself() {
    isolated(|pin_dir| {
        let (client, cores) = (Client::new(), Cores::new(1));
        let node = agent(pin_dir, &cores, Some(Duration::from_secs(1)));
        close((node, cores));
        assert_eq!(connect_if_let(&client, ADDRESSES[0]), Err(ErrorKind::TimedOut));
        let deadline = Instant::now() + Duration::from_secs(60);
        while connect_if_let(&client, ADDRESSES[0]) != Err(ErrorKind::ConnectionRefused) {
            assert!(Instant::now() < deadline, "it is held still");
        }
    });
}

#[test]
fn without_hold_connections_are_refused_at_once() {
    isolated(|pin_dir| {
        let (client, cores) = (Client::new(), Cores::new(1));
        let node = agent(pin_dir, &cores, None);
        assert_served(&client, &cores);
        close((node, cores));
        assert_eq!(connect(&client, ADDRESSES[0]), Err(ErrorKind::ConnectionRefused));
    });
}

#[test]
fn an_agent_without_hold_ends_that_of_an_earlier_one() {
    isolated(|pin_dir| {
        let (client, cores) = (Client::new(), Cores::new(1));
        close((agent(pin_dir, &cores, Some(Duration::from_secs(60))), cores));
        assert_eq!(connect_if_let(&client, ADDRESSES[0]), Err(ErrorKind::TimedOut));
        let cores = Cores::new(1);
        let node = agent(pin_dir, &cores, None);
        assert_served(&client, &cores);
        close((node, cores));
        assert_eq!(connect(&client, ADDRESSES[0]), Err(ErrorKind::ConnectionRefused));
    });
}

/// A program that listens on all addresses of the other family has nothing to do with it.
#[test]
fn a_frontend_on_all_addresses_is_held_in_its_own_family() {
    isolated(|pin_dir| {
        let (client, cores) = (Client::new(), Cores::new(1));
        let frontends = BTreeSet::from([tcp("0.0.0.0:8080")]);
        let node = serving(pin_dir, &cores, Some(Duration::from_secs(60)), &frontends);
        let _other = TcpListener::bind("[fd99::1]:8080").unwrap();
        close((node, cores));
        assert_eq!(connect_if_let(&client, "10.99.0.1:8080"), Err(ErrorKind::TimedOut));
        assert_eq!(connect(&client, "[fd99::1]:8080"), Ok(()));
    });
}
