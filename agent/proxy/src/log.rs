//! The access log: its lines, and the thread that writes them.

pub(crate) mod access_log;
pub(crate) mod flow;
pub(crate) mod record;
mod rotated;
