//! Ranges of addresses, as operators and Nodes write them: `10.0.0.0/8`, or one address.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// The addresses that begin as `first` does, in as many bits as the prefix has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AddressRange {
    first: IpAddr,
    prefix: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write a range of addresses, or one: 192.0.2.0/24, 2001:db8::/32 or 192.0.2.7")]
pub struct AddressRangeSyntax;

impl AddressRange {
    /// All addresses of a family.
    pub const ANY_V4: Self = Self { first: IpAddr::V4(Ipv4Addr::UNSPECIFIED), prefix: 0 };
    pub const ANY_V6: Self = Self { first: IpAddr::V6(Ipv6Addr::UNSPECIFIED), prefix: 0 };

    pub fn contains(&self, address: &IpAddr) -> bool {
        self.first.is_ipv4() == address.is_ipv4()
            && start(address, self.prefix) == start(&self.first, self.prefix)
    }

    /// True for a range that is written by an IPv4-mapped address (RFC 4291 section 2.5.5.2), and
    /// for one that has them all and little else. `::/64` and wider ones are about IPv6 addresses,
    /// although they have the mapped ones, too.
    pub fn is_of_mapped(&self) -> bool {
        /// The zeros that mapped addresses begin with.
        const ZEROS: u8 = 80;
        let mapped = Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0);
        match self.first {
            IpAddr::V4(_) => false,
            IpAddr::V6(first) => {
                first.to_ipv4_mapped().is_some() || self.prefix > ZEROS && self.contains(&mapped.into())
            }
        }
    }

    /// True if all addresses of the other range are in this one.
    pub fn covers(&self, other: &Self) -> bool {
        self.prefix <= other.prefix && self.contains(&other.first)
    }

    /// The first address, and the number of bits that count.
    pub fn bits(&self) -> (IpAddr, u8) {
        let longest = if self.first.is_ipv4() { 32 } else { 128 };
        let bits = start(&self.first, self.prefix).checked_shl(longest - u32::from(self.prefix));
        let first = match (self.first, bits.unwrap_or_default()) {
            (IpAddr::V4(_), bits) => IpAddr::V4(Ipv4Addr::from_bits(bits as u32)),
            (IpAddr::V6(_), bits) => IpAddr::V6(Ipv6Addr::from_bits(bits)),
        };
        (first, self.prefix)
    }

    /// From what [`AddressRange::bits`] returned.
    pub(crate) const fn from_bits((first, prefix): (IpAddr, u8)) -> Self {
        Self { first, prefix }
    }

    /// True for the first two addresses of a range that has more than that.
    pub fn begins_with(&self, address: &IpAddr) -> bool {
        let longest: u8 = if self.first.is_ipv4() { 32 } else { 128 };
        let fixed = longest - 1;
        self.prefix < fixed
            && self.contains(address)
            && start(address, fixed) == start(&self.first, self.prefix) << (fixed - self.prefix)
    }
}

impl FromStr for AddressRange {
    type Err = AddressRangeSyntax;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (first, prefix) = match text.split_once('/') {
            None => (text, None),
            Some((first, prefix)) => (first, Some(prefix)),
        };
        let first: IpAddr = first.parse().map_err(|_| AddressRangeSyntax)?;
        let longest = if first.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.map_or(Ok(longest), |prefix| prefix.parse().map_err(|_| AddressRangeSyntax))?;
        if prefix > longest {
            return Err(AddressRangeSyntax);
        }
        Ok(Self { first, prefix })
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.prefix)
    }
}

/// The first bits of an address.
fn start(address: &IpAddr, bits: u8) -> u128 {
    let (value, longest) = match address {
        IpAddr::V4(address) => (u128::from(address.to_bits()), 32),
        IpAddr::V6(address) => (address.to_bits(), 128),
    };
    value.checked_shr(longest - u32::from(bits)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_mapped_addresses_are_told_from_wide_ones() {
        for mapped in [
            "::ffff:10.0.0.1",
            "::ffff:10.0.0.0/104",
            "::ffff:0:0/96",
            "::ffff:0:0/95",
            "::ffff:0:0/64",
            "::ffff:0:0/0",
            "::fffe:0:0/95",
            "::8000:0:0/81",
        ] {
            assert!(mapped.parse::<AddressRange>().unwrap().is_of_mapped(), "{mapped}");
        }
        for other in
            ["::/0", "::/8", "::/64", "::/80", "::1", "::/96", "::fffe:0:0/96", "64:ff9b::/96", "0.0.0.0/0"]
        {
            assert!(!other.parse::<AddressRange>().unwrap().is_of_mapped(), "{other}");
        }
    }

    #[test]
    fn a_range_has_the_addresses_that_begin_like_it() {
        for (range, inside, outside) in [
            ("10.96.0.0/12", "10.111.255.255", "10.112.0.0"),
            ("10.96.7.1/16", "10.96.0.0", "10.97.0.0"),
            ("0.0.0.0/0", "255.255.255.255", "::1"),
            ("192.0.2.7", "192.0.2.7", "192.0.2.6"),
            ("fd00::/8", "fdff::1", "fe80::1"),
            ("::/0", "2001:db8::1", "10.0.0.1"),
        ] {
            let range: AddressRange = range.parse().unwrap();
            assert!(range.contains(&inside.parse().unwrap()), "{range} {inside}");
            assert!(!range.contains(&outside.parse().unwrap()), "{range} {outside}");
        }
        for (range, address, expected) in [
            ("10.244.1.0/24", "10.244.1.0", true),
            ("10.244.1.9/24", "10.244.1.1", true),
            ("10.244.1.0/24", "10.244.1.2", false),
            ("10.244.1.0/24", "10.244.2.1", false),
            ("10.244.1.0/31", "10.244.1.0", false),
            ("10.244.1.0/32", "10.244.1.0", false),
            ("0.0.0.0/0", "0.0.0.1", true),
            ("fd00:1::/64", "fd00:1::1", true),
            ("fd00:1::/64", "fd00:1::1:0", false),
            ("::/0", "0.0.0.1", false),
        ] {
            let range: AddressRange = range.parse().unwrap();
            assert_eq!(range.begins_with(&address.parse().unwrap()), expected, "{range} {address}");
        }
        for (range, first, prefix) in
            [("10.97.7.1/12", "10.96.0.0", 12), ("0.0.0.0/0", "0.0.0.0", 0), ("fd00:1::9/16", "fd00::", 16)]
        {
            let range: AddressRange = range.parse().unwrap();
            assert_eq!(range.bits(), (first.parse().unwrap(), prefix), "{range}");
        }
        for (range, other, expected) in [
            ("10.0.0.0/8", "10.1.0.0/16", true),
            ("10.1.0.0/16", "10.0.0.0/8", false),
            ("10.0.0.0/8", "10.0.0.0/8", true),
            ("0.0.0.0/0", "::/0", false),
        ] {
            let (range, other): (AddressRange, AddressRange) =
                (range.parse().unwrap(), other.parse().unwrap());
            assert_eq!(range.covers(&other), expected, "{range} {other}");
        }
        for wrong in ["", "10.0.0.0/33", "10.0.0/8", "fd00::/129", "10.0.0.0/", "10.0.0.0/-1", "ten"] {
            assert_eq!(wrong.parse::<AddressRange>(), Err(AddressRangeSyntax), "{wrong}");
        }
    }
}
