//! Status of ListenerPolicies: one entry per target (GEP-713). No more can be in `targetRefs` than
//! in `status.ancestors`.

use portcullis_api::types::shared::{ParentReference, PolicyAncestorStatus, PolicyStatus};

use crate::conditions::Conditions;
use crate::listener::ParentKey;
use crate::policy::listener::Target;
use crate::{ConditionType, Fault, Reason};

/// A target with what became of the policy there.
pub(crate) struct TargetVerdict<'t> {
    pub(crate) target: &'t Target,
    pub(crate) refusal: Option<Fault>,
    /// True if a listener that the target covers is programmed.
    pub(crate) is_served: bool,
    /// The part of the policy that means nothing to some of the target's listeners.
    pub(crate) without: Option<String>,
}

/// The places at which the data plane enforces a policy. What kernel programs refuse earlier, they
/// refuse by the same terms; which do is different on each node, and `portcullis status` there
/// tells.
const ENFORCED: &str = "enforced by every agent, in user space at the latest: clients and connections at accept, else after the \
    ClientHello or at the request, datagrams as they come; kernel programs of a node may refuse them earlier";

pub(crate) fn listener_policy_status(
    generation: i64,
    verdicts: &[TargetVerdict<'_>],
    controller_name: &str,
) -> PolicyStatus {
    let ancestors = verdicts.iter().map(|verdict| {
        let Target { kind, name, section } = verdict.target.clone();
        let object = ParentKey { kind, name }.object();
        PolicyAncestorStatus {
            ancestor_ref: ParentReference {
                group: Some(object.kind.group().to_owned()),
                kind: Some(object.kind.to_string()),
                namespace: Some(object.name.namespace.to_string()),
                name: object.name.name.to_string(),
                section_name: section.as_deref().map(str::to_owned),
                ..ParentReference::default()
            },
            controller_name: controller_name.to_owned(),
            conditions: verdict.conditions(generation).list,
        }
    });
    PolicyStatus { ancestors: ancestors.collect() }
}

// === impl TargetVerdict ===

impl TargetVerdict<'_> {
    fn conditions(&self, generation: i64) -> Conditions {
        let mut conditions = Conditions::new(generation);
        conditions.check(ConditionType::Accepted, self.refusal.as_ref());
        if self.refusal.is_none() {
            let message = "no listener of the target is programmed, so that there is nothing to enforce: see their conditions";
            let fault = Fault::not_programmed(Reason::NoListener, message);
            let fault = (!self.is_served).then_some(fault);
            let enforced: Vec<_> = [ENFORCED].into_iter().chain(self.without.as_deref()).collect();
            conditions.check_or(ConditionType::Programmed, fault.as_ref(), enforced.join("; "));
        }
        conditions
    }
}
