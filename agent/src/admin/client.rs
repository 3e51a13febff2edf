//! Asks a running agent over its admin socket.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::header::{ACCEPT, HOST};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use portcullis_inspect::{Explanation, Question};
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use tokio::runtime::Runtime;

/// An agent that is asked.
pub(crate) struct Agent {
    runtime: Runtime,
    socket: PathBuf,
}

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
        Ok(Self { runtime, socket })
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

    fn ask(&self, method: Method, path: &str, accept: Accept, body: Bytes) -> Result<(StatusCode, String)> {
        self.runtime.block_on(exchange(&self.socket, method, path, accept, body))
    }
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

async fn exchange(
    socket: &Path,
    method: Method,
    path: &str,
    accept: Accept,
    body: Bytes,
) -> Result<(StatusCode, String)> {
    let stream = UnixStream::connect(socket).await.with_context(|| {
        format!("no agent answers on {}: is it running, and is this its --admin-socket?", socket.display())
    })?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let mut request = Request::builder().method(method).uri(path).header(HOST, "localhost");
    if let Accept::Json = accept {
        request = request.header(ACCEPT, "application/json");
    }
    let response = sender.send_request(request.body(Full::new(body))?).await?;
    let status = response.status();
    let text = String::from_utf8_lossy(&response.into_body().collect().await?.to_bytes()).into_owned();
    connection.abort();
    Ok((status, text))
}
