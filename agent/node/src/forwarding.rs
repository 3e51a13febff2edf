//! Connections and datagrams that the kernel forwards: interfaces that have the programs, rules,
//! and the end of flows that are idle. What is not forwarded is served by user space.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use portcullis_common::abi;
use portcullis_common::flow::{
    BACKEND_IN, BACKEND_OUT, CLIENT_IN, CLIENT_OUT, Endpoint, FULL, Flow, Hook, Ip, MAX_FLOWS, NodeAddresses,
    OPEN, Translation, Tuple,
};
use portcullis_log::LastLogged;
use portcullis_model::FrontendKey;

use crate::clock::monotonic;
use crate::datapath::Datapath;
use crate::error::{Error, Unavailable};
use crate::foreign::{self, ForeignProgram};
use crate::netlink::addresses::Addresses;
use crate::netlink::changes::Changes;
use crate::netlink::links::{RoutedLink, routed_links};
use crate::plan::forward::{ForwardContents, ForwardOp, ForwardTable, plan_forwarding};
use crate::plan::key::{address, key};
use crate::plan::table::Change;
use crate::programs::attach::{self, Attachment};
use crate::programs::forward::{self, Forwarder};
use crate::programs::interfaces::Interface;
use crate::programs::pins::Pins;
use crate::programs::probe::kernel_release;

/// Time between looks at the interfaces, and between looks at the flows.
const INTERVAL: Duration = Duration::from_secs(10);
/// Looking at the flows takes at most such a part of the time.
const SHARE: u32 = 20;

/// Time for the last packets of a connection that both sides have ended.
const CLOSING: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardingSettings {
    /// The node's ports that backends see flows come from.
    pub ports: RangeInclusive<u16>,
    pub tcp_idle: Duration,
    pub udp_idle: Duration,
    /// Time for open connections to end where nothing is served any more.
    pub drain: Duration,
}

/// A reason for which nothing is forwarded in the kernel on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotForwarding {
    /// It was not asked for.
    Off,
    /// Connections are served from ordinary sockets.
    OrdinarySockets,
    /// The kernel gives some of the ports for flows to connections of the node's own.
    CommonPorts { flows: RangeInclusive<u16>, own: RangeInclusive<u16> },
    /// The kernel is older than tcx.
    NoTcx { kernel: String },
    /// Another program may send packets on by ways that this agent's do not know.
    Foreign(ForeignProgram),
    /// The programs or their maps cannot be loaded.
    Refused(String),
}

/// Frontends of TCP and UDP listeners, by whatever they are served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct L4Frontends {
    pub served: BTreeSet<FrontendKey>,
    /// Those of which not even open flows are left to the kernel: each of them is to be judged
    /// anew.
    pub judged: BTreeSet<FrontendKey>,
}

/// The state of forwarding, for an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardingReport {
    /// Interfaces that have both programs.
    pub interfaces: Vec<String>,
    /// Confirmed flows, when they were last looked at.
    pub flows: u64,
}

/// Dropping it leaves everything to the next agent.
pub struct Forwarding {
    /// `None` while nothing is to be forwarded, and nothing is: the maps take memory.
    forwarder: Option<Forwarder>,
    pins: Pins,
    settings: ForwardingSettings,
    /// Of the maps; this is their only writer.
    contents: ForwardContents,
    tables: Vec<ForwardTable>,
    /// Frontends of these tables that the maps have no room for.
    left_out: BTreeSet<FrontendKey>,
    /// By index.
    attached: BTreeMap<u32, Attachment>,
    /// `None` where the kernel does not tell: interfaces are looked at all the same, less often.
    changes: Option<Changes>,
    next_look: Instant,
    next_sweep: Instant,
    /// Another's program for whose sake nothing new is forwarded.
    foreign: Option<ForeignProgram>,
    /// As it was when frontends were last sorted by who serves them.
    known_foreign: Option<ForeignProgram>,
    /// Frontends whose flows go on: of TCP those of listeners, by whatever they are served, of UDP
    /// those that the kernel forwards. `None` until they are known.
    kept: Option<BTreeSet<abi::FrontendKey>>,
    /// Frontends whose flows end at once.
    ended: BTreeSet<abi::FrontendKey>,
    /// The endpoints that each frontend leads to.
    backends: BTreeMap<abi::FrontendKey, BTreeSet<Endpoint>>,
    /// Frontends that are not kept any more, and until when their flows may go on.
    leaving: BTreeMap<abi::FrontendKey, Instant>,
    flows: u64,
    problem: LastLogged,
}

impl Forwarding {
    /// Goes on with what an earlier agent has begun. If there is nothing, programs and maps are
    /// loaded as soon as there is something to forward; the kernel is asked at once whether it can.
    ///
    /// # Errors
    /// When the kernel cannot, or will not.
    pub fn open(datapath: &Datapath, settings: ForwardingSettings) -> Result<Self, NotForwarding> {
        let pins = datapath.place();
        if !attach::has_tcx() {
            return Err(NotForwarding::NoTcx { kernel: kernel_release() });
        }
        Forwarder::probe().map_err(|error: Unavailable| NotForwarding::Refused(error.to_string()))?;
        let now = Instant::now();
        let foreign = foreign::find(&pins);
        let mut forwarding = Self {
            forwarder: None,
            pins,
            settings,
            contents: ForwardContents::default(),
            tables: Vec::new(),
            left_out: BTreeSet::new(),
            attached: BTreeMap::new(),
            changes: Changes::open().ok(),
            next_look: now,
            next_sweep: now + INTERVAL,
            known_foreign: foreign.clone(),
            foreign,
            kept: None,
            ended: BTreeSet::new(),
            backends: BTreeMap::new(),
            leaving: BTreeMap::new(),
            flows: 0,
            problem: LastLogged::default(),
        };
        forwarding
            .go_on(datapath.predecessors())
            .map_err(|error| NotForwarding::Refused(error.to_string()))?;
        Ok(forwarding)
    }

    /// Programs that are there are replaced by this agent's at once, as all others are. Without
    /// any, maps that are left are of no use.
    fn go_on(&mut self, predecessors: &[Pins]) -> Result<(), Error> {
        if !forward::are_left(&self.pins) && !forward::adopt(&self.pins, predecessors)? {
            return forward::remove(&self.pins);
        }
        self.load()?;
        let links = routed_links().unwrap_or_else(|error| {
            tracing::warn!("what an earlier agent forwards goes on by its own programs: {error}");
            Vec::new()
        });
        self.attach(links);
        Ok(())
    }

    fn load(&mut self) -> Result<(), Error> {
        let forwarder = Forwarder::load(&self.pins).map_err(|why| Error::Load(Box::new(why)))?;
        self.contents = forwarder.contents()?;
        self.forwarder = Some(forwarder);
        Ok(())
    }

    /// Another agent has written the maps since this one did, or removed them.
    pub(crate) fn reread(&mut self) -> Result<(), Error> {
        self.tables.clear();
        self.attached.clear();
        self.forwarder = None;
        self.contents = ForwardContents::default();
        self.go_on(&[])
    }

    /// Forwards to these tables, and to no others, and returns the frontends for which there is no
    /// room.
    pub fn apply(
        &mut self,
        tables: Vec<ForwardTable>,
        listeners: &L4Frontends,
        now: Instant,
    ) -> BTreeSet<FrontendKey> {
        self.backends = tables.iter().flat_map(ForwardTable::endpoints_by_frontend).collect();
        let ended: BTreeSet<_> = listeners.judged.iter().map(key).collect();
        if !ended.is_subset(&self.ended) {
            self.next_sweep = now;
        }
        self.ended = ended;
        // A client of datagrams may never end: what user space is to see, it sees after a while.
        let tcp = listeners.served.iter().map(key).filter(|frontend| frontend.protocol == abi::TCP);
        let kept: BTreeSet<_> = tcp.chain(self.backends.keys().copied()).collect();
        let until = now + self.settings.drain;
        let before = self.kept.take().unwrap_or_default();
        self.leaving.extend(before.difference(&kept).map(|gone| (*gone, until)));
        self.leaving.retain(|frontend, _| !kept.contains(frontend));
        self.kept = Some(kept);
        self.known_foreign = self.foreign.clone();
        if self.tables != tables || self.next_look <= now {
            self.tables = tables;
            self.look(now);
        }
        self.left_out.clone()
    }

    /// Says what keeps anything new from being forwarded.
    ///
    /// # Errors
    /// While programs of others are where packets would be forwarded. What is open goes on.
    pub fn check(&self) -> Result<(), NotForwarding> {
        self.foreign.clone().map_or(Ok(()), |foreign| Err(NotForwarding::Foreign(foreign)))
    }

    /// Follows the node's interfaces, and ends flows that are idle. Returns `true` if frontends are
    /// to be sorted anew by who serves them.
    pub fn tend(&mut self, now: Instant) -> bool {
        if self.changes.as_ref().is_some_and(Changes::any) || self.next_look <= now {
            self.look(now);
            self.look_for_others();
        }
        if self.next_sweep <= now {
            self.sweep(now);
            self.next_sweep = now + INTERVAL.max(now.elapsed() * SHARE);
        }
        self.foreign != self.known_foreign
    }

    fn look_for_others(&mut self) {
        let foreign = foreign::find(&self.pins);
        if foreign == self.foreign {
            return;
        }
        match &foreign {
            Some(foreign) => {
                tracing::warn!("{foreign}; nothing new is forwarded in the kernel, and user space serves it")
            }
            None => tracing::info!("programs of others are gone from where packets are forwarded"),
        }
        self.foreign = foreign;
    }

    pub fn report(&self) -> ForwardingReport {
        let interfaces = self.attached.values().map(|attachment| attachment.target.clone());
        ForwardingReport { interfaces: interfaces.collect(), flows: self.flows }
    }

    /// Runs a program on an Ethernet frame that came in by an interface, and returns the frame as
    /// the program leaves it.
    ///
    /// # Errors
    /// When the kernel will not.
    pub fn run(&mut self, hook: Hook, frame: &[u8], came_in_by: u32) -> Result<Vec<u8>, Unavailable> {
        let unloaded = || Unavailable::Object("it is not loaded: nothing is forwarded".to_owned());
        self.forwarder.as_mut().ok_or_else(unloaded)?.run(hook, frame, came_in_by)
    }

    fn look(&mut self, now: Instant) {
        self.next_look = now + INTERVAL;
        let problem = self.follow().err().map(|error| error.to_string());
        let is_left_out = |frontend: &&FrontendKey| !self.contents.rules.contains_key(&key(frontend));
        let frontends = self.tables.iter().flat_map(|table| &table.frontends);
        self.left_out = frontends.filter(is_left_out).copied().collect();
        if let Some(problem) = self.problem.update((), problem) {
            tracing::warn!(
                "not all that could be is forwarded in the kernel: {problem}; user space serves it"
            );
        }
    }

    fn follow(&mut self) -> Result<(), Error> {
        if self.tables.is_empty() && self.forwarder.is_none() {
            return Ok(());
        }
        if self.forwarder.is_none() {
            self.load()?;
        }
        let interfaces = match routed_links() {
            Ok(links) => self.attach(links),
            Err(error) => {
                tracing::debug!("interfaces cannot be listed: {error}");
                self.contents.interfaces.clone()
            }
        };
        let desired = ForwardContents::of(&self.tables, interfaces, &self.contents);
        self.write(&desired)
    }

    /// An entry that cannot be written keeps no other from being written or removed. Returns the
    /// first error.
    fn write(&mut self, desired: &ForwardContents) -> Result<(), Error> {
        let Some(forwarder) = &mut self.forwarder else { return Ok(()) };
        let room = if self.flows * 4 > u64::from(MAX_FLOWS) / 20 * 19 { FULL } else { OPEN };
        let (first, last) = (*self.settings.ports.start(), *self.settings.ports.end());
        let mut result = forwarder.set(first, last, room);
        let mut unfilled = BTreeSet::new();
        for op in plan_forwarding(&self.contents, desired) {
            let op = match op {
                // A rule that cannot lead there leads nowhere.
                ForwardOp::Rule(Change::Put(key, rule)) if unfilled.contains(&rule.table) => {
                    ForwardOp::Rule(Change::Remove(key))
                }
                op => op,
            };
            match forwarder.execute(op) {
                Ok(()) => self.contents.apply(op),
                Err(error) => {
                    if let ForwardOp::Backend(Change::Put(slot, _)) = op {
                        unfilled.insert(slot.table);
                    }
                    result = result.and(Err(error));
                }
            }
        }
        result
    }

    /// Attaches the programs where they should be, and returns the interfaces that have both.
    fn attach(&mut self, links: Vec<RoutedLink>) -> BTreeMap<u32, NodeAddresses> {
        let Some(forwarder) = &mut self.forwarder else { return BTreeMap::new() };
        self.attached.retain(|index, _| links.iter().any(|link| link.index == *index));
        let mut interfaces = BTreeMap::new();
        for link in links {
            let addresses = addresses(&link);
            let (name, index) = (link.name, link.index);
            if !self.attached.contains_key(&index) {
                match forwarder.attach(&self.pins, &Interface { name: name.clone(), index }) {
                    Ok([attachment, _]) => _ = self.attached.insert(index, attachment),
                    Err(error) => {
                        tracing::debug!("what leaves by {name} is not forwarded in the kernel: {error}");
                        continue;
                    }
                }
            }
            interfaces.insert(index, addresses);
        }
        interfaces
    }

    /// Ends flows that are idle, that both sides have ended, whose listener has gone, or whose
    /// backends answer an address that the node has lost.
    fn sweep(&mut self, now: Instant) {
        let Some(mut forwarder) = self.forwarder.take() else { return };
        let clock = monotonic();
        let own = own_addresses();
        let (mut ended, mut strays, mut flows) = (Vec::new(), Vec::new(), 0);
        let mut leaving = std::mem::take(&mut self.leaving);
        for (tuple, entry) in forwarder.flows() {
            let flow = Flow::of(&tuple, &entry);
            if tuple != flow.key(CLIENT_IN) {
                if is_stray(&forwarder, &flow, &entry, clock) {
                    strays.push(tuple);
                }
                continue;
            }
            flows += 1;
            let frontend = frontend(&tuple);
            if self.kept.as_ref().is_some_and(|kept| !kept.contains(&frontend)) {
                // It may have gone while no agent ran.
                leaving.entry(frontend).or_insert(now + self.settings.drain);
            }
            let has_left =
                leaving.get(&frontend).is_some_and(|until| *until <= now) || self.ended.contains(&frontend);
            let is_lost = own.as_ref().is_some_and(|own| !own.contains(&flow.node.ip));
            if is_lost || has_left || self.is_over(&forwarder, &flow, &frontend, &entry, clock) {
                ended.push(flow);
            }
        }
        self.leaving = leaving;
        self.flows = flows - ended.len() as u64;
        for tuple in strays {
            let entry = forwarder.flow(&tuple);
            if entry.is_some_and(|it| is_stray(&forwarder, &Flow::of(&tuple, &it), &it, clock)) {
                remove_entry(&mut forwarder, &tuple);
            }
        }
        for flow in ended {
            end(&mut forwarder, &flow);
        }
        self.leaving.retain(|_, until| now < *until + INTERVAL * 2);
        // Every packet would be looked at for nothing. Until there are tables it is not known.
        let is_unused = self.kept.is_some() && self.tables.is_empty() && self.flows == 0;
        self.forwarder = (!is_unused).then_some(forwarder);
        if is_unused {
            self.attached.clear();
            self.contents = ForwardContents::default();
            if let Err(error) = forward::remove(&self.pins) {
                tracing::warn!("programs that forward nothing stay: {error}");
            }
        }
    }

    fn is_over(
        &self,
        forwarder: &Forwarder,
        flow: &Flow,
        frontend: &abi::FrontendKey,
        entry: &Translation,
        clock: u64,
    ) -> bool {
        // The next datagram finds another endpoint; connections know when theirs has gone.
        let is_gone = |endpoints: &BTreeSet<Endpoint>| !endpoints.contains(&flow.backend);
        if frontend.protocol != abi::TCP && self.backends.get(frontend).is_some_and(is_gone) {
            return true;
        }
        let idle =
            if frontend.protocol == abi::TCP { self.settings.tcp_idle } else { self.settings.udp_idle };
        let limit = match entry.is_closing() {
            true => CLOSING.max(Duration::from_nanos(entry.linger())),
            false => idle,
        };
        let is_idle = |seen: u64| Duration::from_nanos(clock.saturating_sub(seen)) > limit;
        // The backend's packets are seen elsewhere.
        is_idle(entry.seen)
            && forwarder.flow(&flow.key(BACKEND_OUT)).is_none_or(|backend| is_idle(backend.seen))
    }
}

/// Forwarding as it was asked for, on a node with or without programs.
pub(crate) fn open(
    datapath: Option<&Datapath>,
    settings: Option<&ForwardingSettings>,
) -> Result<Forwarding, NotForwarding> {
    let Some(datapath) = datapath else {
        return Err(if settings.is_some() { NotForwarding::OrdinarySockets } else { NotForwarding::Off });
    };
    let opened = settings.ok_or(NotForwarding::Off).and_then(|settings| {
        check_ports(&settings.ports)?;
        Forwarding::open(datapath, settings.clone())
    });
    match &opened {
        Ok(Forwarding { foreign: Some(foreign), .. }) => {
            tracing::warn!("{foreign}; nothing new is forwarded in the kernel, and user space serves it");
        }
        Ok(_) => tracing::info!("TCP and UDP are forwarded in the kernel where nothing needs user space"),
        Err(NotForwarding::Off) => {}
        // Nothing on this node is to be mended.
        Err(reason @ NotForwarding::NoTcx { .. }) => {
            tracing::info!("nothing is forwarded in the kernel, and user space serves it: {reason}");
        }
        Err(reason) => {
            tracing::warn!("nothing is forwarded in the kernel, and user space serves it: {reason}");
        }
    }
    opened
}

/// Flows of an earlier agent where this one does not forward: none begins, and those that are open
/// have the time to end that all have.
pub(crate) struct Ending {
    pins: Pins,
    until: Instant,
}

impl Ending {
    /// `None` if there is nothing. To be called before the programs of earlier agents go: flows of
    /// another version go on by this one's.
    pub(crate) fn begin(datapath: &Datapath, drain: Duration, now: Instant) -> Option<Self> {
        let pins = datapath.place();
        if let Err(error) = keep_flows(&pins, datapath.predecessors()) {
            tracing::warn!(
                "what an earlier agent of another version forwards in the kernel is cut now: {error}"
            );
        }
        if !forward::are_left(&pins) {
            return None;
        }
        if let Err(error) = forward::remove_rules(&pins) {
            tracing::debug!("what an earlier agent forwards goes on for now: {error}");
        }
        tracing::info!(
            "nothing new is forwarded in the kernel; {} open flows of an earlier agent may go on for {} s",
            forward::count_flows(&pins),
            drain.as_secs()
        );
        Some(Self { pins, until: now + drain })
    }

    /// True when it is over.
    pub(crate) fn tend(&self, now: Instant) -> bool {
        if now < self.until {
            return false;
        }
        let cut = forward::count_flows(&self.pins);
        match forward::remove(&self.pins) {
            Ok(()) if cut == 0 => tracing::info!("what an earlier agent forwarded in the kernel has ended"),
            Ok(()) => tracing::warn!(
                "what an earlier agent forwarded in the kernel has ended, and {cut} open flows with it"
            ),
            Err(error) => tracing::warn!("an earlier agent's programs go on forwarding: {error}"),
        }
        true
    }
}

/// Has this version's programs go on with the flows of another, if they can.
fn keep_flows(pins: &Pins, predecessors: &[Pins]) -> Result<(), Error> {
    if forward::are_left(pins) || !forward::adopt(pins, predecessors)? {
        return Ok(());
    }
    let mut forwarder = Forwarder::load(pins).map_err(|why| Error::Load(Box::new(why)))?;
    for RoutedLink { name, index, .. } in routed_links().map_err(Error::Links)? {
        if let Err(error) = forwarder.attach(pins, &Interface { name: name.clone(), index }) {
            tracing::debug!("what leaves by {name} is not forwarded in the kernel: {error}");
        }
    }
    Ok(())
}

impl NotForwarding {
    /// For metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::OrdinarySockets => "no-programs",
            Self::CommonPorts { .. } => "common-ports",
            Self::NoTcx { .. } => "no-tcx",
            Self::Foreign(_) => "foreign-program",
            Self::Refused(_) => "kernel-refused",
        }
    }
}

impl fmt::Display for NotForwarding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("--forwarding is off"),
            Self::OrdinarySockets => f.write_str("the kernel programs are not in use"),
            Self::CommonPorts { flows, own } => write!(
                f,
                "connections of the node itself may have ports {}-{} (net.ipv4.ip_local_port_range), and flows {}-{} \
                 (--forwarding-ports): set them apart, or the common ones aside (net.ipv4.ip_local_reserved_ports)",
                own.start(),
                own.end(),
                flows.start(),
                flows.end()
            ),
            Self::NoTcx { kernel } => write!(f, "it needs Linux 6.6 or later (tcx), and this is {kernel}"),
            Self::Foreign(foreign) => write!(f, "{foreign}"),
            Self::Refused(why) => f.write_str(why),
        }
    }
}

/// An entry of a flow that has ended otherwise: by an agent that was stopped over it, for instance.
/// It would keep its port for ever.
fn is_stray(forwarder: &Forwarder, flow: &Flow, entry: &Translation, clock: u64) -> bool {
    let key = flow.key(CLIENT_IN);
    let is_whole = || forwarder.flow(&key).is_some_and(|first| Flow::of(&key, &first) == *flow);
    Duration::from_nanos(clock.saturating_sub(entry.seen)) > CLOSING && !is_whole()
}

/// Removes a flow's entries. The programs may have ended it since it was looked at, and given its
/// ports to another flow, which stays whole. They give away no port whose entry is there without
/// the client's, so that goes first.
fn end(forwarder: &mut Forwarder, flow: &Flow) {
    for part in [CLIENT_IN, BACKEND_OUT, CLIENT_OUT, BACKEND_IN] {
        let key = flow.key(part);
        if forwarder.flow(&key).is_some_and(|entry| Flow::of(&key, &entry) == *flow) {
            remove_entry(forwarder, &key);
        }
    }
}

fn remove_entry(forwarder: &mut Forwarder, key: &Tuple) {
    if let Err(error) = forwarder.remove_flow(key) {
        tracing::debug!("{error}");
    }
}

fn frontend(tuple: &Tuple) -> abi::FrontendKey {
    abi::FrontendKey {
        address: tuple.destination.address(),
        port_be: tuple.destination_port_be,
        protocol: tuple.protocol,
        reserved: 0,
    }
}

/// The node's addresses; `None` if the kernel does not list them.
fn own_addresses() -> Option<BTreeSet<Ip>> {
    let listed = Addresses::open().and_then(|mut addresses| addresses.list()).ok()?;
    Some(listed.into_iter().map(|local| Ip::from(address(local.address))).collect())
}

fn addresses(link: &RoutedLink) -> NodeAddresses {
    let ip = |ip: Option<IpAddr>| ip.map(|ip| Ip::from(address(ip)));
    NodeAddresses { v4: ip(link.v4).unwrap_or(Ip::v4([0; 4])), v6: ip(link.v6).unwrap_or(Ip::v6([0; 16])) }
}

/// Answers to a connection of the node's own would be taken for those to a flow.
fn check_ports(flows: &RangeInclusive<u16>) -> Result<(), NotForwarding> {
    let setting = |name| std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).unwrap_or_default();
    let own = setting("ip_local_port_range");
    let mut own = own.split_whitespace().filter_map(|bound| bound.parse::<u16>().ok());
    let (Some(first), Some(last)) = (own.next(), own.next()) else { return Ok(()) };
    let reserved = setting("ip_local_reserved_ports");
    let reserved: Vec<_> = reserved.trim().split(',').filter_map(ports).collect();
    let is_common = |port: &u16| !reserved.iter().any(|reserved| reserved.contains(port));
    let mut both = first.max(*flows.start())..=last.min(*flows.end());
    match both.any(|port| is_common(&port)) {
        true => Err(NotForwarding::CommonPorts { flows: flows.clone(), own: first..=last }),
        false => Ok(()),
    }
}

/// `61000-65535`, or one port.
fn ports(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(first.parse().ok()?..=last.parse().ok()?)
}
