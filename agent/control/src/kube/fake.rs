//! An API server of a few lines, for tests of what a real one does not do when it is asked to:
//! tests answer, when and what they like.

use std::path::PathBuf;
use std::time::Duration;

use kube::Client;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};

const DEADLINE: Duration = Duration::from_secs(10);

pub(crate) struct ApiServer {
    url: String,
    asked: mpsc::UnboundedReceiver<Asked>,
    dir: TempDir,
}

/// A request that waits for its answer; without one, the connection breaks.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) method: String,
    pub(crate) path: String,
    /// `null` without one.
    pub(crate) body: Value,
    to: oneshot::Sender<(u16, Value)>,
}

impl ApiServer {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (to, asked) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, to.clone()));
            }
        });
        Self { url, asked, dir: tempfile::tempdir().unwrap() }
    }

    /// As an agent reaches it.
    pub(crate) async fn client(&self) -> Client {
        super::connect(Some(&self.kubeconfig())).await.unwrap()
    }

    fn kubeconfig(&self) -> PathBuf {
        let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": self.url}}],
            "users": [{"name": "c", "user": {}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}]});
        let path = self.dir.path().join("kubeconfig");
        std::fs::write(&path, config.to_string()).unwrap();
        path
    }

    /// The next request.
    pub(crate) async fn asked(&mut self) -> Asked {
        tokio::time::timeout(DEADLINE, self.asked.recv()).await.expect("no request comes").unwrap()
    }
}

impl Asked {
    pub(crate) fn answer(self, code: u16, body: Value) {
        // The client may be gone.
        let _ = self.to.send((code, body));
    }

    /// There is no such object.
    pub(crate) fn answer_not_found(self) {
        let details = json!({"name": "x"});
        self.answer(404, json!({"kind": "Status", "code": 404, "reason": "NotFound", "details": details}));
    }

    /// Waits until the client does not wait for the answer any more.
    pub(crate) async fn given_up(mut self) {
        tokio::time::timeout(DEADLINE, self.to.closed()).await.expect("the client waits for ever");
    }
}

/// Until the connection ends.
async fn serve(stream: TcpStream, to: mpsc::UnboundedSender<Asked>) -> Option<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let (method, path, body) = request(&mut stream).await?;
        let (answer, answered) = oneshot::channel();
        to.send(Asked { method, path, body, to: answer }).ok()?;
        let (code, body) = tokio::select! {
            answer = answered => answer.ok()?,
            // A client does not ask again before there is an answer.
            _ = stream.fill_buf() => return None,
        };
        let (body, kind) = (body.to_string(), "application/json");
        let length = body.len();
        let response =
            format!("HTTP/1.1 {code} -\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n{body}");
        stream.write_all(response.as_bytes()).await.ok()?;
    }
}

/// Reads a request and returns its method, path and body.
async fn request(stream: &mut BufReader<TcpStream>) -> Option<(String, String, Value)> {
    let first = line(stream).await?;
    let mut length = 0;
    loop {
        let line = line(stream).await?.to_lowercase();
        if line.is_empty() {
            let mut body = vec![0; length];
            stream.read_exact(&mut body).await.ok()?;
            let mut words = first.split(' ').map(str::to_owned);
            return Some((words.next()?, words.next()?, serde_json::from_slice(&body).unwrap_or_default()));
        }
        if let Some(bytes) = line.strip_prefix("content-length: ") {
            length = bytes.parse().ok()?;
        }
    }
}

async fn line(stream: &mut BufReader<TcpStream>) -> Option<String> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok().filter(|read| *read > 0)?;
    Some(line.trim_end().to_owned())
}
