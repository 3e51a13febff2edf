//! HTTPRoutes, TLSRoutes, and the policies and filters beside them, of one Ingress after the other.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::annotations::protects;
use super::difference::{Difference, Outcome};
use super::ingress::{Backend, Ingress, World};
use super::listeners::{GATEWAY_API, Listeners};
use super::names::{self, Names};
use super::options::{GatewayName, Options};
use super::rules::{Filters, Source};
use super::servers::{Server, Servers};
use super::terms::Terms;

/// Rules or hostnames of one route, and targets of one policy.
const MOST: usize = 16;
const DNS: &str = "external-dns.alpha.kubernetes.io/";

/// A Service, and the name of one port of it.
type Target = (String, String, Option<String>);

/// An object, and the Ingress that it is of.
#[derive(Debug)]
pub(super) struct Written {
    pub ingress: Option<usize>,
    pub object: Value,
}

pub(super) struct Routes<'a> {
    pub world: &'a World,
    pub servers: &'a Servers,
    pub terms: &'a [Terms],
    pub options: &'a Options,
    pub listeners: &'a mut Listeners,
    pub report: &'a mut Vec<Difference>,
    pub names: &'a mut Names,
    pub objects: Vec<Written>,
    /// BackendPolicies by target, with the Ingress that wrote each.
    pub backends: BTreeMap<Target, (usize, Value)>,
    pub backend_tls: BTreeMap<Target, (usize, Value)>,
    /// Those for which an Ingress has no BackendPolicy, with the first such Ingress.
    pub plain: BTreeMap<Target, usize>,
    /// Namespace of a Service, namespace that refers to it, and the Service.
    pub grants: BTreeSet<(String, String, String)>,
    /// Hosts all of whose requests are redirected already.
    pub redirected: BTreeSet<String>,
    /// Ingresses of which a route serves a path; only they have policies.
    pub open: BTreeSet<usize>,
}

impl Routes<'_> {
    pub(super) fn of(&mut self, index: usize) {
        let ingress = &self.world.ingresses[index];
        let (mut filters, base) = (Filters::new(), self.names.base_of_filters(ingress));
        // Routes of hosts that have the same rules are one.
        let mut groups: Vec<(Vec<Vec<Value>>, Vec<String>)> = Vec::new();
        let (mut open, mut told) = (BTreeSet::new(), Vec::new());
        for (host, server) in self.servers.iter().filter(|(_, server)| server.has(index)) {
            let closed = self.closed(index, host, server);
            let terms = &self.terms[index];
            let source = Source { world: self.world, server, ingress: index, terms, base: &base, closed };
            let rules = source.rules(&mut filters, &mut open, &mut told);
            match groups.iter_mut().find(|(other, hosts)| {
                *other == rules && self.is_open(&hosts[0], index) == self.is_open(host, index)
            }) {
                Some((_, hosts)) => hosts.push(host.clone()),
                None => groups.push((rules, vec![host.clone()])),
            }
        }
        let mut routes = Vec::new();
        for (rules, hosts) in groups {
            for hosts in hosts.chunks(MOST) {
                self.http_routes(index, hosts, &rules, &mut routes);
            }
        }
        if routes.is_empty() {
            // Where all of it is passed on, its rules are no one's.
            told.retain(|it| it.outcome != Outcome::Became);
            filters.clear();
        } else {
            self.open.append(&mut open);
        }
        self.report.append(&mut told);
        self.redirects_to_https(index);
        self.passed_on(index);
        self.www(index);
        for (name, spec) in filters {
            self.push(index, object("portcullis.dev/v1alpha1", "RouteFilter", &name, ingress, spec));
        }
        self.traffic_policy(index, &routes);
        self.backend_policies(index);
    }

    /// A part of its protection is of the whole host, and missing.
    fn closed(&mut self, index: usize, host: &str, server: &Server) -> bool {
        let lacks = server.lacks_certificate && server.certificate.is_none();
        let clients = server.client_certificates.is_some_and(|index| self.terms[index].closed);
        let first = &self.world.ingresses[server.locations[0].ingress].key();
        if lacks {
            self.report.push(Difference::new(
                first,
                "spec.tls",
                Outcome::Closed,
                format!(
                    "{host} has no secretName: the controller's own certificate is not here; name a Secret"
                ),
            ));
        }
        let forced = server
            .locations
            .iter()
            .find(|location| self.world.ingresses[location.ingress].is("force-ssl-redirect"));
        let forced = forced.filter(|_| !server.has_tls());
        if let Some(location) = forced {
            let key = self.world.ingresses[location.ingress].key();
            self.report.push(Difference::new(&key, "force-ssl-redirect", Outcome::Closed, format!("{host} has no certificate here: name a Secret in spec.tls, as TLS has to end at the Gateway")));
        }
        // A server's snippet is for all Ingresses of the host.
        let snippet = |annotation| {
            let mut all = server.locations.iter().map(|location| &self.world.ingresses[location.ingress]);
            all.any(|ingress| ingress.get(annotation).is_some())
        };
        let closed =
            lacks || clients || forced.is_some() || snippet("server-snippet") || snippet("auth-tls-match-cn");
        let namespace = &self.world.ingresses[index].namespace;
        let closed = closed || server.closed;
        if closed && !self.terms[index].closed {
            let key = self.world.ingresses[index].key();
            let text = "closed with all of its host: the cause is in a line of its own";
            let host = if host.is_empty() { "(any host)" } else { host };
            self.report.push(Difference::new(&key, host, Outcome::Closed, text));
        }
        closed || server.crowded.contains(namespace)
    }

    /// True if requests without TLS are served, not redirected.
    fn is_open(&self, host: &str, index: usize) -> bool {
        let (server, ingress) = (&self.servers[host], &self.world.ingresses[index]);
        let redirects = ingress.get("ssl-redirect") != Some("false") || ingress.is("force-ssl-redirect");
        let closed_without = server.lacks_certificate && server.certificate.is_none();
        closed_without || !(server.has_tls() && redirects || server.client_certificates.is_some())
    }

    fn http_parent(&self, ingress: &Ingress) -> Value {
        let GatewayName { namespace, name } = &self.options.gateway;
        let mut parent = json!({"name": name, "sectionName": "http"});
        if *namespace != ingress.namespace {
            parent["namespace"] = json!(namespace);
        }
        parent
    }

    fn http_routes(
        &mut self,
        index: usize,
        hosts: &[String],
        rules: &[Vec<Value>],
        routes: &mut Vec<String>,
    ) {
        let ingress = &self.world.ingresses[index];
        let mut parents = Vec::new();
        if self.is_open(&hosts[0], index) {
            parents.push(self.http_parent(ingress));
        }
        let ended = hosts.iter().filter(|host| !self.servers[*host].passthrough);
        for host in ended {
            let parent = self.listeners.parent_of_routes(host, &ingress.namespace, self.servers);
            parents.extend(parent.filter(|parent| !parents.contains(parent)));
        }
        if parents.is_empty() {
            return;
        }
        let mut chunks: Vec<Vec<Value>> = vec![Vec::new()];
        for of_path in rules {
            if chunks.last().is_some_and(|last| last.len() + of_path.len() > MOST) {
                chunks.push(Vec::new());
            }
            chunks.last_mut().into_iter().for_each(|last| last.extend(of_path.clone()));
        }
        for rules in chunks {
            let name = match routes.len() {
                0 => self.names.own("HTTPRoute", ingress),
                count => self.name("HTTPRoute", index, &format!("-{}", count + 1)),
            };
            self.route(index, &name, &parents, hosts, json!(rules));
            routes.push(name);
        }
    }

    fn push(&mut self, index: usize, object: Value) {
        self.objects.push(Written { ingress: Some(index), object });
    }

    /// An Ingress' name with an end of its own.
    fn name(&mut self, kind: &'static str, index: usize, end: &str) -> String {
        let ingress = &self.world.ingresses[index];
        self.names.give(kind, &ingress.namespace, &format!("{}{end}", names::base(&ingress.name)))
    }

    fn route(&mut self, index: usize, name: &str, parents: &[Value], hosts: &[String], rules: Value) {
        let ingress = &self.world.ingresses[index];
        let mut spec = json!({"parentRefs": parents, "rules": rules});
        let hosts: Vec<_> = hosts.iter().filter(|host| !host.is_empty()).collect();
        if !hosts.is_empty() {
            spec["hostnames"] = json!(hosts);
        }
        let mut route = object("gateway.networking.k8s.io/v1", "HTTPRoute", name, ingress, spec);
        let dns = ingress.annotations.iter().filter(|(name, _)| name.starts_with(DNS));
        for (name, value) in dns {
            route["metadata"]["annotations"][name] = json!(value);
        }
        self.push(index, route);
    }

    fn redirects_to_https(&mut self, index: usize) {
        let ingress = &self.world.ingresses[index];
        let mut redirect = json!({"scheme": "https", "statusCode": 308});
        if self.options.https_port.get() != 443 {
            redirect["port"] = json!(self.options.https_port);
        }
        let filter = json!([{"type": "RequestRedirect", "requestRedirect": redirect}]);
        let (mut whole, mut parts) = (Vec::new(), Vec::new());
        for (host, server) in self.servers.iter().filter(|(_, server)| server.has(index)) {
            if self.is_open(host, index) {
                continue;
            }
            if server.locations.iter().all(|location| !self.is_open(host, location.ingress)) {
                if self.redirected.insert(host.clone()) {
                    whole.push(host.clone());
                }
                continue;
            }
            let own = server.locations.iter().filter(|location| location.ingress == index);
            let rules: Vec<_> = own
                .map(|location| {
                    let matches = location.matches.iter().map(|path| json!({"path": path}));
                    json!({"matches": matches.collect::<Vec<_>>(), "filters": filter})
                })
                .collect();
            parts.push((host.clone(), rules));
        }
        let parent = [self.http_parent(ingress)];
        for (number, hosts) in (1..).zip(whole.chunks(MOST)) {
            let end = if number == 1 { "-to-https".to_owned() } else { format!("-to-https-{number}") };
            let name = self.name("HTTPRoute", index, &end);
            self.route(index, &name, &parent, hosts, json!([{"filters": filter}]));
        }
        for (number, (host, rules)) in (1..).zip(parts) {
            for (part, rules) in (1..).zip(rules.chunks(MOST)) {
                let name = self.name("HTTPRoute", index, &format!("-to-https-{number}-{part}"));
                self.route(index, &name, &parent, std::slice::from_ref(&host), json!(rules));
            }
        }
        self.tell_of_redirects(index);
    }

    fn tell_of_redirects(&mut self, index: usize) {
        let ingress = &self.world.ingresses[index];
        let mut own = self.servers.iter().filter(|(_, server)| server.has(index)).peekable();
        if own.peek().is_none() {
            return;
        }
        let is_redirected = own.any(|(host, _)| !self.is_open(host, index));
        let became = (Outcome::Became, "routes at the listener http");
        let (outcome, text) = if is_redirected || ingress.get("ssl-redirect") == Some("false") {
            became
        } else {
            (Outcome::NotNeeded, "its hosts have no certificate, and none is redirected, as before")
        };
        if ingress.get("ssl-redirect").is_some() {
            self.report.push(Difference::new(&ingress.key(), "ssl-redirect", outcome, text));
        }
        if ingress.is("force-ssl-redirect") && is_redirected {
            self.report.push(Difference::new(&ingress.key(), "force-ssl-redirect", became.0, became.1));
        }
    }

    fn passed_on(&mut self, index: usize) {
        let ingress = &self.world.ingresses[index];
        if !ingress.is("ssl-passthrough") {
            return;
        }
        let servers = self.servers.iter().filter(|(host, server)| !host.is_empty() && server.has(index));
        let (mut passed, mut ended, mut unprotected) = (Vec::new(), Vec::new(), Vec::new());
        for (host, server) in servers {
            if !server.passthrough {
                ended.push(host.as_str());
                continue;
            }
            let all = server.locations.iter().map(|location| &self.world.ingresses[location.ingress]);
            unprotected.extend(all.filter(|it| protects(it)).map(Ingress::key));
            // As in ingress-nginx, the backend of `/` has the connections.
            let root = server.locations.iter().min_by_key(|it| (!it.is_rest(), it.path.len()));
            let Some(location) = root.filter(|location| location.ingress == index) else { continue };
            let port = location.backend().map(|it| (it, self.world.port(&ingress.namespace, it)));
            let Some((backend, Ok((port, _)))) = port else { continue };
            passed.push((host.clone(), json!({"name": backend.service, "port": port})));
        }
        let mut tell = |key: &str, outcome, text: String| {
            self.report.push(Difference::new(key, "ssl-passthrough", outcome, text));
        };
        for host in ended {
            tell(
                &ingress.key(),
                Outcome::Lost,
                format!("{host}: an older Ingress of the host ends TLS, as before"),
            );
        }
        unprotected.sort_unstable();
        unprotected.dedup();
        for key in unprotected {
            tell(&key, Outcome::Unprotected, "TLS of its host is passed on, and what it asks of requests is without effect there; it was, too, if the controller has --enable-ssl-passthrough".to_owned());
        }
        let text = "TLSRoute; annotations about requests are without effect in TLS, as before";
        if !passed.is_empty() {
            tell(&ingress.key(), Outcome::Became, text.to_owned());
        }
        for (number, (host, backend)) in passed.into_iter().enumerate() {
            let parents: Vec<_> =
                self.listeners.secure_parent(&host, &ingress.namespace).into_iter().collect();
            let spec =
                json!({"parentRefs": parents, "hostnames": [host], "rules": [{"backendRefs": [backend]}]});
            let name = match number {
                0 => self.names.own("TLSRoute", ingress),
                _ => self.name("TLSRoute", index, &format!("-{host}")),
            };
            self.push(index, object("gateway.networking.k8s.io/v1", "TLSRoute", &name, ingress, spec));
        }
    }

    fn www(&mut self, index: usize) {
        let ingress = &self.world.ingresses[index];
        if !ingress.is("from-to-www-redirect") {
            return;
        }
        let mut is_needed = false;
        for (number, (host, _)) in (1..).zip(&ingress.rules) {
            let other = host.strip_prefix("www.").map_or_else(|| format!("www.{host}"), str::to_owned);
            if host.is_empty() || host.starts_with('*') || self.servers.contains_key(&other) {
                continue;
            }
            is_needed = true;
            // Another Ingress of the host may ask for the same.
            if !self.redirected.insert(other.clone()) {
                continue;
            }
            let mut parents = vec![self.http_parent(ingress)];
            let certificate = self.servers.get(host).and_then(|server| server.certificate.clone());
            if let Some((of, certificate)) =
                certificate.filter(|(of, _)| self.world.ingresses[*of].namespace == ingress.namespace)
            {
                self.listeners.add(&self.world.ingresses[of].namespace, &other, &certificate);
                parents.extend(self.listeners.secure_parent(&other, &ingress.namespace));
            }
            let redirect =
                json!({"type": "RequestRedirect", "requestRedirect": {"hostname": host, "statusCode": 308}});
            let end = if number == 1 { "-www".to_owned() } else { format!("-www-{number}") };
            let name = self.name("HTTPRoute", index, &end);
            self.route(index, &name, &parents, &[other], json!([{"filters": [redirect]}]));
        }
        let (outcome, text) = if is_needed {
            (Outcome::Became, "an HTTPRoute of the other name; the certificate has to have both")
        } else {
            (Outcome::NotNeeded, "the other name is a host of its own, or there is none, as before")
        };
        self.report.push(Difference::new(&ingress.key(), "from-to-www-redirect", outcome, text));
    }

    fn traffic_policy(&mut self, index: usize, routes: &[String]) {
        let (ingress, terms) = (&self.world.ingresses[index], &self.terms[index]);
        if !self.open.contains(&index) || terms.traffic.is_empty() {
            return;
        }
        if terms.traffic.contains_key("rateLimits") && routes.len() > 1 {
            let text = format!(
                "each of its {} routes has a limit of its own: its hosts have different paths, or it has more than {MOST}",
                routes.len()
            );
            let annotations = ["limit-rps", "limit-rpm"].into_iter().filter(|it| ingress.get(it).is_some());
            self.report.extend(
                annotations.map(|it| Difference::new(&ingress.key(), it, Outcome::Unprotected, text.clone())),
            );
        }
        for (number, routes) in (1..).zip(routes.chunks(MOST)) {
            let targets: Vec<_> = routes
                .iter()
                .map(|name| json!({"group": GATEWAY_API, "kind": "HTTPRoute", "name": name}))
                .collect();
            let mut spec = json!(terms.traffic);
            spec["targetRefs"] = json!(targets);
            let name = match number {
                1 => self.names.own("TrafficPolicy", ingress),
                _ => self.name("TrafficPolicy", index, &format!("-{number}")),
            };
            self.push(index, object("portcullis.dev/v1alpha1", "TrafficPolicy", &name, ingress, spec));
        }
        for granted in &terms.granted {
            self.grants.insert((granted.0.clone(), ingress.namespace.clone(), granted.1.clone()));
        }
    }

    /// TrafficPolicies of a namespace may refer to auth services of others.
    pub(super) fn service_grants(&mut self) {
        for (namespace, from, service) in std::mem::take(&mut self.grants) {
            let name = self.names.give("ReferenceGrant", &namespace, &format!("{service}-for-{from}"));
            let object = json!({
                "apiVersion": "gateway.networking.k8s.io/v1",
                "kind": "ReferenceGrant",
                "metadata": {"name": name, "namespace": namespace},
                "spec": {
                    "from": [{"group": "portcullis.dev", "kind": "TrafficPolicy", "namespace": from}],
                    "to": [{"group": "", "kind": "Service", "name": service}],
                },
            });
            self.objects.push(Written { ingress: None, object });
        }
    }

    fn backend_policies(&mut self, index: usize) {
        let (ingress, terms) = (&self.world.ingresses[index], &self.terms[index]);
        if !self.open.contains(&index) {
            return;
        }
        let locations = self.servers.values().flat_map(|server| &server.locations);
        let own: Vec<_> = locations.filter(|location| location.ingress == index).cloned().collect();
        for location in own {
            let canary = location.canary.as_ref();
            for (backend, fields) in location
                .backend()
                .into_iter()
                .map(|it| (it, None))
                .chain(canary.map(|(index, it)| (it, Some(*index))))
            {
                let mut spec = terms.backend.clone();
                spec.extend(fields.map(|index| self.terms[index].backend.clone()).unwrap_or_default());
                let Some(target) = self.target(ingress, backend) else { continue };
                if spec.is_empty() {
                    self.plain.entry(target.clone()).or_insert(index);
                } else {
                    let first = self.backends.entry(target.clone()).or_insert_with(|| (index, json!(spec)));
                    let of = self.world.ingresses[first.0].key();
                    tell_of_conflict((&of, &first.1), ingress, &json!(spec), &backend.service, self.report);
                }
                if let Some(validation) = &terms.backend_tls {
                    let mut validation = validation.clone();
                    if validation["hostname"].is_null() {
                        validation["hostname"] =
                            json!(format!("{}.{}.svc", backend.service, ingress.namespace));
                    }
                    if validation["caCertificateRefs"].is_null() {
                        let name = format!("{}-ca", backend.service);
                        validation["caCertificateRefs"] =
                            json!([{"group": "", "kind": "ConfigMap", "name": name}]);
                    }
                    let spec = json!({"validation": validation});
                    let first = self.backend_tls.entry(target).or_insert_with(|| (index, spec.clone()));
                    let of = self.world.ingresses[first.0].key();
                    tell_of_conflict((&of, &first.1), ingress, &spec, &backend.service, self.report);
                }
            }
        }
    }

    fn target(&self, ingress: &Ingress, backend: &Backend) -> Option<Target> {
        let (_, name) = self.world.port(&ingress.namespace, backend).ok()?;
        Some((ingress.namespace.clone(), backend.service.clone(), name))
    }

    /// Of a Service that another Ingress has no wish for.
    fn tell_of_shared_services(&mut self) {
        for (target, (index, _)) in &self.backends {
            let Some(other) = self.plain.get(target).filter(|other| *other != index) else { continue };
            let (of, ingress) = (self.world.ingresses[*index].key(), &self.world.ingresses[*other]);
            tell_of_conflict((&of, &Value::Null), ingress, &json!({}), &target.1, self.report);
        }
    }

    /// Policies of Services, which several Ingresses may share.
    pub(super) fn service_policies(&mut self) {
        self.tell_of_shared_services();
        let kinds = [
            ("portcullis.dev/v1alpha1", "BackendPolicy", std::mem::take(&mut self.backends)),
            ("gateway.networking.k8s.io/v1", "BackendTLSPolicy", std::mem::take(&mut self.backend_tls)),
        ];
        for (version, kind, policies) in kinds {
            for ((namespace, service, port), (index, mut spec)) in policies {
                let mut target = json!({"group": "", "kind": "Service", "name": service});
                if let Some(port) = &port {
                    target["sectionName"] = json!(port);
                }
                spec["targetRefs"] = json!([target]);
                let name = port.map_or(service.clone(), |port| format!("{service}-{port}"));
                let name = self.names.give(kind, &namespace, &name);
                self.push(index, json!({"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": namespace}, "spec": spec}));
            }
        }
    }
}

fn tell_of_conflict(
    first: (&str, &Value),
    ingress: &Ingress,
    spec: &Value,
    service: &str,
    report: &mut Vec<Difference>,
) {
    if first.1 != spec {
        let text =
            format!("Service {service} is spoken to as {} has it: one policy holds for a Service", first.0);
        report.push(Difference::new(&ingress.key(), service, Outcome::Differs, text));
    }
}

fn object(version: &str, kind: &str, name: &str, ingress: &Ingress, spec: Value) -> Value {
    let metadata = json!({"name": name, "namespace": ingress.namespace});
    json!({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec})
}
