//! Sources of objects. A [`Source`] turns a place (a directory, or an API server) into changes for
//! the translator; it knows nothing of what objects mean beyond what an API server would check.

pub mod batch;
pub mod built_in;
pub mod dir;
pub mod document;
pub mod input_problem;
mod kept_certificates;
mod kube;
mod reaching;

use std::collections::BTreeSet;
use std::future::Future;

use portcullis_api::{Change, ObjectKey};
use portcullis_gateway::{ChangedNeeds, Feedback};

pub(crate) use self::kept_certificates::KeptCertificates;
pub use self::kube::{KubeSource, LastGood, SourceOptions};
pub use batch::Batch;
pub use dir::{DirSource, MAX_FILE_SIZE};
pub(crate) use input_problem::OneLine;
pub use input_problem::{Effect, InputProblem};
pub use reaching::Reaching;

/// One step of a source.
#[derive(Clone, Debug, Default)]
pub struct Update {
    pub changes: Vec<Change>,
    /// Observations of what the cluster gave, and of what it gave before, as of these changes.
    pub observed: Vec<Feedback>,
    /// Everything that is wrong now, when that changed.
    pub problems: Option<Vec<InputProblem>>,
    /// With this, updates have brought everything there is now. Before, it may have been a part, or
    /// what was remembered.
    pub is_complete: bool,
    /// The Secrets and ConfigMaps that objects refer to are still being read: they are to be
    /// translated, so that it is known what that is, but neither served nor reported yet.
    pub is_draft: bool,
}

pub trait Source: Send {
    /// Everything there is on the first call, then what changed since; waits until something did.
    /// Cancel-safe.
    fn next(&mut self) -> impl Future<Output = Update> + Send;

    /// Takes note of the objects whose contents translation needs now, and of those that it no
    /// longer does ([`portcullis_gateway::Outcome::needs`]). A source that reads everything has no
    /// use for it.
    fn need(&mut self, _changed: ChangedNeeds) {}

    /// The same after a translation from scratch: nothing but these is needed, whatever was before.
    fn need_only(&mut self, _needs: BTreeSet<ObjectKey>) {}
}
