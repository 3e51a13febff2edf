//! XBackendTrafficPolicy: how much of the traffic of Services may be retries (GEP-3388), and the
//! sessions of clients with them (GEP-1619). As with a BackendPolicy, nothing depends on it for its
//! protection: one that cannot be followed is without effect.

use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use portcullis_api::Kind;
use portcullis_api::types::shared::{PolicyTargetReference, SessionPersistence};
use portcullis_api::types::xbackendtrafficpolicies::{
    XBackendTrafficPolicy, XBackendTrafficPolicyRetryConstraint, XBackendTrafficPolicySpec,
};
use portcullis_model::{ObjectName, RetryBudget, RetryRate};

use crate::duration::parse_duration;
use crate::{Fault, Reason};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// Defaults of the CRD.
const PERCENT: i64 = 20;
const INTERVAL: Duration = Duration::from_secs(10);
const COUNT: i64 = 10;
const MOST_COUNT: i64 = 1_000_000;

/// A policy as it was read.
pub(crate) type Declared = super::declared::Declared<TrafficTerms>;

/// The fields of a policy that say something.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TrafficTerms {
    retries: Option<RetryTerms>,
    /// As they are written, and right: what they come to is each rule's own.
    pub(crate) sessions: Option<Box<SessionPersistence>>,
}

#[derive(Clone, Debug, PartialEq)]
struct RetryTerms {
    percent: u8,
    interval: Duration,
    least: RetryRate,
}

/// The check of sessions, which are read by those who read routes.
pub(crate) type CheckSessions = fn(&SessionPersistence) -> Result<(), Fault>;

pub(crate) fn declared(name: &ObjectName, policy: &XBackendTrafficPolicy, check: CheckSessions) -> Declared {
    let XBackendTrafficPolicy { metadata, spec, .. } = policy;
    // "Currently, a TargetRef cannot be scoped to a specific port on a Service."
    let references = spec.target_refs.iter().map(|to| PolicyTargetReference {
        group: to.group.clone(),
        kind: to.kind.clone(),
        name: to.name.clone(),
        section_name: None,
    });
    let references: Vec<_> = references.collect();
    let terms = TrafficTerms::of(spec, check);
    let kinds = Kind::XBackendTrafficPolicy.targets();
    Declared::new(metadata, name, &references, kinds, terms, TrafficTerms::default)
}

// === impl TrafficTerms ===

impl TrafficTerms {
    fn of(spec: &XBackendTrafficPolicySpec, check: CheckSessions) -> Result<Self, Fault> {
        let XBackendTrafficPolicySpec { retry_constraint, session_persistence, .. } = spec;
        let mut wrong = Vec::new();
        let retries = retry_constraint.as_ref().map(RetryTerms::of).transpose().unwrap_or_else(|faults| {
            wrong = faults;
            None
        });
        if let Some(Err(fault)) = session_persistence.as_ref().map(check) {
            wrong.push(fault.within("sessionPersistence").message);
        }
        if !wrong.is_empty() {
            let wrong = wrong.join("; ");
            let message = format!("{wrong}; until that is right, the policy is without effect");
            return Err(Fault::not_accepted(Reason::Invalid, message));
        }
        Ok(Self { retries, sessions: session_persistence.clone().map(Box::new) })
    }

    /// The fields that are about requests, and have no meaning for connections and datagrams.
    pub(crate) fn of_requests(&self) -> Vec<&'static str> {
        let retries = self.retries.as_ref().map(|_| "retryConstraint");
        retries.into_iter().chain(self.of_sessions()).collect()
    }

    /// Those of them that are about the requests of clients.
    pub(crate) fn of_sessions(&self) -> Vec<&'static str> {
        self.sessions.iter().map(|_| "sessionPersistence").collect()
    }

    pub(crate) fn retry_budget(&self, service: &ObjectName) -> Option<Arc<RetryBudget>> {
        let RetryTerms { percent, interval, least } = self.retries.clone()?;
        Some(Arc::new(RetryBudget { service: service.clone(), percent, interval, least }))
    }
}

// === impl RetryTerms ===

impl RetryTerms {
    /// # Errors
    /// All that is wrong, a sentence for each field.
    fn of(written: &XBackendTrafficPolicyRetryConstraint) -> Result<Self, Vec<String>> {
        let mut wrong = Vec::new();
        let budget = written.budget.clone().unwrap_or_default();
        let rate = written.min_retry_rate.clone().unwrap_or_default();
        let percent = budget.percent.unwrap_or(PERCENT);
        let percent = u8::try_from(percent).ok().filter(|percent| *percent <= 100).unwrap_or_else(|| {
            wrong.push(format!("retryConstraint.budget.percent is {percent}: write 0 to 100"));
            0
        });
        let mut duration = |field, written: Option<&str>, default, range| {
            let read = duration(field, written, default, range);
            read.unwrap_or_else(|why| {
                wrong.push(why);
                default
            })
        };
        let interval = budget.interval.as_deref();
        let interval = duration("retryConstraint.budget.interval", interval, INTERVAL, SECOND..=HOUR);
        let rate_interval = rate.interval.as_deref();
        let shortest = Duration::from_millis(1);
        let rate_interval =
            duration("retryConstraint.minRetryRate.interval", rate_interval, SECOND, shortest..=HOUR);
        let count = rate.count.unwrap_or(COUNT);
        let number = u32::try_from(count).ok().filter(|_| count <= MOST_COUNT).and_then(NonZeroU32::new);
        if number.is_none() {
            wrong.push(format!("retryConstraint.minRetryRate.count is {count}: write 1 to {MOST_COUNT}"));
        }
        match number {
            Some(count) if wrong.is_empty() => {
                Ok(Self { percent, interval, least: RetryRate { count, interval: rate_interval } })
            }
            _ => Err(wrong),
        }
    }
}

fn duration(
    field: &str,
    written: Option<&str>,
    default: Duration,
    range: RangeInclusive<Duration>,
) -> Result<Duration, String> {
    let Some(text) = written else { return Ok(default) };
    let read = parse_duration(text).map_err(|error| format!("{field}: {text:?}: {error}"))?;
    let (least, most) = (range.start(), range.end());
    let is_within = range.contains(&read);
    is_within.then_some(read).ok_or_else(|| format!("{field} is {text:?}: write {least:?} to {most:?}"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn refused(sessions: &SessionPersistence) -> Result<(), Fault> {
        match sessions.absolute_timeout {
            Some(_) => Ok(()),
            None => Err(Fault::unsupported("cookie: no such one")),
        }
    }

    #[test]
    fn all_that_is_wrong_is_told() {
        let right = json!({"sessionPersistence": {"cookie": {"name": "s"}, "absoluteTimeout": "1h"}});
        let read = declared(right);
        assert_eq!((read.fault, read.terms.sessions.is_some()), (None, true));
        let wrong = json!({"retryConstraint": {"budget": {"percent": 101}},
            "sessionPersistence": {"cookie": {"lifetimeType": "Permanent"}}});
        let read = declared(wrong);
        assert_eq!(read.terms, TrafficTerms::default());
        let message = read.fault.unwrap().message;
        assert!(message.contains("budget.percent is 101: write 0 to 100; sessionPersistence: "), "{message}");
        assert!(message.contains("cookie: no such one; until that is right"), "{message}");
    }

    fn declared(fields: Value) -> Declared {
        let mut spec = json!({"targetRefs": [{"group": "", "kind": "Service", "name": "shop"}]});
        spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let policy = json!({"apiVersion": "gateway.networking.x-k8s.io/v1alpha1",
            "kind": "XBackendTrafficPolicy", "metadata": {"name": "p"}, "spec": spec});
        super::declared(&ObjectName::new("edge", "p"), &serde_json::from_value(policy).unwrap(), refused)
    }

    #[test]
    fn what_is_not_written_has_the_defaults_of_the_crd() {
        let budget = |written: Value| {
            let declared = declared(json!({"retryConstraint": written}));
            assert_eq!(declared.fault, None);
            let budget = declared.terms.retry_budget(&ObjectName::new("edge", "shop")).unwrap();
            assert_eq!(budget.service.to_string(), "edge/shop");
            let RetryRate { count, interval } = budget.least;
            let seconds = |interval: Duration| interval.as_secs_f32();
            (budget.percent, seconds(budget.interval), count.get(), seconds(interval))
        };
        assert_eq!(budget(json!({})), (20, 10.0, 10, 1.0));
        assert_eq!(budget(json!({"budget": {}, "minRetryRate": {}})), (20, 10.0, 10, 1.0));
        assert_eq!(budget(json!({"budget": {"percent": 0}})), (0, 10.0, 10, 1.0));
        assert_eq!(budget(json!({"budget": {"interval": "1m"}})), (20, 60.0, 10, 1.0));
        let written = json!({"budget": {"percent": 100, "interval": "1h"},
            "minRetryRate": {"count": 3, "interval": "500ms"}});
        assert_eq!(budget(written), (100, 3600.0, 3, 0.5));
        assert_eq!(declared(json!({})).terms, TrafficTerms::default());
    }

    #[test]
    fn what_cannot_be_meant_is_told_with_all_its_faults() {
        for (written, told) in [
            (json!({"budget": {"percent": 101}}), "budget.percent is 101: write 0 to 100"),
            (json!({"budget": {"percent": -1}}), "budget.percent is -1: write 0 to 100"),
            (json!({"budget": {"interval": "500ms"}}), "budget.interval is \"500ms\": write 1s to 3600s"),
            (json!({"budget": {"interval": "soon"}}), "budget.interval: \"soon\""),
            (json!({"minRetryRate": {"count": 0}}), "minRetryRate.count is 0: write 1 to 1000000"),
            (json!({"minRetryRate": {"interval": "0s"}}), "minRetryRate.interval is \"0s\""),
            (
                json!({"budget": {"percent": 200}, "minRetryRate": {"interval": "2h"}}),
                "budget.percent is 200: write 0 to 100; retryConstraint.minRetryRate.interval is \"2h\"",
            ),
        ] {
            let declared = declared(json!({"retryConstraint": written}));
            assert_eq!(declared.terms, TrafficTerms::default());
            let fault = declared.fault.unwrap();
            assert!(fault.message.contains(told), "{}", fault.message);
        }
    }
}
