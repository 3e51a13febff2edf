//! The answers of the admin endpoints: plain text for operators, the same for scripts. What they
//! say is made elsewhere.

use bytes::Bytes;
use http::header::{ACCEPT, ALLOW, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use portcullis_control::applier::State;
use portcullis_control::status::read_statuses;
use portcullis_inspect::{Look, MetricsFormat, Outcome, Question};
use serde::Serialize;

use crate::about::about;
use crate::admin::api;
use crate::admin::browsers::{is_led_here, is_of_another_site};
use crate::admin::page::page;
use crate::admin::sources::Admin;
use crate::plane::READING;
use crate::recent_log;
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
/log      the latest lines of the log
/about    version, machine and options of the agent, as JSON
/explain  POST a question as JSON: url, method, headers, all
/api/v1/  the same and more as JSON, in parts: docs/api.md
/ui       a page for browsers, which they get at / as well
";

const JSON: &str = "application/json";

/// The endpoints that are only read.
const READ: [&str; 12] = [
    "/",
    "/ui",
    "/about",
    "/livez",
    "/readyz",
    "/metrics",
    "/config",
    "/routes",
    "/status",
    "/listeners",
    "/problems",
    "/log",
];

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
        let path = request.uri().path();
        // Pages of other sites get none, whatever their browser would let them do with it; but they
        // may have links to the agent's page.
        let is_link =
            request.method() == Method::GET && matches!(path, "/" | "/ui") && is_led_here(request.headers());
        if is_of_another_site(request.headers()) && !is_link {
            return text(StatusCode::FORBIDDEN, "pages of other sites are not answered\n");
        }
        if let Some(name) = path.strip_prefix(api::PREFIX) {
            return match is_read {
                true => self.api_answer(name, &request).await,
                false => not_allowed("GET, HEAD"),
            };
        }
        match path {
            "/explain" if request.method() == Method::POST => self.explain(&state, &request).await,
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
            "/readyz" => match self.readiness(&state) {
                Ok(line) => ok(line),
                Err(line) => text(StatusCode::SERVICE_UNAVAILABLE, line),
            },
            "/metrics" => self.metrics(&state, request.headers()).await,
            "/config" => {
                let mechanisms = self.plane.served().mechanisms.into_iter();
                let served_by = mechanisms.map(|(frontend, by)| (frontend.to_string(), by.to_string()));
                let listeners = self.plane.status().listeners;
                let out = self.out_endpoints().await;
                let snapshot = &state.snapshot;
                let form = Form::accepted(request.headers());
                let made = || {
                    let served_by = &served_by.collect();
                    let dump = portcullis_inspect::dump_served(snapshot, served_by, &listeners, &out);
                    match form {
                        Form::Json => json(StatusCode::OK, &dump),
                        Form::Text => ok(serde_saphyr::to_string(&dump)
                            .unwrap_or_else(|error| format!("the configuration cannot be shown: {error}\n"))),
                    }
                };
                self.walk(made).await
            }
            "/routes" => {
                let form = Form::accepted(request.headers());
                let made = || {
                    let routes = portcullis_inspect::routes(&state.snapshot);
                    match form {
                        Form::Json => json(StatusCode::OK, &routes),
                        Form::Text => ok(routes.text(Look::default())),
                    }
                };
                self.walk(made).await
            }
            "/status" => self.statuses().await,
            "/listeners" => ok(serde_json::json!(self.plane.status()).to_string()),
            "/problems" => self.walk(|| ok(self.problem_lines(&state))).await,
            "/log" => ok(recent_log::text()),
            "/ui" => page_answer(),
            _ if Form::accepts_pages(request.headers()) => page_answer(),
            _ => ok(INDEX),
        }
    }

    async fn metrics(&self, state: &State, fields: &HeaderMap) -> Answer {
        let accept = fields.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let format = MetricsFormat::accepted(&accept.collect::<Vec<_>>().join(","));
        let metrics = scrape::metrics(state, &self.plane, self.membership.as_ref()).await;
        // Scrapes have no turn to wait for.
        let mut answer = tokio::task::block_in_place(|| ok(portcullis_inspect::metrics(&metrics, format)));
        answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
        answer
    }

    async fn explain(&self, state: &State, request: &Request<Bytes>) -> Answer {
        let served = self.plane.status().listeners;
        let form = Form::accepted(request.headers());
        let explained = || -> anyhow::Result<Answer> {
            let question = serde_json::from_slice::<Question>(request.body())?;
            let explanation = portcullis_inspect::explain(&state.snapshot, &question, READING, &served)?;
            let status = match explanation.outcome {
                Outcome::Answered => StatusCode::OK,
                Outcome::Unanswered => StatusCode::NOT_FOUND,
            };
            Ok(match form {
                Form::Json => json(status, &explanation),
                Form::Text => text(status, explanation.text(Look::default())),
            })
        };
        self.walk(explained)
            .await
            .unwrap_or_else(|error| text(StatusCode::BAD_REQUEST, format!("{error:#}\n")))
    }

    async fn api_answer(&self, name: &str, request: &Request<Bytes>) -> Answer {
        match self.api(name, request.uri().query().unwrap_or_default()).await {
            Ok(value) => json(StatusCode::OK, &value),
            Err(error) => json(error.status(), &serde_json::json!({ "error": error.to_string() })),
        }
    }

    fn problem_lines(&self, state: &State) -> String {
        let (input, objects) = (state.problems.iter(), state.unreported.iter());
        let key_sets = self.plane.failing_key_sets();
        let unwritten = self.unwritten_statuses();
        portcullis_inspect::problems(input, objects, &state.refused, &key_sets, unwritten.as_deref())
    }

    /// There may be tens of thousands of files.
    async fn statuses(&self) -> Answer {
        let directory = self.status_dir.clone();
        let read = move || read_statuses(&directory).map(|it| serde_json::Value::from(it).to_string());
        match tokio::task::spawn_blocking(read).await.unwrap_or_else(|error| Err(error.into())) {
            Ok(statuses) => ok(statuses),
            Err(error) => {
                let directory = self.status_dir.display();
                let remedy = "the agent cannot write there, and its log says why: start it with a --status-dir that it \
                              can write";
                text(StatusCode::NOT_FOUND, format!("no status files in {directory}: {error}; {remedy}\n"))
            }
        }
    }
}

fn page_answer() -> Answer {
    let (fields, document) = page();
    let mut answer = Response::new(document);
    *answer.headers_mut() = fields;
    answer
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

    /// True of browsers that are led to an address.
    fn accepts_pages(fields: &HeaderMap) -> bool {
        fields.get_all(ACCEPT).iter().any(|it| it.to_str().is_ok_and(|it| it.contains("text/html")))
    }
}

pub(crate) fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(body.into());
    *answer.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer
}
