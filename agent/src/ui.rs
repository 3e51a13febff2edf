//! `portcullis ui`: the agent's page through a port of loopback that is there as long as the
//! command runs. Only a browser that was told the address has the token in it, and only the page
//! and the reading API are passed on.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fs::OpenOptions;
use std::io::{self, IsTerminal, Write};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use bytes::Bytes;
use http::header::{ALLOW, CONTENT_SECURITY_POLICY, CONTENT_TYPE, COOKIE, HOST, HeaderValue, SET_COOKIE};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::admin::browsers::{guard, is_of_another_site};
use crate::admin::client::{Agent, Way};
use crate::cli::UiArgs;
use crate::output;

/// Connections of browsers at a time; with one more, the oldest ends.
const MAX_CONNECTIONS: usize = 64;
/// Time for a head to come.
const REQUEST_TIME: Duration = Duration::from_secs(10);
/// Time for all that is asked on one connection.
const CONNECTION_TIME: Duration = Duration::from_secs(600);
const PAUSE_AFTER_ACCEPT_ERROR: Duration = Duration::from_millis(100);
/// The page on the agent.
const PAGE: &str = "/ui";

/// Tells the browser that was told the address from all others.
struct Doorkeeper {
    address: SocketAddrV4,
    token: String,
    /// Is good once.
    once: Mutex<Option<Once>>,
}

/// The way of a browser that is opened here. Other users of the machine may read its command line,
/// on which there is the name of a file that they cannot.
struct Once {
    token: String,
    file: PathBuf,
}

/// The fate of a browser's request.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// To this path of the agent.
    Forward(String),
    /// It has the token, and gets a cookie for it.
    Welcome,
    Refuse(StatusCode, &'static str),
}

pub(crate) fn run(args: &UiArgs, agent: &Agent) -> Result<ExitCode> {
    agent.run(async |way: Arc<Way>| {
        // An agent that does not answer is told of here, not in a browser.
        let overview = way.get("/api/v1/overview").await?;
        if !overview.status().is_success() {
            anyhow::bail!("the agent has no page: it is older than this program");
        }
        let address = own_address(args.port)?;
        let listener = TcpListener::bind((address, args.port)).await;
        let listener = listener.with_context(|| {
            format!("cannot listen on {address}:{}: choose another --port, or none", args.port)
        })?;
        let address = SocketAddrV4::new(address, listener.local_addr()?.port());
        let doorkeeper = Arc::new(Doorkeeper { address, token: random()?, once: Mutex::new(None) });
        output::text(&format!("{}\n", doorkeeper.url(&doorkeeper.token)));
        output::finish()?;
        if !args.no_open && io::stdout().is_terminal() && has_desktop() {
            open(&doorkeeper)?;
        }
        output::error("the page is there as long as this runs; Ctrl-C ends it");
        tokio::select! {
            _ = tokio::signal::ctrl_c() => Ok(ExitCode::SUCCESS),
            ended = serve(&listener, &way, &doorkeeper) => ended,
        }
    })
}

/// An address of loopback that other servers do not have: a browser sends a cookie to all ports of
/// its host. A port that is asked for may be the end of a tunnel, of which the other one is at
/// 127.0.0.1.
fn own_address(port: u16) -> Result<Ipv4Addr> {
    if port != 0 {
        return Ok(Ipv4Addr::LOCALHOST);
    }
    let [second, third, last] = random_bytes()?;
    Ok(Ipv4Addr::new(127, 64 | (second & 127), third, 1 + last % 254))
}

/// Without one, the address is printed and that is all.
fn has_desktop() -> bool {
    ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|name| std::env::var_os(name).is_some())
}

fn open(doorkeeper: &Doorkeeper) -> Result<()> {
    let token = random()?;
    let directory = std::env::var_os("XDG_RUNTIME_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let file = directory.join(format!("portcullis-ui-{}.html", random()?));
    write_way(&file, &doorkeeper.url(&token))
        .with_context(|| format!("cannot write {}: open the address above instead", file.display()))?;
    let mut command = Command::new("xdg-open");
    command.arg(&file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    *doorkeeper.once.lock().unwrap_or_else(PoisonError::into_inner) = Some(Once { token, file });
    let _ = command.spawn();
    Ok(())
}

/// A page for this user alone that leads to another one.
fn write_way(file: &Path, url: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)?;
    file.write_all(leading_to(url).as_bytes())
}

/// With it, the browser asks on its own account, and not on that of the page before.
fn leading_to(url: &str) -> String {
    format!(
        "<!doctype html><meta charset=utf-8><title>Portcullis</title><link rel=icon href=\"data:,\">\
         <meta http-equiv=refresh content=\"0; url={url}\"><a href=\"{url}\">Portcullis</a>\n"
    )
}

/// 256 bits, as hexadecimal digits.
fn random() -> Result<String> {
    Ok(random_bytes::<32>()?.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn random_bytes<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    aws_lc_rs::rand::fill(&mut bytes).ok().context("the machine gives no random numbers")?;
    Ok(bytes)
}

async fn serve(listener: &TcpListener, way: &Arc<Way>, doorkeeper: &Arc<Doorkeeper>) -> Result<ExitCode> {
    let mut open = VecDeque::<AbortHandle>::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                open.retain(|connection| !connection.is_finished());
                if open.len() == MAX_CONNECTIONS
                    && let Some(oldest) = open.pop_front()
                {
                    oldest.abort();
                }
                let (way, doorkeeper) = (way.clone(), doorkeeper.clone());
                let serving = async move { connection(stream, &way, &doorkeeper).await };
                open.push_back(tokio::spawn(serving).abort_handle());
            }
            Err(_) => tokio::time::sleep(PAUSE_AFTER_ACCEPT_ERROR).await,
        }
    }
}

async fn connection(stream: TcpStream, way: &Way, doorkeeper: &Doorkeeper) {
    let answer = service_fn(async |request: Request<Incoming>| {
        let (head, _) = request.into_parts();
        let mut answer = match doorkeeper.judge(&head) {
            Verdict::Forward(path) => forward(way, &path).await,
            Verdict::Welcome => doorkeeper.welcome(),
            Verdict::Refuse(status, why) => refusal(status, why),
        };
        guard(answer.headers_mut());
        Ok::<_, Infallible>(answer.map(Full::new))
    });
    let mut server = hyper::server::conn::http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(REQUEST_TIME);
    // A browser that went away, or does not end.
    let _ = timeout(CONNECTION_TIME, server.serve_connection(TokioIo::new(stream), answer)).await;
}

/// The agent's answer, with those fields of it that are about what it is.
async fn forward(way: &Way, path: &str) -> Response<Bytes> {
    match way.get(path).await {
        Ok(answer) => {
            let (head, body) = answer.into_parts();
            let mut answer = Response::new(body);
            *answer.status_mut() = head.status;
            for name in [CONTENT_TYPE, CONTENT_SECURITY_POLICY] {
                if let Some(value) = head.headers.get(&name) {
                    answer.headers_mut().insert(name, value.clone());
                }
            }
            answer
        }
        Err(error) => {
            let mut answer =
                Response::new(Bytes::from(serde_json::json!({ "error": format!("{error:#}") }).to_string()));
            *answer.status_mut() = StatusCode::BAD_GATEWAY;
            answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            answer
        }
    }
}

fn refusal(status: StatusCode, why: &'static str) -> Response<Bytes> {
    let mut answer = Response::new(Bytes::from_static(why.as_bytes()));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    answer
}

fn is_same(one: &str, other: &str) -> bool {
    verify_slices_are_equal(one.as_bytes(), other.as_bytes()).is_ok()
}

// === impl Doorkeeper ===

impl Doorkeeper {
    /// The address at which a browser shows a token.
    fn url(&self, token: &str) -> String {
        format!("http://{}/?token={token}", self.address)
    }

    /// Cookies are for a host with all of its ports: the name is this one's.
    fn cookie(&self) -> String {
        format!("portcullis-ui-{}", self.address.port())
    }

    /// A redirect would be part of what led here, be it another site, and would be followed without
    /// the cookie.
    fn welcome(&self) -> Response<Bytes> {
        let mut answer = Response::new(Bytes::from(leading_to("/")));
        answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
        let cookie = format!("{}={}; Path=/; HttpOnly; SameSite=Strict", self.cookie(), self.token);
        if let Ok(cookie) = HeaderValue::from_str(&cookie) {
            answer.headers_mut().insert(SET_COOKIE, cookie);
        }
        answer
    }

    fn judge(&self, head: &Parts) -> Verdict {
        let refuse = Verdict::Refuse;
        let localhost = format!("localhost:{}", self.address.port());
        let localhost = self.address.ip().eq(&Ipv4Addr::LOCALHOST).then_some(localhost);
        let names = [Some(self.address.to_string()), localhost];
        let mut hosts = head.headers.get_all(HOST).iter();
        let is_ours =
            |host: &HeaderValue| names.iter().flatten().any(|name| name.as_bytes() == host.as_bytes());
        if !hosts.next().is_some_and(is_ours) || hosts.next().is_some() || head.uri.authority().is_some() {
            return refuse(StatusCode::MISDIRECTED_REQUEST, "this is no host of the page's\n");
        }
        if !matches!(head.method, Method::GET | Method::HEAD) {
            return refuse(StatusCode::METHOD_NOT_ALLOWED, "the page changes nothing\n");
        }
        let path = head.uri.path();
        let token = head.uri.query().and_then(|query| query.strip_prefix("token="));
        if let Some(token) = token.filter(|_| path == "/") {
            return match self.is_known(token) {
                true => Verdict::Welcome,
                false => {
                    refuse(StatusCode::FORBIDDEN, "this token is none: open the address that was printed\n")
                }
            };
        }
        if !self.has_cookie(head) {
            let why = "no token: open the address that `portcullis ui` printed\n";
            return refuse(StatusCode::FORBIDDEN, why);
        }
        if path.starts_with("/api/v1/") {
            if is_of_another_site(&head.headers) {
                return refuse(StatusCode::FORBIDDEN, "pages of other sites are not answered\n");
            }
            let target = head.uri.path_and_query().map_or(path, |target| target.as_str());
            return Verdict::Forward(target.to_owned());
        }
        match path {
            "/" | PAGE => Verdict::Forward(PAGE.to_owned()),
            _ => refuse(StatusCode::NOT_FOUND, "there is nothing but the page here\n"),
        }
    }

    fn is_known(&self, token: &str) -> bool {
        if is_same(token, &self.token) {
            return true;
        }
        let mut once = self.once.lock().unwrap_or_else(PoisonError::into_inner);
        once.take_if(|once| is_same(&once.token, token)).is_some()
    }

    fn has_cookie(&self, head: &Parts) -> bool {
        let name = self.cookie();
        let fields = head.headers.get_all(COOKIE).iter().filter_map(|field| field.to_str().ok());
        let mut cookies = fields.flat_map(|field| field.split(';')).map(str::trim);
        cookies.any(|cookie| {
            cookie.split_once('=').is_some_and(|(its, token)| its == name && is_same(token, &self.token))
        })
    }
}

// === impl Once ===

impl Drop for Once {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.file);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn doorkeeper() -> Doorkeeper {
        let once = Once { token: "first".to_owned(), file: PathBuf::from("/nonexistent") };
        let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 4711);
        Doorkeeper { address, token: "secret".to_owned(), once: Mutex::new(Some(once)) }
    }

    fn head(method: &str, target: &str, fields: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder().method(method).uri(target);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn only_a_browser_that_was_told_the_address_sees_the_page() {
        const HOST: (&str, &str) = ("host", "127.0.0.1:4711");
        const TOKEN: (&str, &str) = ("cookie", "a=b; portcullis-ui-4711=secret");
        let doorkeeper = doorkeeper();
        let status = |method: &str, target: &str, fields: &[(&str, &str)]| match doorkeeper
            .judge(&head(method, target, fields))
        {
            Verdict::Forward(path) => path,
            Verdict::Welcome => "welcome".to_owned(),
            Verdict::Refuse(status, _) => status.as_str().to_owned(),
        };
        for (method, target, fields, expected) in [
            ("GET", "/?token=secret", &[HOST][..], "welcome"),
            ("GET", "/?token=first", &[HOST], "welcome"),
            ("GET", "/?token=first", &[HOST], "403"),
            ("GET", "/?token=secre", &[HOST], "403"),
            ("GET", "/?token=", &[HOST], "403"),
            ("GET", "/api/v1/overview?token=secret", &[HOST], "403"),
            ("GET", "/", &[HOST], "403"),
            ("GET", "/", &[HOST, TOKEN], "/ui"),
            ("GET", "/", &[("host", "localhost:4711"), TOKEN], "/ui"),
            ("GET", "/", &[("host", "localhost"), TOKEN], "421"),
            ("GET", "/", &[("host", "evil.example:4711"), TOKEN], "421"),
            ("GET", "/", &[HOST, ("host", "evil.example"), TOKEN], "421"),
            ("GET", "http://evil.example/", &[HOST, TOKEN], "421"),
            ("GET", "/", &[TOKEN], "421"),
            ("GET", "/", &[HOST, ("cookie", "portcullis-ui-4712=secret")], "403"),
            ("GET", "/api/v1/routes?q=a%20b", &[HOST, TOKEN], "/api/v1/routes?q=a%20b"),
            ("GET", "/api/v1/routes", &[HOST, TOKEN, ("sec-fetch-site", "same-site")], "403"),
            ("GET", "/api/v1/routes", &[HOST, TOKEN, ("sec-fetch-site", "same-origin")], "/api/v1/routes"),
            ("POST", "/api/v1/routes", &[HOST, TOKEN], "405"),
            ("GET", "/config", &[HOST, TOKEN], "404"),
            ("GET", "/explain", &[HOST, TOKEN], "404"),
        ] {
            assert_eq!(status(method, target, fields), expected, "{method} {target} {fields:?}");
        }
    }

    #[test]
    fn the_cookie_is_for_no_script_and_no_other_site() {
        let welcome = doorkeeper().welcome();
        let cookie = welcome.headers()[SET_COOKIE].to_str().unwrap();
        assert_eq!(cookie, "portcullis-ui-4711=secret; Path=/; HttpOnly; SameSite=Strict");
        let page = std::str::from_utf8(welcome.body()).unwrap();
        assert!(page.contains("content=\"0; url=/\""), "the token leaves the address: {page}");
        assert_eq!(random().unwrap().len(), 64);
    }

    #[test]
    fn an_address_of_its_own_has_a_host_of_its_own() {
        assert_eq!(own_address(9000).unwrap(), Ipv4Addr::LOCALHOST);
        for _ in 0..1000 {
            let address = own_address(0).unwrap();
            assert!(address.is_loopback() && address.octets()[1] >= 64, "{address}");
            assert!(![0, 255].contains(&address.octets()[3]), "{address}");
        }
        let elsewhere = SocketAddrV4::new(Ipv4Addr::new(127, 70, 1, 2), 4711);
        let doorkeeper = Doorkeeper { address: elsewhere, ..doorkeeper() };
        for (host, expected) in
            [("127.70.1.2:4711", true), ("127.0.0.1:4711", false), ("localhost:4711", false)]
        {
            let verdict = doorkeeper.judge(&head("GET", "/?token=secret", &[("host", host)]));
            assert_eq!(verdict == Verdict::Welcome, expected, "{host}: {verdict:?}");
        }
    }

    #[test]
    fn the_way_of_a_browser_is_in_a_file_of_its_user_until_it_has_gone_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("way.html");
        write_way(&file, "http://127.70.1.2:4711/?token=first").unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert!(
            std::fs::read_to_string(&file).unwrap().contains("url=http://127.70.1.2:4711/?token=first\"")
        );
        assert!(write_way(&file, "x").is_err(), "it is made anew, or not at all");
        let once = Once { token: "first".to_owned(), file: file.clone() };
        let doorkeeper = Doorkeeper { once: Mutex::new(Some(once)), ..doorkeeper() };
        assert!(!doorkeeper.is_known("second") && file.exists());
        assert!(doorkeeper.is_known("first") && !file.exists());
        assert!(!doorkeeper.is_known("first"));
    }
}
