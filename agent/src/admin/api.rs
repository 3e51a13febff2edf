//! The endpoints below `/api/v1`: JSON with names that stay, in parts that end, without secrets.
//! `docs/api.md` lists them; their answers are made by `portcullis_inspect`.

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use http::StatusCode;
use portcullis_control::applier::State;
use portcullis_control::status::DigestedStatuses;
use portcullis_inspect::{
    NodeStatus, Overview, Problem, ProblemSources, Query, QueryError, Question, QuestionError, Size,
    all_problems, explain, node_report, status_problems, traffic_sample,
};
use serde::Serialize;
use serde_json::Value;

use crate::admin::sources::Admin;
use crate::admin::watch::{self, WatchError};
use crate::plane::READING;
use crate::scrape;

pub(crate) const PREFIX: &str = "/api/v1/";

/// Those that a listing takes; each endpoint has some of its own besides.
const PARTS: [&str; 3] = ["q", "offset", "limit"];
const TREE: [&str; 8] = ["gateway", "port", "listener", "host", "namespace", "q", "offset", "limit"];

/// The reason for which there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiError {
    #[error("there is no such endpoint; docs/api.md lists them")]
    NotFound,
    #[error(transparent)]
    Query(#[from] QueryError),
    #[error(transparent)]
    Question(#[from] QuestionError),
    #[error(transparent)]
    Watch(#[from] WatchError),
    #[error("cannot be shown: {0}")]
    Json(#[from] serde_json::Error),
}

// === impl ApiError ===

impl ApiError {
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::Watch(WatchError::Busy) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Query(_) | Self::Question(_) | Self::Watch(_) => StatusCode::BAD_REQUEST,
            Self::Json(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

impl Admin {
    /// The answer of the endpoint of this name to a question.
    pub(crate) async fn api(&self, name: &str, query: &str) -> Result<Value, ApiError> {
        let state = self.state.borrow().clone();
        let snapshot = &state.snapshot;
        let tree = || Query::parse(query, &TREE);
        match name {
            "overview" => {
                Query::parse(query, &[])?;
                self.walk(|| shown(self.overview(&state))).await
            }
            "problems" => self.problems(&state, &Query::parse(query, &PARTS)?).await,
            "gateways" => {
                let query = tree()?;
                self.walk(|| shown(portcullis_inspect::gateways(snapshot, &query)?)).await
            }
            "listeners" => {
                let query = tree()?;
                self.walk(|| shown(portcullis_inspect::listeners(snapshot, &query)?)).await
            }
            "hosts" => {
                let query = tree()?;
                self.walk(|| shown(portcullis_inspect::host_nodes(snapshot, &query)?)).await
            }
            "routes" => {
                let query = tree()?;
                self.walk(|| shown(portcullis_inspect::route_rows(snapshot, &query)?)).await
            }
            "backends" => {
                let query = Query::parse(query, &["backend", "q", "offset", "limit"])?;
                let out = self.out_endpoints().await;
                self.walk(|| shown(portcullis_inspect::backends(snapshot, &out, &query)?)).await
            }
            "endpoints" => {
                let query = Query::parse(query, &["backend", "offset", "limit"])?;
                let out = self.out_endpoints().await;
                self.walk(|| shown(portcullis_inspect::endpoints(snapshot, &out, &query)?)).await
            }
            "certificates" => {
                let query = Query::parse(query, &PARTS)?;
                let served = self.plane.served().snapshot;
                self.walk(|| shown(portcullis_inspect::certificates(&served, &query, now())?)).await
            }
            "node" => {
                let query = Query::parse(query, &["gateway", "q", "offset", "limit"])?;
                let metrics = scrape::metrics(&state, &self.plane, self.membership.as_ref()).await;
                self.walk(|| shown(node_report(self.plane.status(), &metrics, &query)?)).await
            }
            "traffic" => {
                let query = Query::parse(query, &["limit"])?;
                let limit = query.window()?.limit;
                let stats = self.plane.stats().await;
                let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
                let made = || {
                    let (traffic, durations) = scrape::traffic_and_durations(stats);
                    shown(traffic_sample(&traffic, &durations, at, limit))
                };
                self.walk(made).await
            }
            "explain" => {
                let query = Query::parse(query, &["url", "method", "header", "all"])?;
                let question = Question {
                    url: query.get("url").ok_or(QueryError::Missing("url"))?.to_owned(),
                    method: query.get("method").unwrap_or("GET").to_owned(),
                    headers: query.all("header"),
                    all: query.get("all") == Some("true"),
                };
                let listeners = self.plane.status().listeners;
                self.walk(|| shown(explain(snapshot, &question, READING, &listeners)?)).await
            }
            watch::NAME => shown(self.watch(&watch::parameters(query)?).await?),
            _ => Err(ApiError::NotFound),
        }
    }

    fn overview(&self, state: &State) -> Overview {
        let readiness = self.readiness(state);
        let age = state.last_applied.and_then(|at| SystemTime::now().duration_since(at).ok());
        Overview {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            node: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            datapath: if self.plane.node.is_steered() { "ebpf" } else { "userspace" }.to_owned(),
            ready: readiness.is_ok(),
            readiness: readiness.unwrap_or_else(|why| why).trim_end().to_owned(),
            generation: state.snapshot.generation,
            age: age.unwrap_or_default().as_secs(),
            size: Size::of(&state.snapshot),
        }
    }

    async fn problems(&self, state: &State, query: &Query) -> Result<Value, ApiError> {
        let (directory, known) = (self.status_dir.clone(), self.status_problems.clone());
        let statuses = tokio::task::spawn_blocking(move || statuses(&directory, &known)).await;
        let made = || {
            let served = self.plane.served().snapshot;
            let soon = Query::parse("limit=1000", &PARTS)?;
            let NodeStatus { datapath, .. } = self.plane.status();
            let uncovered = [self.plane.node.guard_coverage(), self.plane.node.name_coverage()];
            let uncovered = uncovered.into_iter().flat_map(|coverage| coverage.missing);
            let sources = ProblemSources {
                snapshot: &state.snapshot,
                refused: &state.refused,
                input: state.problems.iter().map(ToString::to_string).collect(),
                unreported: state
                    .unreported
                    .iter()
                    .flat_map(|(object, problems)| {
                        problems.iter().map(move |it| (object.to_string(), it.clone()))
                    })
                    .collect(),
                statuses: statuses.unwrap_or_else(|error| Err(error.to_string())),
                key_sets: self.plane.failing_key_sets(),
                unwritten: self.unwritten_statuses(),
                certificates: portcullis_inspect::certificates(&served, &soon, now())?.items,
                not_ready: self.readiness(state).err().map(|why| why.trim_end().to_owned()),
                without_programs: self.plane.node.without_programs().map(|_| datapath),
                uncovered: uncovered.map(|it| (it.interface, it.reason.to_string())).collect(),
            };
            shown(all_problems(&sources, query)?)
        };
        self.walk(made).await
    }
}

fn statuses(directory: &Path, known: &Mutex<DigestedStatuses<Vec<Problem>>>) -> Result<Vec<Problem>, String> {
    let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
    let problems = known.refresh(directory, status_problems);
    let unread = |error| format!("no status files in {}: {error}", directory.display());
    Ok(problems.map_err(unread)?.flatten().cloned().collect())
}

fn shown(answer: impl Serialize) -> Result<Value, ApiError> {
    Ok(serde_json::to_value(answer)?)
}

/// In seconds since 1970.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs().cast_signed()
}
