//! The Mesh resource (GEP-3949): which one is ours, and what its status says. A pure plan of at
//! most one step, taken from what is observed; the executor observes again and asks for the next,
//! so that changes, deletion and re-creation of the resource need no restart. Nothing here modifies
//! a `spec`: the only one ever written is that of a resource that did not exist.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use portcullis_api::generation;
use portcullis_api::types::shared::{ClassStatus, NamespacedObjectReference};
use portcullis_api::types::xmeshes::{XMesh, XMeshSpec};
use portcullis_model::ObjectName;

use crate::features::supported_features;
use crate::{ConditionStatus, ConditionType, Reason, condition};

/// "A given mesh implementation will define its controller name at build time."
pub const MESH_CONTROLLER_NAME: &str = "portcullis.dev/mesh";
/// "mesh implementations MUST define a default `metadata.name`".
pub const DEFAULT_MESH_NAME: &str = "portcullis";
/// The only kind that `parametersRef` may name.
pub const PARAMETERS_KIND: &str = "ConfigMap";

/// Mesh features that conformance tests can verify, sorted. There are none as long as no mesh
/// traffic is handled.
const SUPPORTED_FEATURES: &[&str] = &[];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeshSettings {
    /// The resource to look for; "SHOULD allow overriding this name at install time".
    pub name: String,
    pub controller_name: String,
}

/// The claimant of the resource: "human-readable information in the `Accepted` condition about
/// which mesh instance".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    pub version: String,
    pub namespace: String,
    /// The number of running agents, if known.
    pub agents: Option<usize>,
}

/// The settings of a parameters ConfigMap. Also in force when no Mesh resource is ours: "optional
/// configuration MUST remain in its default state".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeshParameters {
    /// `reportAgents`: true if the `Accepted` message counts the agents. If not, a cluster whose
    /// nodes come and go causes no status writes.
    pub report_agents: bool,
}

/// The next step.
#[derive(Clone, Debug, PartialEq)]
pub enum MeshStep {
    /// No resource of the name exists.
    Create(Box<XMesh>),
    WriteStatus(ClassStatus),
    /// The resource is another implementation's: not a single field of it may be written.
    Warn(String),
    /// The status says what it should.
    Nothing,
}

#[derive(Clone, Debug, PartialEq)]
pub struct MeshPlan {
    pub step: MeshStep,
    pub parameters: MeshParameters,
}

/// Plans for the resource of the expected name, or its absence. `config_maps` finds a ConfigMap by
/// name.
pub fn plan<'c>(
    observed: Option<&XMesh>,
    config_maps: impl Fn(&ObjectName) -> Option<&'c ConfigMap>,
    instance: &Instance,
    settings: &MeshSettings,
) -> MeshPlan {
    match observed {
        None => MeshPlan::with_defaults(MeshStep::Create(Box::new(creation(settings)))),
        Some(mesh) if mesh.spec.controller_name != settings.controller_name => {
            MeshPlan::with_defaults(MeshStep::Warn(mismatch(mesh, settings)))
        }
        Some(mesh) => plan_status(mesh, config_maps, instance),
    }
}

/// The status of a resource of another name, if it is ours to write: "Implementations MUST populate
/// status on all Mesh resources which specify their controller name". Only while its current
/// generation is undecided, so that installations which expect different names never undo each
/// other's words.
pub fn plan_unexpected(mesh: &XMesh, instance: &Instance, settings: &MeshSettings) -> Option<ClassStatus> {
    if mesh.spec.controller_name != settings.controller_name || is_decided(mesh) {
        return None;
    }
    let message = format!(
        "Portcullis {} in namespace {} uses XMesh {} and not this one: delete it, or choose it with --mesh-name",
        instance.version, instance.namespace, settings.name
    );
    let generation = generation(&mesh.metadata);
    let accepted = condition(
        ConditionType::Accepted,
        ConditionStatus::False,
        Reason::UnexpectedName,
        message,
        generation,
    );
    Some(ClassStatus { conditions: Some(conditions(mesh, accepted)), supported_features: Some(Vec::new()) })
}

/// The ConfigMap that a Mesh resource refers to, if the reference can be followed.
pub fn parameters_of(mesh: &XMesh) -> Option<ObjectName> {
    mesh.spec.parameters_ref.as_ref().and_then(|reference| config_map_name(reference).ok())
}

// === steps ===

/// "The mesh MUST NOT set any other fields in the `spec`".
fn creation(settings: &MeshSettings) -> XMesh {
    let spec = XMeshSpec { controller_name: settings.controller_name.clone(), ..XMeshSpec::default() };
    let metadata = ObjectMeta { name: Some(settings.name.clone()), ..ObjectMeta::default() };
    XMesh { metadata, spec, status: None }
}

fn mismatch(mesh: &XMesh, settings: &MeshSettings) -> String {
    format!(
        "XMesh {} belongs to controller {:?}, not to {:?}: it is left alone and the mesh runs with its defaults; \
         choose another name with --mesh-name, or delete that XMesh",
        settings.name, mesh.spec.controller_name, settings.controller_name
    )
}

fn plan_status<'c>(
    mesh: &XMesh,
    config_maps: impl Fn(&ObjectName) -> Option<&'c ConfigMap>,
    instance: &Instance,
) -> MeshPlan {
    let read = MeshParameters::resolve(mesh.spec.parameters_ref.as_ref(), config_maps);
    let parameters = read.as_ref().ok().cloned().unwrap_or_default();
    let status = ClassStatus {
        conditions: Some(conditions(mesh, accepted(mesh, read.as_ref(), instance))),
        supported_features: Some(if read.is_ok() {
            supported_features(SUPPORTED_FEATURES)
        } else {
            Vec::new()
        }),
    };
    let step = if says_the_same(mesh.status.as_ref(), &status) {
        MeshStep::Nothing
    } else {
        MeshStep::WriteStatus(status)
    };
    MeshPlan { step, parameters }
}

fn is_decided(mesh: &XMesh) -> bool {
    let conditions = mesh.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let accepted = conditions.into_iter().find(|it| it.type_ == ConditionType::Accepted.as_str());
    accepted.is_some_and(|accepted| {
        let is_outdated = accepted.observed_generation != Some(generation(&mesh.metadata));
        let is_refusal = accepted.reason == Reason::UnexpectedName.as_str();
        ConditionStatus::of(&accepted.status).is_some() && !(is_refusal && is_outdated)
    })
}

/// Rejected resources set `Reason` to `InvalidParameters`.
fn accepted(mesh: &XMesh, read: Result<&MeshParameters, &String>, instance: &Instance) -> Condition {
    let (status, reason, message) = match read {
        Ok(parameters) => (ConditionStatus::True, Reason::Accepted, instance.claim(parameters)),
        Err(problem) => (ConditionStatus::False, Reason::InvalidParameters, problem.clone()),
    };
    condition(ConditionType::Accepted, status, reason, message, generation(&mesh.metadata))
}

/// Ours first, then what others added. The `Programmed` condition that the CRD sets to Unknown by
/// default is none that the specification knows, and no controller would ever resolve it: it goes.
fn conditions(mesh: &XMesh, accepted: Condition) -> Vec<Condition> {
    let observed = mesh.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let others = observed.filter(|other| other.type_ != accepted.type_ && !is_stray_default(other));
    std::iter::once(accepted.clone()).chain(others.cloned()).collect()
}

fn is_stray_default(condition: &Condition) -> bool {
    condition.type_ == ConditionType::Programmed.as_str() && ConditionStatus::of(&condition.status).is_none()
}

/// True if nothing but time differs.
fn says_the_same(observed: Option<&ClassStatus>, planned: &ClassStatus) -> bool {
    observed.is_some_and(|observed| timeless(observed) == timeless(planned))
}

fn timeless(status: &ClassStatus) -> ClassStatus {
    let mut status = status.clone();
    for condition in status.conditions.iter_mut().flatten() {
        condition.last_transition_time = Time(Timestamp::UNIX_EPOCH);
    }
    status
}

// === impl MeshParameters ===

impl Default for MeshParameters {
    fn default() -> Self {
        Self { report_agents: true }
    }
}

impl MeshParameters {
    /// "If the referent cannot be found, refers to an unsupported kind, or when the data within
    /// that resource is malformed, the Mesh MUST be rejected".
    fn resolve<'c>(
        reference: Option<&NamespacedObjectReference>,
        config_maps: impl Fn(&ObjectName) -> Option<&'c ConfigMap>,
    ) -> Result<Self, String> {
        let Some(reference) = reference else { return Ok(Self::default()) };
        let name = config_map_name(reference)?;
        let config_map = config_maps(&name);
        let config_map = config_map.ok_or_else(|| {
            format!("parametersRef: there is no ConfigMap {name}: create it, or correct the reference")
        })?;
        if config_map.binary_data.as_ref().is_some_and(|data| !data.is_empty()) {
            return Err(format!("parametersRef: ConfigMap {name} has binaryData: use data"));
        }
        Self::read(config_map.data.as_ref().unwrap_or(&BTreeMap::new()))
            .map_err(|problem| format!("parametersRef: ConfigMap {name}: {problem}"))
    }

    fn read(data: &BTreeMap<String, String>) -> Result<Self, String> {
        let mut parameters = Self::default();
        for (key, value) in data {
            match key.as_str() {
                "reportAgents" => parameters.report_agents = boolean(key, value)?,
                _ => return Err(format!("{key} is no parameter: the only one is reportAgents")),
            }
        }
        Ok(parameters)
    }
}

fn boolean(key: &str, value: &str) -> Result<bool, String> {
    value.trim().parse().map_err(|_| format!("{key} is {value:?}: write \"true\" or \"false\""))
}

/// A ConfigMap is namespace-scoped, so the reference needs a namespace; one to anything else cannot
/// be followed.
fn config_map_name(reference: &NamespacedObjectReference) -> Result<ObjectName, String> {
    let kind = if reference.group.is_empty() {
        reference.kind.clone()
    } else {
        format!("{}.{}", reference.kind, reference.group)
    };
    if kind != PARAMETERS_KIND {
        return Err(format!(
            "parametersRef: kind {kind} is not supported: refer to a ConfigMap (group \"\")"
        ));
    }
    match reference.namespace.as_deref().filter(|namespace| !namespace.is_empty()) {
        Some(namespace) => Ok(ObjectName::new(namespace, reference.name.as_str())),
        None => Err("parametersRef: a ConfigMap is in a namespace: set parametersRef.namespace".to_owned()),
    }
}

// === impl Instance ===

impl Instance {
    fn claim(&self, parameters: &MeshParameters) -> String {
        let agents = match self.agents.filter(|_| parameters.report_agents) {
            None => String::new(),
            Some(1) => " (1 agent)".to_owned(),
            Some(agents) => format!(" ({agents} agents)"),
        };
        format!("Accepted by Portcullis {} in namespace {}{agents}", self.version, self.namespace)
    }
}

// === impl MeshSettings ===

impl Default for MeshSettings {
    fn default() -> Self {
        Self { name: DEFAULT_MESH_NAME.to_owned(), controller_name: MESH_CONTROLLER_NAME.to_owned() }
    }
}

// === impl MeshPlan ===

impl MeshPlan {
    /// "the implementation MUST act as if a Mesh resource was found with a empty `spec`".
    fn with_defaults(step: MeshStep) -> Self {
        Self { step, parameters: MeshParameters::default() }
    }
}

#[cfg(test)]
#[path = "mesh_tests.rs"]
mod tests;
