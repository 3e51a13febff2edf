//! Retries that a rule asks for (GEP-1731): which outcome of an attempt is worth another one,
//! whether the request can be sent again, and how long to wait before. The re-sending that a kept
//! connection makes necessary that turns out to be closed is no retry.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use http::StatusCode;
use portcullis_model::{BackendName, Retry};
use tokio::time::{Instant, sleep, timeout_at};

use crate::trace::active::ActiveSpan;
use crate::upstream::attempt::{self, AttemptError, Undecided, UpstreamResponse};
use crate::upstream::balance::{Asked, Preference};
use crate::upstream::discard::discard_rest;
use crate::upstream::endpoint::{Downstream, Endpoint, Freshness, Processed, SendFailure};
use crate::upstream::http2::Http2Error;
use crate::upstream::pool::Pools;
use crate::upstream::request::whole::WholeBody;
use crate::upstream::request::{AnswerTime, KeptBody, Outgoing, Resend, SharedFault, Upload};

/// Bytes of a request's body that are kept so that it can be sent again.
const KEPT_BODY: usize = 64 << 10;
/// The shortest pause, whatever the rule says: a rule cannot have a core do nothing but retry.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
/// The longest pause, in multiples of the shortest one, and whatever that is.
const LONGEST: f64 = 10.0;
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// A response, and until when it has to be complete because the time-out of the attempt says so.
pub(crate) type Answered = (UpstreamResponse, Option<Instant>);

/// A request that may be sent several times.
struct Repeatable {
    head: Resend,
    body: Option<KeptBody>,
    whole: Option<WholeBody>,
    is_idempotent: bool,
    fault: Option<SharedFault>,
}

/// An attempt without a response.
struct Missed {
    error: AttemptError,
    processed: Processed,
}

/// Sends the request as often as its rule says, to another endpoint each time where there is one.
/// Each attempt may take `limit`.
pub(crate) async fn send(
    pools: &Pools,
    name: &BackendName,
    preference: Preference,
    downstream: &Downstream,
    mut outgoing: Box<Outgoing>,
    retry: Cow<'_, Retry>,
    limit: Option<Duration>,
) -> Result<Answered, AttemptError> {
    let trace = outgoing.trace.take();
    let request = Repeatable::of(&mut outgoing, pools, name);
    // The end of the whole, by the rule or by the call.
    let by_rule = outgoing.answer_time.map(|time| time.until);
    let until = by_rule.into_iter().chain(outgoing.upload_until).min();
    let (mut last, mut place) = (None, None);
    for tried in 0_u32.. {
        let deadline = limit.map(|limit| Instant::now() + limit);
        let asked = Asked { preference, headers: Some(&outgoing.parts.headers), avoid: last };
        let Some(endpoint) = pools.pick(name, asked) else { return Err(AttemptError::NoEndpoint) };
        last = Some(endpoint.address);
        if tried == 0
            && let Some(budget) = &endpoint.budget
        {
            budget.count();
        }
        if let Some(health) = &endpoint.health
            && place.is_none()
        {
            let entering = attempt::enter(health);
            place = Some(match deadline {
                None => entering.await?,
                Some(deadline) => {
                    timeout_at(deadline, entering).await.unwrap_or(Err(AttemptError::Timeout))?
                }
            });
        }
        let begin = |attempts| attempt::begin_span(attempts, &mut outgoing, name, &endpoint, tried as usize);
        let mut span = trace.as_deref().map(begin);
        let time = deadline.zip(limit).map(|(until, limit)| AnswerTime { until, limit });
        // A body is the client's to send, and takes its time, and so may the wait for a place.
        let may_be_late =
            !matches!(outgoing.upload, Upload::Empty) || time.is_some_and(|it| !it.is_half_left());
        // The whole may be over before an attempt is, which is dropped then.
        let undecided = endpoint.health.as_ref().map(|health| Undecided::begin(health, &outgoing));
        let sending = request.attempt(pools, &endpoint, downstream, outgoing, span.as_deref());
        let mut attempted = match deadline {
            None => sending.await,
            Some(deadline) => timeout_at(deadline, sending).await.unwrap_or_else(|_| Err(Missed::timeout())),
        };
        let outcome = attempted.as_ref().map(|response| response.status()).map_err(|missed| &missed.error);
        attempt::end_span(&mut span, outcome);
        // What became of this one is known.
        std::mem::forget(undecided);
        match (&mut attempted, &endpoint.health) {
            (Err(Missed { error: AttemptError::Timeout, .. }), Some(health)) if may_be_late => {
                health.undecided();
            }
            (attempted, _) => attempt::judge(&endpoint, attempted.as_mut().map_err(|missed| &missed.error)),
        }
        let is_worth_another = tried < retry.attempts() && request.is_worth_another(&attempted, &retry);
        let again = if is_worth_another { request.again() } else { None };
        let Some(again) = again else {
            return match attempted {
                Ok(mut response) => {
                    response.body_mut().hold(place);
                    Ok((response, deadline))
                }
                Err(missed) => Err(missed.error),
            };
        };
        // "After the retry budget has been exceeded, additional retries to the backend MUST return
        // a 503 response to the client" (GEP-3388).
        let is_permitted = endpoint.budget.as_ref().is_none_or(|budget| budget.permits_retry());
        match attempted {
            Ok(response) => discard_rest(response.into_body(), again.windows.clone()),
            Err(Missed { error, .. }) => tracing::debug!(backend = %name, %error, "to be tried again"),
        }
        if !is_permitted {
            return Err(AttemptError::RetryBudget);
        }
        outgoing = again;
        let pause = pause(retry.backoff(), tried);
        if until.is_some_and(|until| Instant::now() + pause >= until) {
            return Err(AttemptError::Timeout);
        }
        if let Some(attempts) = &trace {
            attempts.step("retry", || format!("is to be sent again in {pause:.0?}"));
        }
        sleep(pause).await;
        pools.counters.retries.increment();
    }
    Err(AttemptError::NoEndpoint)
}

/// At least the rule's, and up to twice, four times, … ten times as long, at random: so that
/// requests that failed together do not come back together.
fn pause(backoff: Duration, tried: u32) -> Duration {
    let shortest = backoff.max(SHORTEST_PAUSE);
    let bound = LONGEST_PAUSE.div_duration_f64(shortest).max(1.0);
    let longest = f64::from(2_u32.saturating_pow(tried + 1)).min(LONGEST).min(bound);
    shortest.mul_f64(1.0 + fastrand::f64() * (longest - 1.0))
}

// === impl Repeatable ===

impl Repeatable {
    fn of(outgoing: &mut Outgoing, pools: &Pools, name: &BackendName) -> Self {
        let whole = match &outgoing.upload {
            Upload::Whole(body) => Some(body.again()),
            Upload::Empty | Upload::Client(_) | Upload::Kept(_) | Upload::Copied(_) => None,
        };
        Self {
            whole,
            head: Resend::of_head(outgoing),
            fault: outgoing.upload.fault(),
            body: KeptBody::keep(&mut outgoing.upload, KEPT_BODY, pools.kept.of(name.namespace())),
            is_idempotent: outgoing.parts.method.is_idempotent(),
        }
    }

    /// The request once more; `None` if its body is not kept as far as it was sent.
    fn again(&self) -> Option<Box<Outgoing>> {
        let upload = match (&self.body, &self.whole) {
            (Some(body), _) => body.again()?,
            (None, Some(whole)) => Upload::Whole(Box::new(whole.again())),
            (None, None) => Upload::Empty,
        };
        Some(self.head.outgoing(upload))
    }

    /// A kept connection that turns out to be closed costs no attempt.
    async fn attempt(
        &self,
        pools: &Pools,
        endpoint: &Rc<Endpoint>,
        downstream: &Downstream,
        mut outgoing: Box<Outgoing>,
        span: Option<&ActiveSpan>,
    ) -> Result<UpstreamResponse, Missed> {
        let mut freshness = Freshness::Any;
        loop {
            let connecting = endpoint.connection(&pools.counters, freshness, &outgoing.parts, downstream);
            let connection = connecting.await.map_err(|error| Missed::connect(endpoint.address, error))?;
            let is_kept = connection.reused && freshness == Freshness::Any;
            attempt::note_connection(span, &connection);
            attempt::adapt(&mut outgoing, &connection);
            let SendFailure { error, processed, again } = match connection.send(outgoing).await {
                Ok(response) => return Ok(response),
                Err(failure) => failure,
            };
            let again = if is_kept { again.or_else(|| self.unless_processed(processed)) } else { None };
            let error = AttemptError::of(endpoint.address, error, self.fault.as_ref());
            let Some(again) = again else { return Err(Missed { error, processed }) };
            pools.counters.retries.increment();
            (outgoing, freshness) = (again, Freshness::New);
        }
    }

    fn unless_processed(&self, processed: Processed) -> Option<Box<Outgoing>> {
        if processed == Processed::No { self.again() } else { None }
    }

    /// The codes of a rule are its owner's consent: to send again what was answered so, whatever
    /// the method is; and what got no answer, where we would answer so. Without that, what may have
    /// been processed is sent again only if it may be (RFC 9110 section 9.2.2).
    fn is_worth_another(&self, attempted: &Result<UpstreamResponse, Missed>, retry: &Retry) -> bool {
        let Missed { error, processed } = match attempted {
            Ok(response) => return retry.codes().contains(&response.status()),
            Err(missed) => missed,
        };
        let is_safe = |answer: StatusCode| {
            *processed == Processed::No || self.is_idempotent || retry.codes().contains(&answer)
        };
        match error {
            AttemptError::NoEndpoint
            | AttemptError::NoTunnels(..)
            | AttemptError::LargeHead(_, Http2Error::TooLarge { .. })
            | AttemptError::Full
            | AttemptError::RetryBudget
            | AttemptError::Client
            | AttemptError::TooLarge
            | AttemptError::TooSlow => false,
            AttemptError::Connect(..) => true,
            AttemptError::Head(..) | AttemptError::Broken(..) | AttemptError::LargeHead(..) => {
                is_safe(StatusCode::BAD_GATEWAY)
            }
            AttemptError::Timeout | AttemptError::Stalled(..) => is_safe(StatusCode::GATEWAY_TIMEOUT),
        }
    }
}

// === impl Missed ===

impl Missed {
    fn connect(endpoint: SocketAddr, error: std::io::Error) -> Self {
        Self { error: AttemptError::Connect(endpoint, error), processed: Processed::No }
    }

    fn timeout() -> Self {
        Self { error: AttemptError::Timeout, processed: Processed::Perhaps }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_are_never_shorter_than_the_rule_says() {
        let backoff = Duration::from_millis(20);
        for (tried, longest) in [(0, 2), (1, 4), (2, 8), (3, 10), (4, 10), (100, 10)] {
            for _ in 0..100 {
                let pause = pause(backoff, tried);
                assert!((backoff..=backoff * longest).contains(&pause), "{tried}: {pause:?}");
            }
        }
        assert!(pause(Duration::ZERO, 0) >= SHORTEST_PAUSE);
        for backoff in [Duration::from_secs(40), LONGEST_PAUSE] {
            for _ in 0..100 {
                assert!((backoff..=LONGEST_PAUSE).contains(&pause(backoff, 10)));
            }
        }
    }
}
