//! Ingresses and what they refer to, read from manifests as they are written. Knows of no
//! annotation's meaning.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use serde_json::Value;

use super::shape;

pub(super) const PREFIX: &str = "nginx.ingress.kubernetes.io/";
const VERSION: &str = "networking.k8s.io/v1";
const CONTROLLER: &str = "k8s.io/ingress-nginx";
/// The class of a controller that is installed as its documentation has it.
const CLASS: &str = "nginx";

/// Annotations that are on or off. Go reads `1`, `t` and `True` as `true`, too, and so does
/// ingress-nginx; anything else is as if it were not there.
const SWITCHES: &[&str] = &[
    "auth-always-set-cookie",
    "auth-keepalive-share-vars",
    "auth-tls-pass-certificate-to-upstream",
    "canary",
    "cors-allow-credentials",
    "disable-proxy-intercept-errors",
    "enable-access-log",
    "enable-cors",
    "enable-global-auth",
    "enable-influxdb",
    "enable-modsecurity",
    "enable-opentelemetry",
    "enable-opentracing",
    "enable-owasp-core-rules",
    "enable-owasp-modsecurity-crs",
    "enable-rewrite-log",
    "force-ssl-redirect",
    "from-to-www-redirect",
    "http2-push-preload",
    "opentelemetry-trust-incoming-span",
    "opentracing-trust-incoming-span",
    "preserve-trailing-slash",
    "service-upstream",
    "session-cookie-change-on-failure",
    "session-cookie-conditional-samesite-none",
    "session-cookie-secure",
    "ssl-passthrough",
    "ssl-prefer-server-ciphers",
    "ssl-redirect",
    "use-port-in-redirects",
    "use-regex",
];

/// Annotations of paths, which a default backend without rules has not.
const OF_RULES: &[&str] = &[
    "app-root",
    "from-to-www-redirect",
    "permanent-redirect",
    "permanent-redirect-code",
    "rewrite-target",
    "temporal-redirect",
    "temporal-redirect-code",
    "use-regex",
];

/// An object of a namespace.
pub(super) type Name = (String, String);
/// Objects by kind, too.
type ByName = BTreeMap<(&'static str, Name), Value>;

#[derive(Clone, Debug, Default)]
pub(super) struct Ingress {
    pub namespace: String,
    pub name: String,
    /// RFC 3339, or empty: the oldest Ingress has a path that several claim.
    pub created: String,
    pub annotations: BTreeMap<String, String>,
    pub default_backend: Option<Backend>,
    /// Host, empty for all, and its paths.
    pub rules: Vec<(String, Vec<Path>)>,
    pub tls: Vec<Tls>,
}

#[derive(Clone, Debug)]
pub(super) struct Path {
    pub path: String,
    pub kind: PathKind,
    pub backend: Option<Backend>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PathKind {
    Exact,
    /// `ImplementationSpecific`, too, as ingress-nginx has it.
    Prefix,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Backend {
    pub service: String,
    /// A number, or the name of a port.
    pub port: Value,
}

#[derive(Clone, Debug)]
pub(super) struct Tls {
    pub hosts: Vec<String>,
    pub secret: Option<String>,
}

/// An Ingress of which nothing is written.
#[derive(Debug)]
pub(super) struct Unreadable {
    /// `shop/cart`
    pub key: String,
    pub fault: String,
    /// As far as they can be read; the empty one is for all.
    pub hosts: Vec<String>,
}

/// Everything that was read.
#[derive(Debug, Default)]
pub(super) struct World {
    /// Of ingress-nginx, the oldest first.
    pub ingresses: Vec<Ingress>,
    /// Those of other controllers: name, and the class.
    pub foreign: Vec<(String, String)>,
    pub unreadable: Vec<Unreadable>,
    /// Kind and name of all that is in the input.
    pub given: BTreeSet<(String, Name)>,
    objects: ByName,
}

impl World {
    /// `heads` are of all manifests, of whatever kind.
    pub(super) fn read<'a>(manifests: &[Value], heads: impl Iterator<Item = &'a Value>) -> Self {
        let (objects, twice) = objects(manifests);
        let of_kind = |wanted: &'static str| {
            objects.iter().filter(move |((kind, _), _)| *kind == wanted).map(|(_, object)| object)
        };
        let controllers: BTreeMap<_, _> = of_kind("IngressClass")
            .map(|class| (name_of(class).1, text(class, "/spec/controller").unwrap_or_default()))
            .collect();
        let by_default = of_kind("IngressClass")
            .find(|class| {
                let annotations = shape::annotations(class).unwrap_or_default();
                annotations.get("ingressclass.kubernetes.io/is-default-class").is_some_and(|it| it == "true")
            })
            .map(|class| name_of(class).1);
        let mut world = Self::default();
        for manifest in of_kind("Ingress") {
            let (namespace, name) = name_of(manifest);
            let key = format!("{namespace}/{name}");
            let class = class(manifest).or_else(|| by_default.clone()).unwrap_or_default();
            if controllers.get(&class).is_some_and(|controller| controller != CONTROLLER) {
                world.foreign.push((key, class));
                continue;
            }
            let unknown = !["", CLASS].contains(&class.as_str()) && !controllers.contains_key(&class);
            let both = twice.get(&name_of(manifest));
            let read = if both.is_some() {
                Err("it is in the input twice, and not the same: remove one of them".to_owned())
            } else if class.is_empty() && !controllers.is_empty() {
                Err("it has no class, no IngressClass of the input is the default, and ingress-nginx serves it with \
                     --watch-ingress-without-class alone: give it the class, or leave it out"
                    .to_owned())
            } else if unknown {
                Err(format!(
                    "its class {class} is not in the input, and may be another controller's: give the \
                     IngressClass, too"
                ))
            } else {
                Ingress::read(manifest)
            };
            match read {
                Ok(ingress) => world.ingresses.push(ingress),
                Err(fault) => {
                    let hosts = both.cloned().unwrap_or_else(|| hosts(manifest));
                    world.unreadable.push(Unreadable { key, fault, hosts });
                }
            }
        }
        world.ingresses.sort_by_key(|it| (it.created.is_empty(), it.created.clone(), it.key()));
        let of_head = |head| Some((text(head, "/kind")?, name_of(head)));
        Self { objects, given: heads.filter_map(of_head).collect(), ..world }
    }

    pub(super) fn object(&self, kind: &'static str, namespace: &str, name: &str) -> Option<&Value> {
        self.objects.get(&(kind, (namespace.to_owned(), name.to_owned())))
    }

    /// The names that a Secret's certificate is for, none if it cannot be read; `None` if the
    /// Secret is not given.
    pub(super) fn certificate_names(&self, namespace: &str, secret: &str) -> Option<Vec<String>> {
        let secret = self.object("Secret", namespace, secret)?;
        let Ok(mut secret) = serde_json::from_value::<Secret>(secret.clone()) else {
            return Some(Vec::new());
        };
        let plain = secret.string_data.take().unwrap_or_default().into_iter();
        let plain = plain.map(|(name, text)| (name, ByteString(text.into_bytes())));
        secret.data.get_or_insert_default().extend(plain);
        let certificate = portcullis_gateway::read_certificate(&secret);
        let names = certificate.map(|it| it.names.iter().map(ToString::to_string).collect());
        Some(names.unwrap_or_default())
    }

    /// The number of a Service's port, and its name if it has one.
    pub(super) fn port(&self, namespace: &str, backend: &Backend) -> Result<(u16, Option<String>), String> {
        let service = self.object("Service", namespace, &backend.service);
        if service.and_then(|it| text(it, "/spec/type")).is_some_and(|it| it == "ExternalName") {
            let service = &backend.service;
            return Err(format!(
                "Service {namespace}/{service} is of type ExternalName: write an XBackend, and route to that"
            ));
        }
        let number = |value: &Value| value.as_u64().and_then(|port| u16::try_from(port).ok());
        let field = if backend.port.is_string() { "name" } else { "port" };
        let ports = service.and_then(|it| it.pointer("/spec/ports")).and_then(Value::as_array);
        let port = ports.into_iter().flatten().find(|port| port[field] == backend.port);
        if let Some(port) = port {
            let name = port["name"].as_str().map(str::to_owned);
            return number(&port["port"]).map(|port| (port, name)).ok_or_else(|| "has no number".to_owned());
        }
        match number(&backend.port) {
            Some(number) => Ok((number, None)),
            None => {
                let port = backend.port.as_str().unwrap_or("?");
                let of = format!("port {port} of Service {namespace}/{}", backend.service);
                Err(match service {
                    Some(_) => format!("{of}: the Service has no port of this name"),
                    None => format!("{of} is a name: give the Service's manifest, too, for its number"),
                })
            }
        }
    }
}

impl Ingress {
    /// # Errors
    /// The reason for which it is not converted.
    fn read(manifest: &Value) -> Result<Self, String> {
        let version = text(manifest, "/apiVersion").unwrap_or_default();
        if version != VERSION {
            return Err(format!(
                "apiVersion is {version}: write it as {VERSION}, by `kubectl convert` for instance"
            ));
        }
        shape::text(manifest, "/metadata/name")?.filter(|name| !name.is_empty()).ok_or("it has no name")?;
        shape::text(manifest, "/metadata/namespace")?;
        shape::text(manifest, "/spec/ingressClassName")?;
        let (namespace, name) = name_of(manifest);
        let mut rules: Vec<(String, Vec<Path>)> = Vec::new();
        for rule in shape::list(manifest, "/spec/rules")? {
            let host = host(shape::text(rule, "/host")?.unwrap_or_default())?;
            let paths = shape::list(rule, "/http/paths")?.iter().map(Path::read);
            rules.push((host, paths.collect::<Result<_, _>>()?));
        }
        let mut tls = Vec::new();
        for of in shape::list(manifest, "/spec/tls")? {
            let hosts = shape::list(of, "/hosts")?.iter();
            let hosts = hosts.map(|host| host.as_str().map(str::to_ascii_lowercase));
            let hosts: Option<Vec<_>> = hosts.collect();
            let hosts = hosts.ok_or("spec.tls: hosts are texts")?;
            let secret = shape::text(of, "/secretName")?.filter(|secret| !secret.is_empty());
            tls.push(Tls { hosts, secret });
        }
        let default_backend = match manifest.pointer("/spec/defaultBackend") {
            None | Some(Value::Null) => None,
            Some(backend) => Backend::read(backend),
        };
        if default_backend.is_none() && rules.iter().all(|(_, paths)| paths.is_empty()) {
            return Err("neither paths nor a default backend can be read of its spec".to_owned());
        }
        let mut annotations = shape::annotations(manifest)?;
        annotations.iter_mut().for_each(|(name, value)| read_switch(name, value));
        let created = shape::text(manifest, "/metadata/creationTimestamp")?.unwrap_or_default();
        Ok(Self { namespace, name, created, annotations, default_backend, rules, tls })
    }

    pub(super) fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// The value of one of ingress-nginx's annotations, if it is not empty and has an effect.
    pub(super) fn get(&self, annotation: &str) -> Option<&str> {
        if self.lacks_rules_for(annotation) {
            return None;
        }
        let value = self.annotations.get(&format!("{PREFIX}{annotation}"))?.trim();
        (!value.is_empty()).then_some(value)
    }

    /// True of what ingress-nginx passes over in an Ingress that is a default backend alone.
    pub(super) fn lacks_rules_for(&self, annotation: &str) -> bool {
        self.rules.is_empty() && self.default_backend.is_some() && OF_RULES.contains(&annotation)
    }

    pub(super) fn is(&self, annotation: &str) -> bool {
        self.get(annotation) == Some("true")
    }

    pub(super) fn is_canary(&self) -> bool {
        self.is("canary")
    }

    /// The target of a path, if it is another one: `/` at `/` rewrites nothing.
    pub(super) fn rewritten(&self, path: &str) -> Option<&str> {
        self.get("rewrite-target").filter(|target| *target != path)
    }

    /// True if ingress-nginx takes all paths of a host for regular expressions because of this one.
    pub(super) fn has_regex_at(&self, path: &str) -> bool {
        self.is("use-regex") || self.rewritten(path).is_some()
    }
}

impl Path {
    fn read(value: &Value) -> Result<Self, String> {
        let kind = match shape::text(value, "/pathType")?.as_deref() {
            Some("Exact") => PathKind::Exact,
            None | Some("Prefix" | "ImplementationSpecific") => PathKind::Prefix,
            Some(other) => return Err(format!("pathType {other} is not known")),
        };
        let path = shape::text(value, "/path")?.filter(|path| !path.is_empty());
        let path = path.unwrap_or_else(|| "/".to_owned());
        Ok(Self { path, kind, backend: value.get("backend").and_then(Backend::read) })
    }
}

impl Backend {
    fn read(value: &Value) -> Option<Self> {
        let service = text(value, "/service/name")?;
        let port = value.pointer("/service/port")?;
        Some(Self { service, port: port.get("number").or_else(|| port.get("name"))?.clone() })
    }
}

fn text(value: &Value, at: &str) -> Option<String> {
    value.pointer(at)?.as_str().map(str::to_owned)
}

fn name_of(manifest: &Value) -> Name {
    let namespace = text(manifest, "/metadata/namespace").unwrap_or_else(|| "default".to_owned());
    (namespace, text(manifest, "/metadata/name").unwrap_or_default())
}

fn class(manifest: &Value) -> Option<String> {
    let by_annotation = manifest.pointer("/metadata/annotations/kubernetes.io~1ingress.class");
    let by_annotation = || by_annotation?.as_str().map(str::to_owned);
    text(manifest, "/spec/ingressClassName").or_else(by_annotation)
}

fn host(text: String) -> Result<String, String> {
    let text = text.to_ascii_lowercase();
    if text.is_empty() || shape::is_host(&text) { Ok(text) } else { Err(format!("{text:?} is no host")) }
}

/// Writes the value of a switch as `true` or `false`.
fn read_switch(annotation: &str, value: &mut String) {
    if annotation.strip_prefix(PREFIX).is_some_and(|name| SWITCHES.contains(&name)) {
        match value.trim() {
            "1" | "t" | "T" | "TRUE" | "True" => "true".clone_into(value),
            "0" | "f" | "F" | "FALSE" | "False" => "false".clone_into(value),
            _ => {}
        }
    }
}

/// The hosts of an Ingress that has a fault.
fn hosts(manifest: &Value) -> Vec<String> {
    let rules = manifest.pointer("/spec/rules").and_then(Value::as_array).into_iter().flatten();
    let mut hosts: Vec<_> =
        rules.map(|rule| text(rule, "/host").unwrap_or_default().to_ascii_lowercase()).collect();
    let has_default =
        ["/spec/defaultBackend", "/spec/backend"].iter().any(|at| manifest.pointer(at).is_some());
    if hosts.is_empty() && has_default {
        hosts.push(String::new());
    }
    hosts
}

/// Objects by kind and name, whatever their order in the input; and the Ingresses that are there
/// more than once and differ, with all of their hosts. Of other kinds such objects are left out, as
/// if they were not given.
fn objects(manifests: &[Value]) -> (ByName, BTreeMap<Name, Vec<String>>) {
    let mut objects = ByName::new();
    let mut twice = BTreeMap::<_, Vec<String>>::new();
    for manifest in manifests {
        let Some(kind) = kind(manifest) else { continue };
        match objects.entry((kind, name_of(manifest))) {
            Entry::Vacant(place) => drop(place.insert(manifest.clone())),
            Entry::Occupied(first) if first.get() != manifest => {
                let all = twice.entry(first.key().clone()).or_insert_with(|| hosts(first.get()));
                all.extend(hosts(manifest));
            }
            Entry::Occupied(_) => {}
        }
    }
    let mut ingresses = BTreeMap::new();
    for ((kind, name), hosts) in twice {
        if kind == "Ingress" {
            ingresses.insert(name, hosts);
        } else {
            objects.remove(&(kind, name));
        }
    }
    (objects, ingresses)
}

/// Other groups have kinds of these names, too.
fn kind(manifest: &Value) -> Option<&'static str> {
    let version = text(manifest, "/apiVersion").unwrap_or_default();
    let group = version.split_once('/').map_or("", |(group, _)| group);
    match (manifest["kind"].as_str()?, group) {
        ("Ingress", "networking.k8s.io" | "extensions" | "") => Some("Ingress"),
        ("IngressClass", "networking.k8s.io") => Some("IngressClass"),
        ("Service", "") => Some("Service"),
        ("Secret", "") => Some("Secret"),
        ("ConfigMap", "") => Some("ConfigMap"),
        _ => None,
    }
}
