//! External auth services: what they are asked, what their answers do, and that no request passes
//! without one. Services, backends and clients are real.

use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use portcullis_model::{BackendProtocol, Failure, Filter, ListenerFilter};
use portcullis_proxy::Reason;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::auth::{HttpAuthService, filter, only, over_grpc, over_http};
use crate::support::backend::refusing;
use crate::support::client::raw;
use crate::support::guarded::{answer, fields_of, guarded, outcomes, seen, world, world_that_waits};
use crate::support::origin::serve_raw;
use crate::support::rules::{RuleSpec, edit, rule};
use crate::support::via::{Client, Via};

#[tokio::test]
async fn a_service_gets_the_head_and_no_more_than_is_allowed() {
    let auth = HttpAuthService::start(|_| answer(200, &[], "fine")).await;
    let filter = over_http(|http| {
        http.prefix = "/verify".into();
        http.request = ["cookie", "x-forwarded-for", "x-forwarded-host"].map(|it| it.parse().unwrap()).into();
    });
    let (world, backend) = world(auth.address, BackendProtocol::Http1, vec![guarded(filter)]).await;
    for via in Via::ALL {
        let request = "POST /a/../b//c?q=1\nhost: any.test\nauthorization: Bearer t\ncookie: a=b\nx-secret: s\n\
                       content-type: text/plain\nx-forwarded-for: 6.6.6.6\nx-forwarded-host: forged.test\n\nbody";
        let reply = world.send(via, request).await;
        assert_eq!(reply.status, 200, "{via:?} {reply:?}");
        assert!(reply.body.starts_with("POST /b/c?q=1\n") && reply.body.ends_with("\nbody"), "{reply:?}");
        assert_eq!(seen(&reply, "authorization"), ["Bearer t"]);
        let [asked] = auth.asked().try_into().unwrap();
        assert_eq!(
            (asked.method().as_str(), asked.uri().to_string()),
            ("POST", "/verify/b/c?q=1".to_owned())
        );
        let expected = [
            "authorization: Bearer t",
            "content-length: 0",
            "cookie: a=b",
            "host: any.test",
            "x-forwarded-for: 127.0.0.1",
            "x-forwarded-host: any.test",
        ];
        assert_eq!(fields_of(&asked), expected, "{via:?}");
        assert!(asked.body().is_empty());
    }
    assert_eq!((backend.requests(), outcomes(&world).await), (4, [4, 0, 0]));
}

#[tokio::test]
async fn the_backend_gets_what_is_allowed_of_the_answer_and_nothing_forged() {
    let auth = HttpAuthService::start(|request| {
        let fields: &[_] = match request.uri().path() {
            "/ann" => &[("x-user", "ann"), ("x-group", "a"), ("x-group", "b"), ("x-other", "no")],
            _ => &[],
        };
        answer(200, fields, "")
    })
    .await;
    let filter = over_http(|http| http.response = only(&["x-user", "x-group"]));
    let (world, _backend) = world(auth.address, BackendProtocol::Http1, vec![guarded(filter)]).await;
    let forged = "x-user: eve\nX_User: eve\nx-group: admin\nx_group: admin";
    for via in Via::ALL {
        let reply = world.send(via, &format!("GET /ann\n{forged}")).await;
        assert_eq!((seen(&reply, "x-user"), seen(&reply, "x-group")), (vec!["ann"], vec!["a", "b"]));
        assert!(!reply.body.contains("x-other") && !reply.body.contains("x_"), "{via:?} {reply:?}");
        // A service that says nothing of a name leaves no room for the client's word.
        let reply = world.send(via, &format!("GET /nobody\n{forged}")).await;
        assert_eq!(reply.status, 200);
        assert!(!reply.body.contains("x-user") && !reply.body.contains("group"), "{via:?} {reply:?}");
    }
    let trailing = "POST /nobody HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n\
                    2\r\nhi\r\n0\r\nx-user: eve\r\nx_user: eve\r\nx-sum: 1\r\n\r\n";
    let reply = raw(world.plain, trailing.as_bytes()).await;
    assert!(reply.contains("x-sum: 1") && !reply.contains("eve"), "{reply}");
}

#[tokio::test]
async fn without_a_list_all_fields_are_copied_but_for_those_of_the_message() {
    let auth = HttpAuthService::start(|_| {
        let fields = [
            ("x-user", "ann"),
            ("x-forwarded-user", "ann"),
            ("content-type", "text/html"),
            ("content-language", "de"),
            ("host", "evil.test"),
            ("connection", "x-hop"),
            ("te", "gzip"),
            ("trailer", "x"),
            ("upgrade", "h2c"),
            ("cdn-loop", "none"),
        ];
        answer(200, &fields, "<p>signed in</p>")
    })
    .await;
    let filter = over_http(|_| {});
    let (world, _backend) = world(auth.address, BackendProtocol::Http1, vec![guarded(filter)]).await;
    for via in Via::ALL {
        let request = "POST /\nhost: any.test\ncontent-type: application/json\nx_user: eve\nx-forwarded-user: eve\n\n{}";
        let reply = world.send(via, request).await;
        assert_eq!((reply.status.as_u16(), reply.body.ends_with("\n{}")), (200, true), "{via:?} {reply:?}");
        assert_eq!((seen(&reply, "x-user"), seen(&reply, "x-forwarded-user")), (vec!["ann"], vec!["ann"]));
        assert_eq!(
            (seen(&reply, "content-type"), seen(&reply, "host")),
            (vec!["application/json"], vec!["any.test"])
        );
        for unwanted in ["eve", "content-language", "upgrade", "\nte: ", "trailer", "cdn-loop: none"] {
            assert!(!reply.body.contains(unwanted), "{via:?} {unwanted}: {reply:?}");
        }
    }
}

#[tokio::test]
async fn a_denial_is_the_services_answer() {
    let auth = HttpAuthService::start(|request| match request.uri().path() {
        "/basic" => answer(401, &[("www-authenticate", "Basic realm=\"a\"")], "who are you?"),
        "/sign-in" => answer(
            302,
            &[
                ("location", "https://id.test/?rd=x"),
                ("set-cookie", "a=1"),
                ("set-cookie", "b=2"),
                ("keep-alive", "timeout=5"),
            ],
            "",
        ),
        path => answer(path[1..].parse().unwrap(), &[("x-said", "no")], "no"),
    })
    .await;
    let set = Filter::ResponseHeaders(edit(&[("x-set", "by-rule")], &[], &[]));
    let (world, backend) =
        world(auth.address, BackendProtocol::Http1, vec![guarded(over_http(|_| {})).filter(set)]).await;
    for via in Via::ALL {
        let reply = world.send(via, "POST /basic\n\nbody").await;
        assert_eq!((reply.status.as_u16(), &*reply.body), (401, "who are you?"), "{via:?}");
        assert_eq!(reply.header("www-authenticate"), Some("Basic realm=\"a\""));
        assert_eq!(reply.header("x-set"), Some("by-rule"));
        let reply = world.send(via, "GET /sign-in").await;
        assert_eq!((reply.status.as_u16(), reply.header("location")), (302, Some("https://id.test/?rd=x")));
        assert_eq!(reply.headers.get_all("set-cookie").iter().collect::<Vec<_>>(), ["a=1", "b=2"]);
        assert_eq!(reply.header("keep-alive"), None);
        let reply = world.send(via, "HEAD /basic").await;
        assert_eq!((reply.status.as_u16(), &*reply.body), (401, ""), "{via:?}");
        for (status, expected) in [
            // As it is.
            (400, 400),
            (403, 403),
            (404, 404),
            (429, 429),
            (301, 301),
            (307, 307),
            // "Any other code is considered an authorization failure", and has to look like one.
            (201, 403),
            (202, 403),
            (304, 403),
            // The service's own trouble.
            (500, 503),
            (503, 503),
        ] {
            let reply = world.send(via, &format!("GET /{status}")).await;
            assert_eq!(reply.status, expected, "{via:?} {status}");
            let is_passed_on = status == expected && status < 500;
            assert_eq!(reply.header("x-said").is_some(), is_passed_on, "{via:?} {status}");
        }
    }
    assert_eq!(backend.requests(), 0);
    assert_eq!(outcomes(&world).await, [0, 4 * 12, 4 * 2]);
    let answers = world.proxy.stats().await.answers;
    assert_eq!((answers[&Reason::AuthDenied], answers[&Reason::AuthFailed]), (4 * 12, 4 * 2));
}

/// A sign-in page may be large: it is passed on as it comes.
#[tokio::test]
async fn a_denial_of_any_size_passes() {
    static PAGE: [u8; 3 << 20] = [b'x'; 3 << 20];
    let auth =
        HttpAuthService::start(|_| Response::builder().status(403).body(Bytes::from_static(&PAGE)).unwrap())
            .await;
    let (world, _backend) =
        world(auth.address, BackendProtocol::Http1, vec![guarded(over_http(|_| {}))]).await;
    for via in Via::ALL {
        let reply = world.send(via, "GET /").await;
        assert_eq!((reply.status.as_u16(), reply.body.len()), (403, PAGE.len()), "{via:?}");
    }
}

/// A client may go on after a denial: the connection is in order.
#[tokio::test]
async fn connections_last() {
    let auth = HttpAuthService::start(|request| match request.uri().path() {
        "/in" => answer(200, &[], "welcome"),
        _ => answer(401, &[], "no"),
    })
    .await;
    let (world, backend) =
        world(auth.address, BackendProtocol::Http1, vec![guarded(over_http(|_| {}))]).await;
    for via in Via::ALL {
        let mut client = Client::connect(via, world.address(via), "any.test").await;
        for round in 0..20 {
            assert_eq!(client.send("POST /out\n\nsome body").await.status, 401, "{via:?} {round}");
            assert_eq!(client.send("POST /in\n\nsome body").await.status, 200, "{via:?} {round}");
        }
    }
    assert_eq!(backend.requests(), 80);
    // One of each kind and core would do; bodies that are read late may cost one more.
    let opened = world.proxy.stats().await.upstream_connects;
    assert!(opened <= 16, "auth services and backends had {opened} connections");
}

// === failing closed ===

#[tokio::test]
async fn no_request_passes_a_service_that_is_out_of_order() {
    let refusing = refusing();
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let large: &'static str =
        Box::leak(format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "y".repeat(70 << 10)).into());
    let several = [
        ("none", None),
        ("refuses", Some(refusing)),
        ("says nothing", Some(silent.local_addr().unwrap())),
        ("closes", Some(serve_raw(b"").await)),
        ("speaks no HTTP", Some(serve_raw(b"OK\r\n\r\n").await)),
        ("has half a head", Some(serve_raw(b"HTTP/1.1 200 OK\r\nx: y\r\n").await)),
        ("has a head that is too large", Some(serve_raw(large.as_bytes()).await)),
        (
            "switches protocols",
            Some(
                serve_raw(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n")
                    .await,
            ),
        ),
        ("is only about to answer", Some(serve_raw(b"HTTP/1.1 100 Continue\r\n\r\n").await)),
        ("has no status", Some(serve_raw(b"HTTP/1.1 000 \r\n\r\n").await)),
        ("has a coding", Some(serve_raw(b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n").await)),
    ];
    for (name, address) in several {
        let rules = vec![guarded(over_http(|_| {})), guarded(over_grpc(only(&[]))).prefix("/grpc")];
        // One that says nothing is not to be waited for for long.
        let timeout = Duration::from_millis(300);
        let (mut world, backend) = world_that_waits(timeout, refusing, BackendProtocol::Http1, rules).await;
        if let Some(address) = address {
            world.backend("auth", BackendProtocol::Http1, &[address]);
        } else {
            world.backends.retain(|backend| !backend.name.as_str().contains("auth"));
        }
        world.apply().await;
        for via in Via::ALL {
            for path in ["/", "/grpc"] {
                let reply = world.send(via, &format!("GET {path}")).await;
                assert_eq!(reply.status, 503, "{name} {via:?} {path}: {reply:?}");
                assert_eq!(reply.body, "this request could not be authorised\n");
            }
        }
        assert_eq!((backend.requests(), outcomes(&world).await), (0, [0, 0, 8]), "{name}");
    }
}

#[tokio::test]
async fn of_a_thousand_requests_none_passes_a_broken_service() {
    let broken = serve_raw(b"HTTP/1.1 200 OK\r\ncontent-length: nonsense\r\n\r\n").await;
    let (world, backend) = world(broken, BackendProtocol::Http1, vec![guarded(over_http(|_| {}))]).await;
    for via in [Via::Http1, Via::Http2Tls] {
        let mut client = Client::connect(via, world.address(via), "any.test").await;
        for _ in 0..500 {
            assert_eq!(client.send("GET /").await.status, 503);
        }
    }
    assert_eq!((backend.requests(), outcomes(&world).await), (0, [0, 0, 1000]));
}

/// A connection that the service has closed meanwhile is no reason to fail, whatever the method.
#[tokio::test]
async fn a_closed_connection_is_replaced() {
    let closing = serve_raw(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
    let (world, backend) = world(closing, BackendProtocol::Http1, vec![guarded(over_http(|_| {}))]).await;
    let mut client = Client::connect(Via::Http1, world.plain, "any.test").await;
    for round in 0..50 {
        assert_eq!(client.send("POST /\n\nbody").await.status, 200, "{round}");
    }
    assert_eq!(backend.requests(), 50);
}

#[tokio::test]
async fn the_rules_time_is_for_the_service_too() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap();
    let rules = vec![guarded(over_http(|_| {})).request_timeout(50)];
    let (world, backend) = world(address, BackendProtocol::Http1, rules).await;
    assert_eq!(world.send(Via::Http1, "GET /").await.status, 504);
    let slow = HttpAuthService::start(|_| {
        std::thread::sleep(Duration::from_millis(600));
        answer(200, &[], "")
    })
    .await;
    let mut world = world;
    world.listeners[0].rules = vec![guarded(over_http(|_| {})).request_timeout(1800)];
    world.backend("auth", BackendProtocol::Http1, &[slow.address]);
    world.apply().await;
    // Of the 1800 ms the service takes 600: what is left is too little for this backend.
    assert_eq!(world.send(Via::Http1, "GET /?delay=1500").await.status, 504);
    assert_eq!(world.send(Via::Http1, "GET /").await.status, 200);
    assert_eq!((backend.requests(), outcomes(&world).await), (2, [2, 0, 1]));
}

/// The rule is not known before.
#[tokio::test]
async fn the_rules_time_is_for_a_listeners_service_too() {
    let slow = HttpAuthService::start(|_| {
        std::thread::sleep(Duration::from_millis(600));
        answer(200, &[], "")
    })
    .await;
    let rules =
        vec![guarded(over_http(|_| {})).prefix("/twice").request_timeout(2500), rule().request_timeout(1800)];
    let (mut world, _backend) = world(slow.address, BackendProtocol::Http1, rules).await;
    world.filters = vec![ListenerFilter::ExternalAuth(over_http(|_| {}))];
    world.apply().await;
    for path in ["/", "/twice"] {
        assert_eq!(world.send(Via::Http1, &format!("GET {path}?delay=1500")).await.status, 504, "{path}");
        assert_eq!(world.send(Via::Http1, &format!("GET {path}")).await.status, 200, "{path}");
    }
}

#[tokio::test]
async fn a_calls_deadline_is_for_the_services_too() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap();
    let (mut world, backend) = world(address, BackendProtocol::Http1, vec![guarded(over_http(|_| {}))]).await;
    let of_listener = ListenerFilter::ExternalAuth(over_http(|_| {}));
    for filters in [vec![], vec![of_listener]] {
        world.filters = filters;
        world.apply().await;
        let call = "POST /shop.Cart/Add\ncontent-type: application/grpc\nte: trailers\ngrpc-timeout: 100m";
        let reply = world.send(Via::H2c, call).await;
        assert_eq!(reply.header("grpc-status"), Some("4"), "{reply:?}");
    }
    assert_eq!(backend.requests(), 0);
}

/// An endpoint of the service may be the gateway itself.
#[tokio::test]
async fn a_service_that_leads_back_is_not_asked_for_ever() {
    let refusing = refusing();
    let (mut world, backend) =
        world(refusing, BackendProtocol::Http1, vec![guarded(over_http(|_| {}))]).await;
    let own = world.plain;
    world.backend("auth", BackendProtocol::Http1, &[own]);
    world.apply().await;
    assert_eq!(world.send(Via::Http1, "GET /").await.status, 503);
    assert_eq!(backend.requests(), 0);
    assert_eq!(world.proxy.stats().await.answers[&Reason::Loop], 1);
}

// === rules and their other filters ===

#[tokio::test]
async fn filters_apply_in_their_order_and_every_service_has_its_say() {
    let auth = HttpAuthService::start(|request| {
        let user = request.headers().get("x-user").map(|user| user.to_str().unwrap().to_owned());
        match (request.uri().path(), user.as_deref()) {
            ("/first/deny", _) => answer(401, &[], "first"),
            ("/first/allow", None) => answer(200, &[("x-user", "ann")], ""),
            ("/second/allow", Some("ann")) => answer(200, &[("x-role", "admin")], ""),
            _ => answer(403, &[], "second"),
        }
    })
    .await;
    let first = over_http(|http| {
        http.prefix = "/first".into();
        http.request = vec!["x-tenant".parse().unwrap()];
        http.response = only(&["x-user"]);
    });
    let second = over_http(|http| {
        http.prefix = "/second".into();
        http.request = vec!["x-user".parse().unwrap(), "x-late".parse().unwrap()];
        http.response = only(&["x-role"]);
    });
    let set = |name: &'static str| Filter::RequestHeaders(edit(&[(name, "rule")], &[], &[]));
    let rules = vec![
        rule()
            .filter(set("x-tenant"))
            .filter(filter(first.clone()))
            .filter(filter(second))
            .filter(set("x-late"))
            .rewrite(Some("inner.test"), None),
        rule()
            .host("late.test")
            .filter(filter(first.clone()))
            .redirect(|to| to.hostname = Some("b.test".into())),
        rule().host("backend.test").backend_filter(filter(first)),
    ];
    let (world, backend) = world(auth.address, BackendProtocol::Http1, rules).await;
    for via in Via::ALL {
        let reply = world.send(via, "GET /allow\nx-late: client\nx-user: eve").await;
        assert_eq!(reply.status, 200, "{via:?} {reply:?}");
        for (name, value) in
            [("x-user", "ann"), ("x-role", "admin"), ("x-late", "rule"), ("host", "inner.test")]
        {
            assert_eq!(seen(&reply, name), [value], "{via:?} {name}");
        }
        let asked = auth.asked();
        assert_eq!((asked[0].headers()["x-tenant"].as_bytes(), asked.len()), (&b"rule"[..], 2));
        assert_eq!(asked[1].headers()["x-late"], "client", "the filter comes later");
        assert!(asked.iter().all(|asked| asked.headers()["host"] == "any.test"), "as the client asked");
        let reply = world.send(via, "GET /deny").await;
        assert_eq!((reply.status.as_u16(), &*reply.body, auth.asked().len()), (401, "first", 1), "{via:?}");
        // A redirect waits for its turn.
        let reply = world.send(via, "GET /deny\nhost: late.test").await;
        assert_eq!((reply.status.as_u16(), reply.header("location")), (401, None), "{via:?}");
        let reply = world.send(via, "GET /allow\nhost: late.test").await;
        assert_eq!(reply.status, 302, "{via:?}");
        // A backend's own.
        let reply = world.send(via, "GET /deny\nhost: backend.test").await;
        assert_eq!(reply.status, 401, "{via:?}");
        let reply = world.send(via, "GET /allow\nhost: backend.test").await;
        assert_eq!((reply.status.as_u16(), seen(&reply, "x-user")), (200, vec!["ann"]), "{via:?}");
        auth.asked();
    }
    assert_eq!(backend.requests(), 8);
}

#[tokio::test]
async fn upgrades_are_authorised() {
    let auth = HttpAuthService::start(|request| {
        assert!(!request.headers().contains_key("upgrade") && !request.headers().contains_key("connection"));
        answer(if request.uri().path() == "/in" { 200 } else { 401 }, &[("x-user", "ann")], "")
    })
    .await;
    let filter = over_http(|http| http.response = only(&["x-user"]));
    let (world, backend) = world(auth.address, BackendProtocol::Http1, vec![guarded(filter)]).await;
    for (path, status) in [("/in", "101"), ("/out", "401")] {
        let mut stream = tokio::net::TcpStream::connect(world.plain).await.unwrap();
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        let head = String::from_utf8(head).unwrap();
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {head}");
        if status == "101" {
            stream.write_all(b"through").await.unwrap();
            let mut echoed = [0; 7];
            stream.read_exact(&mut echoed).await.unwrap();
            assert_eq!(&echoed, b"through");
        }
    }
    assert_eq!(backend.requests(), 1);
}

#[tokio::test]
async fn grpc_clients_are_told_in_grpc() {
    let auth =
        HttpAuthService::start(|request| answer(request.uri().path()[1..].parse().unwrap(), &[], "<html>"))
            .await;
    let (world, backend) =
        world(auth.address, BackendProtocol::Http1, vec![guarded(over_http(|_| {}))]).await;
    for via in [Via::H2c, Via::Http2Tls] {
        for (status, code) in [(401, "16"), (302, "16"), (403, "7"), (404, "7"), (202, "7"), (500, "14")] {
            let call = format!("POST /{status}\ncontent-type: application/grpc+proto\nte: trailers");
            let reply = world.send(via, &call).await;
            assert_eq!((reply.status.as_u16(), reply.header("grpc-status")), (200, Some(code)), "{status}");
            assert!(reply.body.is_empty() && reply.trailers.is_empty(), "{reply:?}");
        }
    }
    assert_eq!(backend.requests(), 0);
}

// === of listeners ===

#[tokio::test]
async fn a_listeners_service_is_asked_before_a_route_is_looked_for() {
    let auth = HttpAuthService::start(|request| {
        let user = request.headers().get("authorization").map(|user| user.to_str().unwrap().to_owned());
        match user.as_deref() {
            Some(user) => answer(200, &[("x-user", user), ("x-forwarded-user", user)], ""),
            None => answer(401, &[], "who are you?"),
        }
    })
    .await;
    let rules = vec![
        rule().prefix("/app"),
        rule()
            .prefix("/app")
            .header("x-user", "admin")
            .header("x-forwarded-user", "admin")
            .filter(Filter::RequestHeaders(edit(&[("x-rule", "admin")], &[], &[]))),
        guarded(over_http(|http| http.response = only(&["x-again"]))).prefix("/twice"),
    ];
    let (mut world, backend) = world(auth.address, BackendProtocol::Http1, rules).await;
    let of_listener = over_http(|http| http.response = only(&["x-user", "x-forwarded-user"]));
    world.filters = vec![ListenerFilter::ExternalAuth(of_listener.clone())];
    world.apply().await;
    for via in Via::ALL {
        let reply = world.send(via, "GET /app\nx-user: admin").await;
        assert_eq!((reply.status.as_u16(), &*reply.body), (401, "who are you?"), "{via:?}");
        // Also of what no route takes.
        assert_eq!(world.send(via, "GET /none").await.status, 401, "{via:?}");
        assert_eq!(world.send(via, "GET /none\nauthorization: ann").await.status, 404, "{via:?}");
        for (user, rule) in [("ann", vec![]), ("admin", vec!["admin"])] {
            // The client's other claims do not take the service's word along.
            let forged = "x-user: admin\nx_user: admin\nx-forwarded-user: admin\nx-forwarded-for: 6.6.6.6";
            let reply = world.send(via, &format!("GET /app\nauthorization: {user}\n{forged}")).await;
            assert_eq!(seen(&reply, "x-rule"), rule, "{via:?} {user}");
            assert_eq!((seen(&reply, "x-user"), seen(&reply, "x-forwarded-user")), (vec![user], vec![user]));
            assert_eq!(seen(&reply, "x-forwarded-for"), ["127.0.0.1"], "{via:?} {reply:?}");
        }
        auth.asked();
        let reply = world.send(via, "POST /twice\nauthorization: ann\n\nbody").await;
        assert_eq!(
            (reply.status.as_u16(), auth.asked().len(), seen(&reply, "x-user")),
            (200, 2, vec!["ann"])
        );
    }
    assert_eq!(backend.requests(), 12);
    // Refused at the edge: no service is asked.
    assert_eq!(world.send(Via::Http1, "GET /%00").await.status, 400);
    assert!(auth.asked().is_empty());
    let reason = "no such Service".into();
    let fail = ListenerFilter::Fail(Failure { status: StatusCode::INTERNAL_SERVER_ERROR, reason });
    world.filters = vec![ListenerFilter::ExternalAuth(of_listener), fail];
    world.apply().await;
    for via in Via::ALL {
        assert_eq!(world.send(via, "GET /app\nauthorization: ann").await.status, 500, "{via:?}");
        assert_eq!(world.send(via, "GET /app").await.status, 401, "{via:?}: the first one's answer");
    }
}

/// Of all fields: also of those that every request gets on its way.
#[tokio::test]
async fn backends_get_what_a_listeners_service_says_of_the_client_as_rules_see_it() {
    const FIELDS: [(&str, &str); 4] = [
        ("x-forwarded-for", "192.0.2.1"),
        ("x-forwarded-host", "front.test"),
        ("x-forwarded-proto", "ftp"),
        ("x-request-id", "said"),
    ];
    let auth = HttpAuthService::start(|_| answer(200, &FIELDS, "")).await;
    let again = over_http(|http| {
        http.request = FIELDS.map(|(name, _)| name.parse().unwrap()).into();
        http.response = only(&["x-again"]);
    });
    let seeing = |rule: RuleSpec| FIELDS.iter().fold(rule, |rule, (name, value)| rule.header(name, value));
    let rules = vec![
        seeing(rule().prefix("/app")),
        seeing(guarded(again).prefix("/twice")),
        rule().prefix("/own").filter(Filter::RequestHeaders(edit(&[("x-forwarded-proto", "wss")], &[], &[]))),
    ];
    let (mut world, _backend) = world(auth.address, BackendProtocol::Http1, rules).await;
    let of_listener = over_http(|http| http.response = only(&FIELDS.map(|(name, _)| name)));
    world.filters = vec![ListenerFilter::ExternalAuth(of_listener)];
    world.apply().await;
    for via in Via::ALL {
        for path in ["/app", "/twice"] {
            let reply = world.send(via, &format!("GET {path}\nx-forwarded-for: 6.6.6.6")).await;
            for (name, value) in FIELDS {
                assert_eq!(seen(&reply, name), [value], "{via:?} {path} {reply:?}");
            }
        }
        let [_, _, asked] = auth.asked().try_into().unwrap();
        assert!(FIELDS.iter().all(|(name, value)| asked.headers()[*name] == *value), "{via:?} {asked:?}");
        let reply = world.send(via, "GET /own").await;
        assert_eq!(seen(&reply, "x-forwarded-proto"), ["wss"], "{via:?}: filters of the rule run later");
        auth.asked();
    }
}
