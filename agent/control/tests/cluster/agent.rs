//! An agent without a data plane: everything that talks with the API server, and a data plane that
//! takes all.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use portcullis_api::{Kind, ObjectKey};
use portcullis_control::applier::{Acknowledgement, Applier, DataPlane, Provisioning, State};
use portcullis_control::events::Announcer;
use portcullis_control::infra::Generator;
use portcullis_control::kube::Contact;
use portcullis_control::lease::{Elector, Timing};
use portcullis_control::source::{KubeSource, LastGood, Reaching, Source, SourceOptions};
use portcullis_control::status::{StatusQueue, StatusSink, StatusWriter, Statuses};
use portcullis_gateway::infra::{DesiredObjects, HostPortRights};
use portcullis_gateway::{Settings, Translator};
use portcullis_model::{ObjectName, Snapshot};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::fixture::{DEADLINE, Fixture, version};

/// Short enough for tests; the API knows whole seconds.
pub(crate) const TIMING: Timing = Timing {
    valid_for: Duration::from_secs(2),
    renew_within: Duration::from_millis(1500),
    retry_every: Duration::from_millis(200),
};

/// For the API server, before what was kept is served.
pub(crate) const WAIT: Duration = Duration::from_secs(5);

pub(crate) const LEASE: &str = "portcullis";

/// Ends, as if it had crashed, when it is dropped.
pub(crate) struct Agent {
    pub(crate) state: watch::Receiver<State>,
    pub(crate) leading: watch::Receiver<bool>,
    /// True once everything was read and applied.
    pub(crate) current: watch::Receiver<bool>,
    pub(crate) provisioning: watch::Receiver<Provisioning>,
    queue: Arc<StatusQueue>,
    _tasks: JoinSet<()>,
}

pub(crate) struct TakesAll;

/// Keeps the sink after it waiting.
struct Late(Duration);

/// The way of an agent's requests to the API server.
pub(crate) struct Reach {
    /// Its requests so far, answered or not.
    pub(crate) contact: watch::Receiver<Contact>,
    /// The API server's addresses, as far as they are known.
    pub(crate) addresses: watch::Receiver<BTreeSet<IpAddr>>,
}

/// An agent among others that want to lead.
struct Candidate<'a> {
    identity: &'a str,
    lease: &'a str,
    timing: Timing,
    late: Duration,
}

impl Agent {
    pub(crate) fn start(fixture: &Fixture, identity: &str) -> Self {
        Self::start_timed(fixture, identity, TIMING)
    }

    pub(crate) fn start_with(fixture: &Fixture, identity: &str, last_good: Option<LastGood>) -> Self {
        Self::campaigning(fixture, Candidate::new(identity), last_good, TakesAll)
    }

    pub(crate) fn start_on(plane: impl DataPlane + 'static, fixture: &Fixture, identity: &str) -> Self {
        Self::campaigning(fixture, Candidate::new(identity), None, plane)
    }

    /// One of other agents, with a Lease of their own.
    pub(crate) fn start_as(fixture: &Fixture, identity: &str, lease: &str) -> Self {
        Self::campaigning(fixture, Candidate { lease, ..Candidate::new(identity) }, None, TakesAll)
    }

    pub(crate) fn start_timed(fixture: &Fixture, identity: &str, timing: Timing) -> Self {
        Self::campaigning(fixture, Candidate { timing, ..Candidate::new(identity) }, None, TakesAll)
    }

    /// On a machine that is so busy that what it translated is planned this much later.
    pub(crate) fn start_late(fixture: &Fixture, identity: &str, late: Duration) -> Self {
        Self::campaigning(fixture, Candidate { late, ..Candidate::new(identity) }, None, TakesAll)
    }

    /// One that asks itself what may be in its way to the API server.
    pub(crate) fn start_reaching(
        fixture: &Fixture,
        identity: &str,
        last_good: LastGood,
        plane: impl DataPlane + 'static,
        Reach { contact, addresses }: Reach,
    ) -> Self {
        let (queue, source) = read(fixture, Some(last_good));
        let settings = Settings { api_server: addresses.borrow().clone(), ..settings(fixture) };
        let source = Reaching::new(source, contact, addresses, Duration::ZERO);
        Self::assemble(fixture, Candidate::new(identity), settings, queue, source, plane)
    }

    fn campaigning(
        fixture: &Fixture,
        candidate: Candidate<'_>,
        last_good: Option<LastGood>,
        plane: impl DataPlane + 'static,
    ) -> Self {
        let (queue, source) = read(fixture, last_good);
        Self::assemble(fixture, candidate, settings(fixture), queue, source, plane)
    }

    fn assemble(
        fixture: &Fixture,
        Candidate { identity, lease, timing, late }: Candidate<'_>,
        settings: Settings,
        queue: Arc<StatusQueue>,
        source: impl Source + 'static,
        plane: impl DataPlane + 'static,
    ) -> Self {
        let client = || fixture.client.clone();
        let translator = Translator::new(settings);
        let elector = Elector::new(client(), &fixture.name, lease, identity, timing);
        let leading = elector.leading();
        let writer = StatusWriter::new(client(), queue.clone(), leading.clone());
        let current = queue.current();
        let generator = Generator::new(client(), queue.clone(), leading.clone(), &fixture.name, None);
        let (provisioning, agents) = (generator.provisioning(), generator.agents());
        let applier = Applier::new(source, translator, plane, (Late(late), queue.clone()));
        let mut applier =
            applier.observing(provisioning.clone()).speaking_while(leading.clone()).among(agents);
        let state = applier.state();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { applier.run().await });
        tasks.spawn(elector.run(std::future::pending()));
        tasks.spawn(writer.run());
        tasks.spawn(generator.run());
        tasks.spawn(Announcer::new(client(), &queue, identity).run(state.clone()));
        Self { state, leading, current, provisioning, queue, _tasks: tasks }
    }

    /// The object once the agent has seen it as it is and has nothing to write of it.
    pub(crate) async fn at_rest(&self, fixture: &Fixture, kind: Kind, name: &str) -> Value {
        let namespace = if kind == Kind::GatewayClass { "" } else { &fixture.name };
        let key = ObjectKey::new(kind, ObjectName::new(namespace, name));
        let deadline = Instant::now() + DEADLINE;
        loop {
            let object = fixture.get(kind.as_str(), name).await;
            if self.queue.rests_at(&key, &version(&object)) {
                return object;
            }
            let leads = *self.leading.borrow();
            assert!(Instant::now() < deadline, "{key} is not left alone (leader: {leads}): {object:#}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl<'a> Candidate<'a> {
    fn new(identity: &'a str) -> Self {
        Self { identity, lease: LEASE, timing: TIMING, late: Duration::ZERO }
    }
}

fn settings(fixture: &Fixture) -> Settings {
    let load_balancers = vec!["203.0.113.0/24".parse().unwrap()];
    let grants = vec!["*/*:8888".parse().unwrap()];
    let host_ports = HostPortRights { grants, ..HostPortRights::default() };
    let controller_name = fixture.controller_name.clone();
    Settings { controller_name, load_balancers, host_ports, ..Settings::default() }
}

fn read(fixture: &Fixture, last_good: Option<LastGood>) -> (Arc<StatusQueue>, KubeSource) {
    let queue = StatusQueue::new(&fixture.controller_name);
    let options =
        SourceOptions { only: None, last_good, wait: WAIT, another_serves: SourceOptions::no_other() };
    (queue.clone(), KubeSource::new(fixture.client.clone(), queue, options))
}

/// Waits until it is so, as long as a test waits for anything.
pub(crate) async fn until<T: Clone>(watched: watch::Receiver<T>, holds: impl FnMut(&T) -> bool) -> T {
    until_within(DEADLINE, watched, holds).await
}

pub(crate) async fn until_within<T: Clone>(
    limit: Duration,
    mut watched: watch::Receiver<T>,
    holds: impl FnMut(&T) -> bool,
) -> T {
    tokio::time::timeout(limit, watched.wait_for(holds))
        .await
        .expect("it does not come to be so")
        .unwrap()
        .clone()
}

/// True if it is known that every Gateway could get what is generated for it.
pub(crate) fn has_all(provisioning: &Provisioning) -> bool {
    provisioning.as_ref().is_none_or(BTreeMap::is_empty)
}

/// True if something is served.
pub(crate) fn serves(state: &State) -> bool {
    !state.snapshot.frontends.is_empty()
}

impl DataPlane for TakesAll {
    async fn apply(&mut self, _: Arc<Snapshot>) -> Acknowledgement {
        Acknowledgement::default()
    }
}

impl StatusSink for Late {
    fn keep_only(&mut self, _: &BTreeSet<ObjectKey>) {}

    fn write(&mut self, _: &Statuses) {}

    fn generate_only(&mut self, _: BTreeMap<ObjectName, DesiredObjects>) {
        std::thread::sleep(self.0);
    }
}
