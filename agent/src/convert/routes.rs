//! HTTPRoutes, TLSRoutes, and the policies and filters beside them, of one Ingress after the other.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::Options;
use super::difference::{Difference, Outcome};
use super::ingress::{Backend, Ingress, World};
use super::listeners::{GATEWAY_API, Listeners};
use super::rules::{Filters, Source};
use super::servers::{Server, Servers};
use super::terms::Terms;

/// Rules of one route, and targets of one policy.
const MOST: usize = 16;
const DNS: &str = "external-dns.alpha.kubernetes.io/";

/// A Service, and the name of one port of it.
type Target = (String, String, Option<String>);

pub(super) struct Routes<'a> {
    pub world: &'a World,
    pub servers: &'a Servers,
    pub terms: &'a [Terms],
    pub options: &'a Options,
    pub listeners: &'a mut Listeners,
    pub report: &'a mut Vec<Difference>,
    pub objects: Vec<Value>,
    /// BackendPolicies by target, with the Ingress that wrote each.
    pub backends: BTreeMap<Target, (String, Value)>,
    pub backend_tls: BTreeMap<Target, (String, Value)>,
    /// Hosts all of whose paths are redirected already.
    pub redirected: BTreeSet<String>,
}

impl Routes<'_> {
    pub(super) fn of(&mut self, index: usize) {
        let ingress = &self.world.ingresses[index];
        let mut filters = Filters::new();
        // Routes of hosts that have the same rules are one.
        let mut groups: Vec<(Vec<Vec<Value>>, Vec<String>)> = Vec::new();
        for (host, server) in self.servers.iter().filter(|(_, server)| has(server, index)) {
            let closed = self.closed(host, server);
            let terms = &self.terms[index];
            let source = Source { world: self.world, server, ingress: index, terms, closed };
            let rules = source.rules(&mut filters, self.report);
            match groups.iter_mut().find(|(other, hosts)| {
                *other == rules && self.is_open(&hosts[0], index) == self.is_open(host, index)
            }) {
                Some((_, hosts)) => hosts.push(host.clone()),
                None => groups.push((rules, vec![host.clone()])),
            }
        }
        let mut routes = Vec::new();
        for (rules, hosts) in groups {
            self.http_routes(index, &hosts, rules, &mut routes);
        }
        self.redirects_to_https(index);
        self.passed_on(index);
        self.www(index);
        for (name, spec) in filters {
            self.objects.push(object("portcullis.dev/v1alpha1", "RouteFilter", &name, ingress, spec));
        }
        self.traffic_policy(index, &routes);
        self.backend_policies(index);
    }

    /// A part of its protection is of the whole host, and missing.
    fn closed(&mut self, host: &str, server: &Server) -> bool {
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
        lacks || clients || forced.is_some() || snippet("server-snippet") || snippet("auth-tls-match-cn")
    }

    /// True if requests without TLS are served, not redirected.
    fn is_open(&self, host: &str, index: usize) -> bool {
        let (server, ingress) = (&self.servers[host], &self.world.ingresses[index]);
        let redirects = ingress.get("ssl-redirect") != Some("false") || ingress.is("force-ssl-redirect");
        let closed_without = server.lacks_certificate && server.certificate.is_none();
        closed_without || !(server.has_tls() && redirects || server.client_certificates.is_some())
    }

    fn http_parent(&self, ingress: &Ingress) -> Value {
        let (namespace, name) = &self.options.gateway;
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
        rules: Vec<Vec<Value>>,
        routes: &mut Vec<String>,
    ) {
        let ingress = &self.world.ingresses[index];
        let mut parents = Vec::new();
        if self.is_open(&hosts[0], index) {
            parents.push(self.http_parent(ingress));
        }
        let ended = hosts.iter().filter(|host| !self.servers[*host].passthrough);
        parents.extend(ended.filter_map(|host| self.listeners.secure_parent(host, &ingress.namespace)));
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
                0 => ingress.name.clone(),
                count => format!("{}-{}", ingress.name, count + 1),
            };
            self.route(ingress, &name, &parents, hosts, json!(rules));
            routes.push(name);
        }
    }

    fn route(&mut self, ingress: &Ingress, name: &str, parents: &[Value], hosts: &[String], rules: Value) {
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
        self.objects.push(route);
    }

    fn redirects_to_https(&mut self, index: usize) {
        let ingress = &self.world.ingresses[index];
        let mut redirect = json!({"scheme": "https", "statusCode": 308});
        if self.options.https_port != 443 {
            redirect["port"] = json!(self.options.https_port);
        }
        let filter = json!([{"type": "RequestRedirect", "requestRedirect": redirect}]);
        let (mut whole, mut parts) = (Vec::new(), Vec::new());
        for (host, server) in self.servers.iter().filter(|(_, server)| has(server, index)) {
            if self.is_open(host, index) {
                continue;
            }
            if server.locations.iter().all(|location| !self.is_open(host, location.ingress)) {
                if self.redirected.insert(host.clone()) {
                    whole.push(host.clone());
                }
                continue;
            }
            let source = Source {
                world: self.world,
                server,
                ingress: index,
                terms: &self.terms[index],
                closed: false,
            };
            let own = server.locations.iter().filter(|location| location.ingress == index);
            let rules: Vec<_> = own
                .map(|location| {
                    let matches: Vec<_> =
                        source.matches(location).into_iter().map(|path| json!({"path": path})).collect();
                    json!({"matches": matches, "filters": filter})
                })
                .collect();
            parts.push((host.clone(), rules));
        }
        let parent = [self.http_parent(ingress)];
        if !whole.is_empty() {
            self.route(
                ingress,
                &format!("{}-to-https", ingress.name),
                &parent,
                &whole,
                json!([{"filters": filter}]),
            );
        }
        for (number, (host, rules)) in (1..).zip(parts) {
            for (part, rules) in (1..).zip(rules.chunks(MOST)) {
                let name = format!("{}-to-https-{number}-{part}", ingress.name);
                self.route(ingress, &name, &parent, std::slice::from_ref(&host), json!(rules));
            }
        }
        if ingress.get("ssl-redirect").is_some() || ingress.get("force-ssl-redirect").is_some() {
            let annotation =
                if ingress.get("ssl-redirect").is_some() { "ssl-redirect" } else { "force-ssl-redirect" };
            self.report.push(Difference::new(
                &ingress.key(),
                annotation,
                Outcome::Became,
                "routes at the listener http",
            ));
        }
    }

    fn passed_on(&mut self, index: usize) {
        let ingress = &self.world.ingresses[index];
        if !ingress.is("ssl-passthrough") {
            return;
        }
        let mut said = false;
        for (host, server) in self
            .servers
            .iter()
            .filter(|(host, server)| !host.is_empty() && server.passthrough && has(server, index))
        {
            let location = server
                .locations
                .iter()
                .filter(|location| location.ingress == index)
                .min_by_key(|location| location.path.len());
            let backend = location.and_then(|location| location.backend.as_ref());
            let port = backend.map(|backend| (backend, self.world.port(&ingress.namespace, backend)));
            let Some((backend, Ok((port, _)))) = port else { continue };
            let spec = json!({
                "parentRefs": self.listeners.secure_parent(host, &ingress.namespace).into_iter().collect::<Vec<_>>(),
                "hostnames": [host],
                "rules": [{"backendRefs": [{"name": backend.service, "port": port}]}],
            });
            let name = if said { format!("{}-{host}", ingress.name) } else { ingress.name.clone() };
            self.objects.push(object("gateway.networking.k8s.io/v1", "TLSRoute", &name, ingress, spec));
            said = true;
        }
        self.report.push(Difference::new(
            &ingress.key(),
            "ssl-passthrough",
            Outcome::Became,
            "TLSRoute; annotations about requests are without effect in TLS, as before",
        ));
    }

    fn www(&mut self, index: usize) {
        let ingress = &self.world.ingresses[index];
        if !ingress.is("from-to-www-redirect") {
            return;
        }
        for (number, (host, _)) in (1..).zip(&ingress.rules) {
            let other = host.strip_prefix("www.").map_or_else(|| format!("www.{host}"), str::to_owned);
            if host.is_empty() || host.starts_with('*') || self.servers.contains_key(&other) {
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
            let name = if number == 1 {
                format!("{}-www", ingress.name)
            } else {
                format!("{}-www-{number}", ingress.name)
            };
            self.route(ingress, &name, &parents, &[other], json!([{"filters": [redirect]}]));
        }
        self.report.push(Difference::new(
            &ingress.key(),
            "from-to-www-redirect",
            Outcome::Became,
            "an HTTPRoute of the other name; the certificate has to have both",
        ));
    }

    fn traffic_policy(&mut self, index: usize, routes: &[String]) {
        let (ingress, terms) = (&self.world.ingresses[index], &self.terms[index]);
        if terms.closed || terms.traffic.is_empty() {
            return;
        }
        for (number, routes) in (1..).zip(routes.chunks(MOST)) {
            let targets: Vec<_> = routes
                .iter()
                .map(|name| json!({"group": GATEWAY_API, "kind": "HTTPRoute", "name": name}))
                .collect();
            let mut spec = json!(terms.traffic);
            spec["targetRefs"] = json!(targets);
            let name = if number == 1 { ingress.name.clone() } else { format!("{}-{number}", ingress.name) };
            self.objects.push(object("portcullis.dev/v1alpha1", "TrafficPolicy", &name, ingress, spec));
        }
        for (namespace, service) in &terms.granted {
            let grant = super::grant(
                namespace,
                &ingress.namespace,
                ("portcullis.dev", "TrafficPolicy"),
                "Service",
                service,
            );
            if !self.objects.contains(&grant) {
                self.objects.push(grant);
            }
        }
    }

    fn backend_policies(&mut self, index: usize) {
        let (ingress, terms) = (&self.world.ingresses[index], &self.terms[index]);
        if terms.closed {
            return;
        }
        let locations = self.servers.values().flat_map(|server| &server.locations);
        let own: Vec<_> = locations.filter(|location| location.ingress == index).cloned().collect();
        for location in own {
            let canary = location.canary.as_ref();
            for (backend, fields) in location
                .backend
                .iter()
                .map(|it| (it, None))
                .chain(canary.map(|(index, it)| (it, Some(*index))))
            {
                let mut spec = terms.backend.clone();
                spec.extend(fields.map(|index| self.terms[index].backend.clone()).unwrap_or_default());
                let Some(target) = self.target(ingress, backend) else { continue };
                if !spec.is_empty() {
                    let first =
                        self.backends.entry(target.clone()).or_insert_with(|| (ingress.key(), json!(spec)));
                    tell_of_conflict(first, ingress, &json!(spec), &backend.service, self.report);
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
                    let first =
                        self.backend_tls.entry(target).or_insert_with(|| (ingress.key(), spec.clone()));
                    tell_of_conflict(first, ingress, &spec, &backend.service, self.report);
                }
            }
        }
    }

    fn target(&self, ingress: &Ingress, backend: &Backend) -> Option<Target> {
        let (_, name) = self.world.port(&ingress.namespace, backend).ok()?;
        Some((ingress.namespace.clone(), backend.service.clone(), name))
    }

    /// Policies of Services, which several Ingresses may share.
    pub(super) fn service_policies(&mut self) {
        let kinds = [
            ("portcullis.dev/v1alpha1", "BackendPolicy", std::mem::take(&mut self.backends)),
            ("gateway.networking.k8s.io/v1", "BackendTLSPolicy", std::mem::take(&mut self.backend_tls)),
        ];
        for (version, kind, policies) in kinds {
            for ((namespace, service, port), (_, mut spec)) in policies {
                let mut target = json!({"group": "", "kind": "Service", "name": service});
                if let Some(port) = &port {
                    target["sectionName"] = json!(port);
                }
                spec["targetRefs"] = json!([target]);
                let name = port.map_or(service.clone(), |port| format!("{service}-{port}"));
                self.objects.push(json!({"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": namespace}, "spec": spec}));
            }
        }
    }
}

fn has(server: &Server, index: usize) -> bool {
    server.locations.iter().any(|location| location.ingress == index)
}

fn tell_of_conflict(
    first: &(String, Value),
    ingress: &Ingress,
    spec: &Value,
    service: &str,
    report: &mut Vec<Difference>,
) {
    if first.1 != *spec {
        let text =
            format!("Service {service} is spoken to as {} has it: one policy holds for a Service", first.0);
        report.push(Difference::new(&ingress.key(), service, Outcome::Differs, text));
    }
}

fn object(version: &str, kind: &str, name: &str, ingress: &Ingress, spec: Value) -> Value {
    let metadata = json!({"name": name, "namespace": ingress.namespace});
    json!({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec})
}
