//! Asks a running agent over its admin socket.

use std::path::Path;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;

pub(crate) fn get(socket: &Path, path: &str) -> Result<String> {
    ask(socket, Method::GET, path, Bytes::new())
}

pub(crate) fn post(socket: &Path, path: &str, body: String) -> Result<String> {
    ask(socket, Method::POST, path, body.into())
}

fn ask(socket: &Path, method: Method, path: &str, body: Bytes) -> Result<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(exchange(socket, method, path, body))
}

async fn exchange(socket: &Path, method: Method, path: &str, body: Bytes) -> Result<String> {
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
    if !status.is_success() {
        bail!("the agent answers {status}: {}", text.trim_end());
    }
    Ok(text)
}
