//! Gateways and ListenerSets as objects: their class's release, their addresses, and which of them
//! asks to be attached to which. Nothing here knows about listeners or routes.

mod address;
mod attachment;
mod bundle;
mod node;

pub use attachment::{ALLOWED_CHILDREN, ATTACH_TO};

pub(crate) use address::Addresses;
pub(crate) use attachment::{
    AllowedChildren, AttachTo, allowed_children, allowed_sets, parent_of_gateway, parent_of_set, precedence,
    refuse_gateway, refuse_set,
};
pub(crate) use bundle::supported_version;
pub(crate) use node::is_delivered_otherwise;
