//! Hand-over between agents: one that starts takes the place of the one that serves, and no
//! connection is refused or lost. They share the listening sockets while both live, so that what
//! waits there waits for either.
//!
//! ```text
//! successor                                predecessor
//! Hello: of which installation       ─▶
//!                                    ◀─    Welcome, with its locks
//!   gets ready                               serves as before
//! Take                               ─▶
//!                                    ◀─    Sockets …, AllSockets
//!   serves from them                         serves as before, and applies no change
//! Serving                            ─▶
//!                                    ◀─    Released
//!   looks after the node                     gives its locks up, and drains
//! ```
//!
//! Whichever of the two ends early, the other one serves. For that, a successor has to know which
//! it is: a predecessor that serves on says Refused in place of any answer, and the successor ends.
//! One that says nothing more and closes the connection has ended, or is about to.
//!
//! They meet at a [`socket`] in a directory of their own. An agent that does not serve yet, and has
//! no predecessor (any more), hands over as well: one that never gets ready must not keep out
//! another that would.

mod message;
pub(crate) mod predecessor;
pub(crate) mod socket;
pub(crate) mod successor;
