//! sk_lookup: gives a new connection to the socket of a core, whatever port that socket is bound
//! to, or refuses it; refuses what is for an address of Gateways alone and for none of their ports.
//! All else is left untouched: the kernel looks for an ordinary socket as if this program were not
//! there.

use aya_ebpf::bindings::{BPF_SK_LOOKUP_F_NO_REUSEPORT, bpf_sk_lookup, sk_action};
use aya_ebpf::macros::sk_lookup;
use aya_ebpf::programs::SkLookupContext;
use aya_log_ebpf::{debug, trace};
use portcullis_common::abi::{Address, Family, FrontendKey, socket_index};
use portcullis_common::reason::Reason;
use portcullis_common::steer::{CANDIDATES, after, core_of, is_filling_up};
use portcullis_common::verdict::{Steering, steering};

use crate::listening::Listening;
use crate::maps::{GROUPS, KernelTables, count};

const AF_INET6: u32 = 10;

#[sk_lookup]
pub fn steer(context: SkLookupContext) -> u32 {
    let connection = Connection::read(context.lookup);
    let reason = match steering(&KernelTables, &connection.frontend(), || connection.client()) {
        Steering::Untouched => return sk_action::SK_PASS,
        Steering::Refused(reason) => reason,
        Steering::Group(group) => assign(&context, &connection, group),
    };
    count(reason);
    if matches!(reason, Reason::Steered | Reason::SteeredAside) {
        trace!(context, "connection to port {}: {}", connection.local_port, reason.label());
        return sk_action::SK_PASS;
    }
    debug!(context, "connection to port {}: {}", connection.local_port, reason.label());
    sk_action::SK_DROP
}

/// A port of a Gateway is no other program's, whether or not there is a socket for it: were the
/// connection passed on without one, it would end at a program that listens on every address of the
/// node. Another program's socket goes before this one's refusal.
#[inline(always)]
fn assign(context: &SkLookupContext, connection: &Connection, group: u32) -> Reason {
    let Some((family, cores, first)) = connection.cores(group) else { return Reason::SteerNoSocket };
    // The core is chosen here: were the sockets in a reuseport group, the kernel would choose
    // again.
    let flags = BPF_SK_LOOKUP_F_NO_REUSEPORT as u64;
    let mut core = first;
    for _ in 0..CANDIDATES {
        let Some(socket) = Listening::at(socket_index(group, family, core)) else { break };
        let (waiting, room) = socket.accept_queue();
        if !is_filling_up(waiting, room) {
            return match socket.assign(context, flags) {
                Ok(()) if core == first => Reason::Steered,
                Ok(()) => Reason::SteeredAside,
                Err(_) => Reason::SteerRefused,
            };
        }
        core = after(core, cores);
    }
    // All are filling up, or one is gone.
    match Listening::at(socket_index(group, family, first)) {
        None => Reason::SteerNoSocket,
        Some(socket) => socket.assign(context, flags).map_or(Reason::SteerRefused, |()| Reason::Steered),
    }
}

/// The fields of the context that matter, read once.
struct Connection {
    v6: bool,
    protocol: u32,
    local: [u32; 4],
    local_port: u32,
    remote: [u32; 4],
    remote_port: u32,
}

impl Connection {
    #[inline(always)]
    fn read(context: *mut bpf_sk_lookup) -> Self {
        // SAFETY: the kernel passes a valid context; the verifier maps each field to the kernel's
        // own.
        unsafe {
            let v6 = field(&raw const (*context).family) == AF_INET6;
            Self {
                v6,
                protocol: field(&raw const (*context).protocol),
                local: if v6 {
                    fields(&raw const (*context).local_ip6)
                } else {
                    [field(&raw const (*context).local_ip4), 0, 0, 0]
                },
                local_port: field(&raw const (*context).local_port),
                remote: if v6 {
                    fields(&raw const (*context).remote_ip6)
                } else {
                    [field(&raw const (*context).remote_ip4), 0, 0, 0]
                },
                remote_port: u32::from(field(&raw const (*context).remote_port)),
            }
        }
    }

    #[inline(always)]
    fn frontend(&self) -> FrontendKey {
        FrontendKey::new(self.protocol as u8, self.address(self.local), self.local_port as u16)
    }

    #[inline(always)]
    fn client(&self) -> Address {
        self.address(self.remote)
    }

    #[inline(always)]
    fn address(&self, words: [u32; 4]) -> Address {
        let [a, b, c, d] = words.map(u32::to_ne_bytes);
        if self.v6 {
            Address::v6([
                a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3], c[0], c[1], c[2], c[3], d[0], d[1], d[2],
                d[3],
            ])
        } else {
            Address::v4(a)
        }
    }

    /// The family, the number of its sockets in the group, and the core that is this client's own;
    /// `None` without sockets.
    #[inline(always)]
    fn cores(&self, group: u32) -> Option<(Family, u32, u32)> {
        let sockets = GROUPS.get(group)?;
        let (family, cores) = if self.v6 { (Family::V6, sockets.v6) } else { (Family::V4, sockets.v4) };
        if cores == 0 {
            return None;
        }
        Some((family, cores, core_of(sockets.key, self.remote, self.remote_port, cores)))
    }
}

/// Volatile, because two neighbouring loads merged into one of 8 bytes are an invalid context
/// access.
#[inline(always)]
unsafe fn field<T: Copy>(pointer: *const T) -> T {
    // SAFETY: the caller's.
    unsafe { pointer.read_volatile() }
}

#[inline(always)]
unsafe fn fields(pointer: *const [u32; 4]) -> [u32; 4] {
    let words = pointer.cast::<u32>();
    // SAFETY: the caller's; four words make the array.
    unsafe { [field(words), field(words.add(1)), field(words.add(2)), field(words.add(3))] }
}
