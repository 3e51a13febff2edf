//! The choice of the core whose socket gets a new connection.

/// Spreads connections over `cores` by the client's address and port. `cores` must not be 0.
///
/// A multiplicative hash, reduced by the high half of a product: no division, and no dependence on
/// how the client picks its ports (Linux hands out even ones first, which a plain modulo would pile
/// on half of the cores).
#[inline(always)]
pub const fn core_of(client: [u32; 4], port: u32, cores: u32) -> u32 {
    let mut hash = port.wrapping_mul(0x9e37_79b1);
    hash = mix(hash ^ client[0]);
    hash = mix(hash ^ client[1]);
    hash = mix(hash ^ client[2]);
    hash = mix(hash ^ client[3]);
    ((hash as u64 * cores as u64) >> 32) as u32
}

/// The finaliser of MurmurHash3: every input bit flips every output bit with probability one half.
#[inline(always)]
const fn mix(mut hash: u32) -> u32 {
    hash ^= hash >> 16;
    hash = hash.wrapping_mul(0x85eb_ca6b);
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(0xc2b2_ae35);
    hash ^ (hash >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Share of the busiest core, in per cent of a fair share.
    fn busiest(cores: u32, connections: impl Iterator<Item = ([u32; 4], u32)>) -> u32 {
        let mut hits = [0u32; 64];
        let mut total = 0;
        for (client, port) in connections {
            let core = core_of(client, port, cores);
            assert!(core < cores);
            hits[core as usize] += 1;
            total += 1;
        }
        hits.iter().max().copied().unwrap_or(0) * cores * 100 / total
    }

    #[test]
    fn one_clients_even_ports_spread() {
        let ports =
            || (32_768..60_999).step_by(2).map(|port: u16| ([0x0a00_0001, 0, 0, 0], u32::from(port.to_be())));
        for cores in [1, 2, 3, 4, 16, 64] {
            assert!(busiest(cores, ports()) < 125, "{cores} cores: {} %", busiest(cores, ports()));
        }
    }

    #[test]
    fn neighbouring_clients_spread_even_with_one_port() {
        let clients = (0..10_000u32).map(|host| ([(0x0a00_0000 + host).to_be(), 0, 0, 0], 443));
        assert!(busiest(16, clients) < 125);
    }
}
