//! The progress of the lists of all kinds that are watched.

use std::collections::{BTreeMap, BTreeSet};

use portcullis_api::{Kind, ObjectKey};
use portcullis_model::ObjectName;

use crate::kube::listing::Listing;

#[derive(Debug)]
pub(super) struct Listings(BTreeMap<Kind, Listing<ObjectName>>);

impl Listings {
    pub(super) fn new(kinds: &[Kind]) -> Self {
        Self(kinds.iter().map(|kind| (*kind, Listing::default())).collect())
    }

    /// True if a kind is watched.
    pub(super) fn are_of(&self, kind: Kind) -> bool {
        self.0.contains_key(&kind)
    }

    pub(super) fn begin(&mut self, kind: Kind) {
        self.of(kind).begin();
    }

    pub(super) fn see(&mut self, key: &ObjectKey) {
        self.of(key.kind).see(key.name.clone());
    }

    /// Returns what there is, if a list was read.
    pub(super) fn done(&mut self, kind: Kind) -> Option<BTreeSet<ObjectName>> {
        self.of(kind).complete()
    }

    pub(super) fn give_up(&mut self, kind: Kind) {
        self.of(kind).deny();
    }

    pub(super) fn are_read(&self) -> bool {
        self.0.values().all(Listing::is_read)
    }

    /// No kind is waited for.
    pub(super) fn are_settled(&self) -> bool {
        self.0.values().all(|listing| listing.is_read() || listing.is_denied())
    }

    /// The kinds that may not be read.
    pub(super) fn denied(&self) -> impl Iterator<Item = Kind> {
        self.0.iter().filter(|(_, listing)| listing.is_denied()).map(|(kind, _)| *kind)
    }

    pub(super) fn read(&self) -> impl Iterator<Item = Kind> {
        self.0.iter().filter(|(_, listing)| listing.is_read()).map(|(kind, _)| *kind)
    }

    /// Tells whether it is known which Gateways are ours. Otherwise all that was written for them
    /// would seem to be for no Gateway.
    pub(super) fn tell_our_gateways(&self) -> bool {
        [Kind::GatewayClass, Kind::Gateway].iter().all(|kind| self.0.get(kind).is_some_and(Listing::is_read))
    }

    fn of(&mut self, kind: Kind) -> &mut Listing<ObjectName> {
        self.0.entry(kind).or_default()
    }
}
