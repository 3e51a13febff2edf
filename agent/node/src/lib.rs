//! eBPF in user space: loads the kernel programs, attaches and pins them, adopts what an earlier agent pinned, and keeps the
//! maps equal to what the snapshot asks for, by a pure diff. It knows addresses and ports, not listeners, routes or Kubernetes.
//! Whatever it cannot do here is a typed [`Unavailable`], and the agent then serves from ordinary sockets.
//!
//! ```text
//! snapshot ─▶ Desired ─▶ plan(observed, desired) ─▶ ops ─▶ maps ◀─ steer (sk_lookup) ◀─ new connections
//!                                                              ◀─ guard (XDP)       ◀─ packets
//! ```

mod cleanup;
pub mod connections;
mod datapath;
mod error;
mod netlink;
pub mod notrack;
mod plan;
mod programs;
pub mod vips;

pub use aya_log::Level as LogLevel;
pub use cleanup::{Cleaned, clean, detach};
pub use datapath::{Attachment, Datapath, How, Options};
pub use error::{Error, Unavailable};
pub use plan::desired::{Desired, Sharing};
pub use plan::{Contents, Op, plan};
pub use portcullis_common::abi::MAX_CORES;
pub use portcullis_common::reason::Reason;
pub use programs::interfaces::Interfaces;
pub use programs::kernel::{KernelLog, Passage};
pub use programs::maps::CoreSockets;
pub use programs::pins::DEFAULT_PIN_DIR;
pub use programs::probe::{Environment, probe};
