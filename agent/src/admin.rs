//! The admin endpoints: a small HTTP server on a unix socket, and on a port of loopback if asked for. Plain text for people,
//! the same for scripts; nothing here can change anything.

pub(crate) mod client;
mod server;

use std::fmt::Write;
use std::path::PathBuf;
use std::time::SystemTime;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use portcullis_control::applier::State;
use portcullis_control::status::read_statuses;
use tokio::sync::watch;

use crate::cluster::Standing;
use crate::explain::{self, Question};
use crate::plane::Plane;
use crate::{dump, metrics, routes};

pub(crate) use server::serve;

const INDEX: &str = "\
/livez    200 while the process runs
/readyz   200 when traffic is served, else 503 with what is missing
/metrics  Prometheus text
/config   what the data plane runs
/routes   routes in the order they are matched
/status   statuses of all objects, as JSON
/problems what is wrong with the input
/explain  POST a question as JSON: url, method, headers, all
";

/// What the endpoints tell about.
#[derive(Clone)]
pub(crate) struct Admin {
    pub state: watch::Receiver<State>,
    pub plane: Plane,
    pub status_dir: PathBuf,
    /// Of an agent in a cluster.
    pub standing: Option<Standing>,
}

type Answer = Response<Bytes>;

impl Admin {
    pub(crate) async fn answer(&self, request: Request<Bytes>) -> Answer {
        let state = self.state.borrow().clone();
        match (request.method(), request.uri().path()) {
            (&Method::GET, "/") => ok(INDEX),
            (&Method::GET, "/livez") => ok("ok\n"),
            (&Method::GET, "/readyz") => readiness(&state, self.standing.as_ref()),
            (&Method::GET, "/metrics") => ok(self.metrics(&state).await),
            (&Method::GET, "/config") => ok(dump::text(&state.snapshot)),
            (&Method::GET, "/routes") => ok(routes::text(&state.snapshot)),
            (&Method::GET, "/status") => self.statuses().await,
            (&Method::GET, "/problems") => ok(problems(&state)),
            (&Method::POST, "/explain") => explain(&state, request.body()),
            _ => text(StatusCode::NOT_FOUND, "there is no such endpoint; GET / lists them\n"),
        }
    }

    async fn metrics(&self, state: &State) -> String {
        let traffic = self.plane.stats().await;
        metrics::text(
            state,
            self.standing.as_ref(),
            &traffic,
            &self.plane.kernel_counters(),
            self.plane.node.is_steered(),
            SystemTime::now(),
        )
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

/// Never ready before the configuration is read and applied. What was kept on disk is served, but it may be out of date.
/// Without Gateways, an agent of a cluster is ready: they come later. One of a directory or of a single Gateway is not, for no
/// traffic should come here.
fn readiness(state: &State, standing: Option<&Standing>) -> Answer {
    let served = state.snapshot.frontends.keys().filter(|key| !state.refused.contains_key(key)).count();
    let is_current = standing.is_none_or(|standing| *standing.current.borrow());
    match (state.applied, served) {
        (0, _) => not_ready("the configuration is being read"),
        _ if !is_current => not_ready(
            "the last good configuration is served until everything is read from the API server; the log says what is in the way",
        ),
        (_, 0) if standing.is_none_or(|standing| standing.has_one_gateway) => {
            not_ready("no Gateway is served; /problems and /status say why")
        }
        (_, served) => ok(format!("ok: {served} frontends are served\n")),
    }
}

fn not_ready(why: &str) -> Answer {
    text(StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {why}\n"))
}

fn problems(state: &State) -> String {
    let mut text = String::new();
    for problem in state.problems.iter() {
        let _ = writeln!(text, "{problem}");
    }
    for (object, problems) in state.unsaid.iter() {
        for problem in problems {
            let _ = writeln!(text, "{object}: {problem}");
        }
    }
    for (frontend, why) in &state.refused {
        let _ = writeln!(text, "{frontend}: not served: {why}");
    }
    text
}

fn explain(state: &State, question: &[u8]) -> Answer {
    let answer = serde_json::from_slice::<Question>(question)
        .map_err(anyhow::Error::from)
        .and_then(|question| explain::explain(&state.snapshot, &question));
    match answer {
        Ok(answer) => ok(answer),
        Err(error) => text(StatusCode::BAD_REQUEST, format!("{error:#}\n")),
    }
}

fn ok(body: impl Into<Bytes>) -> Answer {
    text(StatusCode::OK, body)
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(body.into());
    *answer.status_mut() = status;
    let kind = http::HeaderValue::from_static("text/plain; charset=utf-8");
    answer.headers_mut().insert(http::header::CONTENT_TYPE, kind);
    answer
}
