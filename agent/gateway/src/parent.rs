//! Gateways and ListenerSets as objects: their class's release, their addresses, and which of them
//! asks to be attached to which. Nothing here knows about listeners or routes.

mod address;
mod class;
mod gateway;
mod listener_set;
mod service;

pub use gateway::{ALLOWED_CHILDREN, ATTACH_TO};

pub(crate) use address::Addresses;
pub(crate) use class::{InstalledRelease, installed_release};
pub(crate) use gateway::{
    AllowedChildren, AttachTo, allowed_children, allowed_sets, ignored_fields, parent_of_gateway, precedence,
    refuse_gateway,
};
pub(crate) use listener_set::{parent_of_set, refuse_set, unsupported_parent};
pub(crate) use service::is_delivered_otherwise;
