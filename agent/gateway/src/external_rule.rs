//! The operator's rule for hosts outside the cluster: which names there may be, and which addresses
//! these may have. The addresses of the cluster itself are no part of it.

use std::net::IpAddr;

use portcullis_model::{AddressRange, HostPattern};

use crate::special_address::{is_local_nat64, is_public, meant};

/// The hosts outside the cluster that XBackends may lead to. "Implementations SHOULD provide
/// control-plane guardrails (for example, an allow-list of permitted egress domains)" (GEP-4894).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalRule {
    pub names: Vec<HostPattern>,
    /// Addresses that they may have besides public ones. Those of the cluster itself, loopback and
    /// link-local ones they may never have.
    pub ranges: Vec<AddressRange>,
}

// === impl ExternalRule ===

impl ExternalRule {
    pub(crate) fn allows_name(&self, name: &str) -> bool {
        self.names.iter().any(|pattern| pattern.matches(name))
    }

    /// True if a name may lead to the address, as far as nothing of the cluster has it.
    pub(crate) fn allows_address(&self, address: &IpAddr) -> bool {
        let is_allowed = |address: &IpAddr| self.ranges.iter().any(|range| range.contains(address));
        // Only the network's owner knows which IPv4 address one of those leads to.
        let is_known = !is_local_nat64(address);
        is_allowed(address) || is_known && (is_allowed(&meant(address)) || is_public(address))
    }
}

/// All names, and public addresses only.
impl Default for ExternalRule {
    fn default() -> Self {
        Self { names: vec![HostPattern::Any], ranges: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_carries_another_is_allowed_with_it_where_it_is_known_to_carry_it() {
        let allowed_by = |range: &str, address: &str| {
            let rule = ExternalRule { ranges: vec![range.parse().unwrap()], ..ExternalRule::default() };
            rule.allows_address(&address.parse().unwrap())
        };
        assert!(allowed_by("10.0.0.0/8", "10.0.0.1"));
        assert!(allowed_by("10.0.0.0/8", "64:ff9b::10.0.0.1"));
        assert!(!allowed_by("10.0.0.0/8", "64:ff9b::192.168.0.1"));
        // By its prefix of 48 bits it leads to 169.254.169.254.
        assert!(!allowed_by("10.0.0.0/8", "64:ff9b:1:a9fe:a9:fe00:a00:1"));
        assert!(allowed_by("64:ff9b:1::/96", "64:ff9b:1::10.0.0.1"));
    }
}
