//! A gateway whose requests have to pass an auth service, and what is seen of them.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use portcullis_model::{BackendProtocol, ExternalAuth};
use portcullis_proxy::{AuthOutcome, Settings, Upstream};

use super::auth::filter;
use super::origin::Origin;
use super::rules::{RuleSpec, rule};
use super::settings::settings;
use super::via::Reply;
use super::world::World;

/// A world whose rules lead to an echo, and whose auth service is at the address.
pub async fn world(auth: SocketAddr, protocol: BackendProtocol, rules: Vec<RuleSpec>) -> (World, Origin) {
    world_that_waits(Upstream::default().auth, auth, protocol, rules).await
}

/// The same, waiting so long for an auth service.
pub async fn world_that_waits(
    timeout: Duration,
    auth: SocketAddr,
    protocol: BackendProtocol,
    rules: Vec<RuleSpec>,
) -> (World, Origin) {
    let upstream = Upstream { auth: timeout, ..Upstream::default() };
    let mut world = World::with(Settings { upstream, ..settings() });
    let backend = Origin::http1().await;
    world.backend("echo", BackendProtocol::Http1, &[backend.address]);
    world.backend("auth", protocol, &[auth]);
    world.http("*", rules.clone());
    world.https("*", rules);
    world.apply().await;
    (world, backend)
}

pub fn guarded(auth: ExternalAuth) -> RuleSpec {
    rule().filter(filter(auth))
}

pub fn with_body(auth: ExternalAuth, most: u32) -> RuleSpec {
    guarded(ExternalAuth { body: NonZeroU32::new(most), ..auth })
}

pub fn answer(status: u16, fields: &[(&str, &str)], body: &'static str) -> Response<Bytes> {
    let mut response = Response::builder().status(status);
    for (name, value) in fields {
        response = response.header(*name, *value);
    }
    response.body(Bytes::from_static(body.as_bytes())).unwrap()
}

pub fn fields_of(request: &Request<Bytes>) -> Vec<String> {
    let fields = request.headers().iter();
    let mut fields: Vec<_> =
        fields.map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
    fields.retain(|field| !field.starts_with("cdn-loop: portcullis-"));
    fields.sort_unstable();
    fields
}

pub fn seen<'r>(reply: &'r Reply, name: &str) -> Vec<&'r str> {
    let prefix = format!("{name}: ");
    reply.body.lines().filter_map(|line| line.strip_prefix(&prefix)).collect()
}

pub async fn outcomes(world: &World) -> [u64; 3] {
    let stats = world.proxy.stats().await;
    [AuthOutcome::Allowed, AuthOutcome::Denied, AuthOutcome::Failed]
        .map(|outcome| stats.auth.get(&outcome).copied().unwrap_or_default())
}
