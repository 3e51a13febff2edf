//! The output as an API server and the translation take it: an object that either refuses would be
//! missing, and what it protects would be open.

use std::collections::HashMap;

use portcullis_control::offline;
use portcullis_gateway::Settings;
use serde_json::Value;

use super::difference::{Difference, Outcome};
use super::ingress::World;
use super::routes::Written;
use crate::findings::findings;

/// Characters of a reason: a route of many rules has it many times.
const LONGEST: usize = 300;

/// Reasons of objects that are no better with all that they refer to, but for those whose message
/// has these words.
const INVALID: [&str; 2] = ["Invalid", "UnsupportedValue"];
const MISSING: &str = " does not exist";

#[derive(Clone, Debug)]
pub(super) struct Fault {
    /// The one that it was written for.
    pub ingress: Option<usize>,
    /// `HTTPRoute shop/cart`
    object: String,
    reason: String,
}

/// References to what is not in the input are none.
pub(super) fn faults(written: &[Written]) -> Vec<Fault> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let name = |object: &Value| {
        let metadata = &object["metadata"];
        format!("{} {}/{}", text(&object["kind"]), text(&metadata["namespace"]), text(&metadata["name"]))
    };
    let owners: HashMap<_, _> = written.iter().map(|it| (name(&it.object), it.ingress)).collect();
    let manifests = written.iter().map(|it| it.object.clone()).collect();
    let translated = offline::translate_manifests(manifests, Settings::default());
    let objects = translated.with_statuses();
    let faults = findings(&translated, &objects).into_iter().filter_map(|finding| {
        let object = finding.object?;
        let is_route = object.starts_with("HTTPRoute ") || object.starts_with("TLSRoute ");
        let is_fault = match finding.state.as_str() {
            "Refused" | "DefinedTwice" => true,
            // One rule may be dropped alone.
            state if is_route => state.contains("Accepted=False") || state.contains("PartiallyInvalid=True"),
            state => {
                let mut conditions = state.split(',').filter_map(|it| it.strip_prefix("Accepted=False/"));
                let is_invalid = conditions.any(|reason| INVALID.contains(&reason));
                is_invalid && !finding.message.contains(MISSING)
            }
        };
        let ingress = owners.get(&object).copied().flatten();
        // In front of it are references that are not in the input.
        let dropped = finding.message.find("Dropped Rule").unwrap_or(0);
        let reason = finding.message[dropped..].chars().take(LONGEST).collect();
        is_fault.then_some(Fault { ingress, object, reason })
    });
    faults.collect()
}

impl Fault {
    pub(super) fn difference(&self, world: &World, outcome: Outcome) -> Difference {
        let ingress = self.ingress.map(|index| world.ingresses[index].key());
        let text = format!("{}: correct what it is made of", self.reason);
        Difference::new(ingress.as_deref().unwrap_or("(all)"), &self.object, outcome, text)
    }
}
