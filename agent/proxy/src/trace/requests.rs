//! The requests of a core that have a trace, or are watched for. Where no collector is told of any
//! and no operator waits for one, a request costs one look at a flag.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use crate::core::head::Fields;
use crate::trace::tracer::Tracer;
use crate::trace::watch::{Seen, Watch, WatchEnd, Watched};

pub(crate) struct TracedRequests {
    /// False if there is nothing below that wants to see requests.
    is_any: Cell<bool>,
    /// `None`: no trace goes to a collector.
    pub tracer: Option<Rc<Tracer>>,
    armed: RefCell<Vec<Armed>>,
}

struct Armed {
    watch: Watch,
    /// Requests that it has taken on this core.
    taken: Vec<Weak<Watched>>,
}

// === impl TracedRequests ===

impl TracedRequests {
    pub(crate) fn new(tracer: Option<Rc<Tracer>>) -> Self {
        Self { is_any: Cell::new(tracer.is_some()), tracer, armed: RefCell::default() }
    }

    /// False if no request needs to be looked at.
    pub(crate) fn is_any(&self) -> bool {
        self.is_any.get()
    }

    pub(crate) fn has_watches(&self) -> bool {
        !self.armed.borrow().is_empty()
    }

    pub(crate) fn arm(&self, watch: Watch) {
        self.armed.borrow_mut().push(Armed { watch, taken: Vec::new() });
        self.is_any.set(true);
    }

    /// The watch that takes the request; each request is one watch's, of those that came first.
    pub(crate) fn watched(&self, seen: &Seen<'_, impl Fields>) -> Option<Rc<Watched>> {
        let mut armed = self.armed.borrow_mut();
        armed.iter_mut().find_map(|Armed { watch, taken }| {
            let watched = watch.take(seen)?;
            taken.push(Rc::downgrade(&watched));
            Some(watched)
        })
    }

    /// Hands over spans that wait.
    pub(crate) fn flush(&self) {
        if let Some(tracer) = &self.tracer {
            tracer.recorder.flush();
        }
    }

    /// Disarms the watches that are over. Their operators are told of requests that go on.
    pub(crate) fn sweep(&self) {
        let mut armed = self.armed.borrow_mut();
        if armed.is_empty() {
            return;
        }
        armed.retain_mut(|Armed { watch, taken }| {
            taken.retain(|it| it.strong_count() > 0);
            if !watch.is_wanted() {
                taken.iter().filter_map(Weak::upgrade).for_each(|it| it.tell(WatchEnd::GoingOn, &[]));
                return false;
            }
            watch.is_waiting() || !taken.is_empty()
        });
        let is_waiting = armed.iter().any(|armed| armed.watch.is_waiting());
        self.is_any.set(self.tracer.is_some() || is_waiting);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::Method;

    use super::*;
    use crate::core::head::plain::PlainFields;
    use crate::trace::watch::WatchedFor;

    #[test]
    fn nothing_is_looked_at_once_no_watch_is_left() {
        let fields = PlainFields::default();
        let seen = Seen { method: &Method::GET, host: None, path: "/", listener: None, fields: &fields };
        let requests = TracedRequests::new(None);
        assert!(!requests.is_any());
        let (watch, mut told) = Watch::begin(WatchedFor::default(), 1, Duration::from_secs(60));
        requests.arm(watch);
        let taken = requests.watched(&seen).unwrap();
        assert!(requests.watched(&seen).is_none());
        requests.sweep();
        // The request that was taken goes on; others are not looked at.
        assert!(!requests.is_any() && requests.has_watches());
        drop(taken);
        requests.sweep();
        assert!(!requests.has_watches());
        assert!(told.try_recv().is_ok());
        // All that could tell is gone.
        assert!(told.is_closed() || told.try_recv().is_err());

        let (watch, told) = Watch::begin(WatchedFor::default(), 1, Duration::from_secs(60));
        requests.arm(watch);
        assert!(requests.is_any());
        drop(told);
        requests.sweep();
        assert!(!requests.is_any() && !requests.has_watches());
    }

    #[test]
    fn a_request_that_outlasts_its_watch_is_told_of() {
        let fields = PlainFields::default();
        let seen = Seen { method: &Method::GET, host: None, path: "/", listener: None, fields: &fields };
        let requests = TracedRequests::new(None);
        let (watch, mut told) = Watch::begin(WatchedFor::default(), 1, Duration::from_millis(500));
        requests.arm(watch);
        let taken = requests.watched(&seen).unwrap();
        taken.step("rule", "one");
        while requests.has_watches() {
            std::thread::yield_now();
            requests.sweep();
        }
        assert_eq!(told.try_recv().unwrap().ended, WatchEnd::GoingOn);
        drop(taken);
        assert!(told.try_recv().is_err());
    }
}
