//! Ingresses and what they refer to, read from manifests as they are written. Knows of no
//! annotation's meaning.

use std::collections::BTreeMap;

use serde_json::Value;

pub(super) const PREFIX: &str = "nginx.ingress.kubernetes.io/";
const VERSION: &str = "networking.k8s.io/v1";
const CONTROLLER: &str = "k8s.io/ingress-nginx";

/// An object of a namespace.
pub(super) type Name = (String, String);

#[derive(Clone, Debug, Default)]
pub(super) struct Ingress {
    pub namespace: String,
    pub name: String,
    /// RFC 3339, or empty: the oldest Ingress has a path that several claim.
    pub created: String,
    pub class: Option<String>,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PathKind {
    Exact,
    Prefix,
    /// With ingress-nginx: what begins with this text.
    Text,
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

/// Everything that was read.
#[derive(Debug, Default)]
pub(super) struct World {
    /// Of ingress-nginx, the oldest first.
    pub ingresses: Vec<Ingress>,
    /// Those of other controllers: name, and the class.
    pub foreign: Vec<(String, String)>,
    /// Those that cannot be read: name, and why.
    pub unreadable: Vec<(String, String)>,
    objects: BTreeMap<(String, Name), Value>,
}

impl World {
    pub(super) fn read(manifests: &[Value]) -> Self {
        let mut world = Self::default();
        for manifest in manifests {
            let kind = text(manifest, "/kind").unwrap_or_default();
            world.objects.entry((kind, name_of(manifest))).or_insert_with(|| manifest.clone());
        }
        let of_kind = |wanted: &'static str| {
            world.objects.iter().filter(move |((kind, _), _)| kind == wanted).map(|(_, object)| object)
        };
        let controllers: BTreeMap<_, _> = of_kind("IngressClass")
            .map(|class| (name_of(class).1, text(class, "/spec/controller").unwrap_or_default()))
            .collect();
        let by_default = of_kind("IngressClass")
            .find(|class| {
                annotations(class)
                    .get("ingressclass.kubernetes.io/is-default-class")
                    .is_some_and(|it| it == "true")
            })
            .map(|class| name_of(class).1);
        let (mut ingresses, mut foreign, mut unreadable) = (Vec::new(), Vec::new(), Vec::new());
        for manifest in of_kind("Ingress") {
            let mut ingress = Ingress::read(manifest);
            if let Some(fault) = ingress.fault(manifest) {
                unreadable.push((ingress.key(), fault));
                continue;
            }
            ingress.class = ingress.class.or_else(|| by_default.clone());
            let class = ingress.class.clone().unwrap_or_default();
            match controllers.get(&class) {
                Some(controller) if controller != CONTROLLER => foreign.push((ingress.key(), class)),
                _ => ingresses.push(ingress),
            }
        }
        ingresses.sort_by_key(|it| (it.created.is_empty(), it.created.clone(), it.key()));
        Self { ingresses, foreign, unreadable, ..world }
    }

    pub(super) fn object(&self, kind: &str, namespace: &str, name: &str) -> Option<&Value> {
        self.objects.get(&(kind.to_owned(), (namespace.to_owned(), name.to_owned())))
    }

    /// The number of a Service's port, and its name if it has one.
    pub(super) fn port(&self, namespace: &str, backend: &Backend) -> Result<(u16, Option<String>), String> {
        let service = self.object("Service", namespace, &backend.service);
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
    fn read(manifest: &Value) -> Self {
        let (namespace, name) = name_of(manifest);
        let annotations = annotations(manifest);
        let class = text(manifest, "/spec/ingressClassName")
            .or_else(|| annotations.get("kubernetes.io/ingress.class").cloned());
        let list = |value: &Value, at: &str| {
            value.pointer(at).and_then(Value::as_array).cloned().unwrap_or_default()
        };
        let rules = list(manifest, "/spec/rules").into_iter().map(|rule| {
            let paths = list(&rule, "/http/paths").iter().map(Path::read).collect();
            (text(&rule, "/host").unwrap_or_default().to_ascii_lowercase(), paths)
        });
        let tls = list(manifest, "/spec/tls").into_iter().map(|tls| {
            let hosts = list(&tls, "/hosts");
            let hosts = hosts.iter().filter_map(Value::as_str).map(str::to_ascii_lowercase);
            Tls { hosts: hosts.collect(), secret: text(&tls, "/secretName") }
        });
        let default_backend = manifest.pointer("/spec/defaultBackend").and_then(Backend::read);
        Self {
            created: text(manifest, "/metadata/creationTimestamp").unwrap_or_default(),
            rules: rules.collect(),
            tls: tls.collect(),
            namespace,
            name,
            class,
            annotations,
            default_backend,
        }
    }

    /// The reason for which it is not converted, if there is one.
    fn fault(&self, manifest: &Value) -> Option<String> {
        let version = text(manifest, "/apiVersion").unwrap_or_default();
        if version != VERSION {
            return Some(format!(
                "apiVersion is {version}: write it as {VERSION}, by `kubectl convert` for instance"
            ));
        }
        let is_empty = self.default_backend.is_none() && self.rules.iter().all(|(_, paths)| paths.is_empty());
        is_empty.then(|| "neither paths nor a default backend can be read of its spec".to_owned())
    }

    pub(super) fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// The value of one of ingress-nginx's annotations, if it is not empty.
    pub(super) fn get(&self, annotation: &str) -> Option<&str> {
        let value = self.annotations.get(&format!("{PREFIX}{annotation}"))?.trim();
        (!value.is_empty()).then_some(value)
    }

    pub(super) fn is(&self, annotation: &str) -> bool {
        self.get(annotation) == Some("true")
    }

    pub(super) fn is_canary(&self) -> bool {
        self.is("canary")
    }

    /// True if ingress-nginx takes the paths of its hosts for regular expressions.
    pub(super) fn has_regex(&self) -> bool {
        self.is("use-regex") || self.get("rewrite-target").is_some()
    }
}

impl Path {
    fn read(value: &Value) -> Self {
        let kind = match value["pathType"].as_str() {
            Some("Exact") => PathKind::Exact,
            Some("Prefix") => PathKind::Prefix,
            _ => PathKind::Text,
        };
        let path = text(value, "/path").filter(|path| !path.is_empty()).unwrap_or_else(|| "/".to_owned());
        Self { path, kind, backend: value.get("backend").and_then(Backend::read) }
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

fn annotations(manifest: &Value) -> BTreeMap<String, String> {
    let all = manifest.pointer("/metadata/annotations").and_then(Value::as_object).into_iter().flatten();
    all.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect()
}
