//! The `bpf(2)` commands aya has no call for: open a pinned link, replace its program, detach it.
//! And those that list programs by their ids: aya asks for more than that, for which the agent
//! would need a further capability (SYS_ADMIN).
#![expect(unsafe_code, reason = "bpf(2) has no safe wrapper for these commands")]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// `enum bpf_cmd` of linux/bpf.h.
const OBJ_GET: libc::c_long = 7;
const OBJ_GET_INFO_BY_FD: libc::c_long = 15;
const PROG_QUERY: libc::c_long = 16;
const LINK_UPDATE: libc::c_long = 29;
const LINK_DETACH: libc::c_long = 34;

/// `enum bpf_attach_type` of linux/bpf.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tcx {
    Ingress = 46,
    Egress = 47,
}

/// Opens what is pinned at `path`.
pub(crate) fn obj_get(path: &Path) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct ObjGet {
        pathname: u64,
        bpf_fd: u32,
        file_flags: u32,
    }
    let path = CString::new(path.as_os_str().as_bytes())?;
    let fd = bpf(OBJ_GET, &ObjGet { pathname: path.as_ptr() as u64, bpf_fd: 0, file_flags: 0 })?;
    // SAFETY: the kernel just gave us this descriptor; nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Puts `program` in place of the link's old one, atomically.
pub(crate) fn link_update(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    #[repr(C)]
    struct LinkUpdate {
        link_fd: RawFd,
        new_prog_fd: RawFd,
        flags: u32,
        old_prog_fd: u32,
    }
    let (link_fd, new_prog_fd) = (link.as_raw_fd(), program.as_raw_fd());
    bpf(LINK_UPDATE, &LinkUpdate { link_fd, new_prog_fd, flags: 0, old_prog_fd: 0 }).map(drop)
}

/// Detaches now; closing the last descriptor would do it some time later.
pub(crate) fn link_detach(link: BorrowedFd<'_>) -> io::Result<()> {
    #[repr(C)]
    struct LinkDetach {
        link_fd: RawFd,
    }
    bpf(LINK_DETACH, &LinkDetach { link_fd: link.as_raw_fd() }).map(drop)
}

/// The id of the program in a link.
pub(crate) fn link_program(link: BorrowedFd<'_>) -> io::Result<u32> {
    /// The beginning of `struct bpf_link_info`.
    #[derive(Default)]
    #[repr(C)]
    struct LinkInfo {
        kind: u32,
        link_id: u32,
        program_id: u32,
        padding: u32,
    }
    #[repr(C)]
    struct ObjGetInfo {
        bpf_fd: RawFd,
        info_len: u32,
        info: u64,
    }
    let mut info = LinkInfo::default();
    let info_len = size_of::<LinkInfo>() as u32;
    bpf(OBJ_GET_INFO_BY_FD, &ObjGetInfo { bpf_fd: link.as_raw_fd(), info_len, info: &raw mut info as u64 })?;
    Ok(info.program_id)
}

/// The ids of the programs that an interface has by tcx, first to last.
pub(crate) fn tcx_programs(interface: u32, hook: Tcx) -> io::Result<Vec<u32>> {
    /// `BPF_MPROG_MAX` of the kernel: no hook has more.
    const MOST: usize = 64;
    #[repr(C)]
    struct ProgQuery {
        target_ifindex: u32,
        attach_type: u32,
        query_flags: u32,
        attach_flags: u32,
        prog_ids: u64,
        count: u32,
        padding: u32,
        prog_attach_flags: u64,
        link_ids: u64,
        link_attach_flags: u64,
        revision: u64,
    }
    let mut ids = [0_u32; MOST];
    let mut query = ProgQuery {
        target_ifindex: interface,
        attach_type: hook as u32,
        query_flags: 0,
        attach_flags: 0,
        prog_ids: ids.as_mut_ptr() as u64,
        count: MOST as u32,
        padding: 0,
        prog_attach_flags: 0,
        link_ids: 0,
        link_attach_flags: 0,
        revision: 0,
    };
    bpf_answered(PROG_QUERY, &mut query)?;
    Ok(ids.into_iter().take(query.count as usize).collect())
}

fn bpf<T>(command: libc::c_long, attributes: &T) -> io::Result<RawFd> {
    // SAFETY: `attributes` is a prefix of `union bpf_attr` for this command and outlives the call,
    // which only reads it.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw const *attributes, size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as RawFd) }
}

/// As [`bpf`], for commands that answer in their attributes.
fn bpf_answered<T>(command: libc::c_long, attributes: &mut T) -> io::Result<RawFd> {
    // SAFETY: `attributes` is a prefix of `union bpf_attr` for this command and outlives the call;
    // the kernel writes within the size that it is told.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attributes, size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as RawFd) }
}
