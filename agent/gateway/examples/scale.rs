//! Measures how long translation takes at scale: `cargo run --release --example scale -p
//! portcullis-gateway [sets] [routes-per-set]`. One Gateway, per tenant a ListenerSet with its own
//! certificate, routes and Services.

use std::time::{Duration, Instant};

use portcullis_api::{Change, Object};
use portcullis_gateway::{Settings, Translator};
use serde_json::{Value, json};

fn main() {
    let mut arguments = std::env::args().skip(1).filter_map(|argument| argument.parse().ok());
    let (sets, routes) = (arguments.next().unwrap_or(2_500), arguments.next().unwrap_or(16));
    let world = World { certificates: certificates(), sets, routes };
    let objects = world.objects();
    println!("{sets} ListenerSets, {} routes, {} objects", sets * routes, objects.len());

    let mut translator = Translator::new(settings());
    let changes: Vec<_> = objects.into_iter().map(Change::Set).collect();
    let start = Instant::now();
    let outcome = translator.apply(changes);
    println!(
        "from scratch      {:>10.1?}   {} statuses, RSS {} MiB",
        start.elapsed(),
        outcome.statuses.len(),
        rss_mib()
    );

    let samples = 200;
    measure("nothing", samples, &mut translator, |_| Vec::new());
    measure("one route", samples, &mut translator, |at| vec![world.route(at % sets, at % routes, at + 1)]);
    measure("one new route", samples, &mut translator, |at| vec![world.route(at % sets, routes + at, 0)]);
    measure("one certificate", samples, &mut translator, |at| vec![world.secret(at % sets, at + 1)]);
    measure("one endpoint", samples, &mut translator, |at| vec![world.slice(at % sets, at + 1)]);
    measure("one ListenerSet", samples, &mut translator, |at| vec![world.set(at % sets, at + 1)]);
    measure("one new tenant", samples, &mut translator, |at| {
        vec![world.secret(sets + at, 0), world.set(sets + at, 0), world.route(sets + at, 0, 0)]
    });
}

fn measure(what: &str, samples: usize, translator: &mut Translator, change: impl Fn(usize) -> Vec<Object>) {
    let mut times: Vec<Duration> = (0..samples)
        .map(|at| {
            let changes = change(at).into_iter().map(Change::Set).collect();
            let start = Instant::now();
            translator.apply(changes);
            start.elapsed()
        })
        .collect();
    times.sort();
    println!("{what:<17} p50 {:>9.1?}   p99 {:>9.1?}", times[samples / 2], times[samples * 99 / 100]);
}

fn settings() -> Settings {
    Settings { default_addresses: vec![[192, 0, 2, 1].into()], ..Settings::default() }
}

struct World {
    /// A few certificates that tenants take turns with: translation does not care.
    certificates: Vec<(String, String)>,
    sets: usize,
    routes: usize,
}

impl World {
    fn objects(&self) -> Vec<Object> {
        let shared = [
            json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
                "metadata": {"name": "portcullis"}, "spec": {"controllerName": "portcullis.dev/gateway"}}),
            json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
                "metadata": {"name": "edge", "namespace": "infra"}, "spec": {"gatewayClassName": "portcullis",
                "allowedListeners": {"namespaces": {"from": "All"}}}}),
        ];
        let tenants = (0..self.sets).flat_map(|tenant| {
            let routes = (0..self.routes).map(move |route| self.route(tenant, route, 0));
            [self.secret(tenant, 0), self.set(tenant, 0), self.service(tenant), self.slice(tenant, 0)]
                .into_iter()
                .chain(routes)
        });
        shared.into_iter().map(object).chain(tenants).collect()
    }

    fn set(&self, tenant: usize, version: usize) -> Object {
        let name = format!("tenant-{tenant}");
        object(json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "ListenerSet",
            "metadata": {"name": "web", "namespace": name, "generation": version},
            "spec": {"parentRef": {"name": "edge", "namespace": "infra"}, "listeners": [{"name": "https", "port": 443,
                "protocol": "HTTPS", "hostname": format!("{name}.example"),
                "tls": {"certificateRefs": [{"name": "tls"}]}}]}}))
    }

    fn route(&self, tenant: usize, route: usize, version: usize) -> Object {
        let namespace = format!("tenant-{tenant}");
        let path = format!("/app-{route}/{version}");
        object(json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
            "metadata": {"name": format!("route-{route}"), "namespace": namespace, "generation": version},
            "spec": {"parentRefs": [{"group": "gateway.networking.k8s.io", "kind": "ListenerSet", "name": "web"}],
                "rules": [{"matches": [{"path": {"type": "PathPrefix", "value": path}}],
                    "backendRefs": [{"name": "app", "port": 80}]}]}}))
    }

    fn secret(&self, tenant: usize, version: usize) -> Object {
        let (certificate, key) = &self.certificates[(tenant + version) % self.certificates.len()];
        object(json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
            "metadata": {"name": "tls", "namespace": format!("tenant-{tenant}")},
            "stringData": {"tls.crt": certificate, "tls.key": key}}))
    }

    fn service(&self, tenant: usize) -> Object {
        object(
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "app", "namespace": format!("tenant-{tenant}")},
            "spec": {"ports": [{"port": 80}]}}),
        )
    }

    fn slice(&self, tenant: usize, version: usize) -> Object {
        let address = format!("10.{}.{}.{}", version % 250, tenant / 250, tenant % 250);
        object(json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": "app-1", "namespace": format!("tenant-{tenant}"), "labels": {"kubernetes.io/service-name": "app"}},
            "ports": [{"port": 8080}], "endpoints": [{"addresses": [address]}]}))
    }
}

fn object(manifest: Value) -> Object {
    match Object::from_json(manifest) {
        Ok(Some(object)) => object,
        other => unreachable!("the example's manifests are of kinds that translation uses: {other:?}"),
    }
}

fn certificates() -> Vec<(String, String)> {
    let pair = |at: usize| {
        let signed = rcgen::generate_simple_self_signed([format!("tenant-{at}.example")]).ok()?;
        Some((signed.cert.pem(), signed.signing_key.serialize_pem()))
    };
    (0..16).filter_map(pair).collect()
}

fn rss_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next())
        .and_then(|kib| kib.parse::<u64>().ok())
        .unwrap_or_default()
        / 1024
}
