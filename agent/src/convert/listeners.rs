//! One Gateway for all, with a listener of HTTP; a ListenerSet in each namespace that has
//! certificates, so that Secrets stay where they are and no ReferenceGrant opens them; and a
//! Gateway attached to the common one for each authority of client certificates, which are a
//! Gateway's to ask for.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::Options;
use super::difference::{Difference, Outcome};
use super::ingress::World;
use super::servers::{Server, Servers};

pub(super) const GATEWAY_API: &str = "gateway.networking.k8s.io";
/// Name of ListenerSets.
const SET: &str = "ingress";
const CERT_MANAGER: &[&str] = &["cert-manager.io/", "acme.cert-manager.io/"];

/// A listener with TLS, and the object that has it.
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
}

#[derive(Debug, Default)]
pub(super) struct Listeners {
    secure: Vec<Secure>,
}

impl Listeners {
    pub(super) fn new(world: &World, servers: &Servers) -> Self {
        let secure = servers.iter().filter_map(|(host, server)| secure(host, server, world));
        Self { secure: secure.collect() }
    }

    /// One more, for the other name of `from-to-www-redirect`.
    pub(super) fn add(&mut self, namespace: &str, host: &str, certificate: &str) {
        let certificate = Some(certificate.to_owned());
        let (namespace, host) = (namespace.to_owned(), host.to_owned());
        let routes = BTreeSet::from([namespace.clone()]);
        self.secure.push(Secure {
            namespace,
            authority: None,
            host,
            certificate,
            forwards_certificate: false,
            routes,
        });
    }

    /// parentRef of a route to the listener with TLS of a host.
    pub(super) fn secure_parent(&self, host: &str, namespace: &str) -> Option<Value> {
        let secure = self.secure.iter().find(|secure| secure.host == host)?;
        let kind = if secure.authority.is_some() { "Gateway" } else { "ListenerSet" };
        let mut parent =
            json!({"group": GATEWAY_API, "kind": kind, "name": secure.owner(), "sectionName": section(host)});
        if secure.namespace != namespace {
            parent["namespace"] = json!(secure.namespace);
        }
        Some(parent)
    }

    pub(super) fn objects(
        &self,
        world: &World,
        options: &Options,
        report: &mut Vec<Difference>,
    ) -> Vec<Value> {
        let mut owners = BTreeMap::<_, Vec<&Secure>>::new();
        for secure in &self.secure {
            owners.entry((&secure.namespace, secure.owner())).or_default().push(secure);
        }
        let mut gateway = json!({
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "Gateway",
            "metadata": {"name": options.gateway.1, "namespace": options.gateway.0},
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
        let parent = json!({"group": GATEWAY_API, "kind": "Gateway", "name": options.gateway.1, "namespace": options.gateway.0});
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
                    let (of, secret) = authority.split_once('/').unwrap_or((namespace, authority));
                    let mut reference = json!({"group": "", "kind": "Secret", "name": secret});
                    if of != namespace {
                        reference["namespace"] = json!(of);
                        objects.push(super::grant(of, namespace, (GATEWAY_API, "Gateway"), "Secret", secret));
                    }
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
    let of = |index: usize| world.ingresses[index].namespace.clone();
    let routes = server.locations.iter().map(|location| of(location.ingress)).collect();
    if server.passthrough {
        let first = server
            .locations
            .iter()
            .find(|location| world.ingresses[location.ingress].is("ssl-passthrough"))?;
        let namespace = of(first.ingress);
        return Some(Secure {
            namespace,
            authority: None,
            host: host.to_owned(),
            certificate: None,
            forwards_certificate: false,
            routes,
        });
    }
    let (index, certificate) = server.certificate.clone()?;
    let asks = server.client_certificates.map(|index| &world.ingresses[index]);
    Some(Secure {
        namespace: of(index),
        authority: asks.and_then(|ingress| ingress.get("auth-tls-secret")).map(str::to_owned),
        host: host.to_owned(),
        certificate: Some(certificate),
        forwards_certificate: asks.is_some_and(|ingress| ingress.is("auth-tls-pass-certificate-to-upstream")),
        routes,
    })
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
    fn owner(&self) -> String {
        match &self.authority {
            Some(authority) => format!("{SET}-{}", authority.replace('/', "-")),
            None => SET.to_owned(),
        }
    }

    fn listener(&self, options: &Options) -> Value {
        let mut listener = json!({"name": section(&self.host), "port": options.https_port});
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
