//! `auth-url`: a service that is asked about each request. oauth2-proxy, which most of them are, is
//! told by its path.

use serde_json::json;

use super::super::ingress::{Backend, PathKind};
use super::super::servers::Location;
use super::{Reading, list};

const OAUTH2_PROXY: &str = "/oauth2/auth";
/// Fields of oauth2-proxy's answers.
const OF_OAUTH2_PROXY: &[&str] = &["X-Auth-Request-User", "X-Auth-Request-Email"];

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
            self.differs("auth-url", format!("TrafficPolicy externalAuth of {service}: start oauth2-proxy with --upstream=static://200 --reverse-proxy --ping-path=/oauth2/ping --ready-path=/oauth2/ready, it is asked for the request's own path (docs/external-auth.md)"));
        } else {
            self.differs("auth-url", format!("TrafficPolicy externalAuth of {service}: it is asked for {path} followed by the request's path, and only 200 lets pass"));
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
            let at = self.location(host, &path, own.contains(&host))?;
            if found.as_ref().is_some_and(|found| *found != at) {
                return Err("its hosts have different auth services: write an Ingress for each".to_owned());
            }
            found = Some(at);
        }
        let (namespace, backend) = found.ok_or("the Ingress has no host")?;
        Ok((namespace, backend, path))
    }

    /// The Service to which an Ingress of the input leads from a host. A client's request would find
    /// it, but what is in the input may be less than what is in the cluster, and another's.
    fn location(&self, host: &str, path: &str, is_own: bool) -> Result<(String, Backend), String> {
        let literal =
            |path: &'_ str| path.split(['(', '[', '.', '*', '?', '$', '|', '\\']).next().map(str::len);
        let locations = self.servers.get(host).into_iter().flat_map(|server| &server.locations);
        let takes = |location: &&Location| {
            let text = &location.path[..literal(&location.path).unwrap_or(0)];
            let below = path.strip_prefix(text.trim_end_matches('/'));
            match location.kind {
                PathKind::Exact => path == location.path,
                PathKind::Prefix => below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/')),
                PathKind::Text => below.is_some(),
            }
        };
        let longest = locations.filter(takes).max_by_key(|location| literal(&location.path));
        let found = longest.and_then(|location| Some((location, location.backend()?.clone())));
        let Some((location, backend)) = found else {
            return Err(format!(
                "no Ingress of the input leads to {host}: write a TrafficPolicy with externalAuth of the auth service's Service"
            ));
        };
        let ingress = &self.world.ingresses[location.ingress];
        if ingress.get("auth-url").is_some() || is_own && location.is_rest() {
            return Err(format!(
                "in the input, {host}{path} leads to what it is to protect ({}): give the Ingress of the auth service, too",
                ingress.key()
            ));
        }
        if !is_own && ingress.namespace != self.ingress.namespace {
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
