//! Checks of requests that take time: credentials, and external auth services (GEP-1494). A request
//! passes a service if that says so, and in no other case. "If there is any problem communicating
//! with the external service, this filter MUST fail closed."

mod bodies;
mod ext_authz;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod over_grpc;
mod over_http;

use std::borrow::Cow;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, Request, Uri, Version};
use portcullis_model::{AuthProtocol, ExternalAuth, ListenerId};
use tokio::time::{Instant, timeout_at};

use crate::client::clients::Client;
use crate::core::reason::Reason;
use crate::core::stats::AuthOutcome;
use crate::http::answer::Answer;
use crate::http::authenticate::Authenticator;
use crate::http::body::{Content, Deadline};
use crate::http::change::Change;
use crate::http::decide::{AskedBy, Decision, Guarded, Next, OwnAnswer, Step};
use crate::http::plan::{Passage, PolicyChecks};
use crate::http::templates::Connected;
use crate::http::{headers, loops, request_id, sender};
use crate::trace::attempt::Asked;
use crate::trace::context::TRACEPARENT;
use crate::trace::request::RequestTrace;
use crate::upstream::attempt::{self, AttemptError, UpstreamResponse};
use crate::upstream::discard::discard_rest;
use crate::upstream::endpoint::ResponseBody;
use crate::upstream::pool::Pools;
use crate::upstream::request::whole::WholeBody;
use crate::upstream::request::{Outgoing, Upload};

pub(crate) use bodies::BodyRoom;

/// Asks the auth services for the requests of a core.
pub(crate) struct Authorizer {
    pub pools: Rc<Pools>,
    pub authenticator: Authenticator,
    pub bodies: BodyRoom,
    /// The time that a service has for its answer.
    pub timeout: Duration,
}

/// A request that has passed.
pub(crate) struct Passed<'s> {
    pub decision: Decision<'s>,
    /// Changes to its response.
    pub response: Vec<Change>,
}

/// The answer to a request that has not passed.
pub(crate) enum Refusal {
    /// The auth service's.
    Denied(Box<http::Response<Content>>),
    Own(OwnAnswer<'static>),
}

/// A request as auth services get to see it.
struct Question<'r> {
    client: &'r Client,
    /// `None` if it cannot be told.
    address: Option<IpAddr>,
    pools: &'r Pools,
    method: &'r Method,
    version: Version,
    /// Path and query; the path is the one that rules match.
    target: String,
    /// The host that the client asked for, with port.
    authority: &'r HeaderValue,
    /// As the filters before this one left them.
    fields: &'r HeaderMap,
    request_id: &'r HeaderValue,
    signature: &'r HeaderValue,
    body: Option<Bytes>,
    trace: Option<&'r RequestTrace>,
}

/// The say of an auth service.
enum Verdict {
    /// With the rest of the answer, if there may be any.
    Allowed(Consent, Option<ResponseBody>),
    /// This is the answer for the client.
    DeniedBy(UpstreamResponse),
    DeniedWith(Answer),
    /// Without an answer that could be passed on.
    Denied,
    Failed(&'static str),
}

/// The changes to a request that passes, and to its response.
struct Granted {
    /// By the checks that policies want, in their order; `None` if they want none.
    by_policies: Option<Vec<Change>>,
    /// A set for each filter.
    by_filters: Vec<Vec<Change>>,
    response: Vec<Change>,
}

/// The conditions on which an auth service lets a request pass.
#[derive(Default)]
struct Consent {
    request: Vec<Change>,
    response: Vec<Change>,
    query: Vec<QueryEdit>,
}

/// Sets a parameter of the query, or removes it.
#[derive(Debug)]
struct QueryEdit {
    name: String,
    value: Option<String>,
}

// === impl Authorizer ===

impl Authorizer {
    /// Takes the request past the filters in its way.
    ///
    /// # Errors
    /// The answer to one that does not pass.
    pub(crate) async fn pass<'s>(
        &self,
        client: &Client,
        passage: Passage<'_>,
        guarded: &mut Guarded<'s>,
        outgoing: &mut Outgoing,
    ) -> Result<Passed<'s>, Refusal> {
        let begun = guarded.begun.unwrap_or_else(Instant::now);
        let of_rule = match &guarded.next {
            Next::Forward(plan) => plan.timeouts().request.duration(),
            Next::Own(_) | Next::Route(_) => None,
        };
        let of_call = passage.call.and_then(|call| call.timeout);
        let deadline = of_rule.into_iter().chain(of_call).min().map(|limit| begun + limit);
        let passing = self.pass_before(deadline, client, passage, guarded, outgoing);
        let Granted { by_policies, by_filters: granted, response } = match deadline {
            None => passing.await?,
            Some(deadline) => timeout_at(deadline, passing).await.unwrap_or(Err(Reason::Timeout.into()))?,
        };
        let next = std::mem::replace(&mut guarded.next, Next::Own(Reason::AuthFailed.into()));
        let decision = match next {
            Next::Own(own) => Decision::Own(own),
            Next::Forward(mut plan) => {
                outgoing.upload.keep_out(|| names(by_policies.iter().chain(&granted)));
                if let Some(changes) = by_policies {
                    plan.checks = Some(Box::new(PolicyChecks::Passed(changes)));
                }
                plan.say(std::mem::take(&mut guarded.said));
                (plan.granted, plan.begun) = (granted, Some(begun));
                Decision::Forward(plan)
            }
            Next::Route(mut unrouted) => {
                outgoing.upload.keep_out(|| names(&granted));
                let fields = &mut outgoing.parts.headers;
                let known = unrouted.fields_mut();
                // What the client claims must go before the service's word comes in its place.
                let chain = sender::chain(fields, passage.proxies, (client.peer.ip(), &client.address));
                *known = headers::disbelieve(fields, *known, chain.as_ref());
                granted.iter().flatten().for_each(|change| change.apply(fields));
                let said = said(&granted, fields);
                let connected = Connected {
                    peer: client.peer,
                    address: &client.address,
                    server_name: client.server_name.as_deref(),
                    proxies: passage.proxies,
                    request_id: passage.request_id,
                };
                let mut decision = unrouted.route(client.limits(), connected, &outgoing.parts);
                match &mut decision {
                    Decision::Own(_) => {}
                    Decision::Forward(plan) => {
                        plan.begun = Some(begun);
                        plan.say(said);
                    }
                    Decision::Guarded(guarded) => (guarded.begun, guarded.said) = (Some(begun), said),
                }
                decision
            }
        };
        Ok(Passed { decision, response })
    }

    async fn pass_before(
        &self,
        deadline: Option<Instant>,
        client: &Client,
        passage: Passage<'_>,
        guarded: &Guarded<'_>,
        outgoing: &mut Outgoing,
    ) -> Result<Granted, Refusal> {
        let made;
        let request_id = match passage.request_id {
            Some(id) => id,
            None => {
                made = request_id::make();
                &made
            }
        };
        let passage = Passage { request_id: Some(request_id), ..passage };
        let address = sender::client(&outgoing.parts.headers, passage.proxies, client.peer.ip());
        let mut fields = outgoing.parts.headers.clone();
        let signature = passage.edit_request(&mut fields, guarded.fields, client, &guarded.authority, None);
        guarded.said.iter().for_each(|change| change.apply(&mut fields));
        let (mut by_policies, mut by_filters, mut response) = (None, Vec::new(), Vec::new());
        let pools = self.pools.serving(passage.listener_id());
        for step in &guarded.steps {
            let (auth, asked_by) = match step {
                Step::Edit(edit) => {
                    headers::edit_request(&mut fields, edit);
                    continue;
                }
                Step::Fail(failure) => {
                    tracing::debug!(reason = %failure.reason, "a filter of the listener cannot be applied");
                    return Err(Refusal::Own(OwnAnswer::Reason(Reason::Rule, failure.status)));
                }
                Step::Authenticate(wanted) => {
                    let checked = self.authenticator.check(wanted, &fields).await;
                    passage.step("credentials", || match &checked {
                        Ok(_) => "good",
                        Err(_) => "missing, or not good: refused",
                    });
                    let checked = checked.map_err(Refusal::Own)?;
                    checked.iter().for_each(|change| change.apply(&mut fields));
                    by_policies = Some(checked);
                    continue;
                }
                Step::Ask(auth, asked_by) => (auth, asked_by),
            };
            let (body, question_room) = match auth.body {
                None => (None, None),
                Some(most) => {
                    let namespace = namespace(&guarded.next, client, passage.listener_id());
                    let (body, room) = self.bodies.read(client, namespace, outgoing, auth, most).await?;
                    (Some(body), Some(room))
                }
            };
            let Parts { method, uri, version, .. } = &outgoing.parts;
            let query = uri.query().map_or_else(String::new, |query| format!("?{query}"));
            let question = Question {
                client,
                address,
                pools: &pools,
                method,
                version: *version,
                target: format!("{}{query}", guarded.path),
                authority: &guarded.authority,
                fields: &fields,
                request_id,
                signature: &signature,
                body,
                trace: passage.trace,
            };
            let verdict = self.ask(auth, &question, deadline).await;
            passage.step("auth", || format!("auth service {} {}", auth.backend, verdict.words()));
            drop(question_room);
            let Consent { request, response: of_response, query } =
                self.consent(client, auth, verdict, deadline)?;
            request.iter().for_each(|change| change.apply(&mut fields));
            if !query.is_empty() {
                edit_query(&mut outgoing.parts.uri, &query)?;
            }
            match asked_by {
                AskedBy::Policy => by_policies.get_or_insert_default().extend(request),
                AskedBy::Filter => by_filters.push(request),
            }
            response.extend(of_response);
        }
        Ok(Granted { by_policies, by_filters, response })
    }

    /// Counts what the service said; the answer to the client unless it is consent.
    fn consent(
        &self,
        client: &Client,
        auth: &ExternalAuth,
        verdict: Verdict,
        deadline: Option<Instant>,
    ) -> Result<Consent, Refusal> {
        let outcome = match &verdict {
            Verdict::Allowed(..) => AuthOutcome::Allowed,
            Verdict::DeniedBy(_) | Verdict::DeniedWith(_) | Verdict::Denied => AuthOutcome::Denied,
            Verdict::Failed(_) => AuthOutcome::Failed,
        };
        self.pools.counters.asked(outcome);
        match verdict {
            Verdict::Allowed(consent, rest) => {
                rest.into_iter().for_each(|rest| discard_rest(rest, client.windows.clone()));
                Ok(consent)
            }
            Verdict::DeniedBy(response) => {
                let (mut parts, body) = response.into_parts();
                let known = body.known_fields(&parts.headers);
                headers::remove_hop_by_hop(&mut parts.headers, known);
                // Intermediaries "MUST send their own HTTP-version in forwarded messages" (RFC 9112
                // section 2.3).
                parts.version = Version::HTTP_11;
                let content = Content::upstream(body, deadline.map(|at| Deadline::new(at, None)));
                Err(Refusal::Denied(http::Response::from_parts(parts, content).into()))
            }
            Verdict::DeniedWith(answer) => Err(Refusal::Denied(answer.map(Content::from).into())),
            Verdict::Denied => Err(Reason::AuthDenied.into()),
            Verdict::Failed(problem) => {
                tracing::debug!(service = %auth.backend, problem, "a request could not be authorised");
                let is_late = deadline.is_some_and(|deadline| deadline <= Instant::now());
                Err(if is_late { Reason::Timeout } else { Reason::AuthFailed }.into())
            }
        }
    }

    async fn ask(&self, auth: &ExternalAuth, question: &Question<'_>, deadline: Option<Instant>) -> Verdict {
        let asking = async {
            match &auth.protocol {
                AuthProtocol::Http(http) => {
                    let Some(request) = over_http::request(http, question) else {
                        return Verdict::Failed("the path cannot be asked about");
                    };
                    let body = question.body.clone().unwrap_or_default();
                    match self.send(auth, request, body, question).await {
                        Ok(response) => over_http::verdict(http, response),
                        Err(problem) => problem,
                    }
                }
                AuthProtocol::Grpc { request: names } => {
                    let asked = over_grpc::request(names, &auth.backend, question, self.timeout);
                    let Some((request, body)) = asked else {
                        return Verdict::Failed("the request cannot be asked about");
                    };
                    match self.send(auth, request, body, question).await {
                        Ok(response) => over_grpc::verdict(response, &question.client.windows).await,
                        Err(problem) => problem,
                    }
                }
            }
        };
        let end = Instant::now() + self.timeout;
        let end = deadline.map_or(end, |deadline| deadline.min(end));
        timeout_at(end, asking).await.unwrap_or(Verdict::Failed("the auth service took too long"))
    }

    /// Asks once more where a connection breaks: a kept one may turn out to be closed, and to be
    /// asked twice does a service no harm.
    async fn send(
        &self,
        auth: &ExternalAuth,
        request: Request<()>,
        body: Bytes,
        question: &Question<'_>,
    ) -> Result<UpstreamResponse, Verdict> {
        let attempt = async || {
            let upload = match body.is_empty() {
                true => Upload::Empty,
                false => Upload::Whole(Box::new(WholeBody::new(body.clone(), None, None))),
            };
            let mut outgoing = Outgoing::of(request.clone().map(|()| upload), &question.client.windows);
            outgoing.trace = question.trace.and_then(|trace| trace.attempts(Asked::AuthService));
            attempt::send(
                question.pools,
                &auth.backend,
                question.address.into(),
                &question.client.downstream,
                outgoing,
            )
            .await
        };
        let sent = match attempt().await {
            Err(AttemptError::Broken(..)) => attempt().await,
            sent => sent,
        };
        sent.map_err(|error| {
            tracing::debug!(service = %auth.backend, %error, "an auth service cannot be asked");
            Verdict::Failed("the auth service cannot be asked")
        })
    }
}

impl From<Reason> for Refusal {
    fn from(reason: Reason) -> Self {
        Self::Own(reason.into())
    }
}

/// The names of fields that credentials and services decide about.
fn names<'c>(granted: impl IntoIterator<Item = &'c Vec<Change>>) -> Vec<http::HeaderName> {
    granted.into_iter().flatten().map(|change| change.name().clone()).collect()
}

/// Fields that every request gets on its way, as services say them.
fn said(granted: &[Vec<Change>], fields: &HeaderMap) -> Vec<Change> {
    let is_said = |name: &http::HeaderName| granted.iter().flatten().any(|change| change.name() == name);
    let names = headers::given_to_all().into_iter().filter(is_said);
    names.flat_map(|name| Change::set(&name, fields.get_all(&name).iter().cloned())).collect()
}

/// The one whose share of the room for bodies a request takes: the route's if that is known, else
/// that of the listener.
fn namespace<'r>(next: &Next<'r>, client: &'r Client, listener: Option<&'r ListenerId>) -> &'r str {
    match (next.rule(), listener) {
        (Some(rule), _) => &rule.id.route.namespace,
        (None, Some(listener)) => &listener.parent.namespace,
        (None, None) => &client.gateway().namespace,
    }
}

fn edit_query(uri: &mut Uri, edits: &[QueryEdit]) -> Result<(), Refusal> {
    let query = QueryEdit::apply(edits, uri.query()).map_or_else(String::new, |query| format!("?{query}"));
    let target = PathAndQuery::try_from(format!("{}{query}", uri.path()));
    let mut parts = std::mem::take(uri).into_parts();
    parts.path_and_query = Some(target.map_err(|_| Reason::AuthFailed)?);
    *uri = Uri::from_parts(parts).map_err(|_| Reason::AuthFailed)?;
    Ok(())
}

// === impl Verdict ===

impl Verdict {
    /// The verdict as operators read it.
    fn words(&self) -> Cow<'static, str> {
        match self {
            Self::Allowed(..) => "lets it pass".into(),
            Self::DeniedBy(response) => format!("denies it with {}", response.status().as_u16()).into(),
            Self::DeniedWith(answer) => format!("denies it with {}", answer.status().as_u16()).into(),
            Self::Denied => "denies it".into(),
            Self::Failed(problem) => format!("gives no answer: {problem}").into(),
        }
    }
}

// === impl Question ===

impl Question<'_> {
    /// Shows that the request has come by here: a service that leads back must not be asked for
    /// ever. So does its trace, which the service may go on with.
    fn sign(&self, fields: &mut HeaderMap) {
        loops::sign(fields, self.signature.clone());
        if self.trace.is_some_and(RequestTrace::goes_on)
            && let Some(parent) = self.fields.get(TRACEPARENT)
        {
            fields.insert(TRACEPARENT, parent.clone());
        }
    }
}
