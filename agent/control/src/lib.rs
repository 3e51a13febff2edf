//! The control side: where objects come from, where statuses go, and the loop in between. All talk
//! with disks and with an API server is here; what objects mean is `portcullis-gateway`'s business.

pub mod applier;
pub mod kube;
pub mod source;
pub mod status;
