//! Texts in the objects of tenants that become part of a table: hostnames, ranges of addresses and
//! origins.

use portcullis_model::{AddressRange, HostPattern, OriginPattern};

pub(crate) fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(pattern) = HostPattern::parse(text) {
        let printed = pattern.to_string();
        assert_eq!(HostPattern::parse(&printed).as_ref(), Ok(&pattern), "{text:?} is {printed:?}");
        assert!(pattern.covers(&pattern), "{pattern}");
        assert_eq!(pattern.intersect(&pattern).as_ref(), Some(&pattern));
    }
    if let Ok(range) = text.parse::<AddressRange>() {
        assert_eq!(range.to_string().parse().as_ref(), Ok(&range), "{text:?}");
        let (first, _) = range.bits();
        assert!(range.contains(&first) && range.covers(&range), "{range}");
    }
    if let Some(origin) = OriginPattern::parse(text) {
        let printed = origin.to_string();
        assert_eq!(OriginPattern::parse(&printed).as_ref(), Some(&origin), "{text:?} is {printed:?}");
    }
}
