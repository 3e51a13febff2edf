//! Retries of a rule (GEP-1731).

use std::time::Duration;

use http::StatusCode;
use portcullis_api::types::httproutes::HttpRouteRetry;
use portcullis_model::Retry;

use crate::Fault;
use crate::duration::parse_duration;

/// "When this field is unspecified, the backoff strategy and base interval are
/// implementation-specific."
const BACKOFF: Duration = Duration::from_millis(25);
/// The CRD knows no limit. A request that nothing else ends has to end some time.
const MOST_ATTEMPTS: u32 = 1000;

/// "An explicit zero value MUST disable retries", which is why it is kept.
pub(super) fn parse(retry: &HttpRouteRetry) -> Result<Retry, Fault> {
    let attempts = retry.attempts.unwrap_or(1);
    let attempts =
        u32::try_from(attempts).ok().filter(|attempts| *attempts <= MOST_ATTEMPTS).ok_or_else(|| {
            Fault::unsupported(format!("attempts: {attempts} is not between 0 and {MOST_ATTEMPTS}"))
        })?;
    let mut codes = Vec::new();
    for code in retry.codes.iter().flatten() {
        let code = status(*code)?;
        if !codes.contains(&code) {
            codes.push(code);
        }
    }
    let backoff = retry.backoff.as_deref().map(parse_duration).transpose();
    let backoff = backoff.map_err(|error| Fault::unsupported(format!("backoff: {error}")))?;
    Ok(Retry { attempts, codes, backoff: backoff.unwrap_or(BACKOFF) })
}

fn status(code: i64) -> Result<StatusCode, Fault> {
    let status = u16::try_from(code).ok().filter(|code| (400..600).contains(code));
    status
        .and_then(|code| StatusCode::from_u16(code).ok())
        .ok_or_else(|| Fault::unsupported(format!("codes: {code} is not between 400 and 599")))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parsed(retry: Value) -> Result<(u32, Vec<u16>, u128), String> {
        let retry = parse(&serde_json::from_value(retry).unwrap()).map_err(|fault| fault.message)?;
        let codes = retry.codes.iter().map(StatusCode::as_u16).collect();
        Ok((retry.attempts, codes, retry.backoff.as_millis()))
    }

    #[test]
    fn fields_have_their_defaults_and_limits() {
        for (retry, expected) in [
            (json!({}), (1, vec![], 25)),
            (json!({"attempts": 0}), (0, vec![], 25)),
            (json!({"attempts": 1000, "codes": [500, 404, 599, 500]}), (1000, vec![500, 404, 599], 25)),
            (json!({"backoff": "1s500ms"}), (1, vec![], 1500)),
            (json!({"backoff": "0s"}), (1, vec![], 0)),
        ] {
            assert_eq!(parsed(retry.clone()), Ok(expected), "{retry}");
        }
        for (retry, message) in [
            (json!({"attempts": -1}), "attempts: -1 is not between 0 and 1000"),
            (json!({"attempts": 1001}), "attempts: 1001 is not between 0 and 1000"),
            (json!({"codes": [500, 399]}), "codes: 399 is not between 400 and 599"),
            (json!({"codes": [600]}), "codes: 600 is not between 400 and 599"),
        ] {
            assert_eq!(parsed(retry.clone()), Err(message.to_owned()), "{retry}");
        }
        assert!(parsed(json!({"backoff": "1"})).unwrap_err().starts_with("backoff: \"1\" is not a duration"));
    }
}
