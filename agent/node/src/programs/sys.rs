//! The three `bpf(2)` commands aya has no call for: open a pinned link, replace its program, detach
//! it.
#![expect(unsafe_code, reason = "bpf(2) has no safe wrapper for these commands")]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// `enum bpf_cmd` of linux/bpf.h.
const OBJ_GET: libc::c_long = 7;
const LINK_UPDATE: libc::c_long = 29;
const LINK_DETACH: libc::c_long = 34;

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

fn bpf<T>(command: libc::c_long, attributes: &T) -> io::Result<RawFd> {
    // SAFETY: `attributes` is a prefix of `union bpf_attr` for this command and outlives the call,
    // which only reads it.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw const *attributes, size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as RawFd) }
}
