//! Sinks of statuses. Translation plans them; a [`StatusSink`] writes them, next to the files or to
//! an API server, always the newest per object and never a queue.

mod fault_log;
mod files;
mod merge;
mod pace;
mod queue;
mod schedule;
pub(crate) mod times;
mod write_log;
mod writer;

use std::collections::{BTreeMap, BTreeSet};

use portcullis_api::ObjectKey;
use portcullis_gateway::Status;
use portcullis_gateway::infra::DesiredObjects;
use portcullis_model::ObjectName;

pub(crate) use fault_log::Budget;
pub use fault_log::FaultLog;
pub use files::{DigestedStatuses, FileStatuses, read_statuses, remove_statuses};
pub(crate) use queue::Observed;
pub use queue::StatusQueue;
pub use writer::StatusWriter;

/// Planned statuses by object; `None` for an object that is gone.
pub type Statuses = BTreeMap<ObjectKey, Option<Status>>;

pub trait StatusSink: Send {
    /// These are all objects that have a status, and theirs are written; what is left of others
    /// goes.
    fn keep_only(&mut self, objects: &BTreeSet<ObjectKey>);

    /// Statuses that changed. Must not wait for the disk or the network.
    fn write(&mut self, statuses: &Statuses);

    /// Objects generated for Gateways, where they changed. Only a cluster has a place for it.
    fn generate(&mut self, _wanted: BTreeMap<ObjectName, Option<DesiredObjects>>) {}

    /// The same of all Gateways for which something is to be there; what is left of others goes.
    fn generate_only(&mut self, _wanted: BTreeMap<ObjectName, DesiredObjects>) {}

    /// From now on, statuses of Gateways have what could not be provisioned for them.
    fn provisioned(&mut self) {}

    /// From now on, what was written is what follows from everything there is: neither a part of it
    /// nor what was remembered.
    fn complete(&mut self) {}
}

/// Nothing where there is no sink.
impl<S: StatusSink> StatusSink for Option<S> {
    fn keep_only(&mut self, objects: &BTreeSet<ObjectKey>) {
        self.iter_mut().for_each(|sink| sink.keep_only(objects));
    }

    fn write(&mut self, statuses: &Statuses) {
        self.iter_mut().for_each(|sink| sink.write(statuses));
    }

    fn generate(&mut self, wanted: BTreeMap<ObjectName, Option<DesiredObjects>>) {
        self.iter_mut().for_each(|sink| sink.generate(wanted.clone()));
    }

    fn generate_only(&mut self, wanted: BTreeMap<ObjectName, DesiredObjects>) {
        self.iter_mut().for_each(|sink| sink.generate_only(wanted.clone()));
    }

    fn provisioned(&mut self) {
        self.iter_mut().for_each(StatusSink::provisioned);
    }

    fn complete(&mut self) {
        self.iter_mut().for_each(StatusSink::complete);
    }
}

/// Both get all of it.
impl<A: StatusSink, B: StatusSink> StatusSink for (A, B) {
    fn keep_only(&mut self, objects: &BTreeSet<ObjectKey>) {
        self.0.keep_only(objects);
        self.1.keep_only(objects);
    }

    fn write(&mut self, statuses: &Statuses) {
        self.0.write(statuses);
        self.1.write(statuses);
    }

    fn generate(&mut self, wanted: BTreeMap<ObjectName, Option<DesiredObjects>>) {
        self.0.generate(wanted.clone());
        self.1.generate(wanted);
    }

    fn generate_only(&mut self, wanted: BTreeMap<ObjectName, DesiredObjects>) {
        self.0.generate_only(wanted.clone());
        self.1.generate_only(wanted);
    }

    fn provisioned(&mut self) {
        self.0.provisioned();
        self.1.provisioned();
    }

    fn complete(&mut self) {
        self.0.complete();
        self.1.complete();
    }
}
