//! The part of the requests of a Service that may be sent again.

use std::num::NonZeroU32;
use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::ObjectName;

/// A budget of retries (GEP-3388). Each agent keeps to it by itself; its cores do so together.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct RetryBudget {
    /// The Service, whose ports share the budget.
    #[serde(serialize_with = "text")]
    pub service: ObjectName,
    /// Retries may be so many percent of the requests of the interval.
    pub percent: u8,
    #[serde(serialize_with = "time")]
    pub interval: Duration,
    /// The retries that there may be in any case.
    pub least: RetryRate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct RetryRate {
    pub count: NonZeroU32,
    #[serde(serialize_with = "time")]
    pub interval: Duration,
}

fn time<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{time:?}"))
}

fn text<S: Serializer>(name: &ObjectName, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(name)
}
