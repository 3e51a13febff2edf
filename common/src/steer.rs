//! The choice of the core whose socket gets a new connection.

/// Cores that are asked in turn for one whose accept queue is not filling up.
pub const CANDIDATES: u32 = 4;

/// Spreads connections over `cores` by the client's address and port. `cores` must not be 0.
///
/// The hash is keyed, so that no client can choose ports that all lead to one core; and it is
/// reduced by the high half of a product: no division, and no dependence on how the client picks
/// its ports (Linux hands out even ones first, which a plain modulo would pile on half of the
/// cores).
#[inline(always)]
pub const fn core_of(key: [u32; 2], client: [u32; 4], port: u32, cores: u32) -> u32 {
    let hash = half_sip_hash::<1, 3>(key, [client[0], client[1], client[2], client[3], port]);
    ((hash as u64 * cores as u64) >> 32) as u32
}

/// The next candidate after a core, in a ring.
#[inline(always)]
pub const fn after(core: u32, cores: u32) -> u32 {
    if core + 1 < cores { core + 1 } else { 0 }
}

/// Returns `true` if an accept queue is so full that another core should be asked. Half of it is
/// left for connections that are on their way: it grows when the handshake ends, not when the
/// socket is chosen.
#[inline(always)]
pub const fn is_filling_up(waiting: u32, room: u32) -> bool {
    waiting > room / 2
}

/// HalfSipHash (Aumasson and Bernstein) of five words with a key of 64 bits: the kernel's choice
/// for its hash tables, with `C` = 1 and `D` = 3 rounds.
#[inline(always)]
pub(crate) const fn half_sip_hash<const C: u32, const D: u32>(key: [u32; 2], words: [u32; 5]) -> u32 {
    let mut state = [key[0], key[1], 0x6c79_6765 ^ key[0], 0x7465_6462 ^ key[1]];
    state = absorb::<C>(state, words[0]);
    state = absorb::<C>(state, words[1]);
    state = absorb::<C>(state, words[2]);
    state = absorb::<C>(state, words[3]);
    state = absorb::<C>(state, words[4]);
    // The length in bytes, in the highest byte of the last word.
    state = absorb::<C>(state, 20 << 24);
    state[2] ^= 0xff;
    state = rounds::<D>(state);
    state[1] ^ state[3]
}

#[inline(always)]
const fn absorb<const C: u32>(mut state: [u32; 4], word: u32) -> [u32; 4] {
    state[3] ^= word;
    state = rounds::<C>(state);
    state[0] ^= word;
    state
}

#[inline(always)]
const fn rounds<const N: u32>(mut state: [u32; 4]) -> [u32; 4] {
    let mut round = 0;
    while round < N {
        let [mut a, mut b, mut c, mut d] = state;
        a = a.wrapping_add(b);
        b = b.rotate_left(5) ^ a;
        a = a.rotate_left(16);
        c = c.wrapping_add(d);
        d = d.rotate_left(8) ^ c;
        a = a.wrapping_add(d);
        d = d.rotate_left(7) ^ a;
        c = c.wrapping_add(b);
        b = b.rotate_left(13) ^ c;
        c = c.rotate_left(16);
        state = [a, b, c, d];
        round += 1;
    }
    state
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u32; 2] = [0x0302_0100, 0x0706_0504];

    /// Share of the busiest core, in per cent of a fair share.
    fn busiest(cores: u32, connections: impl Iterator<Item = ([u32; 4], u32)>) -> u32 {
        let mut hits = [0u32; 64];
        let mut total = 0;
        for (client, port) in connections {
            let core = core_of(KEY, client, port, cores);
            assert!(core < cores);
            hits[core as usize] += 1;
            total += 1;
        }
        hits.iter().max().copied().unwrap_or(0) * cores * 100 / total
    }

    /// The authors' vector for the bytes 0 to 19: their key is 0 to 7, and they take 2 and 4
    /// rounds.
    #[test]
    fn the_hash_is_half_sip_hash() {
        let words = [0x0302_0100, 0x0706_0504, 0x0b0a_0908, 0x0f0e_0d0c, 0x1312_1110];
        assert_eq!(half_sip_hash::<2, 4>(KEY, words), 0x4510_4de3);
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

    #[test]
    fn connections_that_meet_under_one_key_part_under_another() {
        let meet = || (0..60_000u32).filter(|port| core_of(KEY, [1, 0, 0, 0], *port, 16) == 0);
        let still = meet().filter(|port| core_of([7, 9], [1, 0, 0, 0], *port, 16) == 0).count();
        assert!(still * 16 < meet().count() * 5 / 4, "{still} of {}", meet().count());
    }

    #[test]
    fn every_core_is_a_candidate_in_turn() {
        let ring = core::iter::successors(Some(1), |core| Some(after(*core, 3)));
        assert!(ring.take(4).eq([1, 2, 0, 1]));
    }
}
