//! One Gateway for all, with a listener of HTTP; a ListenerSet in each namespace that has
//! certificates, so that Secrets stay where they are and no ReferenceGrant opens them; and a
//! Gateway attached to the common one for each authority of client certificates, which are a
//! Gateway's to ask for.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::difference::{Difference, Outcome};
use super::ingress::World;
use super::names::Names;
use super::options::Options;
use super::servers::{Server, Servers, wider};

pub(super) const GATEWAY_API: &str = "gateway.networking.k8s.io";
/// Name of ListenerSets.
const SET: &str = "ingress";
/// Listeners of one object.
const MOST: usize = 64;
const CERT_MANAGER: &[&str] = &["cert-manager.io/", "acme.cert-manager.io/"];

/// A listener with TLS.
#[derive(Debug)]
struct Secure {
    namespace: String,
    /// Secret with the authority: the listener is of a Gateway of its own.
    authority: Option<String>,
    host: String,
    certificate: Option<String>,
    forwards_certificate: bool,
    /// Namespaces whose routes it takes.
    routes: BTreeSet<String>,
    /// The object that has it, and its name there.
    owner: String,
    section: String,
}

#[derive(Debug, Default)]
pub(super) struct Listeners {
    secure: BTreeMap<String, Secure>,
    sections: BTreeSet<String>,
    /// The last object of a namespace and an authority, and the number of its listeners.
    owners: BTreeMap<(String, Option<String>), (String, usize)>,
    names: Names,
}

impl Listeners {
    pub(super) fn new(world: &World, servers: &Servers, options: &Options) -> Self {
        let mut listeners = Self { names: Names::of_listeners(world), ..Self::default() };
        listeners.names.give("Gateway", &options.gateway.namespace, &options.gateway.name);
        // Names with `*` give way to hosts that have theirs.
        let (wild, exact): (Vec<_>, Vec<_>) = servers.iter().partition(|(host, _)| host.starts_with('*'));
        for (host, server) in exact.into_iter().chain(wild) {
            if let Some(secure) = secure(host, server, world) {
                listeners.insert(secure);
            }
        }
        for (host, server) in servers {
            let of = |index: usize| world.ingresses[index].namespace.clone();
            let namespaces = server.locations.iter().map(|location| of(location.ingress));
            let at = listeners.for_routes(host, servers).map(|secure| secure.host.clone());
            if let Some(secure) = at.and_then(|at| listeners.secure.get_mut(&at)) {
                secure.routes.extend(namespaces);
            }
        }
        listeners
    }

    fn insert(&mut self, mut secure: Secure) {
        let of = (secure.namespace.clone(), secure.authority.clone());
        let full = self.owners.get(&of).is_none_or(|(_, count)| *count == MOST);
        if full {
            let end = secure.authority.as_ref().map(|secret| format!("-{secret}"));
            let mut name = format!("{SET}{}", end.unwrap_or_default());
            let others = self.owners.get(&of).map(|(last, _)| last.clone());
            if let Some(last) = others {
                name = match last
                    .rsplit_once("-part-")
                    .and_then(|(begin, part)| Some((begin, part.parse::<u32>().ok()?)))
                {
                    Some((begin, part)) => format!("{begin}-part-{}", part + 1),
                    None => format!("{last}-part-2"),
                };
            }
            let name = self.names.give("Gateway", &secure.namespace, &name);
            self.owners.insert(of.clone(), (name, 0));
        }
        if let Some((name, count)) = self.owners.get_mut(&of) {
            secure.owner.clone_from(name);
            *count += 1;
        }
        let section = section(&secure.host);
        secure.section = section.clone();
        let mut number = 1;
        while !self.sections.insert(secure.section.clone()) {
            number += 1;
            secure.section = format!("{section}-{number}");
        }
        self.secure.insert(secure.host.clone(), secure);
    }

    /// One more, for the other name of `from-to-www-redirect`.
    pub(super) fn add(&mut self, namespace: &str, host: &str, certificate: &str) {
        let mut secure = Secure::new(namespace, host);
        secure.certificate = Some(certificate.to_owned());
        secure.routes.insert(namespace.to_owned());
        self.insert(secure);
    }

    /// The listener with TLS at which the routes of a host are: its own, or else that of a wider
    /// host, which has its clients otherwise, past what protects it.
    fn for_routes(&self, host: &str, servers: &Servers) -> Option<&Secure> {
        let mut at = Some(host);
        while let Some(host) = at {
            if let Some(secure) = self.secure.get(host) {
                return Some(secure).filter(|secure| secure.certificate.is_some());
            }
            at = wider(servers, host);
        }
        None
    }

    pub(super) fn parent_of_routes(&self, host: &str, namespace: &str, servers: &Servers) -> Option<Value> {
        self.for_routes(host, servers).map(|secure| secure.parent(namespace))
    }

    /// parentRef of a route to the listener with TLS of a host.
    pub(super) fn secure_parent(&self, host: &str, namespace: &str) -> Option<Value> {
        self.secure.get(host).map(|secure| secure.parent(namespace))
    }

    pub(super) fn objects(
        &self,
        world: &World,
        options: &Options,
        report: &mut Vec<Difference>,
    ) -> Vec<Value> {
        let name = (options.gateway.namespace.clone(), options.gateway.name.clone());
        if world.given.contains(&("Gateway".to_owned(), name)) {
            let text = "the input has a Gateway of this name, which is not the one that is written: choose another, or leave it out";
            report.push(Difference::new("(all)", "--gateway", Outcome::Unprotected, text));
        }
        let mut owners = BTreeMap::<_, Vec<&Secure>>::new();
        for secure in self.secure.values() {
            owners.entry((&secure.namespace, &secure.owner)).or_default().push(secure);
        }
        let mut gateway = json!({
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "Gateway",
            "metadata": {"name": options.gateway.name, "namespace": options.gateway.namespace},
            "spec": {
                "gatewayClassName": "portcullis",
                "listeners": [{"name": "http", "protocol": "HTTP", "port": options.http_port, "allowedRoutes": {"namespaces": {"from": "All"}}}],
            },
        });
        if owners.values().flatten().any(|secure| secure.authority.is_none()) {
            gateway["spec"]["allowedListeners"] = json!({"namespaces": {"from": "All"}});
        }
        if owners.values().flatten().any(|secure| secure.authority.is_some()) {
            gateway["spec"]["infrastructure"] = json!({"allowedChildren": {"namespaces": {"from": "All"}}});
        }
        let parent = json!({"group": GATEWAY_API, "kind": "Gateway", "name": options.gateway.name, "namespace": options.gateway.namespace});
        let mut objects = vec![gateway];
        for ((namespace, name), members) in owners {
            let mut metadata = json!({"name": name, "namespace": namespace});
            let annotations = issuers(namespace, world, report);
            if !annotations.is_empty() {
                metadata["annotations"] = json!(annotations);
            }
            let listeners: Vec<_> = members.iter().map(|secure| secure.listener(options)).collect();
            let authority = members.iter().find_map(|secure| secure.authority.as_ref());
            let owner = match authority {
                None => json!({
                    "apiVersion": "gateway.networking.k8s.io/v1",
                    "kind": "ListenerSet",
                    "metadata": metadata,
                    "spec": {"parentRef": parent, "listeners": listeners},
                }),
                Some(authority) => {
                    let reference = json!({"group": "", "kind": "Secret", "name": authority});
                    json!({
                        "apiVersion": "gateway.networking.k8s.io/v1",
                        "kind": "Gateway",
                        "metadata": metadata,
                        "spec": {
                            "gatewayClassName": "portcullis",
                            "infrastructure": {"attachTo": parent},
                            "tls": {"frontend": {"default": {"validation": {"caCertificateRefs": [reference]}}}},
                            "listeners": listeners,
                        },
                    })
                }
            };
            objects.push(owner);
        }
        objects
    }
}

fn secure(host: &str, server: &Server, world: &World) -> Option<Secure> {
    let of = |index: usize| world.ingresses[index].namespace.as_str();
    if server.passthrough {
        let first = server
            .locations
            .iter()
            .find(|location| world.ingresses[location.ingress].is("ssl-passthrough"))?;
        let mut secure = Secure::new(of(first.ingress), host);
        secure.routes = server.locations.iter().map(|location| of(location.ingress).to_owned()).collect();
        return Some(secure);
    }
    let (index, certificate) = server.certificate.clone()?;
    let asks = server.client_certificates.map(|index| &world.ingresses[index]);
    // Of another namespace, all is closed, and the name may be one of this namespace.
    let authority = asks.and_then(|ingress| ingress.get("auth-tls-secret"));
    let authority = authority.map(|secret| secret.rsplit_once('/').map_or(secret, |(_, name)| name));
    let mut secure = Secure::new(of(index), host);
    secure.authority = authority.map(str::to_owned);
    secure.certificate = Some(certificate);
    secure.forwards_certificate =
        asks.is_some_and(|ingress| ingress.is("auth-tls-pass-certificate-to-upstream"));
    Some(secure)
}

/// Annotations by which cert-manager makes certificates are its ListenerSet's now.
fn issuers(namespace: &str, world: &World, report: &mut Vec<Difference>) -> Map<String, Value> {
    let mut all = Map::new();
    for ingress in
        world.ingresses.iter().filter(|ingress| ingress.namespace == namespace && !ingress.tls.is_empty())
    {
        let own = ingress
            .annotations
            .iter()
            .filter(|(name, _)| CERT_MANAGER.iter().any(|prefix| name.starts_with(prefix)));
        for (name, value) in own {
            let first = all.entry(name.clone()).or_insert_with(|| json!(value));
            let (outcome, text) = if *first == json!(value) {
                (Outcome::Became, "annotation of the ListenerSet".to_owned())
            } else {
                (
                    Outcome::Lost,
                    "the ListenerSet has another Ingress' value: write a ListenerSet of its own".to_owned(),
                )
            };
            report.push(Difference::new(&ingress.key(), name, outcome, text));
        }
    }
    all
}

fn section(host: &str) -> String {
    match host.strip_prefix("*.") {
        Some(below) => format!("any.{below}"),
        None if host.is_empty() => "https".to_owned(),
        None => host.to_owned(),
    }
}

// === impl Secure ===

impl Secure {
    fn new(namespace: &str, host: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            authority: None,
            host: host.to_owned(),
            certificate: None,
            forwards_certificate: false,
            routes: BTreeSet::new(),
            owner: String::new(),
            section: String::new(),
        }
    }

    fn parent(&self, namespace: &str) -> Value {
        let kind = if self.authority.is_some() { "Gateway" } else { "ListenerSet" };
        let mut parent =
            json!({"group": GATEWAY_API, "kind": kind, "name": self.owner, "sectionName": self.section});
        if self.namespace != namespace {
            parent["namespace"] = json!(self.namespace);
        }
        parent
    }

    fn listener(&self, options: &Options) -> Value {
        let mut listener = json!({"name": self.section, "port": options.https_port});
        if !self.host.is_empty() {
            listener["hostname"] = json!(self.host);
        }
        match &self.certificate {
            Some(certificate) => {
                listener["protocol"] = json!("HTTPS");
                listener["tls"] = json!({"certificateRefs": [{"name": certificate}]});
            }
            None => {
                listener["protocol"] = json!("TLS");
                listener["tls"] = json!({"mode": "Passthrough"});
            }
        }
        if self.forwards_certificate {
            listener["tls"]["options"] =
                json!({"portcullis.dev/forward-client-certificate": "Client-Cert,X-Forwarded-Client-Cert"});
        }
        if self.routes.iter().any(|namespace| *namespace != self.namespace) {
            let expression =
                json!({"key": "kubernetes.io/metadata.name", "operator": "In", "values": self.routes});
            listener["allowedRoutes"] =
                json!({"namespaces": {"from": "Selector", "selector": {"matchExpressions": [expression]}}});
        }
        listener
    }
}
