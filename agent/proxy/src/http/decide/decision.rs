//! The outcome of routing: a request is sent on, answered here, or has to pass filters first.

use std::borrow::Cow;

use http::{HeaderValue, StatusCode};
use portcullis_model::{
    Authentication, DirectResponse, ExternalAuth, Failure, HeaderEdit, Rule, WeightedBackend,
};
use tokio::time::Instant;

use crate::core::head::KnownFields;
use crate::core::reason::Reason;
use crate::http::change::Change;
use crate::http::cors::{CrossOrigin, Preflight};
use crate::http::decide::Unrouted;
use crate::http::plan::ForwardPlan;
use crate::http::policy::Refused;
use crate::http::rate_limit::Exhausted;
use crate::http::templates::FilledTemplates;
use crate::log::record::Destination;

pub(crate) enum Decision<'s> {
    Forward(ForwardPlan<'s>),
    Own(OwnAnswer<'s>),
    /// Boxed: few requests are.
    Guarded(Box<Guarded<'s>>),
}

/// A request that has to pass filters before anything becomes of it.
pub(crate) struct Guarded<'s> {
    pub steps: Vec<Step<'s>>,
    pub next: Next<'s>,
    /// The time at which the first check of the request began, if there was one before these.
    pub begun: Option<Instant>,
    /// Path and host that the client asked for, the path in its normal form.
    pub path: String,
    pub authority: HeaderValue,
    /// The known fields among those of the request.
    pub fields: KnownFields,
    /// Fields about the client as services of the listener say them: backends get these, as rules
    /// have seen them.
    pub said: Vec<Change>,
}

/// A filter on the way.
pub(crate) enum Step<'s> {
    /// Owned where it was filled in for the request.
    Edit(Cow<'s, HeaderEdit>),
    Ask(&'s ExternalAuth, AskedBy),
    /// Comes first, if it comes.
    Authenticate(Vec<&'s Authentication>),
    Fail(&'s Failure),
}

/// The place of an auth service's changes among those that others make to the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AskedBy {
    /// Before all filters.
    Policy,
    /// In the filter's place.
    Filter,
}

/// The fate of a request that has passed.
pub(crate) enum Next<'s> {
    Forward(ForwardPlan<'s>),
    Own(OwnAnswer<'s>),
    Route(Unrouted<'s>),
}

/// An answer of the gateway's own.
pub(crate) enum OwnAnswer<'s> {
    Redirect {
        rule: &'s Rule,
        status: StatusCode,
        location: String,
        cross_origin: Option<Box<CrossOrigin<'s>>>,
        filled: Option<Box<FilledTemplates>>,
    },
    /// Boxed: few answers are such.
    Response(Box<Given<'s>>),
    /// To the question whether a page may send a request that the rule takes.
    Preflight { rule: &'s Rule, cross_origin: CrossOrigin<'s>, asked: Box<Preflight> },
    /// The rule cannot serve the request.
    Failed { rule: &'s Rule, status: StatusCode, cross_origin: Option<Box<CrossOrigin<'s>>> },
    /// The status is the reason's but for rules that have one of their own.
    Reason(Reason, StatusCode),
    /// A rate limit is used up.
    Exhausted(Exhausted),
    /// Says in `WWW-Authenticate` which credentials are wanted.
    Challenge(Reason, HeaderValue),
    /// One to a request that a rule took. Pages of other origins that may ask it are to know what
    /// is wrong.
    OfRule { rule: &'s Rule, own: Box<OwnAnswer<'s>>, cross_origin: Option<Box<CrossOrigin<'s>>> },
}

/// A response that a RouteFilter gives.
pub(crate) struct Given<'s> {
    pub rule: &'s Rule,
    /// The one that has the filter, if it is not the rule.
    pub backend: Option<&'s WeightedBackend>,
    pub response: &'s DirectResponse,
    pub cross_origin: Option<Box<CrossOrigin<'s>>>,
    pub filled: Option<Box<FilledTemplates>>,
}

impl<'s> Decision<'s> {
    /// The way that the request goes, as far as it is decided before it is sent on.
    pub(crate) fn destination(&self) -> Destination<'s> {
        match self {
            Self::Forward(plan) => plan.destination(),
            Self::Own(own) => own.destination(),
            Self::Guarded(guarded) => guarded.next.destination(),
        }
    }

    /// The fields by which pages of other origins may read the response, be it a backend's or our
    /// own.
    pub(crate) fn cross_origin(&self) -> Option<&CrossOrigin<'s>> {
        match self {
            Self::Forward(plan) => plan.cross_origin.as_deref(),
            Self::Own(own) => own.cross_origin(),
            Self::Guarded(guarded) => guarded.next.cross_origin(),
        }
    }

    /// The rule by which it is sent on, or may be.
    pub(crate) fn rule(&self) -> Option<&'s Rule> {
        match self {
            Self::Forward(plan) => Some(plan.rule),
            Self::Own(_) => None,
            Self::Guarded(guarded) => guarded.next.rule(),
        }
    }

    /// The rule that took the request, even if it is answered here.
    pub(crate) fn taken_by(&self) -> Option<&'s Rule> {
        match self {
            Self::Own(own) => own.rule(),
            Self::Forward(_) | Self::Guarded(_) => self.rule(),
        }
    }

    /// The fields of templates, if there are any.
    pub(crate) fn filled(&self) -> Option<&FilledTemplates> {
        match self {
            Self::Forward(plan) => plan.filled.as_deref(),
            Self::Own(own) => own.filled(),
            Self::Guarded(guarded) => guarded.next.filled(),
        }
    }
}

impl<'s> OwnAnswer<'s> {
    fn rule(&self) -> Option<&'s Rule> {
        match self {
            Self::Redirect { rule, .. }
            | Self::Preflight { rule, .. }
            | Self::Failed { rule, .. }
            | Self::OfRule { rule, .. } => Some(rule),
            Self::Response(given) => Some(given.rule),
            Self::Reason(..) | Self::Exhausted(_) | Self::Challenge(..) => None,
        }
    }

    fn destination(&self) -> Destination<'s> {
        Destination { rule: self.rule().map(|rule| &rule.id), ..Destination::default() }
    }

    fn cross_origin(&self) -> Option<&CrossOrigin<'s>> {
        match self {
            Self::Redirect { cross_origin, .. }
            | Self::Failed { cross_origin, .. }
            | Self::OfRule { cross_origin, .. } => cross_origin.as_deref(),
            Self::Response(given) => given.cross_origin.as_deref(),
            Self::Preflight { .. } | Self::Reason(..) | Self::Exhausted(_) | Self::Challenge(..) => None,
        }
    }

    fn filled(&self) -> Option<&FilledTemplates> {
        match self {
            Self::Redirect { filled, .. } => filled.as_deref(),
            Self::Response(given) => given.filled.as_deref(),
            Self::OfRule { own, .. } => own.filled(),
            Self::Preflight { .. }
            | Self::Failed { .. }
            | Self::Reason(..)
            | Self::Exhausted(_)
            | Self::Challenge(..) => None,
        }
    }
}

impl<'s> Next<'s> {
    pub(crate) fn rule(&self) -> Option<&'s Rule> {
        match self {
            Self::Forward(plan) => Some(plan.rule),
            Self::Own(OwnAnswer::Redirect { rule, .. }) => Some(rule),
            Self::Own(OwnAnswer::Response(given)) => Some(given.rule),
            Self::Own(_) | Self::Route(_) => None,
        }
    }

    pub(crate) fn filled(&self) -> Option<&FilledTemplates> {
        match self {
            Self::Forward(plan) => plan.filled.as_deref(),
            Self::Own(own) => own.filled(),
            Self::Route(_) => None,
        }
    }

    fn cross_origin(&self) -> Option<&CrossOrigin<'s>> {
        match self {
            Self::Forward(plan) => plan.cross_origin.as_deref(),
            Self::Own(own) => own.cross_origin(),
            Self::Route(_) => None,
        }
    }

    fn destination(&self) -> Destination<'s> {
        match self {
            Self::Forward(plan) => plan.destination(),
            Self::Own(own) => own.destination(),
            Self::Route(_) => Destination::default(),
        }
    }
}

impl From<Reason> for OwnAnswer<'_> {
    fn from(reason: Reason) -> Self {
        Self::Reason(reason, reason.status())
    }
}

impl From<Refused> for OwnAnswer<'_> {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::By(reason) => reason.into(),
            Refused::Exhausted(exhausted) => Self::Exhausted(exhausted),
        }
    }
}

impl From<Reason> for Decision<'_> {
    fn from(reason: Reason) -> Self {
        Self::Own(reason.into())
    }
}
