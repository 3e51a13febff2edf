//! External auth services that speak Envoy's protocol, over gRPC: what they are told, what their
//! answers do, and that no request passes by an answer that says nothing.

use bytes::Bytes;
use portcullis_model::BackendProtocol;

use crate::support;
use crate::support::auth::{
    CheckResponse, DeniedHttpResponse, GrpcAnswer, GrpcAuthService, OkHttpResponse, QueryParameter, allowed,
    denied, field, only, over_grpc,
};
use crate::support::client::raw;
use crate::support::guarded::{guarded, outcomes, seen, with_body, world};
use crate::support::via::Via;

#[tokio::test]
async fn an_ext_authz_service_is_told_of_the_request() {
    let auth = GrpcAuthService::start(|_| allowed(OkHttpResponse::default())).await;
    let rules = vec![
        guarded(over_grpc(portcullis_model::FieldNames::All)),
        with_body(over_grpc(only(&["x-a"])), 100).prefix("/some"),
    ];
    let (world, _backend) = world(auth.address, BackendProtocol::H2c, rules).await;
    for via in Via::ALL {
        let request = "POST /a/../b?q=1\nhost: any.test:81\nx-a: 1\nx-a: 2\ncookie: a=b\nx-forwarded-for: 6.6.6.6\n\nbody";
        assert_eq!(world.send(via, request).await.status, 200, "{via:?}");
        let [(head, asked)] = auth.asked().try_into().unwrap();
        assert_eq!(
            (head["te"].as_bytes(), head["grpc-timeout"].as_bytes()),
            (&b"trailers"[..], &b"5000m"[..])
        );
        let attributes = asked.attributes.unwrap();
        let source = attributes.source.unwrap().address.unwrap().socket_address.unwrap();
        assert_eq!((&*source.address, source.port_value != 0), ("127.0.0.1", true));
        let destination = attributes.destination.unwrap().address.unwrap().socket_address.unwrap();
        assert_eq!(destination.port_value, u32::from(world.address(via).port()));
        let request = attributes.request.unwrap();
        assert!(request.time.unwrap().seconds > 1_700_000_000);
        let http = request.http.unwrap();
        let is_plain = via == Via::Http1 || via == Via::H2c;
        let scheme = if is_plain { "http" } else { "https" };
        let protocol = if matches!(via, Via::Http1 | Via::Http1Tls) { "HTTP/1.1" } else { "HTTP/2" };
        assert_eq!((&*http.method, &*http.path, &*http.host), ("POST", "/b?q=1", "any.test:81"));
        assert_eq!((&*http.scheme, &*http.protocol, &*http.query, http.size), (scheme, protocol, "", 4));
        assert_eq!((&*http.body, http.id.len()), ("", 16), "no body was asked for");
        for (name, value) in [
            ("x-a", "1,2"),
            ("cookie", "a=b"),
            ("x-forwarded-for", "127.0.0.1"),
            (":method", "POST"),
            (":path", "/b?q=1"),
            (":authority", "any.test:81"),
            (":scheme", scheme),
        ] {
            assert_eq!(http.headers.get(name).map(String::as_str), Some(value), "{via:?} {name}");
        }
        assert_eq!(world.send(via, "POST /some\nx-a: 1\nx-b: 2\n\nbody").await.status, 200, "{via:?}");
        let [(_, asked)] = auth.asked().try_into().unwrap();
        let http = asked.attributes.unwrap().request.unwrap().http.unwrap();
        assert_eq!((http.headers, &*http.body), ([("x-a".to_owned(), "1".to_owned())].into(), "body"));
    }
    let binary = [
        &b"POST /some HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 2\r\n\r\n"[..],
        &[0xff, 0],
    ]
    .concat();
    assert!(raw(world.plain, &binary).await.starts_with("HTTP/1.1 200"));
    let http = auth.asked().pop().unwrap().1.attributes.unwrap().request.unwrap().http.unwrap();
    assert_eq!((&*http.body, http.raw_body), ("", vec![0xff, 0]));
}

#[tokio::test]
async fn an_ext_authz_services_consent_has_conditions() {
    use support::auth::{BoolValue, HeaderValueOption};
    let auth = GrpcAuthService::start(|_| {
        let append = Some(BoolValue { value: true });
        allowed(OkHttpResponse {
            headers: vec![
                field("x-user", "ann"),
                HeaderValueOption { append, ..field("x-groups", "own") },
                HeaderValueOption { append_action: 1, ..field("x-absent", "added") },
                HeaderValueOption { append_action: 1, ..field("x-present", "added") },
                HeaderValueOption { append_action: 3, ..field("x-none", "replaced") },
                HeaderValueOption { append_action: 3, ..field("x-present", "replaced") },
                field("host", "evil.test"),
                field(":authority", "evil.test"),
                field("content-length", "7"),
                field("transfer-encoding", "gzip"),
            ],
            headers_to_remove: ["authorization", "x-gone", "host", ":authority"].map(str::to_owned).into(),
            response_headers_to_add: vec![field("set-cookie", "a=1"), field("set-cookie", "b=2")],
            query_parameters_to_set: vec![QueryParameter { key: "user".into(), value: "a b".into() }],
            query_parameters_to_remove: vec!["token".to_owned()],
        })
    })
    .await;
    let (world, _backend) =
        world(auth.address, BackendProtocol::H2c, vec![guarded(over_grpc(only(&[])))]).await;
    for via in Via::ALL {
        let request = "POST /p?token=s&x=%20&user=eve\nhost: any.test\nauthorization: Basic x\nx_user: eve\n\
                       x-user: eve\nx-gone: 1\nx-groups: client\nx-present: client\n\nbody";
        let reply = world.send(via, request).await;
        assert_eq!(reply.status, 200, "{via:?} {reply:?}");
        assert!(reply.body.starts_with("POST /p?x=%20&user=a+b\n"), "{via:?} {reply:?}");
        for (name, values) in [
            ("x-user", vec!["ann"]),
            ("x-groups", vec!["client", "own"]),
            ("x-absent", vec!["added"]),
            ("x-present", vec!["replaced"]),
            ("x-none", vec![]),
            ("host", vec!["any.test"]),
            ("authorization", vec![]),
            ("x-gone", vec![]),
            ("x_user", vec![]),
            ("content-length", vec!["4"]),
        ] {
            assert_eq!(seen(&reply, name), values, "{via:?} {name}");
        }
        assert_eq!(reply.headers.get_all("set-cookie").iter().collect::<Vec<_>>(), ["a=1", "b=2"]);
        assert!(reply.body.ends_with("\nbody"));
    }
}

#[tokio::test]
async fn an_ext_authz_service_denies_in_its_own_words() {
    let auth = GrpcAuthService::start(|asked| {
        let path =
            asked.attributes.as_ref().unwrap().request.as_ref().unwrap().http.as_ref().unwrap().path.clone();
        match &*path {
            "/page" => denied(
                401,
                DeniedHttpResponse {
                    headers: vec![
                        field("www-authenticate", "Bearer"),
                        field("set-cookie", "a=1"),
                        field("set-cookie", "b=2"),
                        field("content-length", "1"),
                        field("connection", "x"),
                    ],
                    body: "sign in".to_owned(),
                    ..DeniedHttpResponse::default()
                },
            ),
            "/plain" => denied(0, DeniedHttpResponse::default()),
            "/nothing" => GrpcAnswer::Message(CheckResponse {
                status: Some(support::auth::RpcStatus { code: 16, message: String::new() }),
                ..CheckResponse::default()
            }),
            _ => {
                denied(200, DeniedHttpResponse { body: "from the service".to_owned(), ..Default::default() })
            }
        }
    })
    .await;
    let (world, backend) =
        world(auth.address, BackendProtocol::H2c, vec![guarded(over_grpc(only(&[])))]).await;
    for via in Via::ALL {
        let reply = world.send(via, "GET /page").await;
        assert_eq!((reply.status.as_u16(), &*reply.body), (401, "sign in"), "{via:?}");
        assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
        assert_eq!(reply.headers.get_all("set-cookie").iter().collect::<Vec<_>>(), ["a=1", "b=2"]);
        let head = world.send(via, "HEAD /page").await;
        assert_eq!((head.status.as_u16(), &*head.body), (401, ""), "{via:?}");
        for path in ["/plain", "/nothing"] {
            assert_eq!(world.send(via, &format!("GET {path}")).await.status, 403, "{via:?} {path}");
        }
        let reply = world.send(via, "GET /answered").await;
        assert_eq!((reply.status.as_u16(), &*reply.body), (200, "from the service"), "{via:?}");
    }
    assert_eq!((backend.requests(), outcomes(&world).await), (0, [0, 20, 0]));
}

#[tokio::test]
async fn an_ext_authz_answer_that_says_nothing_lets_nothing_pass() {
    let raw = |bytes: &'static [u8], status| GrpcAnswer::Raw(Bytes::from_static(bytes), status);
    let large = GrpcAnswer::Raw(Bytes::from(vec![0; 65 << 10]), Some("0"));
    for (name, said) in [
        ("an empty message", raw(&[0, 0, 0, 0, 0], Some("0"))),
        ("no message", raw(&[], Some("0"))),
        ("half a message", raw(&[0, 0, 0, 0, 2, 10], Some("0"))),
        ("two messages", raw(&[0, 0, 0, 0, 2, 10, 0, 0, 0, 0, 0, 2, 10, 0], Some("0"))),
        ("no protobuf", raw(&[0, 0, 0, 0, 2, 0xff, 0xff], Some("0"))),
        ("compressed", raw(&[1, 0, 0, 0, 2, 10, 0], Some("0"))),
        ("a gRPC error", raw(&[0, 0, 0, 0, 2, 10, 0], Some("14"))),
        ("no gRPC status", raw(&[0, 0, 0, 0, 2, 10, 0], None)),
        ("too much", large),
        (
            "a name that is none",
            allowed(OkHttpResponse { headers: vec![field("x y", "1")], ..Default::default() }),
        ),
        (
            "a value that is none",
            allowed(OkHttpResponse { headers: vec![field("x", "1\r\ny: 2")], ..Default::default() }),
        ),
        (
            "another path",
            allowed(OkHttpResponse { headers: vec![field(":path", "/admin")], ..Default::default() }),
        ),
        ("a status that is none", denied(99, DeniedHttpResponse::default())),
        ("a status that is no answer", denied(101, DeniedHttpResponse::default())),
    ] {
        let auth = GrpcAuthService::start(move |_| said.clone()).await;
        let (world, backend) =
            world(auth.address, BackendProtocol::H2c, vec![guarded(over_grpc(only(&[])))]).await;
        let reply = world.send(Via::Http1, "GET /").await;
        assert_eq!((reply.status.as_u16(), backend.requests()), (503, 0), "{name}: {reply:?}");
        assert_eq!(outcomes(&world).await, [0, 0, 1], "{name}");
    }
    // What the tests above have in common is not what keeps them out.
    let auth = GrpcAuthService::start(move |_| raw(&[0, 0, 0, 0, 2, 10, 0], Some("0"))).await;
    let (world, backend) =
        world(auth.address, BackendProtocol::H2c, vec![guarded(over_grpc(only(&[])))]).await;
    assert_eq!((world.send(Via::Http1, "GET /").await.status.as_u16(), backend.requests()), (200, 1));
}
