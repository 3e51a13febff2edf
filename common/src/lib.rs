//! The agreement between the kernel programs and the agent: the layout of the maps, the named
//! verdicts, and the decisions themselves. Everything here is `no_std` and free of pointers and
//! syscalls, so that the code the verifier accepts is the code the host tests and fuzzers run. It
//! must not know how a map is looked up or how a packet is mapped into memory: both come in as
//! traits.
#![no_std]

pub mod abi;
pub mod bucket;
pub mod client_hello;
pub mod flow;
pub mod forward;
pub mod maglev;
pub mod nat;
pub mod packet;
pub mod reason;
pub mod reset;
pub mod segment;
pub mod server_name;
pub mod steer;
pub mod verdict;

/// Version of the map layout and of the program set. Part of the pin directory: an agent adopts
/// only what it understands. Raise it with every change of [`abi`] or of the order of
/// [`reason::Reason`].
pub const ABI_VERSION: u32 = 4;
