//! The access log: whose requests have lines, which, and what these say.

use std::fs::File;
use std::io::{PipeReader, Read};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use portcullis_model::{AccessLog, BackendProtocol, Gateway, LogField, LogFormat, ObjectName};
use portcullis_proxy::{LogOutput, Settings};
use serde_json::Value;

use crate::support::origin::Origin;
use crate::support::rules::rule;
use crate::support::settings::settings;
use crate::support::via::{Client, Via};
use crate::support::world::World;

fn all() -> AccessLog {
    AccessLog::default()
}

/// Gateway `logged` on the plain port, Gateway `quiet` on the TLS port, both echoing; and the end
/// of a pipe into which the log goes.
async fn world(log: AccessLog) -> (World, Origin, PipeReader) {
    world_behind(0, log).await
}

/// The same behind so many proxies.
async fn world_behind(trusted_hops: usize, log: AccessLog) -> (World, Origin, PipeReader) {
    let (reader, writer) = std::io::pipe().unwrap();
    let access_log = LogOutput::File(Arc::new(File::from(OwnedFd::from(writer))));
    let drain = Duration::from_millis(500);
    let mut world = World::with(Settings { access_log, drain, trusted_hops, ..settings() });
    let origin = Origin::http1().await;
    world.backend("echo", BackendProtocol::Http1, &[origin.address]);
    world.http("*", vec![rule()]);
    world.https("*", vec![rule()]);
    let [plain, tls] = ["logged", "quiet"].map(|name| Gateway::new(ObjectName::new("test", name)));
    world.gateways = [Gateway { access_log: Some(log), ..plain }, tls];
    world.apply().await;
    (world, origin, reader)
}

/// All lines, once the data plane has ended.
async fn lines(world: World, mut reader: PipeReader) -> Vec<String> {
    world.proxy.drain().await;
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    text.lines().map(str::to_owned).collect()
}

fn parsed(lines: &[String]) -> Vec<Value> {
    lines.iter().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect()
}

#[tokio::test]
async fn one_gateways_requests_have_lines_and_anothers_have_none() {
    let (world, origin, reader) = world(all()).await;
    let request = "GET /a/b?c=d\nhost: a.test:80\nuser-agent: probe/1\nreferer: http://b.test/";
    assert_eq!(world.send(Via::Http1, request).await.status, 200);
    assert_eq!(world.send(Via::H2c, request).await.status, 200);
    assert_eq!(world.send(Via::Http1Tls, request).await.status, 200);
    assert_eq!(world.send(Via::Http2Tls, request).await.status, 200);
    let lines = parsed(&lines(world, reader).await);
    assert_eq!(lines.len(), 2, "{lines:?}");
    for (line, protocol) in lines.iter().zip(["HTTP/1.1", "HTTP/2.0"]) {
        let endpoint = origin.address.to_string();
        for (field, value) in [
            ("gateway", "test/logged"),
            ("listener", "Gateway test/gateway listener *"),
            ("scheme", "http"),
            ("protocol", protocol),
            ("method", "GET"),
            ("host", "a.test:80"),
            ("target", "/a/b?c=d"),
            ("referer", "http://b.test/"),
            ("user_agent", "probe/1"),
            ("rule", "HTTPRoute test/route rule 0"),
            ("backend", "test/echo:80"),
            ("endpoint", &endpoint),
        ] {
            assert_eq!(line[field], value, "{field} in {line}");
        }
        assert_eq!((&line["status"], &line["complete"]), (&Value::from(200), &Value::from(true)), "{line}");
        assert!(line["client"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
        assert!(line["time"].as_str().unwrap().ends_with('Z') && line.get("reason").is_none(), "{line}");
        assert!(line["duration"].as_f64().unwrap() > 0.0 && line["sent"].as_u64().unwrap() > 0, "{line}");
    }
}

/// Of what others say, only what is believed.
#[tokio::test]
async fn behind_trusted_proxies_lines_say_who_the_client_is() {
    let request = "GET /\nx-forwarded-for: 6.6.6.6, 7.7.7.7";
    for (hops, json, text) in [
        (0, Value::Null, None),
        (1, "7.7.7.7, 127.0.0.1".into(), Some(r#" forwarded_for="7.7.7.7, 127.0.0.1" "#)),
    ] {
        for format in [LogFormat::Json, LogFormat::Text] {
            let (world, _origin, reader) = world_behind(hops, AccessLog { format, ..all() }).await;
            assert_eq!(world.send(Via::Http1, request).await.status, 200);
            let lines = lines(world, reader).await;
            match format {
                LogFormat::Json => assert_eq!(parsed(&lines)[0]["forwarded_for"], json),
                LogFormat::Text => {
                    assert_eq!(lines[0].contains("forwarded_for"), text.is_some(), "{lines:?}");
                    assert!(lines[0].contains(text.unwrap_or_default()), "{lines:?}");
                }
            }
        }
    }
}

/// The id in the log is that of the backend's log; a client's own is believed from trusted proxies.
#[tokio::test]
async fn lines_have_the_id_that_the_backend_got() {
    let forwarded = "GET /\nx-request-id: theirs\nx-forwarded-for: 7.7.7.7";
    for (hops, request, kept) in
        [(0, forwarded, false), (1, forwarded, true), (1, "GET /\nx-request-id: theirs", false)]
    {
        let (world, _origin, reader) = world_behind(hops, all()).await;
        let reply = world.send(Via::Http1, request).await;
        let seen = reply.body.lines().find_map(|line| line.strip_prefix("x-request-id: ")).unwrap();
        assert_eq!(seen == "theirs", kept, "{hops} {request}: {seen}");
        assert_eq!(world.send(Via::Http1, "GET /%00").await.status, 400);
        let lines = parsed(&lines(world, reader).await);
        assert_eq!(lines[0]["request_id"], seen, "{lines:?}");
        let refused = lines[1]["request_id"].as_str().unwrap();
        assert!(refused.len() == 16 && refused != seen, "{lines:?}");
    }
}

#[tokio::test]
async fn what_is_refused_is_logged_with_its_reason() {
    let (mut world, _origin, reader) = world(all()).await;
    world.listeners[0].host = "a.test";
    world.backends.clear();
    world.apply().await;
    for (request, status) in
        [("GET /\nhost: b.test", 404), ("GET /%00\nhost: a.test", 400), ("GET /\nhost: a.test", 503)]
    {
        assert_eq!(world.send(Via::Http1, request).await.status, status);
    }
    let lines = parsed(&lines(world, reader).await);
    let answers: Vec<_> = lines.iter().map(|line| format!("{} {}", line["status"], line["reason"])).collect();
    assert_eq!(answers, [r#"404 "no_listener""#, r#"400 "path_nul""#, r#"503 "no_endpoint""#]);
    assert_eq!((&lines[1]["target"], &lines[2]["backend"]), (&"/%00".into(), &"test/echo:80".into()));
}

#[tokio::test]
async fn answers_below_the_minimum_have_no_line() {
    let (world, _origin, reader) =
        world(AccessLog { minimum_status: StatusCode::BAD_REQUEST, ..all() }).await;
    assert_eq!(world.send(Via::Http1, "GET /").await.status, 200);
    assert_eq!(world.send(Via::Http1, "GET /%00").await.status, 400);
    let lines = parsed(&lines(world, reader).await);
    assert_eq!(lines.iter().map(|line| &line["status"]).collect::<Vec<_>>(), [&Value::from(400)]);
}

#[tokio::test]
async fn fields_that_are_omitted_are_in_no_line() {
    for format in [LogFormat::Json, LogFormat::Text] {
        let omit = LogField::ALL.into_iter().collect();
        let (world, _origin, reader) = world_behind(1, AccessLog { format, omit, ..all() }).await;
        let request =
            "GET /kept?secret=1\nuser-agent: secret\nreferer: http://secret.test/\nx-forwarded-for: 6.6.6.6";
        assert_eq!(world.send(Via::Http1, request).await.status, 200);
        let lines = lines(world, reader).await;
        let [line] = lines.as_slice() else { panic!("{lines:?}") };
        assert!(line.contains("/kept"), "{line}");
        // The endpoint is on this address, too.
        let omitted = ["secret", "6.6.6.6", "\"client\"", "127.0.0.1 - -"];
        assert!(omitted.iter().all(|text| !line.contains(text)), "{line}");
    }
}

/// A client cannot write lines or fields of its own.
#[tokio::test]
async fn text_is_the_combined_log_format_with_more_behind_it() {
    let (world, origin, reader) = world(AccessLog { format: LogFormat::Text, ..all() }).await;
    let request = "GET /a\nhost: a.test\nuser-agent: x\" gateway=\"y\\";
    let body = world.send(Via::Http1, request).await.body;
    let (sent, id) = (body.len(), body.lines().find_map(|line| line.strip_prefix("x-request-id: ")).unwrap());
    let lines = lines(world, reader).await;
    let [line] = lines.as_slice() else { panic!("{lines:?}") };
    let (head, rest) = line.split_once("] ").unwrap();
    assert!(head.starts_with("127.0.0.1 - - [") && head.ends_with(" +0000"), "{line}");
    let (rest, end) = rest.split_once(" duration=").unwrap();
    let endpoint = origin.address;
    assert_eq!(
        rest,
        format!(
            r#""GET /a HTTP/1.1" 200 {sent} "-" "x\" gateway=\"y\\" gateway="test/logged" listener="Gateway test/gateway listener *" host="a.test" rule="HTTPRoute test/route rule 0" backend="test/echo:80" endpoint="{endpoint}" request_id="{id}""#
        )
    );
    assert!(end.ends_with(" complete=true"), "{line}");
}

#[tokio::test]
async fn a_response_that_is_broken_off_says_so() {
    let (world, _origin, reader) = world(all()).await;
    let mut client = Client::connect(Via::H2c, world.plain, "any.test").await;
    let response = client.start("GET /?stall").await.unwrap();
    drop((response, client));
    let lines = parsed(&lines(world, reader).await);
    assert_eq!((lines.len(), &lines[0]["complete"]), (1, &false.into()), "{lines:?}");
}

#[tokio::test]
async fn a_response_that_outlives_the_drain_has_its_line() {
    let (world, _origin, reader) = world(all()).await;
    let mut clients = Vec::new();
    for via in [Via::Http1, Via::H2c] {
        let mut client = Client::connect(via, world.plain, "any.test").await;
        clients.push((client.start("GET /?stall").await.unwrap(), client));
    }
    let lines = parsed(&lines(world, reader).await);
    assert_eq!(lines.iter().map(|line| &line["complete"]).collect::<Vec<_>>(), [false, false], "{lines:?}");
}

/// It is the log that changes, not the connection.
#[tokio::test]
async fn open_connections_follow_changes() {
    let (mut world, _origin, reader) = world(all()).await;
    let mut client = Client::connect(Via::Http1, world.plain, "any.test").await;
    assert_eq!(client.send("GET /1").await.status, 200);
    world.gateways[0].access_log = None;
    world.apply().await;
    assert_eq!(client.send("GET /2").await.status, 200);
    world.gateways[0].access_log = Some(all());
    world.apply().await;
    assert_eq!(client.send("GET /3").await.status, 200);
    drop(client);
    let lines = parsed(&lines(world, reader).await);
    assert_eq!(lines.iter().map(|line| &line["target"]).collect::<Vec<_>>(), ["/1", "/3"]);
}

/// The log is not read: requests are answered, lines are lost, the loss is counted, and the data
/// plane ends all the same.
#[tokio::test]
async fn an_unread_log_holds_nothing_up() {
    let (world, _origin, reader) = world(all()).await;
    let mut client = Client::connect(Via::Http1, world.plain, "any.test").await;
    let request = format!("GET /{}", "x".repeat(8000));
    // As many as it takes, however long that is.
    let mut sent = 0;
    while world.proxy.stats().await.access_log_lost == 0 {
        assert!(sent < 1_000_000, "no line is lost");
        for _ in 0..100 {
            assert_eq!(client.send(&request).await.status, 200);
            sent += 1;
        }
    }
    drop(client);
    world.proxy.drain().await;
    drop(reader);
}
