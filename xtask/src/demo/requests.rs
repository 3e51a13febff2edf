//! Requests of the demo, and the answers that must come back. All are made by curl, so that readers
//! can repeat them.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use portcullis_testbed::quickstart::VIP;

pub(super) struct Request {
    /// Feature that it is an example of.
    pub(super) shows: &'static str,
    url: &'static str,
    http2: bool,
    expect: Expect,
}

enum Expect {
    /// This status, and this somewhere in head or body.
    Answer(&'static str, &'static str),
    /// No connection: TLS is refused.
    Refused,
}

pub(super) struct Answer {
    pub(super) command: String,
    /// Head and body, or curl's complaint.
    pub(super) text: String,
    code: Option<i32>,
}

pub(super) const REQUESTS: &[Request] = &[
    Request {
        shows: "plain HTTP is redirected by the platform team's route",
        url: "http://shop.example.com/cart",
        http2: false,
        expect: Expect::Answer("301", "https://shop.example.com/cart"),
    },
    Request {
        shows: "the shop's listener, certificate and backend, found by SNI",
        url: "https://shop.example.com/cart",
        http2: false,
        expect: Expect::Answer("200", "shop: GET /cart for shop.example.com"),
    },
    Request {
        shows: "the blog on the same address and port, over HTTP/2",
        url: "https://blog.example.com/posts/1",
        http2: true,
        expect: Expect::Answer("200", "blog: GET /posts/1 for blog.example.com"),
    },
    Request {
        shows: "a rewritten path and a backend of another namespace, which granted it",
        url: "https://shop.example.com/news/today",
        http2: true,
        expect: Expect::Answer("200", "blog: GET /posts/shop/today"),
    },
    Request {
        shows: "no rule takes this path",
        url: "https://blog.example.com/admin",
        http2: false,
        expect: Expect::Answer("404", ""),
    },
    Request {
        shows: "a name of no tenant gets no tenant's certificate",
        url: "https://other.example.com/",
        http2: false,
        expect: Expect::Refused,
    },
];

impl Request {
    pub(super) fn make(&self, authority: &Path) -> Result<Answer> {
        let arguments = self.arguments(authority);
        let output = Command::new("curl").args(&arguments).output().context("cannot run curl")?;
        let text = [output.stdout, output.stderr].concat();
        Ok(Answer {
            command: format!("curl {}", arguments.join(" ")),
            text: String::from_utf8_lossy(&text).into_owned(),
            code: output.status.code(),
        })
    }

    fn arguments(&self, authority: &Path) -> Vec<String> {
        let (scheme, rest) = self.url.split_once("://").unwrap_or_default();
        let host = rest.split('/').next().unwrap_or_default();
        let port = if scheme == "https" { 443 } else { 80 };
        let version = if self.http2 { "--http2" } else { "--http1.1" };
        let mut arguments: Vec<_> = ["-sS", "-i", "-m", "10", version].map(str::to_owned).into();
        if port == 443 {
            arguments.extend(["--cacert".to_owned(), authority.display().to_string()]);
        }
        arguments.extend(["--resolve".to_owned(), format!("{host}:{port}:{VIP}"), self.url.to_owned()]);
        arguments
    }

    /// Difference between an answer and the expected one, if any.
    pub(super) fn problem(&self, answer: &Answer) -> Option<String> {
        match self.expect {
            // curl's code for a handshake that the server ended.
            Expect::Refused if answer.code == Some(35) => None,
            Expect::Refused => Some("the handshake should have been refused".to_owned()),
            Expect::Answer(status, part) => {
                let is_status = answer.text.split_whitespace().nth(1) == Some(status);
                let is_right = is_status && answer.text.contains(part);
                (!is_right).then(|| format!("this should be {status} and hold {part:?}"))
            }
        }
    }
}
