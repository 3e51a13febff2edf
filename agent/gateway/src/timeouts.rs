//! Time-outs as rules and policies write them (GEP-1742).

use portcullis_api::types::shared::HttpRouteTimeouts;
use portcullis_model::{TimeLimit, Timeouts};

use crate::Fault;
use crate::duration::parse_duration;

/// # Errors
/// When one is no duration, or an attempt may take longer than the whole.
pub(crate) fn parse(timeouts: &HttpRouteTimeouts) -> Result<Timeouts, Fault> {
    let request = limit(timeouts.request.as_deref(), "request")?;
    let backend_request = limit(timeouts.backend_request.as_deref(), "backendRequest")?;
    match (request, backend_request) {
        (TimeLimit::Of(whole), TimeLimit::Of(attempt)) if attempt > whole => {
            Err(Fault::unsupported("timeouts: backendRequest cannot be longer than request"))
        }
        _ => Ok(Timeouts { request, backend_request }),
    }
}

fn limit(text: Option<&str>, field: &str) -> Result<TimeLimit, Fault> {
    let Some(text) = text else { return Ok(TimeLimit::Unsaid) };
    match parse_duration(text) {
        Ok(duration) if duration.is_zero() => Ok(TimeLimit::Lifted),
        Ok(duration) => Ok(TimeLimit::Of(duration)),
        Err(error) => Err(Fault::unsupported(format!("timeouts.{field}: {error}"))),
    }
}
