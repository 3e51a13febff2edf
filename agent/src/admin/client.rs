//! Asks a running agent, over its admin socket or through the API server of its cluster.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use bytes::Bytes;
use http::header::{ACCEPT, HOST};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use portcullis_control::remote::{Forwarded, RemoteAgent, Wanted};
use portcullis_inspect::{Explanation, Question};
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::admin::{api, watch};
use crate::watch_limits::LONGEST_TIME;

/// Time in which a node says why it does not forward a connection.
const CAUSE: Duration = Duration::from_secs(1);

/// Time for an answer: an agent ends a connection after a minute.
const ANSWER_TIME: Duration = Duration::from_secs(90);
/// Bytes of an answer, which may be about everything that is configured.
const LARGEST_ANSWER: usize = 512 << 20;

/// An agent that is asked.
pub(crate) struct Agent {
    runtime: Runtime,
    way: Arc<Way>,
}

/// The way to an agent.
pub(crate) enum Way {
    Socket(PathBuf),
    Cluster(RemoteAgent),
}

/// Something to read and write.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// The form of an answer.
#[derive(Clone, Copy)]
enum Accept {
    Text,
    Json,
}

// === impl Agent ===

impl Agent {
    pub(crate) fn at_socket(socket: PathBuf) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { runtime, way: Arc::new(Way::Socket(socket)) })
    }

    /// With the user's kubeconfig, and one of its contexts if it is given.
    pub(crate) fn in_cluster(
        kubeconfig: Option<PathBuf>,
        context: Option<String>,
        wanted: Wanted,
        lease: &str,
    ) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let found = RemoteAgent::find(kubeconfig.as_deref(), context.as_deref(), &wanted, lease);
        let way = Arc::new(Way::Cluster(runtime.block_on(found)?));
        Ok(Self { runtime, way })
    }

    pub(crate) fn get(&self, path: &str) -> Result<String> {
        succeeded(self.ask(Method::GET, path, Accept::Text, Bytes::new())?)
    }

    pub(crate) fn get_json<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        parsed(&succeeded(self.ask(Method::GET, path, Accept::Json, Bytes::new())?)?)
    }

    /// An agent answers 404 if nothing would answer the request; that is an explanation, too.
    pub(crate) fn explain(&self, question: &Question) -> Result<Explanation> {
        let question = serde_json::to_vec(question)?.into();
        let (status, text) = self.ask(Method::POST, "/explain", Accept::Json, question)?;
        parsed(&if status == StatusCode::NOT_FOUND { text } else { succeeded((status, text))? })
    }

    /// The status and text of any answer.
    pub(crate) fn ask_for(&self, path: &str) -> Result<(StatusCode, String)> {
        self.ask(Method::GET, path, Accept::Text, Bytes::new())
    }

    /// Runs what asks the agent again and again.
    pub(crate) fn run<F: Future>(&self, task: impl FnOnce(Arc<Way>) -> F) -> F::Output {
        self.runtime.block_on(task(self.way.clone()))
    }

    fn ask(&self, method: Method, path: &str, accept: Accept, body: Bytes) -> Result<(StatusCode, String)> {
        let answer = self.runtime.block_on(self.way.ask(method, path, accept, body))?;
        Ok((answer.status(), String::from_utf8_lossy(answer.body()).into_owned()))
    }
}

// === impl Way ===

impl Way {
    pub(crate) async fn get(&self, path: &str) -> Result<Response<Bytes>> {
        self.ask(Method::GET, path, Accept::Text, Bytes::new()).await
    }

    async fn ask(&self, method: Method, path: &str, accept: Accept, body: Bytes) -> Result<Response<Bytes>> {
        match self {
            Self::Socket(socket) => {
                let stream = connect(socket).await?;
                exchange(Box::new(stream), method, path, accept, body).await
            }
            Self::Cluster(agent) => {
                let Forwarded { stream, mut failure } = agent.connect().await?;
                let answer = tokio::select! {
                    answer = exchange(Box::new(stream), method, path, accept, body) => answer,
                    Some(problem) = &mut failure => bail!("{}: {problem}", nothing_answers(agent)),
                };
                match answer {
                    Ok(answer) => Ok(answer),
                    Err(error) => {
                        // A connection that breaks may be known of before its cause.
                        let cause = match timeout(CAUSE, failure).await {
                            Ok(Some(problem)) => anyhow!(problem),
                            Ok(None) | Err(_) => error,
                        };
                        Err(cause).with_context(|| nothing_answers(agent))
                    }
                }
            }
        }
    }
}

fn nothing_answers(agent: &RemoteAgent) -> String {
    let RemoteAgent { namespace, pod, port, .. } = agent;
    format!("nothing answers on port {port} of pod {namespace}/{pod}: is it the agents' --admin-port?")
}

async fn connect(socket: &Path) -> Result<UnixStream> {
    UnixStream::connect(socket).await.with_context(|| {
        format!("no agent answers on {}: is it running, and is this its --admin-socket?", socket.display())
    })
}

fn succeeded((status, text): (StatusCode, String)) -> Result<String> {
    if !status.is_success() {
        bail!("the agent answers {status}: {}", text.trim_end());
    }
    Ok(text)
}

fn parsed<T: DeserializeOwned>(text: &str) -> Result<T> {
    serde_json::from_str(text).with_context(|| {
        let version = env!("CARGO_PKG_VERSION");
        format!("the agent's answer is not that of version {version}: ask with the agent's own program")
    })
}

/// An answer that waits for requests takes as long as is asked for.
fn answer_time(path: &str) -> Duration {
    let name = path.strip_prefix(api::PREFIX).and_then(|path| path.split('?').next());
    let waits = if name == Some(watch::NAME) { LONGEST_TIME } else { 0 };
    ANSWER_TIME + Duration::from_secs(waits)
}

async fn exchange(
    stream: Box<dyn Stream>,
    method: Method,
    path: &str,
    accept: Accept,
    body: Bytes,
) -> Result<Response<Bytes>> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // It ends with this, so that an agent notices that its answer is not waited for any more.
    let mut connections = JoinSet::new();
    connections.spawn(connection);
    let mut request = Request::builder().method(method).uri(path).header(HOST, "localhost");
    if let Accept::Json = accept {
        request = request.header(ACCEPT, "application/json");
    }
    let asked = async {
        let response = sender.send_request(request.body(Full::new(body))?).await?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, LARGEST_ANSWER).collect().await;
        let body = body.map_err(|error| anyhow!("the answer breaks off: {error}"))?.to_bytes();
        Ok(Response::from_parts(head, body))
    };
    let time = answer_time(path);
    timeout(time, asked).await.unwrap_or_else(|_| bail!("there is no answer within {time:?}"))
}
