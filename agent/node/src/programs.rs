//! The kernel programs from user space: what this node allows, loading, attaching, pinning, and
//! their maps. What the maps should hold is decided elsewhere ([`crate::plan`]).

pub(crate) mod attach;
pub(crate) mod btf;
pub(crate) mod forward;
pub(crate) mod guards;
pub(crate) mod interfaces;
pub(crate) mod kernel;
pub(crate) mod maps;
pub(crate) mod object;
pub(crate) mod pins;
pub(crate) mod probe;
pub(crate) mod sys;
