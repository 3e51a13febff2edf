//! The interfaces of this thread's network namespace that have programs as classifiers of traffic
//! control (cls_bpf), the form before tcx.

use std::collections::BTreeSet;
use std::io;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage};
use netlink_sys::protocols::NETLINK_ROUTE;

use crate::netlink::Connection;

/// Their indices.
///
/// # Errors
/// When the kernel does not list them.
pub(crate) fn interfaces_with_programs() -> io::Result<BTreeSet<u32>> {
    let mut connection = Connection::open(NETLINK_ROUTE)?;
    let mut classifying = BTreeSet::new();
    connection.dump(RouteNetlinkMessage::GetQueueDiscipline(TcMessage::default()), |message| {
        if let RouteNetlinkMessage::NewQueueDiscipline(message) = message
            && ["clsact", "ingress"].iter().any(|kind| is_of_kind(&message, kind))
        {
            classifying.insert(message.header.index);
        }
    })?;
    let mut found = BTreeSet::new();
    for index in classifying {
        for minor in [TcHandle::MIN_INGRESS, TcHandle::MIN_EGRESS] {
            let mut wanted = TcMessage::default();
            wanted.header.index = index;
            wanted.header.parent = TcHandle { major: TcHandle::CLSACT.major, minor };
            connection.dump(RouteNetlinkMessage::GetTrafficFilter(wanted), |message| {
                if let RouteNetlinkMessage::NewTrafficFilter(message) = message
                    && is_of_kind(&message, "bpf")
                {
                    found.extend(u32::try_from(message.header.index));
                }
            })?;
        }
    }
    Ok(found)
}

fn is_of_kind(message: &TcMessage, kind: &str) -> bool {
    message.attributes.iter().any(|it| matches!(it, TcAttribute::Kind(of) if of == kind))
}
