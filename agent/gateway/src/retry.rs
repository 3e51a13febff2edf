//! Retries as rules and policies write them (GEP-1731).

use std::time::Duration;

use http::StatusCode;
use portcullis_api::types::shared::HttpRouteRetry;
use portcullis_model::Retry;

use crate::Fault;
use crate::duration::parse_duration;

/// The CRD knows no limit. A request that nothing else ends has to end some time.
const MOST_ATTEMPTS: u32 = 1000;
/// "Implementations […] MAY cap the delay at an implementation-defined maximum, which SHOULD NOT be
/// less than the base interval": so what is longer than any pause is not taken. A request that
/// waits has its client's connection, and its place at the backend.
const LONGEST_BACKOFF: Duration = Duration::from_mins(1);

/// `None` if a field has no good value: each such field is one of the faults then. "An explicit
/// zero value MUST disable retries", which is why it is kept.
pub(crate) fn parse(retry: &HttpRouteRetry, faults: &mut Vec<Fault>) -> Option<Retry> {
    let attempts = retry.attempts.map(number).transpose();
    let codes = retry.codes.as_deref().map(statuses).transpose();
    let backoff = retry.backoff.as_deref().map(pause).transpose();
    match (attempts, codes, backoff) {
        (Ok(attempts), Ok(codes), Ok(backoff)) => {
            Some(Retry { attempts, codes: codes.map(Into::into), backoff })
        }
        (attempts, codes, backoff) => {
            let wrong = [attempts.err(), codes.err(), backoff.err()].into_iter().flatten();
            faults.extend(wrong.map(|message| Fault::unsupported(format!("retry: {message}"))));
            None
        }
    }
}

fn pause(backoff: &str) -> Result<Duration, String> {
    let pause = parse_duration(backoff).map_err(|error| format!("backoff: {error}"))?;
    if pause > LONGEST_BACKOFF {
        return Err(format!("backoff: {backoff} is longer than 1m"));
    }
    Ok(pause)
}

fn number(attempts: i64) -> Result<u32, String> {
    let number = u32::try_from(attempts).ok().filter(|attempts| *attempts <= MOST_ATTEMPTS);
    number.ok_or_else(|| format!("attempts: {attempts} is not between 0 and {MOST_ATTEMPTS}"))
}

/// Each once.
fn statuses(written: &[i64]) -> Result<Vec<StatusCode>, String> {
    let (mut codes, mut others) = (Vec::new(), Vec::new());
    for code in written {
        match status(*code) {
            Some(code) if codes.contains(&code) => {}
            Some(code) => codes.push(code),
            None => others.push(code.to_string()),
        }
    }
    match others.as_slice() {
        [] => Ok(codes),
        [other] => Err(format!("codes: {other} is not between 400 and 599")),
        others => Err(format!("codes: {} are not between 400 and 599", others.join(", "))),
    }
}

fn status(code: i64) -> Option<StatusCode> {
    let code = u16::try_from(code).ok().filter(|code| (400..600).contains(code))?;
    StatusCode::from_u16(code).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parsed(retry: Value) -> Result<(u32, Vec<u16>, u128), String> {
        let mut faults = Vec::new();
        let Some(retry) = parse(&serde_json::from_value(retry).unwrap(), &mut faults) else {
            let messages: Vec<_> = faults.into_iter().map(|fault| fault.message).collect();
            return Err(messages.join("; "));
        };
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
            (json!({"backoff": "1m"}), (1, vec![], 60_000)),
            (json!({"backoff": "59s1000ms"}), (1, vec![], 60_000)),
        ] {
            assert_eq!(parsed(retry.clone()), Ok(expected), "{retry}");
        }
        for (retry, message) in [
            (json!({"attempts": -1}), "retry: attempts: -1 is not between 0 and 1000"),
            (json!({"attempts": 1001}), "retry: attempts: 1001 is not between 0 and 1000"),
            (json!({"codes": [500, 399]}), "retry: codes: 399 is not between 400 and 599"),
            (json!({"codes": [600]}), "retry: codes: 600 is not between 400 and 599"),
            (json!({"backoff": "1m1ms"}), "retry: backoff: 1m1ms is longer than 1m"),
            (json!({"backoff": "24h"}), "retry: backoff: 24h is longer than 1m"),
            (
                json!({"attempts": 1001, "codes": [200, 500, -1]}),
                "retry: attempts: 1001 is not between 0 and 1000; retry: codes: 200, -1 are not between 400 and 599",
            ),
        ] {
            assert_eq!(parsed(retry.clone()), Err(message.to_owned()), "{retry}");
        }
        let wrong = parsed(json!({"backoff": "1"})).unwrap_err();
        assert!(wrong.starts_with("retry: backoff: \"1\" is not a duration"), "{wrong}");
    }
}
