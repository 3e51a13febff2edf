//! Addresses of Gateways alone: what no listener has is refused, wherever it comes from and however
//! it is packed, and never reaches a program that listens on all addresses of the node.
#![expect(unsafe_code, reason = "the options of IPv6 packets have no safe wrapper")]

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use portcullis_node::{Desired, Reason, Sharing};
use socket2::{Domain, Socket, Type};

use crate::support::{Client, Cores, ip, isolated, open, options, tcp};

/// A port on which a program of the node listens everywhere.
const DAEMON: u16 = 22;
const VIPS: [&str; 2] = ["10.50.0.1", "fd50::1"];
/// Sooner than the kernel tries again.
const SOON: Duration = Duration::from_millis(900);

/// sshd, a kubelet, a resolver: they listen on every address.
struct Daemon {
    tcp: Vec<TcpListener>,
    udp: Vec<UdpSocket>,
}

impl Daemon {
    fn start() -> Self {
        let everywhere = ["0.0.0.0", "::"].map(|address| SocketAddr::new(address.parse().unwrap(), DAEMON));
        let socket = |address: SocketAddr, kind: Type| {
            let socket = Socket::new(Domain::for_address(address), kind, None).unwrap();
            if address.is_ipv6() {
                socket.set_only_v6(true).unwrap();
            }
            socket.bind(&address.into()).unwrap();
            socket.set_nonblocking(true).unwrap();
            socket
        };
        let listen = |address| {
            let socket = socket(address, Type::STREAM);
            socket.listen(16).unwrap();
            TcpListener::from(socket)
        };
        let datagrams = |address| UdpSocket::from(socket(address, Type::DGRAM));
        Self { tcp: everywhere.map(listen).into(), udp: everywhere.map(datagrams).into() }
    }

    /// Connections and datagrams that have come since the last time.
    fn reached(&self) -> usize {
        let connections = self.tcp.iter().flat_map(|it| std::iter::from_fn(|| it.accept().ok())).count();
        let mut buffer = [0; 8192];
        let mut datagrams = 0;
        for socket in &self.udp {
            while socket.recv(&mut buffer).is_ok() {
                datagrams += 1;
            }
        }
        connections + datagrams
    }
}

/// The packing of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Plain,
    /// An IPv6 destination options header before TCP and UDP.
    Options,
    Fragments,
}

/// Sends a datagram, and returns what the sender hears of it.
fn udp(address: SocketAddr, form: Form) -> io::Result<()> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, None)?;
    if form == Form::Options {
        set_destination_options(&socket)?;
    }
    socket.set_read_timeout(Some(Duration::from_secs(60)))?;
    socket.connect(&address.into())?;
    let length = if form == Form::Fragments { 4000 } else { 10 };
    socket.send(&vec![7; length])?;
    UdpSocket::from(socket).recv(&mut [0; 10]).map(drop)
}

/// Tries to connect.
fn connect(address: SocketAddr, form: Form) -> io::Result<()> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    if form == Form::Options {
        set_destination_options(&socket)?;
    }
    if form == Form::Fragments {
        // A header of 60 bytes, and more behind it than the interface takes at once.
        set_option(&socket, libc::IPPROTO_IP, libc::IP_OPTIONS, &[1; 40])?;
        set_option(&socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, &libc::IP_PMTUDISC_DONT.to_ne_bytes())?;
    }
    socket.connect_timeout(&address.into(), Duration::from_secs(60))
}

/// A header of 8 bytes: next header, length, and padding (`PadN`).
fn set_destination_options(socket: &Socket) -> io::Result<()> {
    set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_DSTOPTS, &[0, 0, 1, 4, 0, 0, 0, 0])
}

fn set_option(socket: &Socket, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
    let (value, length) = (value.as_ptr().cast(), value.len() as libc::socklen_t);
    // SAFETY: the value is as long as it is said to be, and is only read.
    match unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, value, length) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Probes from where it is called; `place` is its name. A SYN in fragments needs an interface that
/// takes less at once.
fn probe(place: &str, daemon: &Daemon) {
    for vip in VIPS {
        let address = SocketAddr::new(vip.parse().unwrap(), DAEMON);
        for form in [Form::Plain, Form::Options, Form::Fragments] {
            if form == Form::Options && address.is_ipv4() {
                continue;
            }
            if form != Form::Fragments {
                let begun = Instant::now();
                let refused = connect(address, form).map_err(|error| error.kind());
                assert_eq!(refused, Err(ErrorKind::ConnectionRefused), "TCP {form:?} from {place} to {vip}");
                assert!(begun.elapsed() < SOON, "TCP {form:?} from {place} to {vip}: {:?}", begun.elapsed());
            }
            let refused = udp(address, form).map_err(|error| error.kind());
            assert_eq!(refused, Err(ErrorKind::ConnectionRefused), "UDP {form:?} from {place} to {vip}");
        }
    }
    assert_eq!(daemon.reached(), 0, "from {place}");
}

#[test]
fn what_no_listener_has_is_refused_from_everywhere() {
    isolated(|pin_dir| {
        let (uplink, pod) = (Client::new(), Client::on("pod0", 98));
        let daemon = Daemon::start();
        ip("addr add 10.50.0.1/32 dev lo");
        ip("addr add fd50::1/128 dev lo");
        let exclusive = VIPS.map(|vip| (vip.parse().unwrap(), Sharing::Exclusive));
        let frontends = VIPS.map(|vip| tcp(&SocketAddr::new(vip.parse().unwrap(), 443).to_string()));
        let cores = Cores::new(2);
        let mut datapath = open(&options(pin_dir));
        datapath.set_sockets(&cores.sockets()).unwrap();
        datapath.apply(&Desired::new(frontends, exclusive)).unwrap();
        assert_eq!(datapath.attachments().count(), 1, "no packet guard");

        probe("node", &daemon);
        for (place, client) in [("uplink", &uplink), ("pod", &pod)] {
            client.enter(|| probe(place, &daemon));
        }
        let counters: BTreeMap<_, _> = datapath.counters().unwrap().into_iter().collect();
        assert!(counters[&Reason::RefusedNoListener] >= 3 * 8, "{counters:?}");

        // Listeners, and the node's own addresses, as before.
        for (client, own) in [(&uplink, ["10.99.0.1", "fd99::1"]), (&pod, ["10.98.0.1", "fd98::1"])] {
            for vip in VIPS {
                client.connect(SocketAddr::new(vip.parse().unwrap(), 443)).unwrap();
                cores.accept();
            }
            for own in own {
                client.connect(SocketAddr::new(own.parse().unwrap(), DAEMON)).unwrap();
            }
            assert_eq!(daemon.reached(), 2);
        }
        for (place, client) in [("uplink", &uplink), ("pod", &pod)] {
            // IPv6 ends here, which wants 1280.
            client.enter(|| ip("link set client0 mtu 80"));
            let address = SocketAddr::new(VIPS[0].parse().unwrap(), DAEMON);
            let refused = client.enter(|| connect(address, Form::Fragments).map_err(|error| error.kind()));
            assert_eq!(refused, Err(ErrorKind::ConnectionRefused), "a SYN in fragments from {place}");
        }
        assert_eq!(daemon.reached(), 0);
    });
}
