//! A client, a node that forwards, and backends, each in a namespace. Servers say who they are and
//! whom they see, and then send back what comes.

pub(crate) mod spoof;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use aya::maps::{Map, MapData};
use portcullis_model::{FrontendKey, L4Protocol, PortKey};
use portcullis_node::{
    Affinity, Datapath, ForwardTable, Forwarding, ForwardingSettings, L4Frontends, Reason,
};
use socket2::{Domain, Protocol, Socket, Type};

use crate::support::{Client, ip, open, options};

pub(crate) const PORT: u16 = 80;
pub(crate) const BACKEND_PORT: u16 = 8080;
const TIMEOUT: Duration = Duration::from_secs(60);

/// Addresses of one family.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Family {
    pub(crate) vip: &'static str,
    pub(crate) other_vip: &'static str,
    pub(crate) backend: &'static str,
    /// As backends see it.
    pub(crate) node: &'static str,
}

pub(crate) const FAMILIES: [Family; 2] = [
    Family { vip: "10.50.0.1", other_vip: "10.50.0.2", backend: "10.98.0.2", node: "10.98.0.1" },
    Family { vip: "fd50::1", other_vip: "fd50::2", backend: "fd98::2", node: "fd98::1" },
];

pub(crate) struct World {
    pub(crate) client: Client,
    pub(crate) backends: Client,
    pub(crate) datapath: Datapath,
    pub(crate) forwarding: Forwarding,
}

pub(crate) fn settings() -> ForwardingSettings {
    with_ports(61_000..=65_535)
}

pub(crate) fn with_ports(ports: RangeInclusive<u16>) -> ForwardingSettings {
    ForwardingSettings {
        ports,
        tcp_idle: Duration::from_secs(3600),
        udp_idle: Duration::from_secs(60),
        drain: Duration::from_secs(30),
    }
}

impl World {
    /// All that is needed, and all of it is forwarded.
    pub(crate) fn new(pin_dir: &Path, settings: ForwardingSettings) -> Self {
        Self::over(pin_dir, settings, |_, _| {})
    }

    /// The same over another network: it is laid between this node, the client and the backends
    /// before programs are there.
    pub(crate) fn over(
        pin_dir: &Path,
        settings: ForwardingSettings,
        lay: impl FnOnce(&Client, &Client),
    ) -> Self {
        for family in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
            std::fs::write(Path::new("/proc/sys/net").join(family), "1").unwrap();
        }
        let (client, backends) = (Client::new(), Client::on("back0", 98));
        lay(&client, &backends);
        for family in FAMILIES {
            for vip in [family.vip, family.other_vip] {
                ip(&format!("addr add {vip} dev lo{}", if vip.contains(':') { " nodad" } else { "" }));
                serve("node", vip, PORT);
            }
            backends.enter(|| serve("backend", family.backend, BACKEND_PORT));
        }
        let datapath = open(&options(pin_dir));
        let forwarding = Forwarding::open(&datapath, settings).unwrap();
        let mut world = Self { client, backends, datapath, forwarding };
        world.forward_all();
        world
    }

    pub(crate) fn forward_all(&mut self) {
        self.forward_to(BACKEND_PORT);
    }

    pub(crate) fn forward_to(&mut self, port: u16) {
        self.forward_to_all(&[port], Affinity::Connection);
    }

    pub(crate) fn forward_to_all(&mut self, ports: &[u16], affinity: Affinity) {
        let backends = |family: &Family| ports.iter().map(|port| at(family.backend, *port)).collect();
        self.forward_to_each(backends, affinity);
    }

    /// To one backend with IPv4, and to none with IPv6.
    pub(crate) fn forward_to_v4(&mut self, backend: SocketAddr) {
        let backends = |family: &Family| if family.vip.contains(':') { vec![] } else { vec![backend] };
        self.forward_to_each(backends, Affinity::Connection);
    }

    /// Datagrams to ports of an address, each to a backend of its own.
    pub(crate) fn forward_ports(&mut self, ports: &[(u16, &str)]) {
        let vip = FAMILIES[0].vip.parse().unwrap();
        let table = |(number, backend): &(u16, &str)| ForwardTable {
            frontends: [FrontendKey::new(vip, PortKey { protocol: L4Protocol::Udp, number: *number })].into(),
            backends: [(backend.parse().unwrap(), 1)].into(),
            affinity: Affinity::Connection,
        };
        let tables: Vec<_> = ports.iter().map(table).collect();
        let served = tables.iter().flat_map(|table| table.frontends.clone()).collect();
        let listeners = L4Frontends { served, ..L4Frontends::default() };
        self.forwarding.apply(tables, &listeners, Instant::now());
    }

    fn forward_to_each(&mut self, backends: impl Fn(&Family) -> Vec<SocketAddr>, affinity: Affinity) {
        let tables = FAMILIES.map(|family| {
            [L4::Tcp, L4::Udp].map(|l4| ForwardTable {
                frontends: [family.vip, family.other_vip].map(|vip| frontend(l4, vip)).into(),
                backends: backends(&family).into_iter().map(|backend| (backend, 1)).collect(),
                affinity,
            })
        });
        let tables = tables.concat();
        let served = tables.iter().flat_map(|table| table.frontends.clone()).collect();
        let listeners = L4Frontends { served, ..L4Frontends::default() };
        self.forwarding.apply(tables, &listeners, Instant::now());
    }

    /// No new flows, though everything is served.
    pub(crate) fn stop(&mut self) {
        let vips = FAMILIES.iter().flat_map(|family| [family.vip, family.other_vip]);
        let served = vips.flat_map(|vip| [L4::Tcp, L4::Udp].map(|l4| frontend(l4, vip)));
        let listeners = L4Frontends { served: served.collect(), ..L4Frontends::default() };
        self.forwarding.apply(Vec::new(), &listeners, Instant::now());
    }

    /// As [`World::stop`], and datagrams are judged.
    pub(crate) fn judge(&mut self) {
        let vips = FAMILIES.iter().flat_map(|family| [family.vip, family.other_vip]);
        let served: BTreeSet<_> =
            vips.flat_map(|vip| [L4::Tcp, L4::Udp].map(|l4| frontend(l4, vip))).collect();
        let is_udp = |frontend: &&FrontendKey| frontend.protocol == L4Protocol::Udp;
        let judged = served.iter().filter(is_udp).copied().collect();
        self.forwarding.apply(Vec::new(), &L4Frontends { served, judged }, Instant::now());
    }

    /// Nothing is served any more.
    pub(crate) fn leave(&mut self) {
        self.forwarding.apply(Vec::new(), &L4Frontends::default(), Instant::now());
    }

    pub(crate) fn count(&self, reason: Reason) -> u64 {
        self.datapath.counters().unwrap().into_iter().find(|(it, _)| *it == reason).unwrap().1
    }

    pub(crate) fn connect(&self, vip: &str) -> Connection {
        Connection::by(&self.client, vip)
    }

    /// From a port of the client's choice.
    pub(crate) fn connect_from(&self, client: &Client, from: SocketAddr, vip: &str) -> Connection {
        let stream = client.enter(|| {
            let socket = Socket::new(Domain::for_address(from), Type::STREAM, Some(Protocol::TCP)).unwrap();
            socket.set_reuse_address(true).unwrap();
            socket.bind(&from.into()).unwrap();
            socket.connect_timeout(&at(vip, PORT).into(), TIMEOUT).unwrap();
            TcpStream::from(socket)
        });
        Connection::new(stream)
    }

    pub(crate) fn datagrams(&self, vip: &str) -> Datagrams {
        let any = if vip.contains(':') { "::" } else { "0.0.0.0" };
        let socket = self.client.enter(|| UdpSocket::bind((any, 0)).unwrap());
        socket.connect(at(vip, PORT)).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        Datagrams(socket)
    }
}

/// A client's connection, and what the server has said of itself.
pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    /// `backend` or `node`.
    pub(crate) server: String,
    /// The client as the server sees it.
    pub(crate) seen: SocketAddr,
}

impl Connection {
    pub(crate) fn by(client: &Client, vip: &str) -> Self {
        Self::new(client.connect(at(vip, PORT)).unwrap())
    }

    fn new(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_nodelay(true).unwrap();
        let mut line = Vec::new();
        let mut byte = [0];
        while byte[0] != b'\n' {
            (&stream).read_exact(&mut byte).unwrap();
            line.push(byte[0]);
        }
        let (server, seen) = said(&String::from_utf8(line).unwrap());
        Self { stream, server, seen }
    }

    /// Sends something and waits for it to come back.
    pub(crate) fn echo(&mut self) -> std::io::Result<()> {
        self.stream.write_all(b"echo")?;
        let mut answer = [0; 4];
        self.stream.read_exact(&mut answer)?;
        assert_eq!(&answer, b"echo");
        Ok(())
    }
}

pub(crate) struct Datagrams(pub(crate) UdpSocket);

impl Datagrams {
    /// The server that answers, and the client as it sees it.
    pub(crate) fn ask(&self, length: usize) -> (String, SocketAddr) {
        let question: Vec<_> = (0..length).map(|at| at as u8).collect();
        self.0.send(&question).unwrap();
        let mut answer = vec![0; 70_000];
        let read = self.0.recv(&mut answer).unwrap();
        let end = answer.iter().position(|byte| *byte == b'\n').unwrap();
        assert_eq!(&answer[end + 1..read], question);
        said(std::str::from_utf8(&answer[..=end]).unwrap())
    }
}

fn said(line: &str) -> (String, SocketAddr) {
    let (server, seen) = line.trim().split_once(' ').unwrap();
    (server.to_owned(), seen.parse().unwrap())
}

pub(crate) fn at(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse().unwrap(), port)
}

#[derive(Clone, Copy)]
enum L4 {
    Tcp,
    Udp,
}

fn frontend(l4: L4, vip: &str) -> FrontendKey {
    let port = match l4 {
        L4::Tcp => PortKey::tcp(PORT),
        L4::Udp => PortKey { protocol: L4Protocol::Udp, number: PORT },
    };
    FrontendKey::new(vip.parse().unwrap(), port)
}

/// Servers live as long as the test's process, in the namespace in which they were begun.
pub(crate) fn serve(name: &'static str, address: &str, port: u16) {
    let address = at(address, port);
    let listener = TcpListener::bind(address).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || echo(name, stream));
        }
    });
    let socket = UdpSocket::bind(address).unwrap();
    thread::spawn(move || {
        let mut buffer = vec![0; 70_000];
        while let Ok((length, peer)) = socket.recv_from(&mut buffer) {
            let answer = [format!("{name} {peer}\n").as_bytes(), &buffer[..length]].concat();
            _ = socket.send_to(&answer, peer);
        }
    });
}

fn echo(name: &str, mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let peer = stream.peer_addr()?;
    stream.write_all(format!("{name} {peer}\n").as_bytes())?;
    let mut reader = BufReader::with_capacity(1 << 18, stream.try_clone()?);
    loop {
        let length = {
            let bytes = reader.fill_buf()?;
            stream.write_all(bytes)?;
            bytes.len()
        };
        if length == 0 {
            return stream.shutdown(Shutdown::Write);
        }
        reader.consume(length);
    }
}

/// The entries of confirmed flows.
pub(crate) fn flows(pin_dir: &Path) -> aya::maps::HashMap<MapData, [u8; 40], [u8; 56]> {
    let pin = pins(pin_dir).into_iter().find(|pin| pin.ends_with("FLOWS")).unwrap();
    Map::HashMap(MapData::from_pin(pin).unwrap()).try_into().unwrap()
}

/// The number of pinned maps of forwarding.
pub(crate) fn maps(pin_dir: &Path) -> usize {
    let names = pins(pin_dir).into_iter().filter_map(|pin| Some(pin.file_name()?.to_str()?.to_owned()));
    names
        .filter(|name| name.starts_with("FORWARD_") || name.ends_with("FLOWS") || name == "FRAGMENTS")
        .count()
}

fn pins(pin_dir: &Path) -> Vec<PathBuf> {
    let inside = |path: &PathBuf| std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    let versions: Vec<_> = inside(&pin_dir.to_owned()).collect();
    let namespaces: Vec<_> = versions.iter().flat_map(inside).collect();
    namespaces.iter().flat_map(inside).collect()
}
