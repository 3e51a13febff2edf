//! The terms on which connections are let in, as the maps hold them: budgets and lists of clients
//! under numbers, and the listeners that refer to them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use portcullis_common::abi::{
    Address, Budget, ClientInList, DENIED, LAST_LIST, ListenerTerms, MAX_BUDGETS, MAX_CLIENTS, PERMITTED,
    UNKNOWN_NAMES,
};
use portcullis_model::{Access, Admission, BudgetOwner, ClientRanges};

use crate::plan::Contents;
use crate::plan::key::address;

/// Key of the map of clients: a range of addresses in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientKey {
    pub list: u32,
    /// Length in bits of what has to be equal, of the list's number, too.
    pub prefix: u32,
    pub address: Address,
}

/// Numbers of budgets, by whose they are. As long as an agent runs, an owner keeps its number, and
/// what was taken is taken. An agent that begins gives other numbers than it finds.
pub(crate) type Owners = BTreeMap<BudgetOwner, u32>;

/// The desired contents of the maps, while they are put together.
pub(crate) struct Terms<'o> {
    observed: &'o Contents,
    owners: &'o Owners,
    pub(crate) given: Owners,
    next_budget: u32,
    /// Of lists, observed or given, by what is in them.
    lists: BTreeMap<Vec<Range>, u32>,
    /// Numbers of the lists of ranges, by where those lie: most listeners share their parent's.
    read: BTreeMap<*const ClientRanges, Option<u32>>,
    next_list: u32,
    /// Entries that there is room for, beside those observed.
    room: usize,
    pub(crate) lists_left_out: usize,
    pub(crate) listeners: BTreeMap<u32, ListenerTerms>,
    pub(crate) budgets: BTreeMap<u32, Budget>,
    pub(crate) clients: BTreeMap<ClientKey, u32>,
}

/// Prefix, first address, and answer.
type Range = (u32, Address, u32);

impl<'o> Terms<'o> {
    pub(crate) fn new(observed: &'o Contents, owners: &'o Owners) -> Self {
        let mut lists = BTreeMap::<u32, Vec<Range>>::new();
        for (key, access) in &observed.clients {
            lists.entry(key.list).or_default().push((key.prefix, key.address, *access));
        }
        Self {
            observed,
            owners,
            given: Owners::new(),
            next_budget: 1,
            lists: lists.into_iter().map(|(number, ranges)| (ranges, number)).collect(),
            read: BTreeMap::new(),
            next_list: 1,
            room: (MAX_CLIENTS as usize).saturating_sub(observed.clients.len()),
            lists_left_out: 0,
            listeners: BTreeMap::new(),
            budgets: BTreeMap::new(),
            clients: BTreeMap::new(),
        }
    }

    /// Adds the terms of a listener, except for those by which clients of its port are refused
    /// before: they have that list. What there is no room for is left to user space.
    pub(crate) fn admit(&mut self, listener: u32, admission: &'o Admission, of_port: Option<u32>) {
        let mut terms = ListenerTerms::default();
        for (place, budget) in terms.budgets.iter_mut().zip(&admission.budgets) {
            let rate = Budget::new(budget.per_second.get(), budget.burst.get());
            *place = self.budget(&budget.owner, rate).unwrap_or_default();
        }
        let clients = admission.clients.as_ref().and_then(|rules| self.list(rules.ranges()));
        terms.clients = clients.filter(|list| Some(*list) != of_port).unwrap_or_default();
        if terms != ListenerTerms::default() {
            self.listeners.insert(listener, terms);
        }
    }

    /// Limits the names of a table that no listener has.
    pub(crate) fn limit_unknown(&mut self, table: u32, per_second: NonZeroU32) {
        let rate = Budget::new(per_second.get(), per_second.get());
        self.budgets.insert(UNKNOWN_NAMES | table, rate);
    }

    fn budget(&mut self, owner: &BudgetOwner, rate: Budget) -> Option<u32> {
        let known = self.given.get(owner).or_else(|| self.owners.get(owner)).copied();
        let number = match known {
            Some(number) => number,
            None => self.free_budget()?,
        };
        self.given.insert(owner.clone(), number);
        self.budgets.insert(number, rate);
        Some(number)
    }

    fn free_budget(&mut self) -> Option<u32> {
        let is_free = |number: &u32| !self.observed.budgets.contains_key(number);
        let number = (self.next_budget..MAX_BUDGETS / 2).find(is_free)?;
        self.next_budget = number + 1;
        Some(number)
    }

    /// The number of the list of these clients. A list is never changed: another one takes its
    /// place where it is referred to.
    pub(crate) fn list(&mut self, ranges: &'o Arc<ClientRanges>) -> Option<u32> {
        if let Some(list) = self.read.get(&Arc::as_ptr(ranges)) {
            return *list;
        }
        let list = self.new_list(ranges);
        self.lists_left_out += usize::from(list.is_none());
        self.read.insert(Arc::as_ptr(ranges), list);
        list
    }

    fn new_list(&mut self, ranges: &ClientRanges) -> Option<u32> {
        let mut ranges: Vec<Range> = ranges
            .iter()
            .map(|(range, access)| {
                let (first, prefix) = range.bits();
                let access = match access {
                    Access::Permitted => PERMITTED,
                    Access::Denied => DENIED,
                };
                (prefix_in_list(first, prefix), address(first), access)
            })
            .collect();
        ranges.sort_unstable();
        let number = match self.lists.get(&ranges) {
            Some(number) => *number,
            None => {
                self.room = self.room.checked_sub(ranges.len())?;
                let used: BTreeSet<_> = self.lists.values().copied().collect();
                let number = (self.next_list..=LAST_LIST).find(|number| !used.contains(number))?;
                self.next_list = number + 1;
                self.lists.insert(ranges.clone(), number);
                number
            }
        };
        let entries = ranges.into_iter();
        self.clients.extend(
            entries.map(|(prefix, address, access)| (ClientKey { list: number, prefix, address }, access)),
        );
        Some(number)
    }
}

/// In bits, of the list's number and an address whose IPv4 form is mapped into IPv6.
fn prefix_in_list(first: IpAddr, prefix: u8) -> u32 {
    let mapped = if first.is_ipv4() { 96 } else { 0 };
    32 + mapped + u32::from(prefix)
}

impl ClientKey {
    pub(crate) fn data(&self) -> ClientInList {
        ClientInList { list: self.list.to_be_bytes(), address: self.address }
    }

    pub(crate) fn new(prefix: u32, data: ClientInList) -> Self {
        Self { list: u32::from_be_bytes(data.list), prefix, address: data.address }
    }
}

/// `list 3, 10.0.0.0/8`.
impl fmt::Display for ClientKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ip = std::net::Ipv6Addr::from(self.address.0).to_canonical();
        let mapped = if ip.is_ipv4() { 96 } else { 0 };
        write!(f, "list {}, {ip}/{}", self.list, self.prefix.saturating_sub(32 + mapped))
    }
}

#[cfg(test)]
mod tests {
    use portcullis_model::{self as model, ClientList, ClientRules, ObjectName, ParentKind};

    use super::*;

    fn owner(name: &str) -> BudgetOwner {
        BudgetOwner { kind: ParentKind::Gateway, name: ObjectName::new("infra", name), listener: None }
    }

    fn budget(name: &str, per_second: u32) -> model::Budget {
        let rate = NonZeroU32::new(per_second).unwrap();
        model::Budget { owner: owner(name), per_second: rate, burst: rate }
    }

    fn rules(deny: &[&str]) -> Arc<ClientRules> {
        let deny = deny.iter().map(|range| range.parse().unwrap()).collect();
        Arc::new(ClientRules::new(vec![ClientList { allow: vec![], deny }]))
    }

    /// The contents with these budgets and lists of listeners 0, 1, …
    fn admitted(listeners: &[Admission], observed: &Contents, owners: &Owners) -> (Contents, Owners) {
        let mut terms = Terms::new(observed, owners);
        for (number, admission) in (0..).zip(listeners) {
            terms.admit(number, admission, None);
        }
        let Terms { given, listeners, budgets, clients, .. } = terms;
        (Contents { listeners, budgets, clients, ..Contents::default() }, given)
    }

    #[test]
    fn an_owner_keeps_its_budget() {
        let of = |budgets: Vec<model::Budget>| Admission { budgets, clients: None, ..Admission::default() };
        let listeners = [of(vec![budget("a", 5), budget("shared", 9)]), of(vec![budget("shared", 9)])];
        let (first, owners) = admitted(&listeners, &Contents::default(), &Owners::new());
        assert_eq!(first.listeners[&0].budgets, [1, 2, 0]);
        assert_eq!(first.listeners[&1].budgets, [2, 0, 0]);
        let (second, owners) = admitted(&[of(vec![budget("b", 1), budget("shared", 7)])], &first, &owners);
        assert_eq!(second.listeners[&0].budgets, [3, 2, 0], "a number that is in use is no other's");
        assert_eq!(second.budgets[&2], Budget::new(7, 7));
        assert_eq!(owners.len(), 2);
        let (third, _) = admitted(&[of(vec![budget("b", 1)])], &second, &Owners::new());
        assert_eq!(third.listeners[&0].budgets, [1, 0, 0], "an agent that begins knows no owners");
    }

    #[test]
    fn a_list_is_replaced_and_not_changed() {
        let of =
            |deny: &[&str]| Admission { budgets: vec![], clients: Some(rules(deny)), ..Admission::default() };
        let listeners = [of(&["10.0.0.0/8"]), of(&["10.0.0.0/8"]), of(&["fd00::/8"])];
        let (first, _) = admitted(&listeners, &Contents::default(), &Owners::new());
        let lists =
            |contents: &Contents| contents.listeners.values().map(|it| it.clients).collect::<Vec<_>>();
        assert_eq!(lists(&first), [1, 1, 2]);
        let listeners = [of(&["10.1.0.0/16"]), of(&["fd00::/8"]), of(&[])];
        let (second, _) = admitted(&listeners, &first, &Owners::new());
        assert_eq!(lists(&second), [3, 2, 4]);
        let denied = |key: &ClientKey, access: &u32| (*access == DENIED).then(|| key.to_string());
        let denied: Vec<_> = second.clients.iter().filter_map(|(key, access)| denied(key, access)).collect();
        assert_eq!(denied, ["list 2, fd00::/8", "list 3, 10.1.0.0/16"]);
    }

    #[test]
    fn a_listener_without_terms_has_no_entry() {
        let (contents, _) = admitted(&[Admission::default()], &Contents::default(), &Owners::new());
        assert_eq!(contents, Contents::default());
    }
}
