//! Frontends on all addresses of the node (`0.0.0.0`, `::`), where they are served on each address
//! instead: the proxy and the kernel programs then know those of each address only, statuses those
//! of all.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use portcullis_model::{FrontendKey, Unserved};

use crate::error::RefusedFrontends;

/// The frontends of each of the node's addresses, for those of all of them.
#[derive(Debug, Default)]
pub struct Spread {
    /// By frontend of an address, the one on all addresses that it stands for.
    frontends: BTreeMap<FrontendKey, FrontendKey>,
    /// Frontends on all addresses that cannot be served, because these are not known.
    refused: RefusedFrontends,
}

// === impl Spread ===

impl Spread {
    pub(crate) fn over(addresses: &BTreeSet<IpAddr>, everywhere: &[&FrontendKey]) -> Self {
        let mut spread = Self::default();
        for frontend in everywhere {
            let same_family = addresses.iter().filter(|it| it.is_ipv4() == frontend.address.is_ipv4());
            let of_each = same_family.map(|address| FrontendKey::new(*address, frontend.port_key()));
            spread.frontends.extend(of_each.map(|of_one| (of_one, **frontend)));
        }
        spread
    }

    pub(crate) fn refused(everywhere: &[&FrontendKey], why: &str) -> Self {
        let refused = everywhere.iter().map(|frontend| (**frontend, why.to_owned())).collect();
        Self { refused, ..Self::default() }
    }

    pub fn is_empty(&self) -> bool {
        self.frontends.is_empty() && self.refused.is_empty()
    }

    /// Puts frontends of each address in the place of those of all. A frontend that a Gateway has
    /// on an address of its own stays that Gateway's.
    pub fn on_each<T: Clone>(&self, frontends: &mut BTreeMap<FrontendKey, T>) {
        let of_each = self.frontends.iter();
        let of_each = of_each.filter_map(|(of_one, of_all)| Some((*of_one, frontends.get(of_all)?.clone())));
        let of_each: Vec<_> = of_each.collect();
        for of_all in self.frontends.values().chain(self.refused.keys()) {
            frontends.remove(of_all);
        }
        for (of_one, served) in of_each {
            frontends.entry(of_one).or_insert(served);
        }
    }

    /// Tells what is not served by the frontends that [`Spread::on_each`] was given.
    #[must_use]
    pub fn gathered(self, unserved: Unserved) -> Unserved {
        let mut gathered = unserved.map(|of_one, why| match self.frontends.get(&of_one) {
            Some(of_all) => (*of_all, format!("on {}: {why}", of_one.address)),
            None => (of_one, why),
        });
        gathered.frontends.extend(self.refused);
        gathered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frontend(address: &str, port: u16) -> FrontendKey {
        FrontendKey::tcp((address.parse::<IpAddr>().unwrap(), port).into())
    }

    fn spread() -> (FrontendKey, Spread) {
        let everywhere = frontend("0.0.0.0", 80);
        let addresses = ["192.0.2.1", "192.0.2.2", "2001:db8::1"].map(|it| it.parse().unwrap());
        (everywhere, Spread::over(&addresses.into(), &[&everywhere]))
    }

    #[test]
    fn a_frontend_of_one_address_goes_before_one_of_all() {
        let (everywhere, spread) = spread();
        let mut served = BTreeMap::from([(everywhere, "all"), (frontend("192.0.2.1", 80), "one")]);
        spread.on_each(&mut served);
        let expected = [(frontend("192.0.2.1", 80), "one"), (frontend("192.0.2.2", 80), "all")];
        assert_eq!(served, expected.into());
    }

    #[test]
    fn refusals_are_told_of_what_was_wanted() {
        let (everywhere, spread) = spread();
        let mut unserved = Unserved::default();
        for (address, why) in [("192.0.2.1", "in use"), ("192.0.2.2", "gone"), ("192.0.2.3", "its own")] {
            unserved.frontends.insert(frontend(address, 80), why.to_owned());
        }
        let expected = [
            (everywhere, "on 192.0.2.1: in use; on 192.0.2.2: gone".to_owned()),
            (frontend("192.0.2.3", 80), "its own".to_owned()),
        ];
        assert_eq!(spread.gathered(unserved).frontends, expected.into());
    }

    #[test]
    fn without_addresses_nothing_is_served_on_all_of_them() {
        let everywhere = frontend("0.0.0.0", 80);
        let spread = Spread::refused(&[&everywhere], "not listed");
        let mut served = BTreeMap::from([(everywhere, "all")]);
        spread.on_each(&mut served);
        assert!(served.is_empty());
        let unserved = spread.gathered(Unserved::default());
        assert_eq!(unserved.frontends, [(everywhere, "not listed".to_owned())].into());
    }
}
