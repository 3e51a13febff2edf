//! Time-outs and retries of requests: of rules, and of policies that stand in where rules say
//! nothing. Each field is patched by itself: what is more specific wins.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

/// "When this field is unspecified, the backoff strategy and base interval are
/// implementation-specific."
const BACKOFF: Duration = Duration::from_millis(25);

/// The say of a policy, for rules that leave it open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Defaults {
    pub timeouts: Timeouts,
    pub retry: Option<Retry>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// From the request's first byte to the response's last.
    pub request: TimeLimit,
    /// One attempt at a backend.
    pub backend_request: TimeLimit,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeLimit {
    /// Something less specific may say.
    #[default]
    Unsaid,
    /// "Setting a timeout to the zero duration (e.g. "0s") SHOULD disable the timeout completely."
    /// A request that may take any time may have a client that does.
    Lifted,
    Of(Duration),
}

/// The conditions on which a request is sent once more, and how often (GEP-1731). What is `None`
/// something less specific may say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retry {
    /// Beside the first one.
    pub attempts: Option<u32>,
    /// The statuses of responses that another attempt may replace.
    pub codes: Option<Arc<[StatusCode]>>,
    /// The shortest pause before an attempt.
    pub backoff: Option<Duration>,
}

// === impl Defaults ===

impl Defaults {
    /// The same, with what is left open as `wider` says.
    #[must_use]
    pub fn over(&self, wider: &Self) -> Self {
        let retry = match (&self.retry, &wider.retry) {
            (Some(own), wider) => Some(own.over(wider.as_ref()).into_owned()),
            (None, wider) => wider.clone(),
        };
        Self { timeouts: self.timeouts.over(wider.timeouts), retry }
    }
}

/// `time-outs: request 10s, backendRequest none; retries: attempts 2, codes 502 503, backoff 25ms`
impl fmt::Display for Defaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if self.timeouts != Timeouts::default() {
            parts.push(format!("time-outs: {}", self.timeouts));
        }
        parts.extend(self.retry.as_ref().map(|retry| format!("retries: {retry}")));
        f.write_str(&parts.join("; "))
    }
}

// === impl Timeouts ===

impl Timeouts {
    /// The same, with what is left open as `wider` says.
    #[must_use]
    pub fn over(self, wider: Self) -> Self {
        Self {
            request: self.request.over(wider.request),
            backend_request: self.backend_request.over(wider.backend_request),
        }
    }
}

impl fmt::Display for Timeouts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = [("request", self.request), ("backendRequest", self.backend_request)];
        let said = named.into_iter().filter(|(_, limit)| *limit != TimeLimit::Unsaid);
        let texts: Vec<_> = said
            .map(|(name, limit)| match limit.duration() {
                None => format!("{name} none"),
                Some(limit) => format!("{name} {limit:?}"),
            })
            .collect();
        f.write_str(&texts.join(", "))
    }
}

// === impl TimeLimit ===

impl TimeLimit {
    /// The same, or `wider` if it says nothing.
    #[must_use]
    pub fn over(self, wider: Self) -> Self {
        if self == Self::Unsaid { wider } else { self }
    }

    /// `None` without a limit.
    pub fn duration(self) -> Option<Duration> {
        match self {
            Self::Unsaid | Self::Lifted => None,
            Self::Of(duration) => Some(duration),
        }
    }
}

// === impl Retry ===

impl Retry {
    pub fn attempts(&self) -> u32 {
        self.attempts.unwrap_or(1)
    }

    pub fn codes(&self) -> &[StatusCode] {
        self.codes.as_deref().unwrap_or_default()
    }

    pub fn backoff(&self) -> Duration {
        self.backoff.unwrap_or(BACKOFF)
    }

    /// The same, with what is left open as `wider` says.
    pub fn over(&self, wider: Option<&Self>) -> Cow<'_, Self> {
        let Some(wider) = wider else { return Cow::Borrowed(self) };
        Cow::Owned(Self {
            attempts: self.attempts.or(wider.attempts),
            codes: self.codes.as_ref().or(wider.codes.as_ref()).cloned(),
            backoff: self.backoff.or(wider.backoff),
        })
    }
}

/// As far as it is said: `attempts 2, codes 502 503, backoff 25ms`
impl fmt::Display for Retry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let attempts = self.attempts.map(|attempts| format!("attempts {attempts}"));
        let codes = self.codes.as_ref().map(|codes| match &**codes {
            [] => "codes none".to_owned(),
            codes => format!("codes {}", codes.iter().map(StatusCode::as_str).collect::<Vec<_>>().join(" ")),
        });
        let backoff = self.backoff.map(|backoff| format!("backoff {backoff:?}"));
        let texts: Vec<_> = [attempts, codes, backoff].into_iter().flatten().collect();
        f.write_str(if texts.is_empty() { "as usual" } else { "" })?;
        f.write_str(&texts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn retry(attempts: Option<u32>, codes: Option<&[u16]>, backoff: Option<u64>) -> Retry {
        let codes =
            codes.map(|codes| codes.iter().map(|code| StatusCode::from_u16(*code).unwrap()).collect());
        Retry { attempts, codes, backoff: backoff.map(Duration::from_millis) }
    }

    #[test]
    fn each_field_is_the_most_specifics_that_says_it() {
        let seconds = |seconds| TimeLimit::Of(Duration::from_secs(seconds));
        let wide = Defaults {
            timeouts: Timeouts { request: seconds(9), backend_request: seconds(3) },
            retry: Some(retry(Some(5), Some(&[503]), None)),
        };
        for (narrow, expected) in [
            (Defaults::default(), wide.clone()),
            (
                Defaults {
                    timeouts: Timeouts { request: TimeLimit::Lifted, ..Timeouts::default() },
                    retry: None,
                },
                Defaults {
                    timeouts: Timeouts { request: TimeLimit::Lifted, backend_request: seconds(3) },
                    ..wide.clone()
                },
            ),
            (
                Defaults { retry: Some(retry(Some(0), None, Some(7))), ..Defaults::default() },
                Defaults { retry: Some(retry(Some(0), Some(&[503]), Some(7))), ..wide.clone() },
            ),
            (
                Defaults { retry: Some(retry(None, Some(&[]), None)), ..Defaults::default() },
                Defaults { retry: Some(retry(Some(5), Some(&[]), None)), ..wide.clone() },
            ),
        ] {
            assert_eq!(narrow.over(&wide), expected);
            assert_eq!(narrow.over(&Defaults::default()), narrow);
        }
    }

    #[test]
    fn what_is_said_is_told() {
        let request = TimeLimit::Lifted;
        let all = Defaults {
            timeouts: Timeouts { request, backend_request: TimeLimit::Of(Duration::from_millis(1500)) },
            retry: Some(retry(Some(2), Some(&[502, 503]), Some(30))),
        };
        assert_eq!(
            all.to_string(),
            "time-outs: request none, backendRequest 1.5s; retries: attempts 2, codes 502 503, backoff 30ms"
        );
        let usual = Defaults { retry: Some(Retry::default()), ..Defaults::default() };
        assert_eq!(usual.to_string(), "retries: as usual");
    }
}
