//! Retries as rules and policies write them (GEP-1731).

use http::StatusCode;
use portcullis_api::types::shared::HttpRouteRetry;
use portcullis_model::Retry;

use crate::Fault;
use crate::duration::parse_duration;

/// The CRD knows no limit. A request that nothing else ends has to end some time.
const MOST_ATTEMPTS: u32 = 1000;

/// "An explicit zero value MUST disable retries", which is why it is kept.
pub(crate) fn parse(retry: &HttpRouteRetry) -> Result<Retry, Fault> {
    let number = |attempts: i64| {
        let number = u32::try_from(attempts).ok().filter(|attempts| *attempts <= MOST_ATTEMPTS);
        number.ok_or_else(|| {
            Fault::unsupported(format!("attempts: {attempts} is not between 0 and {MOST_ATTEMPTS}"))
        })
    };
    let attempts = retry.attempts.map(number).transpose()?;
    let codes = retry.codes.as_deref().map(statuses).transpose()?;
    let backoff = retry.backoff.as_deref().map(parse_duration).transpose();
    let backoff = backoff.map_err(|error| Fault::unsupported(format!("backoff: {error}")))?;
    Ok(Retry { attempts, codes: codes.map(Into::into), backoff })
}

/// Each once.
fn statuses(written: &[i64]) -> Result<Vec<StatusCode>, Fault> {
    let mut codes = Vec::new();
    for code in written {
        let code = status(*code)?;
        if !codes.contains(&code) {
            codes.push(code);
        }
    }
    Ok(codes)
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
        let codes = retry.codes().iter().map(StatusCode::as_u16).collect();
        Ok((retry.attempts(), codes, retry.backoff().as_millis()))
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
