//! `auth-url`: a service that is asked about each request. oauth2-proxy, which most of them are, is
//! told by its path.

use serde_json::json;

use super::super::ingress::{Backend, PathKind};
use super::super::servers::Location;
use super::{Outcome, Reading, list};

const OAUTH2_PROXY: &str = "/oauth2/auth";
/// Fields of oauth2-proxy's answers.
const OF_OAUTH2_PROXY: &[&str] = &["X-Auth-Request-User", "X-Auth-Request-Email"];

/// Characters that are more than text in an expression.
const EXPRESSION: &[char] = &['(', '[', '{', '.', '*', '+', '?', '$', '^', '|', '\\'];
/// Ends of expressions that take whatever follows the text before them.
const TAKING_ALL: &[&str] = &["", "(/|$)(.*)", "(.*)", ".*", "?(.*)", "(/.*)?"];

/// Of a host in `auth-url`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    /// A host of the Ingress itself.
    Own,
    Other,
}

impl Reading<'_> {
    pub(super) fn auth_service(&mut self) {
        let Some(url) = self.get("auth-url") else { return };
        let (namespace, backend, path) = match self.service_at(url) {
            Ok(found) => found,
            Err(text) => return self.close("auth-url", text),
        };
        let port = match self.world.port(&namespace, &backend) {
            Ok((port, _)) => port,
            Err(text) => return self.close("auth-url", text),
        };
        let mut reference = json!({"name": backend.service, "port": port});
        if namespace != self.ingress.namespace {
            reference["namespace"] = json!(namespace);
            self.terms.granted.push((namespace.clone(), backend.service.clone()));
        }
        let fields = self.get("auth-response-headers").map(list);
        let mut fields =
            fields.unwrap_or_else(|| OF_OAUTH2_PROXY.iter().map(|it| (*it).to_owned()).collect());
        // Those of a response of its own cannot be given to the backend.
        fields.retain(|field| !field.eq_ignore_ascii_case("set-cookie"));
        let mut http = json!({"allowedHeaders": ["Cookie", "Accept"], "allowedResponseHeaders": fields});
        let is_oauth2_proxy = path.ends_with(OAUTH2_PROXY);
        if !is_oauth2_proxy && path != "/" {
            http["path"] = json!(path);
        }
        self.terms.traffic.insert(
            "externalAuth".to_owned(),
            json!({"protocol": "HTTP", "backendRef": reference, "http": http}),
        );
        let mut service = format!("{namespace}/{}", backend.service);
        if namespace != self.ingress.namespace {
            service += &format!(
                " (a ReferenceGrant in {namespace} lets policies of {} name it)",
                self.ingress.namespace
            );
        }
        if is_oauth2_proxy {
            self.differs("auth-url", format!("TrafficPolicy externalAuth of {service}: start oauth2-proxy with --upstream=static://200 --reverse-proxy --ping-path=/oauth2/ping --ready-path=/oauth2/ready, it is asked for the request's own path (docs/external-auth.md), and gets the fields Cookie and Accept"));
            self.tell_of_own_paths();
        } else {
            self.differs("auth-url", format!("TrafficPolicy externalAuth of {service}: it is asked for {path} followed by the request's path, gets the fields Cookie and Accept, neither X-Original-URL nor X-Original-Method, and only 200 lets pass"));
        }
        if self.get("auth-response-headers").is_some() {
            self.became("auth-response-headers", "allowedResponseHeaders; a client's own are removed");
        }
        if self.get("auth-signin").is_some() {
            let text = if is_oauth2_proxy {
                "oauth2-proxy redirects to its sign-in by itself"
            } else {
                "the auth service has to answer with the redirect to its sign-in"
            };
            self.differs("auth-signin", text);
        }
    }

    /// Of some paths oauth2-proxy answers 200 to all, which would let requests of them pass.
    fn tell_of_own_paths(&mut self) {
        let own = |host: &&String| {
            let server = self.servers.get(*host);
            server.is_some_and(|it| it.locations.iter().any(|it| it.path.starts_with("/oauth2")))
        };
        let hosts = self.ingress.rules.iter().map(|(host, _)| host);
        let open: Vec<_> = hosts.filter(|host| !own(host)).map(String::as_str).collect();
        if !open.is_empty() {
            let text = format!(
                "oauth2-proxy itself answers 200 for /oauth2/sign_in and /robots.txt, so that these reach the \
                 application of {}: give them to oauth2-proxy by an Ingress of the host",
                open.join(", ")
            );
            self.say("auth-url", Outcome::Unprotected, &text);
        }
    }

    /// The Service behind a URL, its namespace, and the path there.
    fn service_at(&self, url: &str) -> Result<(String, Backend, String), String> {
        let (scheme, rest) = url.split_once("://").ok_or("it is no URL")?;
        let (authority, path) = rest
            .split_once('/')
            .map_or((rest, "/".to_owned()), |(authority, path)| (authority, format!("/{path}")));
        if path.contains(['?', '#']) {
            return Err("it has a query, by which the service may tell who is allowed: have the service allow the same by itself, or write a TrafficPolicy with externalAuth".to_owned());
        }
        if path.contains('$') {
            return Err("its path has variables of nginx".to_owned());
        }
        if let Some((namespace, backend)) = self.in_cluster(scheme, authority) {
            if scheme == "https" {
                return Err("it is in TLS: write a TrafficPolicy with externalAuth, and a BackendTLSPolicy of its Service".to_owned());
            }
            return Ok((namespace, backend, path));
        }
        let of_request = ["$host", "$http_host", "$best_http_host"].contains(&authority);
        let own: Vec<_> = self.ingress.rules.iter().map(|(host, _)| host.as_str()).collect();
        let hosts = if of_request { own.clone() } else { vec![authority] };
        let mut found: Option<(String, Backend)> = None;
        for host in hosts {
            let at =
                self.location(host, &path, if own.contains(&host) { Whose::Own } else { Whose::Other })?;
            if found.as_ref().is_some_and(|found| *found != at) {
                return Err("its hosts have different auth services: write an Ingress for each".to_owned());
            }
            found = Some(at);
        }
        let (namespace, backend) = found.ok_or("the Ingress has no host")?;
        Ok((namespace, backend, path))
    }

    /// The Service to which an Ingress of the input leads from a host. A client would find it, too,
    /// but the input may be less than what is in the cluster, or be another tenant's.
    fn location(&self, host: &str, path: &str, whose: Whose) -> Result<(String, Backend), String> {
        let server = self.servers.get(host);
        let is_regex = server.is_some_and(|server| server.is_regex(self.world));
        // Of an expression, the text before what is more than text.
        let literal = |location: &Location| {
            let text = location.path.as_str();
            text.find(|c: char| is_regex && EXPRESSION.contains(&c)).unwrap_or(text.len())
        };
        let takes = |location: &&Location| {
            let below = path.strip_prefix(location.path[..literal(location)].trim_end_matches('/'));
            match location.kind {
                PathKind::Exact if !is_regex => path == location.path,
                PathKind::Prefix if !is_regex => {
                    below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
                }
                _ => below.is_some(),
            }
        };
        let locations = server.into_iter().flat_map(|server| &server.locations);
        let longest = locations.filter(takes).max_by_key(|location| literal(location));
        if let Some(location) = longest.filter(|it| !TAKING_ALL.contains(&&it.path[literal(it)..])) {
            return Err(format!(
                "the path {} of {host} is an expression that may take it, or not: write the Service in auth-url, as http://SERVICE.NAMESPACE.svc:PORT{path}",
                location.path
            ));
        }
        let found = longest.and_then(|location| Some((location, location.backend()?.clone())));
        let Some((location, backend)) = found else {
            return Err(format!(
                "no Ingress of the input leads to {host}: write a TrafficPolicy with externalAuth of the auth service's Service"
            ));
        };
        let ingress = &self.world.ingresses[location.ingress];
        if ingress.get("auth-url").is_some() || whose == Whose::Own && location.is_rest() {
            return Err(format!(
                "in the input, {host}{path} leads to what it is to protect ({}): give the Ingress of the auth service, too",
                ingress.key()
            ));
        }
        if whose == Whose::Other && ingress.namespace != self.ingress.namespace {
            return Err(format!(
                "{host} is a host of {}, in another namespace, which may have taken the name: if the auth service is there, write it as http://{}.{}.svc:PORT{path}",
                ingress.key(),
                backend.service,
                ingress.namespace
            ));
        }
        Ok((ingress.namespace.clone(), backend))
    }

    /// By its name in the cluster's DNS: `auth.infra.svc.cluster.local:8080`.
    pub(super) fn in_cluster(&self, scheme: &str, authority: &str) -> Option<(String, Backend)> {
        let (host, port) =
            authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port)));
        let mut labels = host.split('.');
        let (service, namespace) = (labels.next()?, labels.next()?);
        let rest: Vec<_> = labels.collect();
        let known = self.world.object("Service", namespace, service).is_some();
        if !(rest.first() == Some(&"svc") || rest.is_empty() && known) {
            return None;
        }
        let port: u16 = match port {
            Some(port) => port.parse().ok()?,
            None => {
                if scheme == "https" {
                    443
                } else {
                    80
                }
            }
        };
        Some((namespace.to_owned(), Backend { service: service.to_owned(), port: json!(port) }))
    }
}
