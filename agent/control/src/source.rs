//! Where objects come from. A [`Source`] turns a place (a directory, or an API server) into changes for the translator;
//! it knows nothing of what objects mean beyond what an API server would check.

pub mod batch;
pub mod dir;
pub mod document;
pub mod problem;

use std::future::Future;

use portcullis_gateway::Change;

pub use batch::Batch;
pub use dir::{DirSource, MAX_FILE_SIZE};
pub use problem::{Effect, Problem};

/// One step of a source.
#[derive(Clone, Debug, Default)]
pub struct Update {
    pub changes: Vec<Change>,
    /// Everything that is wrong now, when that changed.
    pub problems: Option<Vec<Problem>>,
    /// With this, everything was said that there is now. Before, it may have been a part, or what was remembered.
    pub is_complete: bool,
}

pub trait Source: Send {
    /// Everything there is on the first call, then what changed since; waits until something did. Cancel-safe.
    fn next(&mut self) -> impl Future<Output = Update> + Send;
}
