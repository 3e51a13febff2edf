//! Time-outs as rules and policies write them (GEP-1742).

use portcullis_api::types::shared::HttpRouteTimeouts;
use portcullis_model::{TimeLimit, Timeouts};

use crate::Fault;
use crate::duration::parse_duration;

/// `None` if one is no duration, or an attempt may take longer than the whole: each is one of the
/// faults then.
pub(crate) fn parse(timeouts: &HttpRouteTimeouts, faults: &mut Vec<Fault>) -> Option<Timeouts> {
    let request = limit(timeouts.request.as_deref(), "request", faults);
    let backend_request = limit(timeouts.backend_request.as_deref(), "backendRequest", faults);
    let (request, backend_request) = (request?, backend_request?);
    match (request, backend_request) {
        (TimeLimit::Of(whole), TimeLimit::Of(attempt)) if attempt > whole => {
            faults.push(Fault::unsupported("timeouts: backendRequest cannot be longer than request"));
            None
        }
        _ => Some(Timeouts { request, backend_request }),
    }
}

fn limit(text: Option<&str>, field: &str, faults: &mut Vec<Fault>) -> Option<TimeLimit> {
    let Some(text) = text else { return Some(TimeLimit::Unsaid) };
    match parse_duration(text) {
        Ok(duration) if duration.is_zero() => Some(TimeLimit::Lifted),
        Ok(duration) => Some(TimeLimit::Of(duration)),
        Err(error) => {
            faults.push(Fault::unsupported(format!("timeouts.{field}: {error}")));
            None
        }
    }
}
