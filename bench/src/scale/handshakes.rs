//! Cost of a full handshake for the agent, with one name and with many: two agents, asked in turns.

use std::time::Duration;

use anyhow::Result;

use super::Bench;
use super::world::World;
use crate::process::cpu_time;
use crate::sample::{Interval, median, ratio};

/// Of one measurement.
const HANDSHAKES: usize = 500;

/// CPU time of a handshake, in microseconds.
pub(super) struct Names {
    pub(super) count: usize,
    pub(super) one: f64,
    pub(super) many: f64,
    pub(super) ratio: Interval,
}

impl Bench {
    pub(super) fn compare_handshakes(&self, names: usize) -> Result<Names> {
        println!("bench: handshakes with one name and with {names}");
        let worlds = [(1, "127.0.0.92"), (names, "127.0.0.93")];
        let [one, many] = worlds.map(|(count, address)| self.names(count, address));
        let (one, many) = (one?, many?);
        let agents = [self.start(&one)?, self.start(&many)?];
        for world in [&one, &many] {
            self.wait_served(world, world.last(), std::time::Instant::now())?;
            // A listener's TLS state is made when it is first asked for; and the statuses of all
            // are written meanwhile.
            self.check_all(world)?;
        }
        let mut costs = [Vec::new(), Vec::new()];
        for round in 0..self.handshakes {
            for (at, world) in [&one, &many].into_iter().enumerate() {
                costs[at].push(self.cost(world, agents[at].pid(), round)?);
            }
        }
        let [one, many] = costs;
        Ok(Names { count: names, ratio: ratio(&many, &one), one: median(one), many: median(many) })
    }

    fn names(&self, count: usize, address: &str) -> Result<World> {
        let directory = self.scratch.join(format!("names-{count}"));
        std::fs::create_dir_all(&directory)?;
        World::of_names(count, address, &directory, &self.authority)
    }

    fn cost(&self, world: &World, pid: u32, round: usize) -> Result<f64> {
        // Steps through all names in another order than they were made in.
        const STRIDE: usize = 7_919;
        let before = cpu_time(pid)?;
        for number in 0..HANDSHAKES {
            let at = (round * HANDSHAKES + number) * STRIDE % world.tenants.len();
            self.client.connect(world.socket()?, &world.tenants[at].host)?;
        }
        let spent = cpu_time(pid)?.saturating_sub(before);
        Ok(Duration::as_secs_f64(&spent) * 1e6 / HANDSHAKES as f64)
    }
}
