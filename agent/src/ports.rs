//! Ports of the whole node. The kernel programs would take such a port from whoever listens on it already (sshd, the kubelet), so
//! they ask first, as an ordinary socket would.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;

use portcullis_model::{FrontendKey, L4Protocol};
use socket2::{Domain, Socket, Type};

/// Those of the frontends that another process listens on, with what to do. Addresses of Gateways are nobody else's: only the
/// unspecified ones can be in use.
pub(crate) fn taken<'f>(frontends: impl Iterator<Item = &'f FrontendKey>) -> BTreeMap<FrontendKey, String> {
    let shared = frontends.filter(|it| it.protocol == L4Protocol::Tcp && it.address.is_unspecified());
    shared.filter_map(|frontend| Some((*frontend, complaint(frontend, &bind(frontend).err()?)))).collect()
}

/// Binds without listening, so that nobody's connection ends up here.
fn bind(frontend: &FrontendKey) -> io::Result<()> {
    let address = SocketAddr::new(frontend.address, frontend.port);
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    // What remains of closed connections is in nobody's way.
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())
}

fn complaint(frontend: &FrontendKey, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => format!(
            "another process of the node listens on port {}: use another port, or an address of the Gateway's own",
            frontend.port
        ),
        _ => format!("cannot listen on port {}: {error}", frontend.port),
    }
}
