//! The kernel programs as `cargo xtask build-ebpf` built them.

/// The object, if it was there when the agent was compiled.
#[cfg(ebpf_object)]
pub(crate) const OBJECT: Option<&[u8]> =
    Some(aya::include_bytes_aligned!(env!("PORTCULLIS_EBPF_OBJECT_EMBEDDED")));
#[cfg(not(ebpf_object))]
pub(crate) const OBJECT: Option<&[u8]> = None;
