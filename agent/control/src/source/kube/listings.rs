//! The progress of the lists of all kinds that are watched.

use std::collections::{BTreeMap, BTreeSet};

use portcullis_api::{Kind, ObjectKey};
use portcullis_model::ObjectName;

#[derive(Debug)]
pub(super) struct Listings(BTreeMap<Kind, Listing>);

#[derive(Debug, Default)]
struct Listing {
    progress: Progress,
    /// While a list is being read: what it held so far.
    seen: Option<BTreeSet<ObjectName>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Progress {
    #[default]
    Unread,
    /// We may not read it, for now. What there is of it is unknown.
    GivenUp,
    Read,
}

impl Listings {
    pub(super) fn new(kinds: &[Kind]) -> Self {
        Self(kinds.iter().map(|kind| (*kind, Listing::default())).collect())
    }

    /// True if a kind is watched.
    pub(super) fn are_of(&self, kind: Kind) -> bool {
        self.0.contains_key(&kind)
    }

    pub(super) fn begin(&mut self, kind: Kind) {
        self.of(kind).seen = Some(BTreeSet::new());
    }

    pub(super) fn see(&mut self, key: &ObjectKey) {
        if let Some(seen) = &mut self.of(key.kind).seen {
            seen.insert(key.name.clone());
        }
    }

    /// Returns what there is, if a list was read.
    pub(super) fn done(&mut self, kind: Kind) -> Option<BTreeSet<ObjectName>> {
        let listing = self.of(kind);
        listing.progress = Progress::Read;
        listing.seen.take()
    }

    pub(super) fn give_up(&mut self, kind: Kind) {
        self.of(kind).progress = Progress::GivenUp;
    }

    pub(super) fn are_read(&self) -> bool {
        self.0.values().all(|listing| listing.progress == Progress::Read)
    }

    /// No kind is waited for.
    pub(super) fn are_settled(&self) -> bool {
        self.0.values().all(|listing| listing.progress != Progress::Unread)
    }

    pub(super) fn read(&self) -> impl Iterator<Item = Kind> {
        let read = self.0.iter().filter(|(_, listing)| listing.progress == Progress::Read);
        read.map(|(kind, _)| *kind)
    }

    /// Tells whether it is known which Gateways are ours. Otherwise all that was written for them
    /// would seem to be for no Gateway.
    pub(super) fn tell_our_gateways(&self) -> bool {
        [Kind::GatewayClass, Kind::Gateway]
            .iter()
            .all(|kind| self.0.get(kind).is_some_and(|listing| listing.progress == Progress::Read))
    }

    fn of(&mut self, kind: Kind) -> &mut Listing {
        self.0.entry(kind).or_default()
    }
}
