//! Traces: which requests have one, what goes on to backends of it (W3C Trace Context), and the
//! spans of those that are recorded. A core gathers spans and hands them over a few times a second;
//! nothing here knows to whom. Requests that operators wait for are recorded step by step, too.

pub(crate) mod active;
pub(crate) mod attempt;
pub(crate) mod context;
pub(crate) mod queue;
pub(crate) mod recorder;
pub(crate) mod request;
pub(crate) mod requests;
pub(crate) mod span;
pub(crate) mod takers;
pub(crate) mod tracer;
pub(crate) mod watch;
