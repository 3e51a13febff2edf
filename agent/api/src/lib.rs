//! The Kubernetes objects that the agent reads, and how they are spelt: the generated types, the
//! table of kinds, the set of all objects and its changes, and the checks and defaults of an API
//! server for where there is none. It must not know the meaning of any object, and it does no I/O.

pub mod admission;
mod built_in;
mod closed_policy;
mod definition;
mod name;
mod node;
mod objects;
mod pod;
pub mod schema;
mod selector;
pub mod types;

pub use definition::CustomResourceDefinition;
pub use node::{Node, NodeAddress, NodeStatus};
pub use objects::{
    Change, GATEWAY_GROUP, Kind, LastGood, Object, ObjectError, ObjectKey, ObjectType, Objects, Packed,
    Readers, Reading, Role, Scope, StatusUse, by_kind, created, generation,
};
pub use pod::{Pod, PodIp, PodSpec, PodStatus};
pub use selector::{InvalidSelector, SelectorError};
