//! Durations of requests, of their backends' responses and of TLS handshakes, by listener, route
//! and backend.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::Hash;
use std::rc::Rc;
use std::sync::Arc;

use foldhash::fast::RandomState;
use http::StatusCode;
use portcullis_model::{BackendName, ListenerId, ObjectName, RuleId, Snapshot};

use crate::core::counter::Counter;
use crate::core::histogram::{Histogram, HistogramCells, Observed};
use crate::core::moment::Moment;
use crate::core::series::{SeriesSet, SharedNames};
use crate::core::settings::Measure;

/// Those of statuses by their first digit, and the two of requests without one.
pub(crate) const CLASSES: usize = 7;
pub(crate) const UNANSWERED: usize = 0;
pub(crate) const ABORTED: usize = 6;

/// A route, and for one that is included by another, which one (GEP-1058).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteName {
    /// `HTTPRoute` or `GRPCRoute`.
    pub kind: &'static str,
    pub route: Arc<ObjectName>,
    pub parent: Option<Arc<ObjectName>>,
}

/// Requests of a route or to a backend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestStats {
    /// By status class: index 2 counts 200 to 299, [`UNANSWERED`] those that got no response,
    /// [`ABORTED`] those whose clients did not wait for one.
    pub requests: [u64; CLASSES],
    pub durations: Histogram,
}

/// Durations of a listener.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListenerDurations {
    pub requests: Histogram,
    pub handshakes: Histogram,
}

/// All of it, by names that have series of their own; `None` names the series of the others. Empty
/// where nothing is measured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DurationStats {
    pub listeners: BTreeMap<Option<ListenerId>, ListenerDurations>,
    pub routes: BTreeMap<Option<RouteName>, RequestStats>,
    /// Requests that were sent on, until there was a response.
    pub backends: BTreeMap<Option<BackendName>, RequestStats>,
    /// Listeners that may have series of their own; as many routes, and backends.
    pub limit: usize,
}

/// The names with series of their own, for all cores.
#[derive(Clone, Debug)]
pub(crate) struct SharedDurations {
    measure: Measure,
    listeners: SharedNames<ListenerId>,
    routes: SharedNames<RouteName>,
    backends: SharedNames<BackendName>,
}

/// One core's series; `None` of what is not measured.
pub(crate) struct Durations {
    listeners: Option<SeriesSet<ListenerId, ListenerSeries>>,
    routes: Option<SeriesSet<RouteName, RequestSeries>>,
    backends: Option<SeriesSet<BackendName, RequestSeries>>,
    rules: RefCell<ByRule>,
    limit: usize,
    /// The snapshot whose names were looked through last.
    looked_through: Cell<u64>,
}

/// By the address of their ids, which are kept alive, so that it is not reused.
type ByRule = HashMap<usize, (Arc<RuleId>, Rc<RuleSeries>), RandomState>;

#[derive(Debug, Default)]
pub(crate) struct ListenerSeries {
    requests: HistogramCells,
    handshakes: HistogramCells,
}

#[derive(Debug, Default)]
struct RequestSeries {
    requests: [Counter; CLASSES],
    durations: HistogramCells,
}

/// The series in which requests of a rule are counted.
struct RuleSeries {
    route: Option<Rc<RequestSeries>>,
    /// Those that requests of the rule went to.
    backends: RefCell<Vec<(BackendName, Rc<RequestSeries>)>>,
}

/// A request that is being answered. It counts when this is dropped.
pub(crate) struct Measured {
    begun: Moment,
    class: usize,
    listener: Option<Rc<ListenerSeries>>,
    rule: Option<Rc<RuleSeries>>,
}

/// The end of the wait for a response to a request.
pub(crate) struct Answered<'a> {
    /// The time at which the request was here.
    pub begun: Moment,
    /// Of its status, or [`ABORTED`].
    pub class: usize,
    /// The rule that took the request.
    pub rule: Option<&'a Arc<RuleId>>,
    pub upstream: Option<Upstream<'a>>,
    pub extent: Extent,
}

/// The part of a response that is here.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// All of it: writing it is what is left.
    Whole,
    /// Its head. The time goes on.
    Begun,
}

/// The part of a request's time that its backend took.
pub(crate) struct Upstream<'a> {
    pub backend: &'a BackendName,
    /// Of its status, or [`UNANSWERED`] or [`ABORTED`].
    pub class: usize,
    /// The end of checks that had to wait for others.
    pub passed: Option<Moment>,
}

// === impl SharedDurations ===

impl SharedDurations {
    pub(crate) fn new(measure: Measure) -> Self {
        let most = measure.series;
        Self {
            measure,
            listeners: SharedNames::new(most),
            routes: SharedNames::new(most),
            backends: SharedNames::new(most),
        }
    }
}

// === impl Durations ===

impl Durations {
    pub(crate) fn new(shared: SharedDurations) -> Self {
        let SharedDurations { measure, listeners, routes, backends } = shared;
        Self {
            listeners: measure.listeners.then(|| SeriesSet::new(listeners)),
            routes: measure.routes.then(|| SeriesSet::new(routes)),
            backends: measure.backends.then(|| SeriesSet::new(backends)),
            rules: RefCell::default(),
            limit: measure.series,
            looked_through: Cell::default(),
        }
    }

    pub(crate) fn listener(&self, id: &ListenerId) -> Option<Rc<ListenerSeries>> {
        Some(self.listeners.as_ref()?.get(id))
    }

    /// Counts a response that is whole, or begins to measure it.
    pub(crate) fn answered(
        &self,
        answered: Answered<'_>,
        listener: Option<&Rc<ListenerSeries>>,
    ) -> Option<Measured> {
        let Answered { begun, class, rule, upstream, extent } = answered;
        let observed = begun.observed();
        let mut rules = self.rules.borrow_mut();
        let measured = rule.filter(|_| self.routes.is_some() || self.backends.is_some());
        let rule = measured.map(|id| self.known(&mut rules, id));
        if let (Some(rule), Some(upstream)) = (rule, upstream) {
            self.count_upstream(rule, &upstream, upstream.passed.map_or(observed, Moment::observed));
        }
        match extent {
            Extent::Whole => {
                count(listener, rule, class, observed);
                None
            }
            Extent::Begun => {
                Some(Measured { begun, class, listener: listener.cloned(), rule: rule.cloned() })
            }
        }
    }

    fn known<'r>(&self, rules: &'r mut ByRule, id: &Arc<RuleId>) -> &'r Rc<RuleSeries> {
        let (_, series) = rules.entry(Arc::as_ptr(id) as usize).or_insert_with(|| {
            let route = self.routes.as_ref().map(|routes| routes.get(&RouteName::of(id)));
            (id.clone(), Rc::new(RuleSeries { route, backends: RefCell::default() }))
        });
        series
    }

    fn count_upstream(&self, rule: &RuleSeries, upstream: &Upstream<'_>, observed: Observed) {
        let Some(backends) = &self.backends else { return };
        let (name, class) = (upstream.backend, upstream.class);
        let mut known = rule.backends.borrow_mut();
        let is_it = |known: &BackendName| Arc::ptr_eq(&known.0, &name.0) || known == name;
        if let Some((_, series)) = known.iter().find(|(known, _)| is_it(known)) {
            return series.count(class, observed);
        }
        let series = backends.get(name);
        series.count(class, observed);
        known.push((name.clone(), series));
    }

    /// Looks rules up anew: there may be others, and places that are free.
    pub(crate) fn follow(&self) {
        self.rules.borrow_mut().clear();
    }

    /// Forgets what the snapshot does not have. It is asked when the series are read, as there may
    /// be many more snapshots than scrapes.
    fn retain(&self, snapshot: &Snapshot) {
        if self.looked_through.replace(snapshot.generation) == snapshot.generation {
            return;
        }
        let ports: HashMap<_, _> =
            snapshot.frontends.values().map(|port| (Arc::as_ptr(port), port)).collect();
        let listeners = || ports.values().flat_map(|port| port.listeners.iter());
        if let Some(series) = &self.listeners {
            let live: HashSet<_> = listeners().map(|listener| &listener.id).collect();
            series.retain(|id| live.contains(id));
        }
        if let Some(series) = &self.routes {
            let tables = listeners().filter_map(|listener| listener.serves.routes());
            let rules = tables.flat_map(|table| table.rules());
            let live: HashSet<_> = rules.map(|rule| RouteName::of(&rule.id)).collect();
            series.retain(|name| live.contains(name));
        }
        if let Some(series) = &self.backends {
            series.retain(|name| snapshot.backends.get(&name.0).is_some());
        }
        self.follow();
    }

    /// All series of names that the snapshot has.
    pub(crate) fn read(&self, snapshot: &Snapshot) -> DurationStats {
        self.retain(snapshot);
        DurationStats {
            listeners: read(self.listeners.as_ref(), ListenerSeries::read),
            routes: read(self.routes.as_ref(), RequestSeries::read),
            backends: read(self.backends.as_ref(), RequestSeries::read),
            limit: self.limit,
        }
    }
}

fn count(
    listener: Option<&Rc<ListenerSeries>>,
    rule: Option<&Rc<RuleSeries>>,
    class: usize,
    observed: Observed,
) {
    if let Some(listener) = listener {
        listener.requests.observe(observed);
    }
    if let Some(route) = rule.and_then(|rule| rule.route.as_ref()) {
        route.count(class, observed);
    }
}

pub(crate) fn status_class(status: StatusCode) -> usize {
    usize::from(status.as_u16() / 100).min(5)
}

fn read<K: Clone + Eq + Hash + Ord, V: Default, T>(
    set: Option<&SeriesSet<K, V>>,
    read: impl Fn(&V) -> T,
) -> BTreeMap<Option<K>, T> {
    set.map(|set| set.read(read)).into_iter().flatten().collect()
}

// === impl DurationStats ===

impl DurationStats {
    pub(crate) fn add(&mut self, other: Self) {
        self.limit = other.limit;
        for (id, durations) in other.listeners {
            self.listeners.entry(id).or_default().add(&durations);
        }
        for (name, stats) in other.routes {
            self.routes.entry(name).or_default().add(&stats);
        }
        for (name, stats) in other.backends {
            self.backends.entry(name).or_default().add(&stats);
        }
    }
}

// === impl Measured ===

impl Drop for Measured {
    fn drop(&mut self) {
        count(self.listener.as_ref(), self.rule.as_ref(), self.class, self.begun.observed());
    }
}

// === impl RequestSeries ===

impl RequestSeries {
    fn count(&self, class: usize, observed: Observed) {
        self.requests[class].increment();
        self.durations.observe(observed);
    }

    fn read(&self) -> RequestStats {
        RequestStats {
            requests: std::array::from_fn(|class| self.requests[class].get()),
            durations: self.durations.read(),
        }
    }
}

// === impl RequestStats ===

impl RequestStats {
    pub(crate) fn add(&mut self, other: &Self) {
        self.requests.iter_mut().zip(other.requests).for_each(|(sum, count)| *sum += count);
        self.durations.add(&other.durations);
    }
}

// === impl ListenerSeries ===

impl ListenerSeries {
    pub(crate) fn shaken_hands(&self, begun: Moment) {
        self.handshakes.observe(begun.observed());
    }

    fn read(&self) -> ListenerDurations {
        ListenerDurations { requests: self.requests.read(), handshakes: self.handshakes.read() }
    }
}

// === impl ListenerDurations ===

impl ListenerDurations {
    pub(crate) fn add(&mut self, other: &Self) {
        self.requests.add(&other.requests);
        self.handshakes.add(&other.handshakes);
    }
}

// === impl RouteName ===

impl RouteName {
    fn of(id: &RuleId) -> Self {
        let parent = id.parent.as_ref().map(|parent| parent.route.clone());
        Self { kind: id.kind, route: id.route.clone(), parent }
    }
}
