//! The places of fields in the running kernel's structures, read from its own description of its
//! types (BTF, `Documentation/bpf/btf.rst` of Linux). aya has the reader, but shows no members.

use std::fs;
use std::path::Path;

use portcullis_common::abi::{AcceptQueue, ConnectionFields};

/// The running kernel's description of its types.
const KERNEL: &str = "/sys/kernel/btf/vmlinux";

const MAGIC: u16 = 0xeb9f;
/// `struct btf_type`: offset of the name, information, size or type.
const TYPE: usize = 12;
/// `struct btf_member`: offset of the name, type, offset in bits.
const MEMBER: usize = 12;
const STRUCT: u32 = 4;

/// The places of a listening socket's numbers of waiting connections; `None` if the kernel does not
/// say.
pub(crate) fn accept_queue() -> Option<AcceptQueue> {
    let description = fs::read(Path::new(KERNEL)).ok()?;
    let members = Members::of(&description, "sock")?;
    Some(AcceptQueue {
        waiting: members.offset("sk_ack_backlog")?,
        room: members.offset("sk_max_ack_backlog")?,
    })
}

/// The places of a connection's numbers; `None` if the kernel does not say.
pub(crate) fn connection_fields() -> Option<ConnectionFields> {
    let description = fs::read(Path::new(KERNEL)).ok()?;
    let connection = Members::of(&description, "tcp_sock")?;
    Some(ConnectionFields {
        first_sent: Members::of(&description, "tcp_request_sock")?.offset("snt_isn")?,
        next_sent: connection.offset("snd_nxt")?,
        next_received: connection.offset("rcv_nxt")?,
    })
}

/// The members of a structure.
struct Members<'d> {
    members: &'d [u8],
    strings: &'d [u8],
    /// The highest byte of an offset is the size of a bit field.
    has_bit_fields: bool,
}

impl<'d> Members<'d> {
    fn of(description: &'d [u8], structure: &str) -> Option<Self> {
        // struct btf_header: magic (2 bytes), version, flags, length of the header, then offset and
        // length of types and of strings, both counted from the header's end.
        if description.get(..2)? != MAGIC.to_ne_bytes() {
            return None;
        }
        let section = |at: usize| {
            let start = (word(description, 4)? + word(description, at)?) as usize;
            description.get(start..start + word(description, at + 4)? as usize)
        };
        let (mut types, strings) = (section(8)?, section(16)?);
        while !types.is_empty() {
            let information = word(types, 4)?;
            let (kind, entries) = (information >> 24 & 0x1f, information & 0xffff);
            let end = TYPE + trailing(kind, entries as usize)?;
            if kind == STRUCT && is_text(strings, word(types, 0)?, structure) {
                let has_bit_fields = information >> 31 == 1;
                return Some(Self { members: types.get(TYPE..end)?, strings, has_bit_fields });
            }
            types = types.get(end..)?;
        }
        None
    }

    /// In bytes, of a member that begins at one.
    fn offset(&self, name: &str) -> Option<u32> {
        let mut members = self.members.chunks_exact(MEMBER);
        let member = members.find(|it| word(it, 0).is_some_and(|at| is_text(self.strings, at, name)))?;
        let bits = word(member, 8)?;
        let bits = if self.has_bit_fields { bits & 0x00ff_ffff } else { bits };
        (bits % 8 == 0).then_some(bits / 8)
    }
}

/// Bytes that follow a `struct btf_type` of this kind with so many entries; `None` for a kind that
/// this reader does not know, after which it cannot go on.
fn trailing(kind: u32, entries: usize) -> Option<usize> {
    Some(match kind {
        // Pointers, forward declarations, type definitions, qualifiers, functions, floats, tags.
        2 | 7..=12 | 16 | 18 => 0,
        // Integers, variables, declaration tags.
        1 | 14 | 17 => 4,
        // Arrays.
        3 => 12,
        // Structures, unions, data sections, enumerations of 64 bits.
        STRUCT | 5 | 15 | 19 => entries * MEMBER,
        // Enumerations, prototypes of functions.
        6 | 13 => entries * 8,
        _ => return None,
    })
}

fn is_text(strings: &[u8], at: u32, text: &str) -> bool {
    let rest = strings.get(at as usize..).and_then(|rest| rest.strip_prefix(text.as_bytes()));
    rest.is_some_and(|rest| rest.first() == Some(&0))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel that the tests run on describes itself; `bpftool btf dump` says the same.
    #[test]
    fn the_running_kernels_accept_queue_is_found() {
        let queue = accept_queue().unwrap();
        assert!(queue.waiting > 0 && queue.room > queue.waiting && queue.room < 1024, "{queue:?}");
    }

    #[test]
    fn the_running_kernels_connections_are_found() {
        let ConnectionFields { first_sent, next_sent, next_received } = connection_fields().unwrap();
        assert!(first_sent > 0 && next_sent > 0 && next_received > 0 && next_sent != next_received);
    }

    #[test]
    fn what_is_cut_short_or_foreign_is_no_description() {
        let description = fs::read(KERNEL).unwrap();
        for length in [0, 2, 23, 24, 1000, description.len() / 2] {
            assert!(Members::of(&description[..length], "sock").is_none(), "{length}");
        }
        assert!(Members::of(&[0; 64], "sock").is_none());
        assert!(Members::of(&description, "no_such_structure").is_none());
        assert!(Members::of(&description, "sock").unwrap().offset("no_such_member").is_none());
    }
}
