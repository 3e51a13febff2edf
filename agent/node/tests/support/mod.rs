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

use portcullis_model::FrontendKey;
use portcullis_node::{CoreSockets, Datapath, Interfaces, Options};
use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};

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

pub(crate) fn open(options: &Options) -> Datapath {
    Datapath::open(options).unwrap_or_else(|error| panic!("{error}"))
}

/// A client in a namespace of its own, on the other end of a veth pair. The node is 10.99.0.1 and
/// fd99::1 on `node0`, and the client sends everything to it.
pub(crate) struct Client(File);

impl Client {
    pub(crate) fn new() -> Self {
        let client = Self(thread::scope(|scope| scope.spawn(new_network_namespace).join()).unwrap());
        let namespace = format!("/proc/{}/fd/{}", std::process::id(), client.0.as_raw_fd());
        ip(&format!("link add node0 type veth peer name client0 netns {namespace}"));
        ip("addr add 10.99.0.1/24 dev node0");
        ip("addr add fd99::1/64 dev node0 nodad");
        ip("link set node0 up");
        client.enter(|| {
            ip("addr add 10.99.0.2/24 dev client0");
            ip("addr add fd99::2/64 dev client0 nodad");
            ip("link set client0 up");
            ip("route add default via 10.99.0.1");
            ip("route add default via fd99::1");
        });
        client
    }

    pub(crate) fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        self.connect_within(address, Duration::from_secs(5))
    }

    pub(crate) fn connect_within(&self, address: SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
        self.enter(|| TcpStream::connect_timeout(&address, timeout))
    }

    fn enter<T: Send>(&self, action: impl FnOnce() -> T + Send) -> T {
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
        let listen =
            |address: &str| (0..cores).map(|_| TcpListener::bind(address).unwrap()).collect::<Vec<_>>();
        let (v4, v6) = (listen("127.0.0.1:0"), listen("[::1]:0"));
        v4.iter().chain(&v6).for_each(|listener| listener.set_nonblocking(true).unwrap());
        Self { v4, v6 }
    }

    pub(crate) fn sockets(&self) -> Vec<CoreSockets<'_>> {
        let pairs = self.v4.iter().zip(&self.v6);
        pairs.map(|(v4, v6)| CoreSockets { v4: Some(v4.as_fd()), v6: Some(v6.as_fd()) }).collect()
    }

    /// Waits for a connection and returns the core that got it.
    pub(crate) fn accept(&self) -> (usize, TcpStream) {
        let deadline = Instant::now() + Duration::from_secs(5);
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
}

pub(crate) fn tcp(address: &str) -> FrontendKey {
    FrontendKey::tcp(address.parse().unwrap())
}

/// Held while a process is made or descriptors are closed: until its program starts, a new process
/// has a copy of every socket and lock of this one, which would keep them open.
static DESCRIPTORS: Mutex<()> = Mutex::new(());

/// Closes sockets, or the lock of a pin directory, for good: no other test is about to start a
/// program that would still have them.
pub(crate) fn close<T>(descriptors: T) {
    let _alone = DESCRIPTORS.lock().unwrap_or_else(PoisonError::into_inner);
    drop(descriptors);
}

/// Runs `ip` in this thread's network namespace.
pub(crate) fn ip(arguments: &str) {
    let mut command = Command::new("ip");
    command.args(arguments.split(' ')).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = {
        let _alone = DESCRIPTORS.lock().unwrap_or_else(PoisonError::into_inner);
        command.spawn().expect("ip (package iproute2)")
    };
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
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
