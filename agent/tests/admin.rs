//! The admin endpoints of a running agent on their port: what is answered to whom, and what a
//! client cannot hold.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say so and stop")]

#[expect(dead_code, reason = "for the agent's traffic")]
mod support;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

use support::{Agent, GATEWAY};

struct Admin {
    port: u16,
    agent: Agent,
}

impl Admin {
    fn start() -> Self {
        let options = ["--admin-port", "0", "--admin-host", "agent.example"];
        let agent = Agent::start_with(&options, &[("gateway.yaml", GATEWAY)]);
        let port = agent.logged("admin endpoints on http://127.0.0.1:").parse().unwrap();
        Self { port, agent }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    /// The whole answer to a request without body.
    fn ask(&self, method: &str, path: &str, fields: &str) -> String {
        let mut stream = self.connect();
        write!(stream, "{method} {path} HTTP/1.1\r\nConnection: close\r\n{fields}\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

#[test]
fn only_the_agents_own_names_are_answered() {
    let admin = Admin::start();
    for (host, status) in [
        ("127.0.0.1", 200),
        ("localhost:1", 200),
        ("[::1]:9270", 200),
        ("agent.example", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
    ] {
        let answer = admin.ask("GET", "/config", &format!("Host: {host}\r\n"));
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{host}: {answer}");
        assert_eq!(answer.contains("infra/web"), status == 200, "{host}: {answer}");
        assert!(status == 200 || answer.contains("--admin-host"), "{answer}");
    }
}

#[test]
fn a_scrape_gets_the_format_it_asks_for() {
    let admin = Admin::start();
    let ask = |accept: &str| admin.ask("GET", "/metrics", &format!("Host: localhost\r\n{accept}"));
    let open = ask("Accept: application/openmetrics-text; version=1.0.0, text/plain; q=0.5\r\n");
    assert!(open.contains("content-type: application/openmetrics-text; version=1.0.0"), "{open}");
    assert!(
        open.contains("# TYPE network_server_connections counter\n") && open.ends_with("# EOF\n"),
        "{open}"
    );
    let text = ask("");
    assert!(text.contains("content-type: text/plain; version=0.0.4"), "{text}");
    assert!(text.contains("# TYPE network_server_connections_total counter\n"), "{text}");
    assert!(!text.contains("# EOF"), "{text}");
}

#[test]
fn methods_are_those_of_the_endpoint() {
    let admin = Admin::start();
    for (method, path, status, field) in [
        ("HEAD", "/livez", 200, "content-length: 3"),
        ("HEAD", "/metrics", 200, "content-type: text/plain; version=0.0.4"),
        ("POST", "/metrics", 405, "allow: GET, HEAD"),
        ("GET", "/explain", 405, "allow: POST"),
        ("GET", "/none", 404, "content-type"),
    ] {
        let answer = admin.ask(method, path, "Host: localhost\r\n");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{method} {path}: {answer}");
        assert!(answer.contains(field), "{method} {path}: {answer}");
        assert!(method != "HEAD" || answer.ends_with("\r\n\r\n"), "{answer}");
    }
}

#[test]
fn a_question_that_does_not_end_is_not_waited_for() {
    let admin = Admin::start();
    let mut stream = admin.connect();
    write!(stream, "POST /explain HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{{").unwrap();
    let (begun, mut answer) = (Instant::now(), String::new());
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
}

#[test]
fn held_connections_keep_no_probe_out() {
    let admin = Admin::start();
    let held: Vec<_> = (0..500).map(|_| admin.connect()).collect();
    for path in ["/livez", "/readyz", "/metrics"] {
        let answer = admin.ask("GET", path, "Host: localhost\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{path}: {answer}");
    }
    let mut oldest = &held[0];
    assert_eq!(oldest.read(&mut [0]).unwrap_or(0), 0, "it gave its place away");
}

/// The agent finds the probe and more connections than it holds at once.
#[test]
fn a_probe_is_answered_whoever_comes_after_it() {
    let admin = Admin::start();
    admin.agent.signal("STOP");
    let mut probe = admin.connect();
    write!(probe, "GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    // No more than the kernel keeps for a listener.
    let _later: Vec<_> = (0..100).map(|_| admin.connect()).collect();
    admin.agent.signal("CONT");
    let mut answer = String::new();
    let read = probe.read_to_string(&mut answer);
    assert!(answer.starts_with("HTTP/1.1 200 "), "{read:?} {answer}");
}

#[test]
fn an_answer_under_way_is_not_broken_off_for_connections_that_ask_nothing() {
    let admin = Admin::start();
    let mut asking = admin.connect();
    write!(asking, "POST /explain HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{{").unwrap();
    // Once it is answered the agent waits for the rest of the question.
    assert!(admin.ask("GET", "/livez", "Host: localhost\r\n").starts_with("HTTP/1.1 200 "));
    let later: Vec<_> = (0..200).map(|_| admin.connect()).collect();
    let mut oldest = &later[0];
    assert_eq!(oldest.read(&mut [0]).unwrap_or(0), 0, "it gave its place away");
    write!(asking, "}}").unwrap();
    let mut answer = [0; 12];
    asking.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 400");
}
