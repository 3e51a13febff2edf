//! A siege: tenants who may write in their own namespace only, and write there all day long what
//! harms others wherever it can, beside tenants whose clients must not notice. The same tenants
//! with as many objects that are valid are the measure of what that may cost.

mod client;
mod deeds;
mod good;
mod hostile;
mod node;
mod platform;
mod pod;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures::StreamExt;
use serde_json::Value;

use crate::fixture::Fixture;

pub(crate) use client::Seen;
pub(crate) use deeds::Intent;
pub(crate) use hostile::Writes;
pub(crate) use node::Node;

/// Objects that are made at once.
const CONCURRENCY: usize = 16;
const TIMEOUT: Duration = Duration::from_secs(180);

#[derive(Clone, Copy)]
pub(crate) struct Size {
    pub(crate) good: usize,
    pub(crate) hostile: usize,
    /// Child routes of one tenant beside those that are refused one by one.
    pub(crate) children: usize,
    /// Child routes of one tenant that are refused, of 9 KiB each.
    pub(crate) refused: usize,
    /// Time for which everything is edited, deleted and made again.
    pub(crate) lasting: Duration,
}

/// The outcome of one siege.
pub(crate) struct Outcome {
    pub(crate) seen: Seen,
    pub(crate) writes: Writes,
    /// Objects of good tenants that were written meanwhile, or whose status is another.
    pub(crate) changed: Vec<String>,
    /// Requests that reached what a tenant must not reach.
    pub(crate) leaks: Vec<String>,
    /// Objects of the other tenants, by kind and by the reason for which they are refused.
    pub(crate) refused: BTreeMap<String, usize>,
    /// Resident memory of each agent in MB: the most of it, and with all objects there and nothing
    /// to do.
    pub(crate) peak: Vec<f64>,
    pub(crate) settled: Vec<f64>,
}

/// The namespaces of a siege, and the platform's, whose agents serve them.
pub(crate) struct Siege {
    platform: Fixture,
    good: Vec<good::Tenant>,
    hostile: Vec<hostile::Tenant>,
    sites: platform::Sites,
    size: Size,
}

impl Siege {
    /// Everything of the good tenants, served.
    pub(crate) async fn prepare(platform: Fixture, size: Size) -> Self {
        pod::create();
        platform::create(&platform).await;
        let authority = client::Authority::new();
        let good = futures::stream::iter(0..size.good)
            .map(|number| good::Tenant::create(&platform, number, &authority));
        let good: Vec<_> = good.buffered(CONCURRENCY).collect().await;
        let hostile =
            futures::stream::iter(0..size.hostile).map(|number| hostile::Tenant::create(&platform, number));
        let hostile: Vec<_> = hostile.buffered(CONCURRENCY).collect().await;
        let sites = platform::Sites::of(&platform, &authority).await;
        for tenant in &good {
            for node in Node::ALL {
                sites.await_served(tenant, node).await;
            }
            tenant.await_told().await;
        }
        // Ages are in whole seconds, and of two routes of one age the name decides: those of the
        // other tenants, which are made next, are to be younger.
        tokio::time::sleep(Duration::from_secs(1)).await;
        Self { platform, good, hostile, sites, size }
    }

    /// Lets the other tenants do what they intend, under load. `resident` is the agents' memory.
    pub(crate) async fn lay(&self, intent: Intent, resident: impl Fn() -> Vec<f64>) -> Outcome {
        let before = self.statuses().await;
        let load = client::Load::start(&self.sites, &self.good);
        let mut peak = resident();
        let mut look = || peak.iter_mut().zip(resident()).for_each(|(peak, now)| *peak = peak.max(now));
        let mut writes = Writes::default();
        writes.add(self.create_all(intent, &mut look).await);
        assert!(self.await_rest(&mut look).await, "the agents do not come to rest");
        let leaks = self.leaks(intent).await;
        let settled = resident();
        let mut refused = BTreeMap::new();
        for tenant in &self.hostile {
            tenant.add_reasons(&mut refused).await;
        }
        writes.add(hostile::harass(&self.hostile, intent, self.size, &mut look).await);
        self.await_rest(&mut look).await;
        let seen = load.finish();
        let after = self.statuses().await;
        let changed = before.iter().filter(|(name, status)| after.get(*name) != Some(status));
        let changed = changed.map(|(name, status)| {
            format!("{name}: {status} became {}", after.get(name).unwrap_or(&Value::Null))
        });
        Outcome { seen, writes, changed: changed.collect(), leaks, refused, peak, settled }
    }

    async fn create_all(&self, intent: Intent, look: &mut impl FnMut()) -> Writes {
        let mut writes = Writes::default();
        let all = self.hostile.iter().flat_map(|tenant| {
            let objects = deeds::all(&tenant.scene(), intent, self.size);
            objects.into_iter().map(move |object| tenant.create_object(object))
        });
        let mut all = std::pin::pin!(futures::stream::iter(all).buffer_unordered(CONCURRENCY));
        while let Some(result) = all.next().await {
            writes.count(result);
            look();
        }
        for tenant in &self.hostile {
            writes.add(tenant.overreach(&self.platform, &self.good).await);
        }
        writes
    }

    /// Until the last object of each tenant has a status, and memory holds still.
    async fn await_rest(&self, look: &mut impl FnMut()) -> bool {
        let deadline = Instant::now() + TIMEOUT;
        for tenant in &self.hostile {
            while !tenant.is_told().await {
                look();
                if Instant::now() > deadline {
                    return false;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        let until = Instant::now() + Duration::from_secs(if self.size.good < 10 { 1 } else { 15 });
        while Instant::now() < until {
            look();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        true
    }

    /// Requests of a hostile tenant's own clients for what its routes lead to.
    async fn leaks(&self, intent: Intent) -> Vec<String> {
        if intent == Intent::Valid {
            return Vec::new();
        }
        let scenes: Vec<_> = self.hostile.iter().map(hostile::Tenant::scene).collect();
        let edge = self.sites.edge;
        let ask = move |node: Node| node.run(|| client::leaks(node, edge, &scenes));
        tokio::task::spawn_blocking(move || Node::ALL.into_iter().flat_map(ask).collect()).await.unwrap()
    }

    /// By object of a good tenant its status and version; by Gateway of the platform what no tenant
    /// may change.
    async fn statuses(&self) -> BTreeMap<String, Value> {
        let mut statuses = BTreeMap::new();
        for tenant in &self.good {
            statuses.extend(tenant.statuses().await);
        }
        statuses.extend(platform::statuses(&self.platform).await);
        statuses
    }

    /// Removes everything, and waits until it is gone: agents would see it.
    pub(crate) async fn remove(self) {
        let names: Vec<_> =
            self.good.iter().map(|it| it.name()).chain(self.hostile.iter().map(|it| it.name())).collect();
        self.platform.remove_namespaces(&names, 2 * TIMEOUT).await;
        self.platform.remove().await;
    }
}
