//! Bytes that are passed on between a client and a backend as they are.

pub(crate) mod tunnel;
