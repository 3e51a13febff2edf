//! Watches: an operator waits for the next requests of a kind, and gets the steps of each once it
//! is over. Cores take them off by themselves; see [`TracedRequests`](super::requests).

use std::borrow::Cow;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};

use http::{HeaderName, Method};
use portcullis_model::ListenerId;
use tokio::sync::mpsc;

use crate::core::head::Fields;
use crate::trace::context::TraceId;
use crate::trace::span::{Value, shortened};

/// Steps of a request that are kept; a retry takes a few.
const MOST_STEPS: usize = 128;

/// The requests that are waited for: those that have all of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchedFor {
    /// In lower case, without a port.
    pub host: Option<String>,
    pub path: Option<WatchedPath>,
    pub method: Option<Method>,
    /// `Gateway infra/web listener https`, or the listener's name alone.
    pub listener: Option<String>,
    /// Fields that are there, with a value if one is given.
    pub fields: Vec<(HeaderName, Option<Vec<u8>>)>,
}

/// A path in its normal form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchedPath {
    Exact(String),
    Beginning(String),
}

/// A request as a watch sees it, whatever its parser is.
pub(crate) struct Seen<'r, F> {
    pub method: &'r Method,
    /// As routes see them, where the edge policy lets them pass.
    pub host: Option<&'r str>,
    pub path: &'r str,
    pub listener: Option<&'r ListenerId>,
    pub fields: &'r F,
}

/// A watch as every core has it.
#[derive(Clone, Debug)]
pub(crate) struct Watch {
    wanted: Arc<WatchedFor>,
    /// Requests that are still waited for, on all cores.
    left: Arc<AtomicUsize>,
    until: Instant,
    operator: mpsc::Sender<WatchedRequest>,
}

/// A request that was watched for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedRequest {
    pub begun: SystemTime,
    /// From its head to the end of its response, or to the end of the watch.
    pub duration: Duration,
    pub ended: WatchEnd,
    /// Named as those of its span are, be it exported or not.
    pub attributes: Vec<(&'static str, Value)>,
    /// Of a trace that goes on to the backend.
    pub trace_id: Option<String>,
    /// In order.
    pub steps: Vec<WatchedStep>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchEnd {
    /// Of the whole response.
    Complete,
    /// The reason for which the response, or its end, is missing.
    Cut(&'static str),
    /// The watch was over before the request was.
    GoingOn,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedStep {
    /// Since the request's head.
    pub at: Duration,
    /// `listener`, `rule`, `attempt`, …
    pub subject: &'static str,
    pub text: String,
}

/// A request that is being watched. It is told of once, at the latest when this is dropped.
pub(crate) struct Watched {
    watch: Watch,
    begun: Instant,
    told: RefCell<Option<WatchedRequest>>,
}

// === impl WatchedFor ===

impl WatchedFor {
    fn wants(&self, seen: &Seen<'_, impl Fields>) -> bool {
        let Self { host, path, method, listener, fields } = self;
        let is_path = |path: &WatchedPath| match path {
            WatchedPath::Exact(path) => path == seen.path,
            WatchedPath::Beginning(path) => seen.path.starts_with(path.as_str()),
        };
        let is_listener =
            |name: &String| seen.listener.is_some_and(|id| *id.name == **name || id.to_string() == *name);
        host.as_ref().is_none_or(|host| seen.host == Some(host.as_str()))
            && path.as_ref().is_none_or(is_path)
            && method.as_ref().is_none_or(|method| method == seen.method)
            && listener.as_ref().is_none_or(is_listener)
            && fields.iter().all(|(name, value)| match value {
                Some(value) => seen.fields.get_all(name).any(|it| it == value.as_slice()),
                None => seen.fields.get(name).is_some(),
            })
    }
}

// === impl Watch ===

impl Watch {
    /// For so many requests.
    pub(crate) fn begin(
        wanted: WatchedFor,
        count: usize,
        time: Duration,
    ) -> (Self, mpsc::Receiver<WatchedRequest>) {
        let (operator, told) = mpsc::channel(count.max(1));
        let left = Arc::new(AtomicUsize::new(count.max(1)));
        (Self { wanted: Arc::new(wanted), left, until: Instant::now() + time, operator }, told)
    }

    /// Takes the request, if it is one that is waited for.
    pub(super) fn take(&self, seen: &Seen<'_, impl Fields>) -> Option<Rc<Watched>> {
        if !self.is_waiting() || !self.wanted.wants(seen) {
            return None;
        }
        self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).ok()?;
        Some(Watched::begin(self.clone()))
    }

    /// False once nothing of it is wanted any more: its time is over, or its operator gone.
    pub(super) fn is_wanted(&self) -> bool {
        Instant::now() < self.until && !self.operator.is_closed()
    }

    /// True if it wants one more request.
    pub(super) fn is_waiting(&self) -> bool {
        self.left.load(Relaxed) > 0 && self.is_wanted()
    }
}

// === impl Watched ===

impl Watched {
    fn begin(watch: Watch) -> Rc<Self> {
        let told = WatchedRequest {
            begun: SystemTime::now(),
            duration: Duration::ZERO,
            ended: WatchEnd::GoingOn,
            attributes: Vec::new(),
            trace_id: None,
            steps: Vec::new(),
        };
        Rc::new(Self { watch, begun: Instant::now(), told: RefCell::new(Some(told)) })
    }

    pub(crate) fn step(&self, subject: &'static str, text: impl Into<Cow<'static, str>>) {
        if let Some(told) = &mut *self.told.borrow_mut()
            && told.steps.len() < MOST_STEPS
        {
            let text = shortened(text.into()).into_owned();
            told.steps.push(WatchedStep { at: self.begun.elapsed(), subject, text });
        }
    }

    pub(super) fn is_in(&self, trace: TraceId) {
        if let Some(told) = &mut *self.told.borrow_mut() {
            told.trace_id = Some(trace.to_string());
        }
    }

    /// Tells of it with what its span has by now; a second time does nothing.
    pub(super) fn tell(&self, ended: WatchEnd, attributes: &[(&'static str, Value)]) {
        let Some(mut told) = self.told.borrow_mut().take() else { return };
        told.duration = self.begun.elapsed();
        told.ended = ended;
        told.attributes = attributes.to_vec();
        // There is room for as many as were taken, unless the operator is gone.
        let _ = self.watch.operator.try_send(told);
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.tell(WatchEnd::Cut("cancelled"), &[]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::head::plain::PlainFields;

    fn seen<'r>(host: Option<&'r str>, path: &'r str, fields: &'r PlainFields) -> Seen<'r, PlainFields> {
        Seen { method: &Method::GET, host, path, listener: None, fields }
    }

    #[test]
    fn a_request_has_all_that_is_waited_for() {
        let fields = PlainFields::of(&[("x-tenant", "a"), ("x-tenant", "b")]);
        let exact = |path: &str| Some(WatchedPath::Exact(path.to_owned()));
        let field = |value: Option<&str>| {
            vec![(HeaderName::from_static("x-tenant"), value.map(|value| value.as_bytes().to_vec()))]
        };
        let any = WatchedFor::default();
        for (wanted, is_it) in [
            (any.clone(), true),
            (WatchedFor { host: Some("shop.example".to_owned()), ..any.clone() }, true),
            (WatchedFor { host: Some("shop".to_owned()), ..any.clone() }, false),
            (WatchedFor { path: exact("/cart"), ..any.clone() }, true),
            (WatchedFor { path: exact("/car"), ..any.clone() }, false),
            (WatchedFor { path: Some(WatchedPath::Beginning("/ca".to_owned())), ..any.clone() }, true),
            (WatchedFor { path: Some(WatchedPath::Beginning("/cart/".to_owned())), ..any.clone() }, false),
            (WatchedFor { method: Some(Method::POST), ..any.clone() }, false),
            (WatchedFor { listener: Some("https".to_owned()), ..any.clone() }, false),
            (WatchedFor { fields: field(None), ..any.clone() }, true),
            (WatchedFor { fields: field(Some("b")), ..any.clone() }, true),
            (WatchedFor { fields: field(Some("c")), ..any.clone() }, false),
        ] {
            assert_eq!(wanted.wants(&seen(Some("shop.example"), "/cart", &fields)), is_it, "{wanted:?}");
        }
        let named = WatchedFor { host: Some("shop.example".to_owned()), ..any };
        assert!(!named.wants(&seen(None, "/cart", &fields)));
    }

    #[test]
    fn no_more_requests_are_taken_than_are_waited_for_and_none_once_the_operator_is_gone() {
        let fields = PlainFields::default();
        let (watch, mut told) = Watch::begin(WatchedFor::default(), 2, Duration::from_secs(60));
        let on_another_core = watch.clone();
        let first = watch.take(&seen(None, "/", &fields)).unwrap();
        first.step("rule", "one");
        for _ in 0..2 * MOST_STEPS {
            first.step("attempt", "x".repeat(1 << 20));
        }
        drop(first);
        let first = told.try_recv().unwrap();
        assert_eq!((first.steps.len(), first.ended), (MOST_STEPS, WatchEnd::Cut("cancelled")));
        assert!(first.steps.iter().all(|step| step.text.len() <= 1 << 10));
        let second = on_another_core.take(&seen(None, "/", &fields)).unwrap();
        assert!(watch.take(&seen(None, "/", &fields)).is_none() && !watch.is_waiting());
        second.tell(WatchEnd::Complete, &[]);
        drop(second);
        assert_eq!(told.try_recv().unwrap().ended, WatchEnd::Complete);
        assert!(told.try_recv().is_err(), "told once");

        let (watch, told) = Watch::begin(WatchedFor::default(), 1, Duration::from_secs(60));
        drop(told);
        assert!(watch.take(&seen(None, "/", &fields)).is_none());
        let (watch, _told) = Watch::begin(WatchedFor::default(), 1, Duration::ZERO);
        assert!(watch.take(&seen(None, "/", &fields)).is_none());
    }
}
