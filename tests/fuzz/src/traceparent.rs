//! The place in a trace that a request says it has: a backend gets one that reads the same.

use http::HeaderValue;
use portcullis_proxy::fuzzing::trace_context;

pub(crate) fn run(bytes: &[u8]) {
    let Ok(value) = HeaderValue::from_bytes(bytes) else { return };
    let Some(passed_on) = trace_context(&value) else { return };
    assert_eq!(trace_context(&passed_on).as_ref(), Some(&passed_on), "for {value:?}");
    // Trace and parent are those that came.
    assert_eq!(passed_on.as_bytes().get(2..53), bytes.get(2..53), "for {value:?}");
}
