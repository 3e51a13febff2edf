//! The terms on which clients are let in, before anything is spent on them: from which addresses,
//! and how many connections a second.

use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use serde::Serialize;

use crate::{AddressRange, ObjectName, ParentKind};

/// The terms of a listener. Those of wider scope hold as well: each protects what its owner has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admission {
    /// A new connection takes from each of them: the listener's own first, then those that it has
    /// in common with others.
    pub budgets: Vec<Budget>,
    /// The addresses that may connect; `None` if all may.
    pub clients: Option<Arc<ClientRules>>,
}

/// New connections that an agent takes for an object, however many listeners and cores it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    pub owner: BudgetOwner,
    pub per_second: NonZeroU32,
    /// As many may come at once.
    pub burst: NonZeroU32,
}

/// The object, or the listener of one, whose connections share a budget. As long as it is the same,
/// what has been taken is taken.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BudgetOwner {
    pub kind: ParentKind,
    pub name: ObjectName,
    pub listener: Option<Arc<str>>,
}

/// The addresses that may connect: those that each level permits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientRules(Vec<ClientList>);

/// The addresses of one level.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientList {
    /// None but these, if there are any.
    pub allow: Vec<AddressRange>,
    /// None of these, whatever else holds.
    pub deny: Vec<AddressRange>,
}

/// The answer to a client's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Permitted,
    Denied,
}

/// The list of a level that has a range.
#[derive(Clone, Copy)]
enum Listed {
    Allowed,
    Denied,
}

/// The lists of a level that have an address, or all of a range.
#[derive(Clone, Copy, Default)]
struct Listing {
    is_allowed: bool,
    is_denied: bool,
}

// === impl ClientRules ===

impl ClientRules {
    pub const fn new(levels: Vec<ClientList>) -> Self {
        Self(levels)
    }

    pub fn levels(&self) -> &[ClientList] {
        &self.0
    }

    /// The address is one of IPv4 or IPv6, not one mapped into the other.
    pub fn access(&self, client: &IpAddr) -> Access {
        let have = |ranges: &[AddressRange]| ranges.iter().any(|range| range.contains(client));
        let mut levels = self.0.iter();
        let is_permitted = levels.all(|lists| lists.permit(|| have(&lists.deny), || have(&lists.allow)));
        if is_permitted { Access::Permitted } else { Access::Denied }
    }

    /// The same as ranges, of which the narrowest that has an address gives the answer. Those of
    /// all addresses of a family are among them.
    pub fn ranges(&self) -> Vec<(AddressRange, Access)> {
        let everywhere = [AddressRange::ANY_V4, AddressRange::ANY_V6].map(|range| (range.bits(), None));
        let levels = self.0.iter().enumerate();
        let written = levels.flat_map(|(level, lists)| {
            let allow = lists.allow.iter().map(move |range| (range.bits(), Some((level, Listed::Allowed))));
            let deny = lists.deny.iter().map(move |range| (range.bits(), Some((level, Listed::Denied))));
            allow.chain(deny)
        });
        let mut written: Vec<_> = everywhere.into_iter().chain(written).collect();
        // A range comes after those that cover it, and right before those that it covers.
        written.sort_unstable_by_key(|(range, _)| *range);
        let mut answers: Vec<(AddressRange, Access)> = Vec::new();
        let mut around: Vec<(AddressRange, Vec<Listing>)> = Vec::new();
        for same in written.chunk_by(|(one, _), (other, _)| one == other) {
            let range = AddressRange::from_bits(same[0].0);
            while around.pop_if(|(outer, _)| !outer.covers(&range)).is_some() {}
            let outer = around.last().map(|(_, listings)| listings.clone());
            let mut listings = outer.unwrap_or_else(|| vec![Listing::default(); self.0.len()]);
            for (level, listed) in same.iter().filter_map(|(_, listed)| *listed) {
                match listed {
                    Listed::Allowed => listings[level].is_allowed = true,
                    Listed::Denied => listings[level].is_denied = true,
                }
            }
            let mut levels = self.0.iter().zip(&listings);
            let permit = |(lists, listing): (&ClientList, &Listing)| {
                lists.permit(|| listing.is_denied, || listing.is_allowed)
            };
            let access = if levels.all(permit) { Access::Permitted } else { Access::Denied };
            answers.push((range.clone(), access));
            around.push((range, listings));
        }
        answers
    }
}

// === impl ClientList ===

impl ClientList {
    fn permit(&self, is_denied: impl FnOnce() -> bool, is_allowed: impl FnOnce() -> bool) -> bool {
        !is_denied() && (self.allow.is_empty() || is_allowed())
    }
}

// === impl BudgetOwner ===

/// `ListenerSet shop/web listener https`, or without the listener.
impl fmt::Display for BudgetOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.kind, self.name)?;
        self.listener.iter().try_for_each(|listener| write!(f, " listener {listener}"))
    }
}

impl Serialize for BudgetOwner {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    fn list(allow: &[&str], deny: &[&str]) -> ClientList {
        let ranges = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        ClientList { allow: ranges(allow), deny: ranges(deny) }
    }

    #[test]
    fn every_level_has_to_permit() {
        let rules = ClientRules::new(vec![
            list(&["10.0.0.0/8", "fd00::/8"], &["10.1.0.0/16"]),
            list(&[], &["10.2.0.0/16"]),
        ]);
        for (client, expected) in [
            ("10.0.0.1", Access::Permitted),
            ("10.1.0.1", Access::Denied),
            ("10.2.0.1", Access::Denied),
            ("192.0.2.1", Access::Denied),
            ("fd00::1", Access::Permitted),
            ("2001:db8::1", Access::Denied),
        ] {
            assert_eq!(rules.access(&client.parse().unwrap()), expected, "{client}");
        }
        let open = ClientRules::default();
        assert_eq!(open.access(&"192.0.2.1".parse().unwrap()), Access::Permitted);
        assert_eq!(open.ranges().len(), 2);
    }

    proptest! {
        /// The kernel's look-up by the longest prefix comes to the same as the lists.
        #[test]
        fn the_narrowest_range_gives_the_answer(
            levels in prop::collection::vec((ranges(), ranges()), 0..4),
            client in select(&["10.0.0.1", "10.1.0.1", "10.1.1.1", "11.0.0.1", "fd00::1", "fd00:1::1"][..]),
        ) {
            let levels = levels.into_iter().map(|(allow, deny)| ClientList { allow, deny }).collect();
            let (rules, client) = (ClientRules::new(levels), client.parse().unwrap());
            let having = rules.ranges().into_iter().filter(|(range, _)| range.contains(&client));
            let narrowest = having.max_by_key(|(range, _)| range.bits().1);
            prop_assert_eq!(narrowest.map(|(_, access)| access), Some(rules.access(&client)));
        }
    }

    fn ranges() -> impl Strategy<Value = Vec<AddressRange>> {
        let texts = ["0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "10.1.1.1", "::/0", "fd00::/8", "fd00:1::/32"];
        prop::collection::vec(select(texts.to_vec()), 0..3)
            .prop_map(|texts| texts.into_iter().map(|text| text.parse().unwrap()).collect())
    }
}
