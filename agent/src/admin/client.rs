//! Asks a running agent over its admin socket.

use std::path::Path;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use portcullis_inspect::{Explanation, Outcome};
use tokio::net::UnixStream;

pub(crate) fn get(socket: &Path, path: &str) -> Result<String> {
    succeeded(ask(socket, Method::GET, path, Bytes::new())?)
}

/// An agent answers 404 if nothing would answer the request; that is an explanation, too.
pub(crate) fn explain(socket: &Path, question: String) -> Result<Explanation> {
    let (status, text) = ask(socket, Method::POST, "/explain", question.into())?;
    if status == StatusCode::NOT_FOUND {
        return Ok(Explanation { text, outcome: Outcome::Unanswered });
    }
    let text = succeeded((status, text))?;
    Ok(Explanation { text, outcome: Outcome::Answered })
}

fn ask(socket: &Path, method: Method, path: &str, body: Bytes) -> Result<(StatusCode, String)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(exchange(socket, method, path, body))
}

fn succeeded((status, text): (StatusCode, String)) -> Result<String> {
    if !status.is_success() {
        bail!("the agent answers {status}: {}", text.trim_end());
    }
    Ok(text)
}

async fn exchange(socket: &Path, method: Method, path: &str, body: Bytes) -> Result<(StatusCode, String)> {
    let stream = UnixStream::connect(socket).await.with_context(|| {
        format!("no agent answers on {}: is it running, and is this its --admin-socket?", socket.display())
    })?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let request = Request::builder().method(method).uri(path).header("host", "portcullis");
    let response = sender.send_request(request.body(Full::new(body))?).await?;
    let status = response.status();
    let text = String::from_utf8_lossy(&response.into_body().collect().await?.to_bytes()).into_owned();
    connection.abort();
    Ok((status, text))
}
