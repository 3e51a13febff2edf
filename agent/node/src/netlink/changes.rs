//! News of this thread's network namespace: that an interface or an address has changed, not which.

use std::io;

use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

/// Tells of changes since it was opened, or last asked.
pub(crate) struct Changes(Socket);

impl Changes {
    pub(crate) fn open() -> io::Result<Self> {
        /// `RTMGRP_LINK`, `RTMGRP_IPV4_IFADDR` and `RTMGRP_IPV6_IFADDR` of linux/rtnetlink.h.
        const GROUPS: u32 = 0x1 | 0x10 | 0x100;
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind(&SocketAddr::new(0, GROUPS))?;
        socket.set_non_blocking(true)?;
        Ok(Self(socket))
    }

    /// True if there was any. What there was no room for counts as one.
    pub(crate) fn any(&self) -> bool {
        let mut any = false;
        loop {
            match self.0.recv(&mut &mut [0; 0][..], 0) {
                Ok(_) => any = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return any,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // ENOBUFS is told once; anything else would come again.
                Err(_) => return true,
            }
        }
    }
}
