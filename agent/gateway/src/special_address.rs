//! Addresses that no user may claim or be forwarded to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Networks that are not the public internet's (IANA, IPv4 Special-Purpose Address Registry), and
/// those of groups and of no use.
const NOT_PUBLIC: [(Ipv4Addr, u32); 15] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    (Ipv4Addr::new(192, 0, 2, 0), 24),
    (Ipv4Addr::new(192, 88, 99, 0), 24),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(198, 51, 100, 0), 24),
    (Ipv4Addr::new(203, 0, 113, 0), 24),
    (Ipv4Addr::new(224, 0, 0, 0), 4),
    (Ipv4Addr::new(240, 0, 0, 0), 4),
];

/// Addresses at which clouds tell machines who they are, and give them credentials, that are not of
/// the link: of Azure, Alibaba Cloud, Oracle Cloud, AWS and Google Cloud.
const METADATA: [IpAddr; 5] = [
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
];

/// Addresses that mean the machine itself, its link, its cloud, or none in particular.
pub(crate) fn is_special(address: &IpAddr) -> bool {
    let is_of_link = match address {
        // "This network": none of them is a destination (RFC 1122, section 3.2.1.3).
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast() || address.octets()[0] == 0,
        IpAddr::V6(address) => address.is_unicast_link_local() || address.to_ipv4_mapped().is_some(),
    };
    is_of_link
        || address.is_loopback()
        || address.is_unspecified()
        || address.is_multicast()
        || METADATA.contains(address)
}

/// True for hosts of the public internet. Of IPv6 that is what IANA has given out for it, without
/// what carries IPv4 or is for documentation.
pub(crate) fn is_public(address: &IpAddr) -> bool {
    let meant = meant(address);
    if METADATA.contains(&meant) || is_tunnel(address) || is_local_nat64(address) {
        return false;
    }
    match meant {
        IpAddr::V4(address) => !NOT_PUBLIC.iter().any(|(first, prefix)| {
            let shift = 32 - prefix;
            address.to_bits() >> shift == first.to_bits() >> shift
        }),
        IpAddr::V6(address) => {
            let [first, second, ..] = address.segments();
            let is_given_out = first & 0xe000 == 0x2000;
            let is_for_protocols = first == 0x2001 && second < 0x0200;
            let is_documentation = first == 0x2001 && second == 0x0db8 || first == 0x3fff && second < 0x1000;
            is_given_out && !is_for_protocols && !is_documentation
        }
    }
}

/// The IPv4 address that is reached by an IPv6 address: a mapped one, or one of the prefixes for
/// NAT64 (RFC 6052, RFC 8215), with the IPv4 address at its end. Others stand for themselves.
pub(crate) fn meant(address: &IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => match address.segments() {
            [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x64, 0xff9b, 1, _, _, _, high, low] => {
                IpAddr::V4(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)))
            }
            _ => IpAddr::V6(address),
        },
        other => other,
    }
}

/// "The Local-Use IPv4/IPv6 Translation Prefix" (RFC 8215) is a network's own.
pub(crate) fn is_local_nat64(address: &IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.segments()[..3] == [0x64, 0xff9b, 1])
}

/// True for IPv6 addresses that lead out of IPv6 by a tunnel, whose other end they name:
/// IPv4-compatible ones, Teredo and 6to4.
pub(crate) fn is_tunnel(address: &IpAddr) -> bool {
    let IpAddr::V6(address) = address else { return false };
    matches!(address.segments(), [0, 0, 0, 0, 0, 0, ..] | [0x2001, 0, ..] | [0x2002, ..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_hosts_of_the_internet_are_public_in_whatever_form() {
        for public in [
            "1.1.1.1",
            "100.63.255.255",
            "100.128.0.1",
            "172.15.0.1",
            "172.32.0.1",
            "198.20.0.1",
            "223.255.255.255",
            "2606:4700::1111",
            "2001:4860:4860::8888",
            "64:ff9b::1.1.1.1",
            "::ffff:1.1.1.1",
        ] {
            assert!(is_public(&public.parse().unwrap()), "{public}");
        }
        for other in [
            "0.0.0.0",
            "0.1.2.3",
            "10.96.0.1",
            "100.100.100.200",
            "168.63.129.16",
            "64:ff9b::168.63.129.16",
            "127.0.0.1",
            "127.255.0.9",
            "169.254.169.254",
            "172.31.255.255",
            "192.0.0.192",
            "192.168.1.1",
            "198.19.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::7f00:1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::ffff:0:127.0.0.1",
            "64:ff9b::127.0.0.1",
            "64:ff9b::169.254.169.254",
            "64:ff9b::10.0.0.1",
            "64:ff9b:1::1.1.1.1",
            "2001::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "2002:a9fe:a9fe::1",
            "3fff::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(!is_public(&other.parse().unwrap()), "{other}");
        }
    }

    #[test]
    fn what_is_special_stays_so_in_whatever_form() {
        for special in [
            "0.0.0.0",
            "0.1.2.3",
            "127.0.0.9",
            "169.254.169.254",
            "224.0.0.1",
            "255.255.255.255",
            "100.100.100.200",
            "168.63.129.16",
            "192.0.0.192",
            "::",
            "::1",
            "::ffff:10.0.0.1",
            "64:ff9b::127.0.0.1",
            "64:ff9b::169.254.169.254",
            "64:ff9b::168.63.129.16",
            "64:ff9b:1::169.254.169.254",
            "fd00:ec2::254",
            "fd20:ce::254",
            "fe80::1",
            "ff02::1",
        ] {
            let address = special.parse().unwrap();
            assert!(is_special(&address) || is_special(&meant(&address)), "{special}");
        }
        for other in ["10.0.0.1", "192.0.0.8", "100.64.0.1", "1.1.1.1", "fd00:ec2::1", "2606:4700::1111"] {
            assert!(!is_special(&other.parse().unwrap()), "{other}");
        }
        for tunnel in ["::7f00:1", "2001::1", "2002:a9fe:a9fe::1"] {
            assert!(is_tunnel(&tunnel.parse().unwrap()), "{tunnel}");
        }
        for other in ["64:ff9b::a00:1", "2001:db8::1", "2001:4860::1", "fd00::1", "10.0.0.1"] {
            assert!(!is_tunnel(&other.parse().unwrap()), "{other}");
        }
    }
}
