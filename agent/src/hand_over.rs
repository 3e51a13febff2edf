//! Hand-over between agents: one that starts takes the place of the one that serves, and no
//! connection is refused or lost. They share the listening sockets while both live, so that what
//! waits there waits for either.
//!
//! ```text
//! successor                                predecessor
//! Hello: of which installation       ─▶
//!                                    ◀─    Welcome, with its locks, or Refused
//!   gets ready                               serves as before
//! Take                               ─▶
//!                                    ◀─    Sockets …, AllSockets
//!   serves from them                         serves as before, and applies no change
//! Serving                            ─▶
//!                                    ◀─    Released
//!   looks after the node                     drains
//! ```
//!
//! Whichever of the two ends early, the other one serves. They meet at the lock of their network
//! namespace (`portcullis_node::Lock`), a socket that only root or the same user may connect to.

mod message;
pub(crate) mod predecessor;
pub(crate) mod successor;
