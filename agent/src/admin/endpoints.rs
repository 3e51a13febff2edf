//! The answers of the admin endpoints: plain text for operators, the same for scripts. What they
//! say is made elsewhere.

use std::collections::BTreeMap;
use std::path::PathBuf;

use bytes::Bytes;
use http::header::{ACCEPT, ALLOW, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use portcullis_control::applier::State;
use portcullis_control::status::read_statuses;
use portcullis_inspect::{Look, MetricsFormat, Outcome, Progress, Question, served_frontends};
use serde::Serialize;
use tokio::sync::watch;

use crate::about::about;
use crate::cluster::Membership;
use crate::plane::{Plane, READING};
use crate::scrape;
use crate::tenure::Tenure;

const INDEX: &str = "\
/livez    200 while the process runs
/readyz   200 when traffic is served, else 503 with what is missing
/metrics  OpenMetrics, or Prometheus text
/config   what the data plane runs
/routes   routes in the order they are matched
/status   statuses of all objects, as JSON
/listeners the part of the node that serves each listener and keeps its terms, and why, as JSON
/problems what is wrong with the input
/about    version, machine and options of the agent, as JSON
/explain  POST a question as JSON: url, method, headers, all
";

const JSON: &str = "application/json";

/// The endpoints that are only read.
const READ: [&str; 10] = [
    "/",
    "/about",
    "/livez",
    "/readyz",
    "/metrics",
    "/config",
    "/routes",
    "/status",
    "/listeners",
    "/problems",
];

/// The sources of all answers.
#[derive(Clone)]
pub(crate) struct Admin {
    pub state: watch::Receiver<State>,
    pub plane: Plane,
    pub status_dir: PathBuf,
    /// Of an agent in a cluster.
    pub membership: Option<Membership>,
}

type Answer = Response<Bytes>;

/// The form of those answers that have two.
enum Form {
    Text,
    Json,
}

impl Admin {
    pub(crate) async fn answer(&self, request: Request<Bytes>) -> Answer {
        let state = self.state.borrow().clone();
        // The HTTP library leaves out the body of an answer to HEAD.
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        match request.uri().path() {
            "/explain" if request.method() == Method::POST => self.explain(&state, &request),
            "/explain" => not_allowed("POST"),
            path if !READ.contains(&path) => {
                text(StatusCode::NOT_FOUND, "there is no such endpoint; GET / lists them\n")
            }
            _ if !is_read => not_allowed("GET, HEAD"),
            "/livez" => ok("ok\n"),
            "/about" => json(StatusCode::OK, &about()),
            "/readyz" if *self.plane.tenure().borrow() == Tenure::Over => text(
                StatusCode::SERVICE_UNAVAILABLE,
                "not ready: open connections are drained, no new ones taken\n",
            ),
            "/readyz" => readiness(&state, self.membership.as_ref()),
            "/metrics" => self.metrics(&state, request.headers()).await,
            "/config" => {
                let mechanisms = self.plane.served().mechanisms.into_iter();
                let served_by = mechanisms.map(|(frontend, by)| (frontend.to_string(), by.to_string()));
                let listeners = self.plane.status().listeners;
                let backends = self.plane.stats().await.backends.into_iter();
                let out = backends.map(|(name, backend)| {
                    let out = backend.out.into_iter().map(|(address, why)| (address.to_string(), why));
                    (name.to_string(), out.collect::<BTreeMap<_, _>>())
                });
                let out = out.filter(|(_, out)| !out.is_empty()).collect();
                let snapshot = &state.snapshot;
                let dump = portcullis_inspect::dump_served(snapshot, &served_by.collect(), &listeners, &out);
                match Form::accepted(request.headers()) {
                    Form::Json => json(StatusCode::OK, &dump),
                    Form::Text => ok(serde_saphyr::to_string(&dump)
                        .unwrap_or_else(|error| format!("the configuration cannot be shown: {error}\n"))),
                }
            }
            "/routes" => {
                let routes = portcullis_inspect::routes(&state.snapshot);
                match Form::accepted(request.headers()) {
                    Form::Json => json(StatusCode::OK, &routes),
                    Form::Text => ok(routes.text(Look::default())),
                }
            }
            "/status" => self.statuses().await,
            "/listeners" => ok(serde_json::json!(self.plane.status()).to_string()),
            "/problems" => ok(problems(&state)),
            _ => ok(INDEX),
        }
    }

    async fn metrics(&self, state: &State, fields: &HeaderMap) -> Answer {
        let accept = fields.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let format = MetricsFormat::accepted(&accept.collect::<Vec<_>>().join(","));
        let metrics = scrape::metrics(state, &self.plane, self.membership.as_ref()).await;
        let mut answer = ok(portcullis_inspect::metrics(&metrics, format));
        answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
        answer
    }

    fn explain(&self, state: &State, request: &Request<Bytes>) -> Answer {
        let question = request.body();
        let served = self.plane.status().listeners;
        let answer =
            serde_json::from_slice::<Question>(question).map_err(anyhow::Error::from).and_then(|question| {
                Ok(portcullis_inspect::explain(&state.snapshot, &question, READING, &served)?)
            });
        match answer {
            Ok(explanation) => {
                let status = match explanation.outcome {
                    Outcome::Answered => StatusCode::OK,
                    Outcome::Unanswered => StatusCode::NOT_FOUND,
                };
                match Form::accepted(request.headers()) {
                    Form::Json => json(status, &explanation),
                    Form::Text => text(status, explanation.text(Look::default())),
                }
            }
            Err(error) => text(StatusCode::BAD_REQUEST, format!("{error:#}\n")),
        }
    }

    /// There may be tens of thousands of files.
    async fn statuses(&self) -> Answer {
        let directory = self.status_dir.clone();
        let read = move || read_statuses(&directory).map(|it| serde_json::Value::from(it).to_string());
        match tokio::task::spawn_blocking(read).await.unwrap_or_else(|error| Err(error.into())) {
            Ok(statuses) => ok(statuses),
            Err(error) => {
                let directory = self.status_dir.display();
                text(StatusCode::NOT_FOUND, format!("no status files in {directory}: {error}\n"))
            }
        }
    }
}

fn readiness(state: &State, membership: Option<&Membership>) -> Answer {
    let progress = Progress {
        applied: state.applied,
        served: served_frontends(&state.snapshot, &state.refused),
        is_current: membership.is_none_or(|membership| *membership.current.borrow()),
        needs_gateway: membership.is_none_or(|membership| membership.has_one_gateway),
    };
    match progress.readiness() {
        Ok(line) => ok(line),
        Err(line) => text(StatusCode::SERVICE_UNAVAILABLE, line),
    }
}

fn problems(state: &State) -> String {
    portcullis_inspect::problems(state.problems.iter(), state.unreported.iter(), &state.refused)
}

fn not_allowed(methods: &'static str) -> Answer {
    let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, format!("this endpoint takes {methods}\n"));
    answer.headers_mut().insert(ALLOW, HeaderValue::from_static(methods));
    answer
}

fn ok(body: impl Into<Bytes>) -> Answer {
    text(StatusCode::OK, body)
}

fn json(status: StatusCode, value: &impl Serialize) -> Answer {
    match serde_json::to_vec(value) {
        Ok(body) => {
            let mut answer = text(status, body);
            answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
            answer
        }
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("cannot be shown: {error}\n")),
    }
}

// === impl Form ===

impl Form {
    /// JSON if it is named; `*/*` is what any client says.
    fn accepted(fields: &HeaderMap) -> Self {
        let named = |field: &HeaderValue| field.to_str().is_ok_and(|field| field.contains(JSON));
        if fields.get_all(ACCEPT).iter().any(named) { Self::Json } else { Self::Text }
    }
}

pub(crate) fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(body.into());
    *answer.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer
}
