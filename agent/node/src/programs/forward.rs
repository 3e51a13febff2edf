//! The two programs that forward, and their maps. They are loaded by themselves, from the same
//! object, so that a node that does not forward has neither. Counters are those of all programs.
#![expect(unsafe_code, reason = "aya's marker for plain old data is an unsafe trait")]

use aya::maps::{Array, HashMap, Map, MapData, MapError, MapInfo, MapType};
use aya::programs::tc::TcAttachOptions;
use aya::programs::{LinkOrder, SchedClassifier, TcAttachType, TestRun, TestRunOptions};
use aya::{Ebpf, EbpfLoader, Pod};
use portcullis_common::abi::{
    COUNTERS, FRONTENDS, FrontendKey, GROUPS, HELLOS, NAME_TABLES, NAMES, SOCKETS, VIPS,
};
use portcullis_common::flow::{
    Endpoint, FLOWS, FORWARD_BACKENDS, FORWARD_IN, FORWARD_INTERFACES, FORWARD_MAPS, FORWARD_OUT,
    FORWARD_RULES, FORWARD_SETTINGS, FRAGMENTS, Fragments, Hook, Ip, MAX_FLOWS, MAX_FRAGMENTS,
    MAX_INTERFACES, MAX_NEW_FLOWS, MAX_RULES, MAX_SLOTS, NEW_FLOWS, NodeAddresses, Rule, Settings, Slot,
    Translation, Tuple,
};
use rustix::rand::GetRandomFlags;

use crate::error::{Error, Unavailable};
use crate::plan::forward::{ForwardContents, ForwardOp};
use crate::plan::table::Change;
use crate::programs::attach::{self, Attachment};
use crate::programs::interfaces::Interface;
use crate::programs::kernel::refused;
use crate::programs::maps::{Shape, removed};
use crate::programs::object::OBJECT;
use crate::programs::pins::Pins;

/// Maps of the others, which these programs have no use for.
const OTHERS: [&str; 7] = [FRONTENDS, VIPS, GROUPS, SOCKETS, NAME_TABLES, NAMES, HELLOS];

const SHAPES: [(&str, Shape); 7] = [
    (FORWARD_RULES, Shape::grown::<FrontendKey, Rule>(MAX_RULES)),
    (FORWARD_BACKENDS, Shape::grown::<Slot, Endpoint>(MAX_SLOTS)),
    (FORWARD_INTERFACES, Shape::grown::<u32, NodeAddresses>(MAX_INTERFACES)),
    (FORWARD_SETTINGS, Shape::new::<u32, Settings>(MapType::Array, 1)),
    (FLOWS, Shape::grown::<Tuple, Translation>(MAX_FLOWS)),
    (NEW_FLOWS, Shape::new::<Tuple, Translation>(MapType::LruHash, MAX_NEW_FLOWS)),
    (FRAGMENTS, Shape::new::<Fragments, Ip>(MapType::LruHash, MAX_FRAGMENTS)),
];

/// Loaded programs with their maps.
pub(crate) struct Forwarder {
    ebpf: Ebpf,
    rules: HashMap<MapData, Raw<FrontendKey>, Raw<Rule>>,
    backends: HashMap<MapData, Raw<Slot>, Raw<Endpoint>>,
    interfaces: HashMap<MapData, u32, Raw<NodeAddresses>>,
    settings: Array<MapData, Raw<Settings>>,
    flows: HashMap<MapData, Raw<Tuple>, Raw<Translation>>,
}

impl Forwarder {
    /// Loads the programs with maps of almost no size, and forgets them: to know whether the kernel
    /// accepts them.
    pub(crate) fn probe() -> Result<(), Unavailable> {
        let mut loader = EbpfLoader::new();
        for map in OTHERS.iter().chain(&FORWARD_MAPS) {
            loader.map_max_entries(map, 1);
        }
        let mut ebpf = loader.load(OBJECT.ok_or(Unavailable::NotBuilt)?).map_err(refused)?;
        [Hook::In, Hook::Out].into_iter().try_for_each(|hook| load_program(&mut ebpf, hook))
    }

    /// Adopts maps that an earlier agent has pinned, with their flows, if they fit; otherwise these
    /// are replaced, and what was forwarded ends.
    pub(crate) fn load(pins: &Pins) -> Result<Self, Unavailable> {
        let object = OBJECT.ok_or(Unavailable::NotBuilt)?;
        discard_unfit(pins)?;
        let mut loader = EbpfLoader::new();
        for map in OTHERS {
            loader.map_max_entries(map, 1);
        }
        for map in FORWARD_MAPS.iter().chain(&[COUNTERS]) {
            loader.map_pin_path(map, pins.map(map));
        }
        let mut ebpf = loader.load(object).map_err(refused)?;
        let mut forwarder = Self {
            rules: take(&mut ebpf, FORWARD_RULES)?,
            backends: take(&mut ebpf, FORWARD_BACKENDS)?,
            interfaces: take(&mut ebpf, FORWARD_INTERFACES)?,
            settings: take(&mut ebpf, FORWARD_SETTINGS)?,
            flows: take(&mut ebpf, FLOWS)?,
            ebpf,
        };
        [Hook::In, Hook::Out].into_iter().try_for_each(|hook| load_program(&mut forwarder.ebpf, hook))?;
        Ok(forwarder)
    }

    /// Attaches both programs to an interface, or puts them into the links that are there.
    pub(crate) fn attach(
        &mut self,
        pins: &Pins,
        interface: &Interface,
    ) -> Result<[Attachment; 2], Unavailable> {
        // What leaves is translated before anything comes in that would.
        let out = self.attach_one(pins, interface, Hook::Out)?;
        Ok([self.attach_one(pins, interface, Hook::In)?, out])
    }

    fn attach_one(
        &mut self,
        pins: &Pins,
        interface: &Interface,
        hook: Hook,
    ) -> Result<Attachment, Unavailable> {
        let name = program_name(hook);
        let kind = match hook {
            Hook::In => TcAttachType::Ingress,
            Hook::Out => TcAttachType::Egress,
        };
        let program = self.program(hook)?;
        // Before the programs of others, whose verdicts may be the last ones.
        let first = TcAttachOptions::TcxOrder(LinkOrder::first());
        attach::tcx(program, name, pins, interface, kind, first)
    }

    pub(crate) fn contents(&self) -> Result<ForwardContents, Error> {
        let rules = self.rules.iter().map(|entry| entry.map(|(key, rule)| (key.0, rule.0)));
        let backends = self.backends.iter().map(|entry| entry.map(|(slot, backend)| (slot.0, backend.0)));
        let interfaces = self.interfaces.iter().map(|entry| entry.map(|(index, it)| (index, it.0)));
        Ok(ForwardContents {
            rules: rules.collect::<Result<_, _>>().map_err(unreadable(FORWARD_RULES))?,
            backends: backends.collect::<Result<_, _>>().map_err(unreadable(FORWARD_BACKENDS))?,
            interfaces: interfaces.collect::<Result<_, _>>().map_err(unreadable(FORWARD_INTERFACES))?,
        })
    }

    pub(crate) fn execute(&mut self, op: ForwardOp) -> Result<(), Error> {
        let (map, written) = match op {
            ForwardOp::Rule(Change::Put(key, rule)) => {
                (FORWARD_RULES, self.rules.insert(Raw(key), Raw(rule), 0))
            }
            ForwardOp::Rule(Change::Remove(key)) => (FORWARD_RULES, removed(self.rules.remove(&Raw(key)))),
            ForwardOp::Backend(Change::Put(slot, backend)) => {
                (FORWARD_BACKENDS, self.backends.insert(Raw(slot), Raw(backend), 0))
            }
            ForwardOp::Backend(Change::Remove(slot)) => {
                (FORWARD_BACKENDS, removed(self.backends.remove(&Raw(slot))))
            }
            ForwardOp::Interface(Change::Put(index, addresses)) => {
                (FORWARD_INTERFACES, self.interfaces.insert(index, Raw(addresses), 0))
            }
            ForwardOp::Interface(Change::Remove(index)) => {
                (FORWARD_INTERFACES, removed(self.interfaces.remove(&index)))
            }
        };
        let entry = || format!("{op:?}");
        written.map_err(|source| Error::Write { map, entry: entry(), source: Box::new(source) })
    }

    /// Sets everything but the key, which is made once.
    pub(crate) fn set(&mut self, first_port: u16, last_port: u16, room: u32) -> Result<(), Error> {
        let old = self.settings.get(&0, 0).map_err(unreadable(FORWARD_SETTINGS))?.0;
        let key = match old.key {
            [0, 0] => random_key()?,
            known => known,
        };
        let settings = Settings { key, first_port, last_port, room };
        if settings == old {
            return Ok(());
        }
        let written = self.settings.set(0, Raw(settings), 0);
        let entry = || "the settings".to_owned();
        written.map_err(|source| Error::Write {
            map: FORWARD_SETTINGS,
            entry: entry(),
            source: Box::new(source),
        })
    }

    /// The entries of confirmed flows, one by one; what another CPU changes meanwhile may be
    /// missed, or come twice.
    pub(crate) fn flows(&self) -> impl Iterator<Item = (Tuple, Translation)> {
        self.flows.iter().filter_map(Result::ok).map(|(key, value)| (key.0, value.0))
    }

    pub(crate) fn flow(&self, key: &Tuple) -> Option<Translation> {
        self.flows.get(&Raw(*key), 0).ok().map(|value| value.0)
    }

    pub(crate) fn remove_flow(&mut self, key: &Tuple) -> Result<(), Error> {
        let gone = removed(self.flows.remove(&Raw(*key)));
        gone.map_err(|source| Error::Write {
            map: FLOWS,
            entry: "a flow that has ended".to_owned(),
            source: Box::new(source),
        })
    }

    /// Runs a program on one Ethernet frame, as if it had come in by an interface; returns the
    /// frame as the program leaves it.
    pub(crate) fn run(&mut self, hook: Hook, frame: &[u8], came_in_by: u32) -> Result<Vec<u8>, Unavailable> {
        let mut out = vec![0; frame.len() + 64];
        // `struct __sk_buff` of linux/bpf.h.
        let mut context = [0; 192];
        context[INGRESS_IFINDEX..][..4].copy_from_slice(&came_in_by.to_ne_bytes());
        context[IFINDEX..][..4].copy_from_slice(&came_in_by.to_ne_bytes());
        let options = TestRunOptions {
            data_in: Some(frame),
            data_out: Some(&mut out),
            ctx_in: Some(&context),
            ..TestRunOptions::default()
        };
        let result = self.program(hook)?.test_run(options).map_err(|error| refused(error.into()))?;
        let length = result.data_size_out as usize;
        out.truncate(length);
        Ok(out)
    }

    fn program(&mut self, hook: Hook) -> Result<&mut SchedClassifier, Unavailable> {
        program(&mut self.ebpf, hook)
    }
}

fn program(ebpf: &mut Ebpf, hook: Hook) -> Result<&mut SchedClassifier, Unavailable> {
    let name = program_name(hook);
    let program = ebpf.program_mut(name).and_then(|program| program.try_into().ok());
    program.ok_or_else(|| Unavailable::Object(format!("it has no program {name}")))
}

fn load_program(ebpf: &mut Ebpf, hook: Hook) -> Result<(), Unavailable> {
    program(ebpf, hook)?.load().map_err(|error| refused(error.into()))
}

/// Offsets in `struct __sk_buff`.
const INGRESS_IFINDEX: usize = 36;
const IFINDEX: usize = 40;

pub(crate) const fn program_name(hook: Hook) -> &'static str {
    match hook {
        Hook::In => FORWARD_IN,
        Hook::Out => FORWARD_OUT,
    }
}

fn is_fit(pins: &Pins, name: &str, expected: &Shape) -> bool {
    MapInfo::from_pin(pins.map(name)).and_then(|map| Shape::pinned(&map)).is_ok_and(|it| it == *expected)
}

/// Pins the maps of an agent of another version beside this one's: what that one forwards goes on,
/// by the programs of both, until that one's have gone. What one has rewritten is no packet of a
/// flow to the other. False if there are none, or none that fit.
pub(crate) fn adopt(pins: &Pins, others: &[Pins]) -> Result<bool, Error> {
    let fits =
        |other: &&Pins| are_left(other) && SHAPES.iter().all(|(name, shape)| is_fit(other, name, shape));
    let Some(other) = others.iter().find(fits) else { return Ok(false) };
    for name in FORWARD_MAPS {
        let map = MapData::from_pin(other.map(name)).map_err(unreadable(name))?;
        pins.remove_map(name)?;
        let pin = |source| Error::Pin { path: pins.map(name), source: Box::new(source) };
        map.pin(pins.map(name)).map_err(pin)?;
    }
    Ok(true)
}

/// Removes pins of maps that cannot be used: of another size, for instance.
fn discard_unfit(pins: &Pins) -> Result<(), Unavailable> {
    let is_fit = |name: &str, expected: &Shape| !pins.map(name).exists() || is_fit(pins, name, expected);
    if SHAPES.iter().all(|(name, expected)| is_fit(name, expected)) {
        return Ok(());
    }
    tracing::warn!("what an earlier agent forwards ends: its maps are of another shape");
    remove(pins).map_err(|error| Unavailable::Object(error.to_string()))
}

/// Takes the rules away that an earlier agent has left: no flow begins.
pub(crate) fn remove_rules(pins: &Pins) -> Result<(), Error> {
    let unusable = unreadable(FORWARD_RULES);
    let map = MapData::from_pin(pins.map(FORWARD_RULES)).map_err(unreadable(FORWARD_RULES))?;
    let mut rules: HashMap<_, Raw<FrontendKey>, Raw<Rule>> =
        Map::HashMap(map).try_into().map_err(&unusable)?;
    let keys: Vec<_> = rules.keys().filter_map(Result::ok).collect();
    keys.into_iter().try_for_each(|key| removed(rules.remove(&key)).map_err(&unusable))
}

/// Confirmed flows, as far as their map can be read.
pub(crate) fn count_flows(pins: &Pins) -> usize {
    let Ok(map) = MapData::from_pin(pins.map(FLOWS)) else { return 0 };
    let flows: Result<HashMap<_, Raw<Tuple>, Raw<Translation>>, _> = Map::HashMap(map).try_into();
    flows.map_or(0, |flows| flows.keys().filter(Result::is_ok).count().div_ceil(4))
}

/// Detaches the programs, and removes their pins.
pub(crate) fn remove(pins: &Pins) -> Result<(), Error> {
    detach(pins)?;
    FORWARD_MAPS.iter().try_for_each(|map| pins.remove_map(map))
}

/// Takes the programs off all interfaces.
pub(crate) fn detach(pins: &Pins) -> Result<(), Error> {
    let is_ours = |link: &String| link.starts_with(FORWARD_IN) || link.starts_with(FORWARD_OUT);
    pins.links().iter().filter(|link| is_ours(link)).try_for_each(|link| pins.remove_link(link))
}

/// True if an earlier agent has left programs that forward.
pub(crate) fn are_left(pins: &Pins) -> bool {
    pins.links().iter().any(|link| link.starts_with(FORWARD_IN))
}

fn take<M: TryFrom<Map, Error = MapError>>(ebpf: &mut Ebpf, name: &str) -> Result<M, Unavailable> {
    let map = ebpf.take_map(name).ok_or_else(|| Unavailable::Object(format!("it has no map {name}")))?;
    M::try_from(map).map_err(|error| Unavailable::Object(format!("map {name}: {error}")))
}

fn unreadable(map: &'static str) -> impl Fn(MapError) -> Error {
    move |source| Error::Read { map, source: Box::new(source) }
}

fn random_key() -> Result<[u32; 2], Error> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty()).map_err(Error::Random)?;
    let [a, b, c, d, e, f, g, h] = bytes;
    Ok([u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h])])
}

/// A key or value as the kernel sees it.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Raw<T>(T);

// SAFETY: `repr(C)` integers without padding (`portcullis_common::flow` asserts the sizes); every
// bit pattern is a value.
unsafe impl Pod for Raw<FrontendKey> {}
// SAFETY: as above.
unsafe impl Pod for Raw<Rule> {}
// SAFETY: as above.
unsafe impl Pod for Raw<Slot> {}
// SAFETY: as above.
unsafe impl Pod for Raw<Endpoint> {}
// SAFETY: as above.
unsafe impl Pod for Raw<NodeAddresses> {}
// SAFETY: as above.
unsafe impl Pod for Raw<Settings> {}
// SAFETY: as above.
unsafe impl Pod for Raw<Tuple> {}
// SAFETY: as above.
unsafe impl Pod for Raw<Translation> {}
