//! The parameters by which a Gateway is provided: the agent's own defaults, over them what its
//! GatewayClass refers to, over that what it refers to itself, field by field (GEP-1867: "the
//! merging behavior between the two [is] implementation-specific").

use std::collections::BTreeMap;

use http::StatusCode;
use portcullis_api::types::gatewayclasses::GatewayClass;
use portcullis_api::types::gatewayparameters::{
    GatewayParametersDedicated, GatewayParametersService, GatewayParametersSpec,
};
use portcullis_api::types::gateways::Gateway;
use portcullis_api::types::shared::AccessLogSpec;
use portcullis_api::{Kind, Objects};
use portcullis_model::{
    AccessLog, AddressRange, Gateway as ServedGateway, Limits, LogField, LogFormat, ObjectName,
};
use serde_json::{Map, Value};

use super::address::CLUSTER;
use super::limits;
use super::syntax::{billionths, is_label_value, is_qualified_name};
use crate::claims::Claims;
use crate::{ExternalRule, Fault};

/// The parameters of what serves a Gateway.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parameters {
    pub mode: Mode,
    pub service_type: ServiceType,
    pub external_traffic_policy: Option<String>,
    pub load_balancer_class: Option<String>,
    pub ip_family_policy: Option<String>,
    /// As Services spell them; empty: Kubernetes' default.
    pub ip_families: Vec<String>,
    /// Of a load balancer; `None`: none in mode Node, Kubernetes' default in mode Dedicated.
    pub node_ports: Option<NodePorts>,
    pub host_ports: HostPorts,
    /// Of children and routes of other namespaces.
    pub claims: Claims,
    /// Of the Deployment in mode Dedicated; `None` leaves it to an autoscaler.
    pub replicas: Option<i32>,
    pub resource_requests: BTreeMap<String, String>,
    pub resource_limits: BTreeMap<String, String>,
    /// Of the Gateway's clients.
    pub limits: Limits,
    pub logging: Logging,
    /// With [`Logging::On`].
    pub access_log: AccessLog,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// Pods of mode Dedicated. `None`: there are none, because the agents do not know what they
    /// would run.
    pub pods: Option<Pods>,
}

/// The operator's decisions about pods of mode Dedicated, the same for all of them. They run what
/// the agents run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pods {
    pub image: String,
    /// The level and form of the log: `--log` and `--log-format`.
    pub log: String,
    pub log_format: String,
    /// The time that connections may take to finish.
    pub drain_seconds: u64,
    /// The rules for addresses, which are those of the agents: `--endpoint-namespaces` and
    /// `--load-balancer-addresses`, `--external-names` and `--external-ranges`.
    pub endpoint_namespaces: Vec<String>,
    pub external: ExternalRule,
    pub load_balancers: Vec<AddressRange>,
    /// The port of each pod on which it shows its metrics to all that reach it.
    pub metrics_port: Option<u16>,
    /// Variables by which they send traces and access logs where the agents send theirs.
    pub telemetry: Vec<(&'static str, String)>,
    /// Fields of the pods' spec: where they run, and how their image is pulled. What we set
    /// ourselves has precedence.
    pub spec: Map<String, Value>,
}

/// The processes that serve a Gateway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The agents, on every node.
    #[default]
    Node,
    /// Pods of its own.
    Dedicated,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServiceType {
    #[default]
    ClusterIp,
    NodePort,
    LoadBalancer,
}

/// Node ports of a Service of type LoadBalancer, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodePorts {
    Off,
    On,
}

/// Ports served on the nodes' own addresses too, or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostPorts {
    #[default]
    Off,
    On,
}

/// The access log of a Gateway: written or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Logging {
    #[default]
    Off,
    On,
}

/// True if a Gateway asks for addresses, and for none but the cluster's.
fn is_for_cluster_only(gateway: &Gateway) -> bool {
    let addresses = gateway.spec.addresses.as_deref().unwrap_or_default();
    !addresses.is_empty() && addresses.iter().all(|it| it.routability.as_deref() == Some(CLUSTER))
}

impl ServiceType {
    /// As Services spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClusterIp => "ClusterIP",
            Self::NodePort => "NodePort",
            Self::LoadBalancer => "LoadBalancer",
        }
    }
}

impl Pods {
    /// With the defaults of everything else.
    pub fn new(image: impl Into<String>) -> Self {
        let (log, log_format) = ("info".to_owned(), "text".to_owned());
        Self {
            image: image.into(),
            log,
            log_format,
            drain_seconds: 30,
            endpoint_namespaces: Vec::new(),
            external: ExternalRule::default(),
            load_balancers: Vec::new(),
            metrics_port: None,
            telemetry: Vec::new(),
            spec: Map::new(),
        }
    }
}

impl Parameters {
    /// # Errors
    /// When something that is referred to does not exist, is not supported or contradicts itself:
    /// `InvalidParameters`.
    pub(crate) fn of(gateway: &Gateway, objects: &Objects, defaults: &Self) -> Result<Self, Fault> {
        let mut parameters = defaults.clone();
        let class = ObjectName::new("", gateway.spec.gateway_class_name.as_str());
        if let Some(class) = objects.gateway_classes.get(&class) {
            // What is wrong is for the class's status to say: it may be in a namespace that the
            // Gateway's owner may not read.
            let spec = of_class(class, objects).map_err(|_| {
                let class = &gateway.spec.gateway_class_name;
                Fault::invalid_parameters(format!("the parameters of GatewayClass {class} are not valid"))
            })?;
            spec.map_or(Ok(()), |spec| parameters.overlay(spec))?;
        }
        if let Some(spec) = of_gateway(gateway, objects)? {
            parameters.overlay(spec)?;
        }
        parameters.check()?;
        if is_for_cluster_only(gateway) {
            parameters.keep_in_cluster()?;
        }
        Ok(parameters)
    }

    /// Without what would let in clients from outside, whose Gateway asks not to be reached from
    /// there.
    fn keep_in_cluster(&mut self) -> Result<(), Fault> {
        if self.host_ports == HostPorts::On {
            return Err(Fault::invalid_parameters(
                "hostPorts: the Gateway's spec.addresses ask for routability Cluster only",
            ));
        }
        self.service_type = ServiceType::ClusterIp;
        self.external_traffic_policy = None;
        self.load_balancer_class = None;
        self.node_ports = None;
        Ok(())
    }

    /// The Gateway as it is served.
    pub(crate) fn served(&self, name: &ObjectName) -> ServedGateway {
        let access_log = (self.logging == Logging::On).then_some(self.access_log);
        ServedGateway { name: name.clone(), limits: self.limits.clone(), access_log }
    }

    fn overlay(&mut self, spec: &GatewayParametersSpec) -> Result<(), Fault> {
        if let Some(mode) = &spec.mode {
            self.mode = choice("mode", mode, &[("Node", Mode::Node), ("Dedicated", Mode::Dedicated)])?;
        }
        if let Some(on) = spec.host_ports {
            self.host_ports = if on { HostPorts::On } else { HostPorts::Off };
        }
        if let Some(claims) = &spec.claims {
            self.claims = Claims::of(claims)?;
        }
        if let Some(service) = &spec.service {
            self.overlay_service(service)?;
        }
        if let Some(dedicated) = &spec.dedicated {
            self.overlay_dedicated(dedicated)?;
        }
        if let Some(log) = &spec.access_log {
            self.logging = if log.enabled.unwrap_or(true) { Logging::On } else { Logging::Off };
            overlay_log(&mut self.access_log, log)?;
        }
        if let Some(limits) = &spec.limits {
            limits::overlay(&mut self.limits, limits)?;
        }
        let Some(infrastructure) = &spec.infrastructure else { return Ok(()) };
        extend(&mut self.labels, "infrastructure.labels", infrastructure.labels.as_ref(), label)?;
        extend(
            &mut self.annotations,
            "infrastructure.annotations",
            infrastructure.annotations.as_ref(),
            annotation,
        )
    }

    fn overlay_service(&mut self, given: &GatewayParametersService) -> Result<(), Fault> {
        if let Some(name) = &given.r#type {
            let types = [ServiceType::ClusterIp, ServiceType::NodePort, ServiceType::LoadBalancer];
            let types = types.map(|r#type| (r#type.as_str(), r#type));
            self.service_type = choice("service.type", name, &types)?;
        }
        if let Some(policy) = &given.external_traffic_policy {
            let policies = ["Cluster", "Local"].map(|policy| (policy, policy));
            let policy = choice("service.externalTrafficPolicy", policy, &policies)?;
            self.external_traffic_policy = Some(policy.to_owned());
        }
        if let Some(class) = given.load_balancer_class.as_ref().filter(|class| !is_qualified_name(class)) {
            return Err(Fault::invalid_parameters(format!(
                "service.loadBalancerClass {class:?} is no name: write it like {NAMES}"
            )));
        }
        over(&mut self.load_balancer_class, given.load_balancer_class.as_ref());
        if let Some(policy) = &given.ip_family_policy {
            let policies =
                ["SingleStack", "PreferDualStack", "RequireDualStack"].map(|policy| (policy, policy));
            let policy = choice("service.ipFamilyPolicy", policy, &policies)?;
            self.ip_family_policy = Some(policy.to_owned());
        }
        if let Some(families) = &given.ip_families {
            let known = ["IPv4", "IPv6"].map(|family| (family, family));
            let families = families.iter().map(|family| choice("service.ipFamilies", family, &known));
            self.ip_families = families.map(|family| family.map(str::to_owned)).collect::<Result<_, _>>()?;
        }
        let node_ports = given.allocate_load_balancer_node_ports;
        let node_ports = node_ports.map(|on| if on { NodePorts::On } else { NodePorts::Off });
        over(&mut self.node_ports, node_ports.as_ref());
        Ok(())
    }

    fn overlay_dedicated(&mut self, given: &GatewayParametersDedicated) -> Result<(), Fault> {
        if let Some(replicas) = given.replicas.filter(|replicas| *replicas < 0) {
            return Err(Fault::invalid_parameters(format!(
                "dedicated.replicas {replicas} is out of range: use 0 or more"
            )));
        }
        over(&mut self.replicas, given.replicas.as_ref());
        let Some(resources) = &given.resources else { return Ok(()) };
        extend(
            &mut self.resource_requests,
            "dedicated.resources.requests",
            resources.requests.as_ref(),
            amount,
        )?;
        extend(&mut self.resource_limits, "dedicated.resources.limits", resources.limits.as_ref(), amount)
    }

    /// Checks what only the merged fields show.
    fn check(&self) -> Result<(), Fault> {
        let balanced = self.service_type == ServiceType::LoadBalancer;
        if self.external_traffic_policy.is_some() && self.service_type == ServiceType::ClusterIp {
            return Err(Fault::invalid_parameters(
                "service.externalTrafficPolicy needs service.type LoadBalancer or NodePort",
            ));
        }
        if self.node_ports.is_some() && !balanced {
            return Err(Fault::invalid_parameters(
                "service.allocateLoadBalancerNodePorts needs service.type LoadBalancer",
            ));
        }
        if self.load_balancer_class.is_some() && !balanced {
            return Err(Fault::invalid_parameters(
                "service.loadBalancerClass needs service.type LoadBalancer",
            ));
        }
        let single = self.ip_family_policy.as_deref().unwrap_or("SingleStack") == "SingleStack";
        if single && self.ip_families.len() > 1 {
            return Err(Fault::invalid_parameters(
                "service.ipFamilies has two: set service.ipFamilyPolicy to PreferDualStack or RequireDualStack, or leave one out",
            ));
        }
        if self.mode == Mode::Dedicated && self.host_ports == HostPorts::On {
            return Err(Fault::invalid_parameters(
                "hostPorts needs mode Node: pods of mode Dedicated are not on every node",
            ));
        }
        if self.mode == Mode::Dedicated && self.pods.is_none() {
            return Err(Fault::invalid_parameters(
                "mode Dedicated is not possible: the agents run without --image (in the Helm chart, set dedicated.enabled)",
            ));
        }
        Ok(())
    }
}

pub(crate) fn overlay_log(log: &mut AccessLog, given: &AccessLogSpec) -> Result<(), Fault> {
    if let Some(format) = &given.format {
        let formats = [("JSON", LogFormat::Json), ("Text", LogFormat::Text)];
        log.format = choice("accessLog.format", format, &formats)?;
    }
    if let Some(status) = given.minimum_status {
        let number = u16::try_from(status).ok().filter(|status| *status < 600);
        let fits = number.and_then(|number| StatusCode::from_u16(number).ok());
        log.minimum_status = fits.ok_or_else(|| {
            let message = format!("accessLog.minimumStatus {status} is out of range: use 100 to 599");
            Fault::invalid_parameters(message)
        })?;
    }
    if let Some(names) = &given.omit {
        let fields = LogField::ALL.map(|field| (field.name(), field));
        let fields = names.iter().map(|name| choice("accessLog.omit", name, &fields));
        log.omit = fields.collect::<Result<_, _>>()?;
    }
    Ok(())
}

/// The GatewayParameters that a GatewayClass refers to, judged by themselves.
pub(crate) fn of_class<'o>(
    class: &GatewayClass,
    objects: &'o Objects,
) -> Result<Option<&'o GatewayParametersSpec>, Fault> {
    let Some(reference) = &class.spec.parameters_ref else { return Ok(None) };
    check_kind(&reference.group, &reference.kind)?;
    let Some(namespace) = reference.namespace.as_deref() else {
        return Err(Fault::invalid_parameters("parametersRef needs a namespace: GatewayParameters have one"));
    };
    let spec = find(namespace, &reference.name, objects)?;
    Parameters::default().overlay(spec)?;
    Ok(Some(spec))
}

fn of_gateway<'o>(
    gateway: &Gateway,
    objects: &'o Objects,
) -> Result<Option<&'o GatewayParametersSpec>, Fault> {
    let infrastructure = gateway.spec.infrastructure.as_ref();
    let Some(reference) = infrastructure.and_then(|it| it.parameters_ref.as_ref()) else { return Ok(None) };
    check_kind(&reference.group, &reference.kind)?;
    let namespace = gateway.metadata.namespace.as_deref().unwrap_or("default");
    find(namespace, &reference.name, objects).map(Some)
}

/// True if a Gateway refers to the parameters of a name.
pub(crate) fn refers(gateway: &Gateway, parameters: &ObjectName) -> bool {
    let reference = gateway.spec.infrastructure.as_ref().and_then(|it| it.parameters_ref.as_ref());
    let here = gateway.metadata.namespace.as_deref().unwrap_or("default") == &*parameters.namespace;
    here && reference.is_some_and(|reference| reference.name == *parameters.name)
}

pub(crate) fn class_refers(class: &GatewayClass, parameters: &ObjectName) -> bool {
    class.spec.parameters_ref.as_ref().is_some_and(|reference| {
        reference.name == *parameters.name && reference.namespace.as_deref() == Some(&*parameters.namespace)
    })
}

fn check_kind(group: &str, kind: &str) -> Result<(), Fault> {
    let own = Kind::GatewayParameters;
    if Kind::of(group, kind) == Some(own) {
        return Ok(());
    }
    let given = format!("parametersRef to kind {kind:?} of group {group:?} is not supported");
    Err(Fault::invalid_parameters(format!("{given}: refer to kind {own} of group {}", own.group())))
}

fn find<'o>(namespace: &str, name: &str, objects: &'o Objects) -> Result<&'o GatewayParametersSpec, Fault> {
    let found = objects.gateway_parameters.get(&ObjectName::new(namespace, name));
    found.map(|found| &found.spec).ok_or_else(|| {
        let message = format!("parametersRef: there is no GatewayParameters {namespace}/{name}: create it");
        Fault::invalid_parameters(message)
    })
}

/// The CRD's schema lets nothing else through, but it may be newer than we are.
fn choice<T: Copy>(field: &str, given: &str, choices: &[(&str, T)]) -> Result<T, Fault> {
    let chosen = choices.iter().find(|(name, _)| *name == given).map(|(_, choice)| *choice);
    chosen.ok_or_else(|| {
        let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
        Fault::invalid_parameters(format!("{field} {given:?} is not supported: use {}", names.join(" or ")))
    })
}

fn over<T: Clone>(field: &mut Option<T>, value: Option<&T>) {
    if let Some(value) = value {
        *field = Some(value.clone());
    }
}

/// Merges a map, if `check` has nothing against any of it.
fn extend(
    map: &mut BTreeMap<String, String>,
    field: &str,
    more: Option<&BTreeMap<String, String>>,
    check: impl Fn(&str, &str) -> Result<(), String>,
) -> Result<(), Fault> {
    for (key, value) in more.into_iter().flatten() {
        check(key, value).map_err(|what| Fault::invalid_parameters(format!("{field}: {what}")))?;
        map.insert(key.clone(), value.clone());
    }
    Ok(())
}

const NAMES: &str = "team or example.com/team, with at most 63 letters, digits, -, _ and . after the /";

fn annotation(key: &str, _: &str) -> Result<(), String> {
    is_qualified_name(key).then_some(()).ok_or_else(|| format!("{key:?} is no name: write it like {NAMES}"))
}

fn label(key: &str, value: &str) -> Result<(), String> {
    annotation(key, value)?;
    if is_label_value(value) {
        return Ok(());
    }
    Err(format!(
        "value {value:?} of {key} is none that a label may have: use at most 63 letters, digits, -, _ and ."
    ))
}

fn amount(resource: &str, quantity: &str) -> Result<(), String> {
    annotation(resource, quantity)?;
    match billionths(quantity) {
        Some(_) => Ok(()),
        None => Err(format!("{quantity:?} of {resource} is no quantity: write it like 500m, 2 or 512Mi")),
    }
}
