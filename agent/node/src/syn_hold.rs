//! Holds new connections while no agent serves: a SYN that would be refused is dropped, and its
//! client sends it again after a second (RFC 6298, section 2), when the next agent is there. It
//! ends by itself after a while without agent, and then connections are refused.
//!
//! ```text
//! table inet portcullis-5e1f9a27 {           # of one process; the kernel takes it away with it
//!     chain input {
//!         type filter hook input priority 9
//!         tcp syn meta mark set meta mark | 0x2000
//!     }
//! }
//! table inet portcullis {                    # for the next agent
//!     set held { type inet_proto; flags timeout; elements = { tcp timeout 15s expires … } }
//!     set ports4 { type inet_service; … }    # of frontends on all addresses
//!     set frontends4 { type ipv4_addr . inet_proto . inet_service; … }
//!     chain input {
//!         type filter hook input priority 10
//!         not tcp syn accept
//!         meta mark & 0x2000 == 0x2000 meta mark set meta mark & ~0x2000 accept
//!         meta l4proto @held meta nfproto ipv4 th dport @ports4 drop
//!         meta l4proto @held ip daddr . meta l4proto . th dport @frontends4 drop
//!     }
//! }
//! ```
//!
//! That an agent serves is said by a table that it owns, and by no other: no look-up of sockets is
//! needed for each SYN, and nothing has to notice that a process died.

use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, Instant};

use portcullis_log::LastLogged;
use portcullis_model::FrontendKey;
use rustix::rand::GetRandomFlags;

use crate::nftables::addressing::{Addressing, IPV4, IPV6, endpoint};
use crate::nftables::{Family, LASTING, Lifetime, Owned, Rule, Ruleset, has_elements, has_rules, is_unknown};

/// Set and cleared between our two chains; the usual networks and service proxies use others.
const SERVED: u32 = 0x2000;
/// linux/netfilter.h: the local input hook, after the filters of others.
const INPUT: (&str, u32) = ("input", 1);
const SERVING_PRIORITY: i32 = 9;
const HOLDING_PRIORITY: i32 = 10;

const HELD: &str = "held";
const PORTS: [&str; 2] = ["ports4", "ports6"];
const FRONTENDS: [&str; 2] = ["frontends4", "frontends6"];
/// nft's numbers of the types `inet_proto` and `inet_service`.
const PROTOCOL: u32 = 12;
const PORT: u32 = 13;
const TCP: [u8; 1] = [6];
/// Of the destination, in the transport header.
const DESTINATION_PORT: u32 = 2;

/// The hold of this node.
pub(crate) struct SynHold {
    /// Time without agent after which connections are refused.
    time: Duration,
    /// Served by this agent; `None` before it serves, and after.
    wanted: Option<BTreeSet<FrontendKey>>,
    /// As the kernel knows them; `None` if it does not.
    frontends: Option<BTreeSet<FrontendKey>>,
    /// While this agent serves.
    serving: Option<Owned>,
    next_refresh: Instant,
    next_comparison: Instant,
    problem: LastLogged,
}

/// Time between looks at whether another program has flushed the rules.
const COMPARISON_INTERVAL: Duration = Duration::from_secs(10);

impl SynHold {
    pub(crate) fn new(time: Duration, now: Instant) -> Self {
        Self {
            time,
            wanted: None,
            frontends: None,
            serving: None,
            next_refresh: now,
            next_comparison: now + COMPARISON_INTERVAL,
            problem: LastLogged::default(),
        }
    }

    /// Holds new connections to these from the moment on at which this agent no longer serves. To
    /// be called once it does.
    pub(crate) fn serve(&mut self, frontends: &BTreeSet<FrontendKey>) {
        self.wanted = Some(frontends.clone());
        if self.frontends.as_ref() != Some(frontends) {
            self.try_serve(frontends);
        }
    }

    /// Another agent may have changed the rules.
    pub(crate) fn doubt(&mut self) {
        self.frontends = None;
    }

    /// This agent serves no longer, and lives on for as long as its connections do. The time begins
    /// now.
    pub(crate) fn stop(&mut self) {
        self.wanted = None;
        if self.serving.take().is_some() && self.frontends.is_some() {
            _ = refresh(self.time);
        }
    }

    /// To be called every second. Each refreshment is a change of the node's ruleset, and a program
    /// that lists a large one begins again when it has changed: they are as rare as can be.
    pub(crate) fn tend(&mut self, now: Instant) {
        let Some(wanted) = self.wanted.clone() else { return };
        let is_due = now >= self.next_comparison;
        if is_due {
            self.next_comparison = now + COMPARISON_INTERVAL;
        }
        let Some(frontends) = &self.frontends else {
            if is_due {
                self.try_serve(&wanted);
            }
            return;
        };
        let is_gone = is_due && is_in_force(frontends).is_ok_and(|it| !it);
        let is_old = now >= self.next_refresh;
        if is_old {
            self.next_refresh = now + self.time / 2;
        }
        if is_gone || is_old && refresh(self.time).is_err() {
            self.try_serve(&wanted);
        }
    }

    fn try_serve(&mut self, frontends: &BTreeSet<FrontendKey>) {
        // Its own mark first: until the rules are there it holds nothing.
        let served = match &self.serving {
            Some(_) => Ok(()),
            None => own().map(|owned| self.serving = Some(owned)),
        };
        match served.and_then(|()| hold(frontends, self.time)) {
            Ok(()) => {
                self.frontends = Some(frontends.clone());
                self.problem.update((), None);
            }
            Err(error) => {
                self.frontends = None;
                if let Some(error) = self.problem.update((), Some(error.to_string())) {
                    tracing::warn!(
                        "new connections are refused while no agent runs, because nftables cannot hold them: {error}"
                    );
                }
            }
        }
    }
}

/// Says that this process serves, for as long as it does. The name is random: agents in pods all
/// have the same process number.
fn own() -> io::Result<Owned> {
    let mut random = [0; 4];
    rustix::rand::getrandom(&mut random, GetRandomFlags::empty())?;
    let name = format!("{LASTING}-{:08x}", u32::from_ne_bytes(random));
    let mut ruleset = Ruleset::new();
    let mut table = ruleset.new_table(Family::Inet, &name, Lifetime::Owned);
    table.chain(INPUT.0, INPUT.1, SERVING_PRIORITY);
    table.rule(INPUT.0, Rule::new().begins_connection().with_mark(SERVED));
    ruleset.commit_owned()
}

fn hold(frontends: &BTreeSet<FrontendKey>, time: Duration) -> io::Result<()> {
    let mut ruleset = Ruleset::new();
    let mut table = ruleset.table(Family::Inet, LASTING);
    table.fading_set(HELD, PROTOCOL, 1);
    table.refresh(HELD, &TCP, lifetime(time));
    table.chain(INPUT.0, INPUT.1, HOLDING_PRIORITY);
    // Most packets are of open connections, and go no further.
    table.rule(INPUT.0, Rule::new().other_than_tcp().accepted());
    table.rule(INPUT.0, Rule::new().continues_connection().accepted());
    table.rule(INPUT.0, Rule::new().has_mark(SERVED).without_mark(SERVED).accepted());
    for ((set, addressing), everywhere) in FRONTENDS.into_iter().zip([IPV4, IPV6]).zip(PORTS) {
        let held = || Rule::new().protocol_in(HELD).of_family(addressing.family);
        let ports = ports(frontends, addressing);
        if !ports.is_empty() {
            table.set(everywhere, PORT, &ports);
            table.rule(INPUT.0, held().port_in(everywhere, DESTINATION_PORT).dropped());
        }
        let keys: Vec<_> =
            of_one_address(frontends).filter(|it| addressing.has(&it.address)).map(endpoint).collect();
        if !keys.is_empty() {
            table.set(set, addressing.endpoints_shown_as(), &keys);
            let place = (addressing.destination, addressing.length);
            table.rule(INPUT.0, held().endpoint_in(set, place, DESTINATION_PORT).dropped());
        }
    }
    ruleset.commit()
}

/// With what may have gone by since the last refreshment.
fn lifetime(time: Duration) -> Duration {
    time + time / 2
}

fn refresh(time: Duration) -> io::Result<()> {
    let mut ruleset = Ruleset::new();
    ruleset.existing(Family::Inet, LASTING).refresh(HELD, &TCP, lifetime(time));
    ruleset.commit()
}

/// Takes the hold away.
///
/// # Errors
/// When the agent lacks NET_ADMIN.
pub(crate) fn remove() -> io::Result<()> {
    let mut ruleset = Ruleset::new();
    ruleset.without(Family::Inet, LASTING);
    match ruleset.commit() {
        Err(error) if is_unknown(&error) => Ok(()),
        result => result,
    }
}

/// Frontends and ports are counted, not compared.
fn is_in_force(frontends: &BTreeSet<FrontendKey>) -> io::Result<bool> {
    if !has_rules(Family::Inet, LASTING, rules(frontends))? {
        return Ok(false);
    }
    for ((set, addressing), everywhere) in FRONTENDS.into_iter().zip([IPV4, IPV6]).zip(PORTS) {
        let of_one = of_one_address(frontends).filter(|it| addressing.has(&it.address)).count();
        for (set, keys) in [(set, of_one), (everywhere, ports(frontends, addressing).len())] {
            if keys > 0 && !has_elements(Family::Inet, LASTING, set, keys)? {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Number of rules that hold these.
fn rules(frontends: &BTreeSet<FrontendKey>) -> usize {
    let families = [IPV4, IPV6].map(|it| {
        let has_some = of_one_address(frontends).any(|frontend| it.has(&frontend.address));
        usize::from(has_some) + usize::from(!ports(frontends, it).is_empty())
    });
    3 + families.into_iter().sum::<usize>()
}

fn of_one_address(frontends: &BTreeSet<FrontendKey>) -> impl Iterator<Item = &FrontendKey> {
    frontends.iter().filter(|frontend| frontend.is_tcp() && !frontend.address.is_unspecified())
}

/// Of frontends on all addresses of the node.
fn ports(frontends: &BTreeSet<FrontendKey>, addressing: Addressing) -> Vec<Vec<u8>> {
    let tcp = frontends.iter().filter(|frontend| frontend.is_tcp() && addressing.has(&frontend.address));
    let everywhere = tcp.filter(|frontend| frontend.address.is_unspecified());
    let ports: BTreeSet<_> = everywhere.map(|frontend| frontend.port).collect();
    ports.into_iter().map(|port| port.to_be_bytes().to_vec()).collect()
}
