//! Traces: which requests have one, what goes on to backends of it (W3C Trace Context), and the
//! spans of those that are recorded. A core gathers spans and hands them over a few times a second;
//! nothing here knows to whom.

pub(crate) mod active;
pub(crate) mod attempt;
pub(crate) mod context;
pub(crate) mod recorder;
pub(crate) mod request;
pub(crate) mod span;
pub(crate) mod tracer;
