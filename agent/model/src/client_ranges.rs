//! The answers to clients' addresses as nested ranges: the form in which one look-up gives the
//! answer of many lists, here and in the kernel.

use std::net::IpAddr;
use std::sync::Arc;

use crate::AddressRange;

/// The addresses of one level.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientList {
    /// None but these, if there are any.
    pub allow: Vec<AddressRange>,
    /// None of these, whatever else holds.
    pub deny: Vec<AddressRange>,
}

/// The addresses that may connect: those that each level permits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientRules {
    levels: Vec<ClientList>,
    /// The same.
    ranges: Arc<ClientRanges>,
}

/// The answer to a client's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Permitted,
    Denied,
}

/// The narrowest range that has an address gives the answer. Those of all addresses of a family are
/// among them; of the others, none that has the answer of the one around it.
///
/// A range comes after those that cover it, and right before those that it covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientRanges(Vec<Answer>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Answer {
    range: AddressRange,
    access: Access,
    /// The index of the narrowest range around this one; of one without, its own.
    around: usize,
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
    pub fn new(levels: Vec<ClientList>) -> Self {
        let ranges = Arc::new(ClientRanges::of_levels(&levels));
        Self { levels, ranges }
    }

    pub fn levels(&self) -> &[ClientList] {
        &self.levels
    }

    pub fn ranges(&self) -> &Arc<ClientRanges> {
        &self.ranges
    }

    /// The address is one of IPv4 or IPv6, not one mapped into the other.
    pub fn access(&self, client: &IpAddr) -> Access {
        self.ranges.access(client)
    }
}

// === impl ClientRanges ===

impl ClientRanges {
    /// The addresses that every level permits.
    pub(crate) fn of_levels(levels: &[ClientList]) -> Self {
        let written = levels.iter().enumerate().flat_map(|(level, lists)| {
            let allow = lists.allow.iter().map(move |range| (range.bits(), (level, Listed::Allowed)));
            let deny = lists.deny.iter().map(move |range| (range.bits(), (level, Listed::Denied)));
            allow.chain(deny)
        });
        let enter = |listings: &mut Vec<Listing>, (level, listed): &(usize, Listed)| match listed {
            Listed::Allowed => listings[*level].is_allowed = true,
            Listed::Denied => listings[*level].is_denied = true,
        };
        let access = |listings: &Vec<Listing>| {
            let mut levels = levels.iter().zip(listings);
            let is_permitted =
                levels.all(|(lists, it)| !it.is_denied && (lists.allow.is_empty() || it.is_allowed));
            if is_permitted { Access::Permitted } else { Access::Denied }
        };
        Self::nested(written, &vec![Listing::default(); levels.len()], enter, access)
    }

    /// The addresses that one of them permits, or more.
    pub(crate) fn of_any<'r>(all: impl IntoIterator<Item = &'r Self>) -> Self {
        // At each range that permits where the one around it does not, there is one more that
        // permits; or one less.
        let permitting = |answers: &Self, at: usize| i32::from(answers.0[at].access == Access::Permitted);
        let changes = all.into_iter().flat_map(|answers| {
            answers.0.iter().enumerate().map(move |(at, Answer { range, around, .. })| {
                let outer = if *around == at { 0 } else { permitting(answers, *around) };
                (range.bits(), permitting(answers, at) - outer)
            })
        });
        let access = |permitting: &i32| if *permitting > 0 { Access::Permitted } else { Access::Denied };
        Self::nested(changes, &0, |permitting, change| *permitting += change, access)
    }

    /// A state for each range: that of the range around it, changed by what is written of this one.
    fn nested<W, S: Clone>(
        written: impl Iterator<Item = ((IpAddr, u8), W)>,
        outside: &S,
        enter: impl Fn(&mut S, &W),
        access: impl Fn(&S) -> Access,
    ) -> Self {
        let families = [AddressRange::ANY_V4, AddressRange::ANY_V6].map(|range| (range.bits(), None));
        let written = written.map(|(range, what)| (range, Some(what)));
        let mut written: Vec<_> = families.into_iter().chain(written).collect();
        written.sort_by_key(|(range, _)| *range);
        let mut answers = Vec::<Answer>::new();
        // With the index of the answer that is in force there.
        let mut around: Vec<(AddressRange, S, usize)> = Vec::new();
        for same in written.chunk_by(|(one, _), (other, _)| one == other) {
            let range = AddressRange::from_bits(same[0].0);
            while around.pop_if(|(outer, ..)| !outer.covers(&range)).is_some() {}
            let outer = around.last();
            let mut state = outer.map_or(outside, |(_, state, _)| state).clone();
            same.iter().filter_map(|(_, what)| what.as_ref()).for_each(|what| enter(&mut state, what));
            let access = access(&state);
            let outer = outer.map(|(.., at)| *at);
            let at = outer.filter(|at| answers[*at].access == access).unwrap_or(answers.len());
            if at == answers.len() {
                answers.push(Answer { range: range.clone(), access, around: outer.unwrap_or(at) });
            }
            around.push((range, state, at));
        }
        Self(answers)
    }

    /// The address is one of IPv4 or IPv6, not one mapped into the other.
    pub fn access(&self, client: &IpAddr) -> Access {
        let itself = AddressRange::from_bits((*client, u8::MAX));
        let mut at = self.0.partition_point(|answer| answer.range <= itself) - 1;
        while !self.0[at].range.contains(client) {
            at = self.0[at].around;
        }
        self.0[at].access
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&AddressRange, Access)> {
        self.0.iter().map(|answer| (&answer.range, answer.access))
    }

    /// True if no client is denied.
    pub(crate) fn permit_all(&self) -> bool {
        self.0.iter().all(|answer| answer.access == Access::Permitted)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    const CLIENTS: [&str; 7] =
        ["10.0.0.1", "10.1.0.1", "10.1.1.1", "11.0.0.1", "255.255.255.255", "fd00::1", "fd00:1::1"];

    proptest! {
        /// The kernel's look-up by the longest prefix, and that of user space, come to the same as
        /// the lists.
        #[test]
        fn the_narrowest_range_gives_the_answer(levels in levels(), client in select(&CLIENTS[..])) {
            let (answers, client) = (ClientRanges::of_levels(&levels), client.parse().unwrap());
            let expected = if permits(&levels, &client) { Access::Permitted } else { Access::Denied };
            prop_assert_eq!(answers.access(&client), expected);
            prop_assert_eq!(narrowest(&answers, &client), expected);
        }

        #[test]
        fn what_one_permits_any_of_them_permits(
            all in prop::collection::vec(levels(), 0..4),
            client in select(&CLIENTS[..]),
        ) {
            let client = client.parse().unwrap();
            let each: Vec<_> = all.iter().map(|levels| ClientRanges::of_levels(levels)).collect();
            let any = ClientRanges::of_any(&each);
            let is_permitted = all.iter().any(|levels| permits(levels, &client));
            let expected = if is_permitted { Access::Permitted } else { Access::Denied };
            prop_assert_eq!(any.access(&client), expected);
            prop_assert_eq!(narrowest(&any, &client), expected);
        }
    }

    fn permits(levels: &[ClientList], client: &IpAddr) -> bool {
        let have = |ranges: &[AddressRange]| ranges.iter().any(|range| range.contains(client));
        levels.iter().all(|lists| !have(&lists.deny) && (lists.allow.is_empty() || have(&lists.allow)))
    }

    fn narrowest(answers: &ClientRanges, client: &IpAddr) -> Access {
        let having = answers.iter().filter(|(range, _)| range.contains(client));
        having.max_by_key(|(range, _)| range.bits().1).unwrap().1
    }

    fn levels() -> impl Strategy<Value = Vec<ClientList>> {
        let level = (ranges(), ranges()).prop_map(|(allow, deny)| ClientList { allow, deny });
        prop::collection::vec(level, 0..4)
    }

    fn ranges() -> impl Strategy<Value = Vec<AddressRange>> {
        let texts = ["0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "10.1.1.1", "::/0", "fd00::/8", "fd00:1::/32"];
        prop::collection::vec(select(texts.to_vec()), 0..3)
            .prop_map(|texts| texts.into_iter().map(|text| text.parse().unwrap()).collect())
    }

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
        let open = ClientRules::new(Vec::new());
        assert_eq!(open.access(&"192.0.2.1".parse().unwrap()), Access::Permitted);
        assert_eq!(open.ranges().iter().len(), 2);
    }
}
