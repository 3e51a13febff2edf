//! The takers of a request's record: the core's exporter of spans, an operator, or both.

use std::borrow::Cow;
use std::rc::Rc;

use crate::trace::recorder::Recorder;
use crate::trace::watch::Watched;

#[derive(Clone)]
pub(crate) struct Takers {
    /// `None` of a request that is watched, and not sampled.
    pub recorder: Option<Rc<Recorder>>,
    pub watched: Option<Rc<Watched>>,
}

// === impl Takers ===

impl Takers {
    /// Tells the operator who waits for the request, if there is one.
    pub(crate) fn step<T: Into<Cow<'static, str>>>(&self, subject: &'static str, text: impl FnOnce() -> T) {
        if let Some(watched) = &self.watched {
            watched.step(subject, text());
        }
    }
}
