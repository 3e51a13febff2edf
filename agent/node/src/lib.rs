//! The agent's work on its node: kernel programs that steer and guard connections, VIPs on
//! loopback, connection tracking, ports and addresses that are still in use. The agent uses all of
//! it through [`Node`]; each part works by itself, too.
//!
//! It knows addresses, ports and server names, not routes, HTTP or Kubernetes. Whatever the kernel
//! programs cannot do here is a typed [`Unavailable`], and the agent then serves from ordinary
//! sockets.
//!
//! ```text
//! frontends ─▶ Desired ─▶ plan ─▶ ops ─▶ maps ◀─ steer (sk_lookup) ◀─ new connections
//!     │                                       ◀─ guard (XDP)       ◀─ packets
//!     └─▶ Vips ─▶ addresses on loopback, nftables rules
//! ```

mod cleanup;
mod clock;
mod datapath;
mod deferral;
mod enforcement;
mod error;
mod foreign;
mod forwarding;
mod lock;
pub mod neighbours;
mod netlink;
mod nftables;
mod node;
pub mod notrack;
mod ownership;
mod plan;
mod ports;
mod process;
mod programs;
mod spread;
mod steering;
mod syn_hold;
pub mod vips;

pub use aya_log::Level as LogLevel;
pub use cleanup::{Cleaned, clean, detach};
pub use datapath::{Datapath, Options};
pub use deferral::defers_accept;
pub use enforcement::{BudgetUse, EnforcedAt, Enforcement};
pub use error::{Error, RefusedFrontends, Unavailable};
pub use foreign::{ForeignHook, ForeignProgram};
pub use forwarding::{Forwarding, ForwardingReport, ForwardingSettings, L4Frontends, NotForwarding};
pub use lock::{Beside, Lock, Locked};
pub use netlink::reachable::{own_addresses, reachable_addresses};
pub use node::{Choice, Node, Settings, Tended};
pub use ownership::{Insecure, make_private};
pub use plan::admission::ClientKey;
pub use plan::desired::{Desired, Sharing, Wanted};
pub use plan::forward::{Affinity, ForwardContents, ForwardOp, ForwardTable, plan_forwarding};
pub use plan::names::{NameKey, NameTable};
pub use plan::table::Change;
pub use plan::{Contents, Op, plan};
pub use portcullis_common::reason::Reason;
pub use process::Process;
pub use programs::attach::{Attachment, Coverage, How, Unguarded};
pub use programs::interfaces::Interfaces;
pub use programs::kernel::{Believed, KernelLog, MOST_VERIFIED, Passage, verified_instructions};
pub use programs::maps::CoreSockets;
pub use programs::pins::{DEFAULT_PIN_DIR, network_namespace};
pub use programs::probe::{Environment, probe};
pub use spread::Spread;
