//! Programs of others, as a cluster's network has them: loaded from a few instructions each,
//! without any library, so that nothing of ours is in them. Each counts how often it runs.
#![expect(unsafe_code, reason = "bpf(2) has no safe wrapper that takes instructions")]

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// `enum bpf_cmd` of linux/bpf.h.
const MAP_CREATE: libc::c_long = 0;
const MAP_LOOKUP_ELEM: libc::c_long = 1;
const PROG_LOAD: libc::c_long = 5;
const OBJ_PIN: libc::c_long = 6;
const PROG_QUERY: libc::c_long = 16;
const LINK_CREATE: libc::c_long = 28;

/// The kind of a program, and its answer.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// Of tcx, or of tc: `TC_ACT_OK` and the like.
    Classifier(i32),
    /// Of tcx: sends packets to a pod past all hooks on its way, as if they had come out of the
    /// other end of an interface in this namespace, and accepts all others.
    ClassifierToPeer {
        pod: Ipv4Addr,
        interface: u32,
    },
    Xdp(i32),
    SkLookup(i32),
    /// Of a cgroup: a process that connects to the first address is connected to the second.
    Connect4 {
        from: Ipv4Addr,
        to: SocketAddrV4,
    },
}

/// The place of a program; its interface by name.
#[derive(Clone, Copy, Debug)]
pub enum Hook<'a> {
    TcxIngress(&'a str),
    TcxEgress(&'a str),
    XdpNative(&'a str),
    XdpGeneric(&'a str),
    /// Of this thread's network namespace.
    SkLookup,
    Connect4(&'a Path),
}

/// A loaded program.
pub struct ForeignProgram {
    program: OwnedFd,
    count: OwnedFd,
}

/// A program at its hook until this is dropped.
#[must_use]
pub struct ForeignLink {
    _link: OwnedFd,
}

impl ForeignProgram {
    pub fn load(kind: Kind) -> Result<Self> {
        let count = count_map().context("cannot make a map")?;
        let program = program(kind, &count).with_context(|| format!("the kernel refuses {kind:?}"))?;
        Ok(Self { program, count })
    }

    /// The number of packets, connections or calls that it has seen.
    pub fn count(&self) -> Result<u64> {
        #[repr(C)]
        struct Lookup {
            map: RawFd,
            padding: u32,
            key: u64,
            value: u64,
            flags: u64,
        }
        let (key, mut value) = (0_u32, 0_u64);
        let (key, place) = (&raw const key as u64, &raw mut value as u64);
        bpf(
            MAP_LOOKUP_ELEM,
            &mut Lookup { map: self.count.as_raw_fd(), padding: 0, key, value: place, flags: 0 },
        )?;
        Ok(value)
    }

    /// Attaches it in this thread's network namespace, by a link, after all that are there.
    pub fn attach(&self, hook: Hook<'_>) -> Result<ForeignLink> {
        #[repr(C)]
        struct LinkCreate {
            program: RawFd,
            target: u32,
            attach_type: u32,
            flags: u32,
            further: [u64; 4],
        }
        let (target, attach_type, flags) = hook.target()?;
        let mut create = LinkCreate {
            program: self.program.as_raw_fd(),
            target: target.number(),
            attach_type,
            flags,
            further: [0; 4],
        };
        let link = bpf(LINK_CREATE, &mut create).with_context(|| format!("cannot attach at {hook:?}"))?;
        Ok(ForeignLink { _link: link.context("no link")? })
    }

    /// For programs that attach what is pinned.
    pub fn pin(&self, path: &Path) -> Result<()> {
        #[repr(C)]
        struct Pin {
            path: u64,
            object: RawFd,
            flags: u32,
        }
        fs::create_dir_all(path.parent().context("a path without directory")?)?;
        let path = CString::new(path.as_os_str().as_bytes())?;
        bpf(OBJ_PIN, &mut Pin { path: path.as_ptr() as u64, object: self.program.as_raw_fd(), flags: 0 })?;
        Ok(())
    }
}

enum Target {
    Interface(u32),
    File(File),
}

impl Target {
    fn number(&self) -> u32 {
        match self {
            Self::Interface(index) => *index,
            Self::File(file) => file.as_raw_fd().cast_unsigned(),
        }
    }
}

impl Hook<'_> {
    /// The target, `enum bpf_attach_type` and flags.
    fn target(self) -> Result<(Target, u32, u32)> {
        /// `XDP_FLAGS_SKB_MODE` and `XDP_FLAGS_DRV_MODE` of linux/if_link.h.
        const GENERIC: u32 = 1 << 1;
        const NATIVE: u32 = 1 << 2;
        Ok(match self {
            Self::TcxIngress(interface) => (Target::Interface(index(interface)?), 46, 0),
            Self::TcxEgress(interface) => (Target::Interface(index(interface)?), 47, 0),
            Self::XdpNative(interface) => (Target::Interface(index(interface)?), 37, NATIVE),
            Self::XdpGeneric(interface) => (Target::Interface(index(interface)?), 37, GENERIC),
            Self::SkLookup => (Target::File(File::open("/proc/thread-self/ns/net")?), 36, 0),
            Self::Connect4(cgroup) => (Target::File(File::open(cgroup)?), 10, 0),
        })
    }
}

/// The ids of the programs at a hook of tcx, first to last.
pub fn programs_at(hook: Hook<'_>) -> Result<Vec<u32>> {
    /// `BPF_MPROG_MAX` of the kernel: no hook has more.
    const MOST: usize = 64;
    #[repr(C)]
    struct Query {
        target: u32,
        attach_type: u32,
        flags: [u32; 2],
        programs: u64,
        count: u32,
        padding: u32,
        further: [u64; 4],
    }
    let mut ids = [0_u32; MOST];
    let (target, attach_type, _) = hook.target()?;
    let programs = ids.as_mut_ptr() as u64;
    let count = MOST as u32;
    let mut query = Query {
        target: target.number(),
        attach_type,
        flags: [0; 2],
        programs,
        count,
        padding: 0,
        further: [0; 4],
    };
    bpf(PROG_QUERY, &mut query)?;
    Ok(ids.into_iter().take(query.count as usize).collect())
}

/// The index of an interface of this thread's network namespace.
pub fn index(interface: &str) -> Result<u32> {
    let name = CString::new(interface)?;
    // SAFETY: the name ends with NUL.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()).context(format!("no interface {interface}")),
        index => Ok(index),
    }
}

/// A cgroup (v2) of its own for each test; removed when dropped.
pub struct Cgroup(PathBuf);

impl Cgroup {
    pub fn create(test: &str) -> Result<Self> {
        let mounts = fs::read_to_string("/proc/mounts")?;
        let of_cgroups = |line: &&str| line.split(' ').nth(2) == Some("cgroup2");
        let mount = mounts.lines().find(of_cgroups).and_then(|line| line.split(' ').nth(1));
        let root = Path::new(mount.context("no file system of cgroups (v2) is mounted")?);
        let path = root.join(format!("pcn-{test}-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self(path))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Words before a command that run it in the cgroup.
    pub fn prefix(&self) -> Vec<std::ffi::OsString> {
        let enter = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", self.0.display());
        ["sh".into(), "-c".into(), enter.into(), "sh".into()].into()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

fn count_map() -> io::Result<OwnedFd> {
    /// `BPF_MAP_TYPE_ARRAY` of linux/bpf.h.
    const ARRAY: u32 = 2;
    bpf(MAP_CREATE, &mut [ARRAY, 4, 8, 1, 0])?.ok_or_else(|| io::Error::other("no map"))
}

/// `struct bpf_insn` of linux/bpf.h.
#[derive(Clone, Copy)]
#[repr(C)]
struct Instruction {
    code: u8,
    /// The source in the upper half.
    registers: u8,
    offset: i16,
    immediate: i32,
}

const fn instruction(code: u8, destination: u8, source: u8, offset: i16, immediate: i32) -> Instruction {
    Instruction { code, registers: source << 4 | destination, offset, immediate }
}

/// `r = immediate`
const fn set(register: u8, immediate: i32) -> Instruction {
    instruction(0xb7, register, 0, 0, immediate)
}

const fn copy(destination: u8, source: u8) -> Instruction {
    instruction(0xbf, destination, source, 0, 0)
}

const fn call(helper: i32) -> Instruction {
    instruction(0x85, 0, 0, 0, helper)
}

/// `destination = *(u32 *)(source + offset)`
const fn load(destination: u8, source: u8, offset: i16) -> Instruction {
    instruction(0x61, destination, source, offset, 0)
}

/// `*(u32 *)(destination + offset) = source`
const fn store(destination: u8, source: u8, offset: i16) -> Instruction {
    instruction(0x63, destination, source, offset, 0)
}

/// Skips instructions unless the register's lower half is the immediate.
const fn skip_unless(register: u8, immediate: i32, skipped: i16) -> Instruction {
    instruction(0x56, register, 0, skipped, immediate)
}

const FRAME: u8 = 10;
const EXIT: Instruction = instruction(0x95, 0, 0, 0, 0);

/// Adds one to the map's only value; takes r1 and r2.
fn counting(count: &OwnedFd) -> [Instruction; 4] {
    /// `BPF_PSEUDO_MAP_VALUE` of linux/bpf.h.
    const MAP_VALUE: u8 = 2;
    [
        instruction(0x18, 1, MAP_VALUE, 0, count.as_raw_fd()),
        instruction(0, 0, 0, 0, 0),
        set(2, 1),
        instruction(0xdb, 1, 2, 0, 0),
    ]
}

fn program(kind: Kind, count: &OwnedFd) -> io::Result<OwnedFd> {
    let number = |address: Ipv4Addr| i32::from_ne_bytes(address.octets());
    let (code, kind, attach_type) = match kind {
        Kind::Classifier(verdict) => ([&counting(count)[..], &[set(0, verdict), EXIT]].concat(), 3, 0),
        Kind::Xdp(verdict) => ([&counting(count)[..], &[set(0, verdict), EXIT]].concat(), 6, 37),
        Kind::SkLookup(verdict) => ([&counting(count)[..], &[set(0, verdict), EXIT]].concat(), 30, 36),
        Kind::ClassifierToPeer { pod, interface } => {
            /// `bpf_skb_load_bytes` and `bpf_redirect_peer`.
            const LOAD_BYTES: i32 = 26;
            const REDIRECT_PEER: i32 = 155;
            /// Of IPv4's destination, behind a header of Ethernet.
            const DESTINATION: i32 = 14 + 16;
            let begin = [
                copy(6, 1),
                set(3, 0),
                store(FRAME, 3, -4),
                set(2, DESTINATION),
                copy(3, FRAME),
                instruction(0x07, 3, 0, 0, -4),
                set(4, 4),
                call(LOAD_BYTES),
                load(5, FRAME, -4),
                skip_unless(5, number(pod), 8),
            ];
            let redirect = [set(1, interface.cast_signed()), set(2, 0), call(REDIRECT_PEER), EXIT];
            ([&begin[..], &counting(count), &redirect, &[set(0, 0), EXIT]].concat(), 3, 0)
        }
        Kind::Connect4 { from, to } => {
            // `struct bpf_sock_addr`: user_ip4 and user_port, in network order.
            let begin = [copy(6, 1), load(3, 6, 4), skip_unless(3, number(from), 8)];
            let port = i32::from(to.port().to_be());
            let rewrite = [set(3, number(*to.ip())), store(6, 3, 4), set(3, port), store(6, 3, 24)];
            ([&begin[..], &counting(count), &rewrite, &[set(0, 1), EXIT]].concat(), 18, 10)
        }
    };
    load_program(&code, kind, attach_type)
}

fn load_program(code: &[Instruction], kind: u32, attach_type: u32) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Load {
        kind: u32,
        instructions: u32,
        code: u64,
        license: u64,
        log_level: u32,
        log_size: u32,
        log: u64,
        kernel_version: u32,
        flags: u32,
        name: [u8; 16],
        interface: u32,
        attach_type: u32,
    }
    let mut log = vec![0_u8; 64 * 1024];
    let mut load = Load {
        kind,
        instructions: code.len() as u32,
        code: code.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
        log_level: 1,
        log_size: log.len() as u32,
        log: log.as_mut_ptr() as u64,
        kernel_version: 0,
        flags: 0,
        name: *b"foreign\0\0\0\0\0\0\0\0\0",
        interface: 0,
        attach_type,
    };
    let loaded = bpf(PROG_LOAD, &mut load);
    let said = String::from_utf8_lossy(log.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned();
    loaded
        .map_err(|error| io::Error::other(format!("{error}: {said}")))?
        .ok_or_else(|| io::Error::other("no program"))
}

/// The descriptor that it returns, if any: 0 is none, as this process has its standard input.
fn bpf<T>(command: libc::c_long, attributes: &mut T) -> io::Result<Option<OwnedFd>> {
    // SAFETY: `attributes` is a prefix of `union bpf_attr` for this command, and what it points to
    // outlives the call.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attributes, size_of::<T>()) };
    match result {
        0 => Ok(None),
        // SAFETY: the kernel just gave us this descriptor; nothing else owns it.
        1.. => Ok(Some(unsafe { OwnedFd::from_raw_fd(result as RawFd) })),
        _ => Err(io::Error::last_os_error()),
    }
}
