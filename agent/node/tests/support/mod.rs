//! Namespaces for tests: each has its own network, its own BPF file system and nothing in common
//! with the machine. They die with their thread, so a killed run leaves nothing behind.
#![cfg(test)]

use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use portcullis_model::{FrontendKey, SpeaksFirst};
use portcullis_node::{CoreSockets, Datapath, Interfaces, Options, Unavailable};
use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};
use socket2::{Domain, SockRef, Socket, Type};

/// Runs a test in a network and mount namespace of its own. It is given the base of its pin
/// directory.
pub(crate) fn isolated(test: impl FnOnce(&Path) + Send) {
    assert!(rustix::process::geteuid().is_root(), "this test makes network namespaces: run it as root");
    let directory = tempfile::tempdir().unwrap();
    let bpffs = directory.path();
    let inside = || {
        unshare(UnshareFlags::NEWNET | UnshareFlags::NEWNS);
        rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
            .unwrap();
        rustix::mount::mount("bpf", bpffs, "bpf", MountFlags::empty(), None).unwrap();
        ip("link set lo up");
        test(&bpffs.join("portcullis"));
    };
    if let Err(panic) = thread::scope(|scope| scope.spawn(inside).join()) {
        std::panic::resume_unwind(panic);
    }
}

pub(crate) fn options(pin_dir: &Path) -> Options {
    Options { pin_dir: pin_dir.to_owned(), interfaces: Interfaces::None, ..Options::default() }
}

/// Opens what no other agent uses. A command that another test has just begun may still have a
/// copy of the last agent's lock, until it is executed.
pub(crate) fn open(options: &Options) -> Datapath {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match Datapath::open(options) {
            Err(Unavailable::InUse { .. }) if Instant::now() < deadline => thread::yield_now(),
            opened => return opened.unwrap_or_else(|error| panic!("{error}")),
        }
    }
}

/// A client in a namespace of its own, on the other end of a veth pair. It sends everything to the
/// node.
pub(crate) struct Client(File);

impl Client {
    /// The node is 10.99.0.1 and fd99::1 on `node0`.
    pub(crate) fn new() -> Self {
        Self::on("node0", 99)
    }

    /// The node is 10.N.0.1 and fdN::1 on the interface.
    pub(crate) fn on(interface: &str, network: u8) -> Self {
        let client = Self(thread::scope(|scope| scope.spawn(new_network_namespace).join()).unwrap());
        let namespace = client.path();
        ip(&format!("link add {interface} type veth peer name client0 netns {namespace}"));
        // Addresses can be used at once: no other host has them.
        std::fs::write(format!("/proc/sys/net/ipv6/conf/{interface}/accept_dad"), "0").unwrap();
        ip(&format!("addr add 10.{network}.0.1/24 dev {interface}"));
        ip(&format!("addr add fd{network}::1/64 dev {interface} nodad"));
        ip(&format!("link set {interface} up"));
        client.enter(|| {
            ip(&format!("addr add 10.{network}.0.2/24 dev client0"));
            ip(&format!("addr add fd{network}::2/64 dev client0 nodad"));
            ip("link set client0 up");
            ip(&format!("route add default via 10.{network}.0.1"));
            ip(&format!("route add default via fd{network}::1"));
        });
        client
    }

    /// Of its namespace, for `ip`.
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    pub(crate) fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        self.connect_within(address, Duration::from_secs(60))
    }

    pub(crate) fn connect_within(&self, address: SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
        self.enter(|| TcpStream::connect_timeout(&address, timeout))
    }

    pub(crate) fn enter<T: Send>(&self, action: impl FnOnce() -> T + Send) -> T {
        let inside = || {
            rustix::thread::move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))
                .unwrap();
            action()
        };
        thread::scope(|scope| scope.spawn(inside).join()).unwrap()
    }
}

/// Listening sockets of several cores, on ports of the kernel's choosing.
pub(crate) struct Cores {
    v4: Vec<TcpListener>,
    v6: Vec<TcpListener>,
}

impl Cores {
    pub(crate) fn new(cores: usize) -> Self {
        Self::with_room(cores, 128)
    }

    /// So many connections may wait at each socket.
    pub(crate) fn with_room(cores: usize, room: i32) -> Self {
        let listener = |address: &str| {
            let address: SocketAddr = address.parse().unwrap();
            let socket = Socket::new(Domain::for_address(address), Type::STREAM, None).unwrap();
            socket.set_reuse_address(true).unwrap();
            socket.bind(&address.into()).unwrap();
            socket.listen(room).unwrap();
            TcpListener::from(socket)
        };
        let listen = |address: &str| (0..cores).map(|_| listener(address)).collect::<Vec<_>>();
        let (v4, v6) = (listen("127.0.0.1:0"), listen("[::1]:0"));
        v4.iter().chain(&v6).for_each(|listener| listener.set_nonblocking(true).unwrap());
        Self { v4, v6 }
    }

    pub(crate) fn sockets(&self) -> Vec<CoreSockets<'_>> {
        self.sockets_where(SpeaksFirst::Either)
    }

    pub(crate) fn sockets_where(&self, speaks_first: SpeaksFirst) -> Vec<CoreSockets<'_>> {
        let pairs = self.v4.iter().map(AsFd::as_fd).zip(self.v6.iter().map(AsFd::as_fd));
        pairs.map(|(v4, v6)| CoreSockets { speaks_first, v4: Some(v4), v6: Some(v6) }).collect()
    }

    /// Waits for a connection and returns the core that got it.
    pub(crate) fn accept(&self) -> (usize, TcpStream) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while Instant::now() < deadline {
            for (index, listener) in self.v4.iter().chain(&self.v6).enumerate() {
                if let Ok((stream, _)) = listener.accept() {
                    return (index % self.v4.len(), stream);
                }
            }
            thread::yield_now();
        }
        panic!("no connection arrived at any core");
    }

    /// True if no connection waits at any core.
    pub(crate) fn is_idle(&self) -> bool {
        self.v4.iter().chain(&self.v6).all(|listener| listener.accept().is_err())
    }
}

pub(crate) fn tcp(address: &str) -> FrontendKey {
    FrontendKey::tcp(address.parse().unwrap())
}

/// Held while a process lives or descriptors are closed: until its program has started, which is
/// later than this one goes on, a new process has a copy of every socket and lock of this one, and
/// would keep them open.
static DESCRIPTORS: Mutex<()> = Mutex::new(());

/// Closes sockets, or the lock of a pin directory, for good: no other test is about to start a
/// program that would still have them.
pub(crate) fn close<T>(descriptors: T) {
    let _alone = DESCRIPTORS.lock().unwrap_or_else(PoisonError::into_inner);
    drop(descriptors);
}

/// Lets a connection end by a reset when it is closed.
pub(crate) fn abort(stream: &TcpStream) {
    SockRef::from(stream).set_linger(Some(Duration::ZERO)).unwrap();
}

/// Runs `ip` in this thread's network namespace, and returns what it prints.
pub(crate) fn ip(arguments: &str) -> String {
    run("ip (package iproute2)", &arguments.split(' ').collect::<Vec<_>>())
}

/// The same of `tc`.
pub(crate) fn tc(arguments: &str) -> String {
    run("tc (package iproute2)", &arguments.split(' ').collect::<Vec<_>>())
}

/// The place at which checksums of sent packets are completed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Offload {
    /// The interface; a veth leaves them as they are.
    On,
    Off,
}

/// As `ethtool -K INTERFACE tx on`.
pub(crate) fn offload_checksums(interface: &str, offload: Offload) {
    /// `ETHTOOL_STXCSUM` of linux/ethtool.h.
    const SET: u32 = 0x17;
    const SIOCETHTOOL: libc::c_ulong = 0x8946;
    let mut value = [SET, u32::from(matches!(offload, Offload::On))];
    #[expect(unsafe_code, reason = "there is no safe call for it")]
    // SAFETY: any bytes are a request, and the kernel reads and writes the two numbers only.
    let done = unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_data = (&raw mut value).cast();
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
        libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &raw mut request)
    };
    assert_eq!(done, 0, "{}", io::Error::last_os_error());
}

/// The same of `ss`.
pub(crate) fn ss(arguments: &str) -> String {
    run("ss (package iproute2)", &arguments.split(' ').collect::<Vec<_>>())
}

/// The same of `nft`.
pub(crate) fn nft(arguments: &str) -> String {
    run("nft (package nftables)", &[arguments])
}

fn run(program: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(program.split(' ').next().unwrap());
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = {
        let _alone = DESCRIPTORS.lock().unwrap_or_else(PoisonError::into_inner);
        command.output().expect(program)
    };
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn new_network_namespace() -> File {
    unshare(UnshareFlags::NEWNET);
    ip("link set lo up");
    File::open("/proc/thread-self/ns/net").unwrap()
}

fn unshare(flags: UnshareFlags) {
    #[expect(unsafe_code, reason = "unsharing descriptors would be unsound; namespaces are not descriptors")]
    // SAFETY: no FILES among the flags.
    unsafe { rustix::thread::unshare_unsafe(flags) }.unwrap();
}
