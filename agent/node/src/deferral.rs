//! Connections that the kernel keeps until their client has sent something: what comes to nothing
//! before costs user space nothing.
#![expect(unsafe_code, reason = "rustix has no call for this option of sockets")]

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd};

/// Time for which a connection is kept at least. The kernel rounds it up to its first
/// retransmission of the SYN-ACK, with whose acknowledgement a silent client is let in.
const SECONDS: libc::c_int = 1;

/// Has a listening socket give connections away with the first bytes of their clients, or after
/// about a second.
pub(crate) fn defer_accept(listener: impl AsFd) -> io::Result<()> {
    let seconds = SECONDS;
    // SAFETY: the kernel reads one number, of the size that it is told.
    let done = unsafe {
        libc::setsockopt(
            listener.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_DEFER_ACCEPT,
            (&raw const seconds).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns `true` if connections wait at the listening socket until their client has spoken.
///
/// # Errors
/// When it is no socket of TCP.
pub fn defers_accept(listener: impl AsFd) -> io::Result<bool> {
    let mut seconds: libc::c_int = 0;
    let mut size = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes one number, and no more than the size that it is told.
    let done = unsafe {
        libc::getsockopt(
            listener.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_DEFER_ACCEPT,
            (&raw mut seconds).cast(),
            &raw mut size,
        )
    };
    if done == 0 { Ok(seconds > 0) } else { Err(io::Error::last_os_error()) }
}
