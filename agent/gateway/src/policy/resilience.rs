//! The part of a BackendPolicy that is about endpoints that fail, and about how much a backend is
//! asked: what its fields come to, or what is wrong with them.

use std::num::{NonZeroU8, NonZeroU32};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use http::uri::PathAndQuery;
use portcullis_api::types::backendpolicies::{
    BackendPolicyHealth, BackendPolicyHealthHttp, BackendPolicyLimits, BackendPolicyOutlierDetection,
    BackendPolicySpec,
};
use portcullis_model::{
    AllUnhealthy, BackendLimits, EndpointCheck, HttpProbe, OutlierDetection, Probe, Resilience,
};

use crate::duration::parse_duration;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// The most of anything that is limited.
const MOST: u32 = 1_000_000;
const MOST_FAILURES: u32 = 1000;
const MOST_CHECKS: u32 = 100;
const MOST_STATUSES: usize = 16;

/// The fields of this part that a policy has. Each replaces that of a wider policy as a whole.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ResilienceTerms {
    check: Option<EndpointCheck>,
    outliers: Option<OutlierDetection>,
    slow_start: Option<Duration>,
    limits: Option<BackendLimits>,
}

// === impl ResilienceTerms ===

impl ResilienceTerms {
    /// Notes what is wrong, a sentence for each field.
    pub(crate) fn of(spec: &BackendPolicySpec, mut note: impl FnMut(String)) -> Self {
        let BackendPolicySpec { health, limits, outlier_detection, slow_start, .. } = spec;
        let window = slow_start.as_ref().map(|slow_start| slow_start.window.as_str());
        Self {
            check: health.as_ref().and_then(|it| check(it).map_err(&mut note).ok()),
            outliers: outlier_detection.as_ref().and_then(|it| outliers(it).map_err(&mut note).ok()),
            slow_start: window.and_then(|window| {
                let read = duration("slowStart.window", Some(window), MINUTE, SECOND..=HOUR);
                read.map_err(&mut note).ok()
            }),
            limits: limits.as_ref().and_then(|it| limits_of(it).map_err(&mut note).ok()),
        }
    }

    /// These, and where they say nothing those of `wider`.
    pub(crate) fn over(self, wider: &Self) -> Self {
        Self {
            check: self.check.or_else(|| wider.check.clone()),
            outliers: self.outliers.or_else(|| wider.outliers.clone()),
            slow_start: self.slow_start.or(wider.slow_start),
            limits: self.limits.or(wider.limits),
        }
    }

    /// The fields that have no meaning for sessions of UDP.
    pub(crate) fn without_udp(&self) -> Vec<&'static str> {
        let fields = [("limits", self.limits.is_some()), ("outlierDetection", self.outliers.is_some())];
        fields.into_iter().filter(|(_, is_there)| *is_there).map(|(field, _)| field).collect()
    }

    /// The fields that have no meaning for connections and datagrams.
    pub(crate) fn of_requests(&self) -> impl Iterator<Item = &'static str> + use<> {
        let limits = self.limits.unwrap_or_default();
        let requests = limits.requests.map(|_| "limits.requests");
        let pending = (limits.pending_requests > 0).then_some("limits.pendingRequests");
        requests.into_iter().chain(pending)
    }

    /// The field that has no meaning for requests.
    pub(crate) fn of_connections(&self) -> Option<&'static str> {
        self.limits?.connections.map(|_| "limits.connections")
    }

    /// True if endpoints are checked in the protocol that they are to have.
    pub(crate) fn checks_by_http(&self) -> bool {
        self.check.as_ref().is_some_and(|check| matches!(check.probe, Probe::Http(_)))
    }

    pub(crate) fn resilience(self) -> Option<Arc<Resilience>> {
        let Self { check, outliers, slow_start, limits } = self;
        let resilience = Resilience { check, outliers, slow_start, limits: limits.unwrap_or_default() };
        (resilience != Resilience::default()).then(|| Arc::new(resilience))
    }
}

fn check(health: &BackendPolicyHealth) -> Result<EndpointCheck, String> {
    let BackendPolicyHealth { grpc, http, r#type, .. } = health;
    let probe = match (r#type.as_str(), http, grpc) {
        ("HTTP", http, None) => Probe::Http(http_probe(&http.clone().unwrap_or_default())?),
        ("GRPC", None, grpc) => {
            let service = grpc.as_ref().and_then(|grpc| grpc.service.as_deref()).unwrap_or_default();
            Probe::Grpc { service: service.into() }
        }
        ("TCP", None, None) => Probe::Tcp,
        ("HTTP" | "GRPC" | "TCP", ..) => {
            return Err(format!("health: type {type} has fields of another type", r#type = r#type));
        }
        _ => return Err(format!("health.type is {:?}: write HTTP, GRPC or TCP", r#type)),
    };
    let all_unhealthy = match health.when_all_unhealthy.as_deref() {
        None | Some("UseAll") => AllUnhealthy::UseAll,
        Some("Refuse") => AllUnhealthy::Refuse,
        Some(other) => return Err(format!("health.whenAllUnhealthy is {other:?}: write UseAll or Refuse")),
    };
    let (interval, timeout) = (health.interval.as_deref(), health.timeout.as_deref());
    Ok(EndpointCheck {
        probe,
        interval: duration("health.interval", interval, Duration::from_secs(10), SECOND..=HOUR)?,
        timeout: duration(
            "health.timeout",
            timeout,
            Duration::from_secs(2),
            Duration::from_millis(10)..=MINUTE,
        )?,
        unhealthy_after: number("health.unhealthyThreshold", health.unhealthy_threshold, 3, MOST_CHECKS)?,
        healthy_after: number("health.healthyThreshold", health.healthy_threshold, 1, MOST_CHECKS)?,
        all_unhealthy,
    })
}

fn http_probe(http: &BackendPolicyHealthHttp) -> Result<HttpProbe, String> {
    let path = http.path.as_deref().unwrap_or("/");
    let is_path = path.starts_with('/') && path.parse::<PathAndQuery>().is_ok_and(|it| it.as_str() == path);
    if !is_path {
        return Err(format!(
            "health.http.path is {path:?}: write a path, with a query if need be, as in /healthz"
        ));
    }
    let host = http.host.as_deref();
    if let Some(host) = host
        && !host.parse::<http::uri::Authority>().is_ok_and(|it| !it.as_str().contains('@'))
    {
        return Err(format!("health.http.host is {host:?}: write a host name, with a port if need be"));
    }
    let statuses = match http.statuses.as_deref().unwrap_or_default() {
        [] => vec![(200, 299)],
        many if many.len() > MOST_STATUSES => {
            return Err(format!(
                "health.http.statuses has {} entries, {MOST_STATUSES} is the most",
                many.len()
            ));
        }
        some => some.iter().map(|text| statuses(text)).collect::<Result<_, _>>()?,
    };
    Ok(HttpProbe { path: path.into(), host: host.map(Into::into), statuses: statuses.into() })
}

/// `200`, or `200-299`.
fn statuses(text: &str) -> Result<(u16, u16), String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let status = |text: &str| text.parse().ok().filter(|status| (200..600).contains(status));
    let range = status(first).zip(status(last)).filter(|(first, last)| first <= last);
    range.ok_or_else(|| {
        format!("health.http.statuses: {text:?}: write a status from 200 to 599, or two as in 200-299")
    })
}

fn outliers(written: &BackendPolicyOutlierDetection) -> Result<OutlierDetection, String> {
    let BackendPolicyOutlierDetection {
        base_ejection_time,
        consecutive_failures,
        max_ejected_percent,
        max_ejection_time,
    } = written;
    let base = duration(
        "outlierDetection.baseEjectionTime",
        base_ejection_time.as_deref(),
        Duration::from_secs(30),
        SECOND..=DAY,
    )?;
    let default = base.max(Duration::from_secs(300));
    let longest = "outlierDetection.maxEjectionTime";
    let percent = number("outlierDetection.maxEjectedPercent", *max_ejected_percent, 30, 100)?;
    Ok(OutlierDetection {
        consecutive_failures: number(
            "outlierDetection.consecutiveFailures",
            *consecutive_failures,
            5,
            MOST_FAILURES,
        )?,
        base_ejection: base,
        max_ejection: duration(longest, max_ejection_time.as_deref(), default, base..=DAY)?,
        max_ejected_percent: NonZeroU8::try_from(percent).unwrap_or(NonZeroU8::MIN),
    })
}

fn limits_of(limits: &BackendPolicyLimits) -> Result<BackendLimits, String> {
    let BackendPolicyLimits { connections, pending_requests, requests } = *limits;
    let limit = |field, value: Option<i32>| value.map(|it| number(field, Some(it), 1, MOST)).transpose();
    let (connections, requests) =
        (limit("limits.connections", connections)?, limit("limits.requests", requests)?);
    let pending = pending_requests.unwrap_or(0);
    let pending_requests = u32::try_from(pending).ok().filter(|pending| *pending <= MOST);
    let pending_requests =
        pending_requests.ok_or_else(|| format!("limits.pendingRequests is {pending}: write 0 to {MOST}"))?;
    if pending_requests > 0 && requests.is_none() {
        return Err("limits.pendingRequests wait for one of limits.requests, which is missing".to_owned());
    }
    Ok(BackendLimits { connections, requests, pending_requests })
}

fn number(field: &str, value: Option<i32>, default: u32, most: u32) -> Result<NonZeroU32, String> {
    let number = value.map_or(Some(default), |value| u32::try_from(value).ok());
    let number = number.filter(|number| *number <= most).and_then(NonZeroU32::new);
    number.ok_or_else(|| format!("{field} is {}: write 1 to {most}", value.unwrap_or_default()))
}

fn duration(
    field: &str,
    text: Option<&str>,
    default: Duration,
    range: RangeInclusive<Duration>,
) -> Result<Duration, String> {
    let Some(text) = text else { return Ok(default) };
    let duration = parse_duration(text).map_err(|error| format!("{field}: {error}"))?;
    let (least, most) = (range.start(), range.end());
    let is_in = range.contains(&duration);
    is_in.then_some(duration).ok_or_else(|| format!("{field} is {text}: write {least:?} to {most:?}"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(part: Value) -> Result<Option<Resilience>, Vec<String>> {
        let mut spec = json!({"targetRefs": []});
        spec.as_object_mut().unwrap().extend(part.as_object().unwrap().clone());
        let mut wrong = Vec::new();
        let terms = ResilienceTerms::of(&serde_json::from_value(spec).unwrap(), |why| wrong.push(why));
        if wrong.is_empty() { Ok(terms.resilience().map(Arc::unwrap_or_clone)) } else { Err(wrong) }
    }

    #[test]
    fn fields_have_defaults() {
        assert_eq!(read(json!({})), Ok(None));
        let all = json!({"health": {"type": "HTTP"}, "outlierDetection": {}, "slowStart": {"window": "30s"},
            "limits": {"requests": 10}});
        let expected = Resilience {
            check: Some(EndpointCheck {
                probe: Probe::Http(HttpProbe { path: "/".into(), host: None, statuses: [(200, 299)].into() }),
                interval: Duration::from_secs(10),
                timeout: Duration::from_secs(2),
                unhealthy_after: 3.try_into().unwrap(),
                healthy_after: 1.try_into().unwrap(),
                all_unhealthy: AllUnhealthy::UseAll,
            }),
            outliers: Some(OutlierDetection {
                consecutive_failures: 5.try_into().unwrap(),
                base_ejection: Duration::from_secs(30),
                max_ejection: Duration::from_secs(300),
                max_ejected_percent: 30.try_into().unwrap(),
            }),
            slow_start: Some(Duration::from_secs(30)),
            limits: BackendLimits { connections: None, requests: 10.try_into().ok(), pending_requests: 0 },
        };
        assert_eq!(read(all), Ok(Some(expected)));
        let long = read(json!({"outlierDetection": {"baseEjectionTime": "1h"}})).unwrap().unwrap();
        assert_eq!(long.outliers.unwrap().max_ejection, HOUR);
    }

    #[test]
    fn probes_are_read() {
        let http = json!({"path": "/healthz?full", "host": "shop.test:8080", "statuses": ["200", "401-403"]});
        for (health, probe) in [
            (json!({"type": "TCP"}), Probe::Tcp),
            (json!({"type": "GRPC"}), Probe::Grpc { service: "".into() }),
            (json!({"type": "GRPC", "grpc": {"service": "a.B"}}), Probe::Grpc { service: "a.B".into() }),
            (
                json!({"type": "HTTP", "http": http}),
                Probe::Http(HttpProbe {
                    path: "/healthz?full".into(),
                    host: Some("shop.test:8080".into()),
                    statuses: [(200, 200), (401, 403)].into(),
                }),
            ),
        ] {
            assert_eq!(read(json!({"health": health})).unwrap().unwrap().check.unwrap().probe, probe);
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let http = |http: Value| json!({"health": {"type": "HTTP", "http": http}});
        for (part, told) in [
            (json!({"health": {"type": "UDP"}}), "health.type is \"UDP\": write HTTP, GRPC or TCP"),
            (json!({"health": {"type": "TCP", "http": {}}}), "health: type TCP has fields of another type"),
            (json!({"health": {"type": "TCP", "whenAllUnhealthy": "x"}}), "write UseAll or Refuse"),
            (
                json!({"health": {"type": "TCP", "interval": "10ms"}}),
                "health.interval is 10ms: write 1s to 3600s",
            ),
            (
                json!({"health": {"type": "TCP", "interval": "soon"}}),
                "health.interval: \"soon\" is not a duration",
            ),
            (json!({"health": {"type": "TCP", "timeout": "2m"}}), "health.timeout is 2m: write 10ms to 60s"),
            (
                json!({"health": {"type": "TCP", "healthyThreshold": 0}}),
                "health.healthyThreshold is 0: write 1 to 100",
            ),
            (http(json!({"path": "health"})), "health.http.path is \"health\": write a path"),
            (http(json!({"path": "/a b"})), "health.http.path"),
            (http(json!({"path": "/a\r\nx: y"})), "health.http.path"),
            (http(json!({"path": "/a#b"})), "health.http.path"),
            (http(json!({"host": "a b"})), "health.http.host is \"a b\": write a host name"),
            (http(json!({"host": "a\r\nx: y"})), "health.http.host"),
            (http(json!({"host": "user@a"})), "health.http.host"),
            (
                http(json!({"statuses": ["100"]})),
                "health.http.statuses: \"100\": write a status from 200 to 599",
            ),
            (http(json!({"statuses": ["299-200"]})), "health.http.statuses: \"299-200\""),
            (
                http(json!({"statuses": vec!["200"; 17]})),
                "health.http.statuses has 17 entries, 16 is the most",
            ),
            (
                json!({"outlierDetection": {"consecutiveFailures": -1}}),
                "consecutiveFailures is -1: write 1 to 1000",
            ),
            (
                json!({"outlierDetection": {"maxEjectedPercent": 101}}),
                "maxEjectedPercent is 101: write 1 to 100",
            ),
            (
                json!({"outlierDetection": {"baseEjectionTime": "1m", "maxEjectionTime": "30s"}}),
                "outlierDetection.maxEjectionTime is 30s: write 60s to 86400s",
            ),
            (json!({"slowStart": {"window": "0s"}}), "slowStart.window is 0s: write 1s to 3600s"),
            (json!({"limits": {"requests": 0}}), "limits.requests is 0: write 1 to 1000000"),
            (json!({"limits": {"connections": 1_000_001}}), "limits.connections is 1000001"),
            (json!({"limits": {"connections": 1, "pendingRequests": 1}}), "wait for one of limits.requests"),
            (
                json!({"limits": {"requests": 1, "pendingRequests": -1}}),
                "limits.pendingRequests is -1: write 0 to",
            ),
        ] {
            let [wrong] = &read(part.clone()).unwrap_err()[..] else { panic!("{part}") };
            assert!(wrong.contains(told), "{part}: {wrong}");
        }
        let both = json!({"slowStart": {"window": "x"}, "limits": {"requests": 0}});
        assert_eq!(read(both).unwrap_err().len(), 2);
    }
}
