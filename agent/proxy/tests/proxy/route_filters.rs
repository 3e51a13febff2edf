//! Filters of RouteFilters: request → what the backend saw → what the client got, over all ways in.

use std::num::NonZeroU32;
use std::sync::Arc;

use http::{HeaderValue, StatusCode};
use portcullis_model::{
    Action, BackendProtocol, BackendTarget, ClientList, ClientRules, DirectResponse, Filter, HeaderTemplates,
    Level, Limits, ListenerFilter, ObjectName, PathPart, PathSubstitution, Period, Protection, RateKey,
    RateLimit, RateScope, Split, Template, TemplatePart, TrafficPolicy, Variable, WeightedBackend,
};
use regex::bytes::Regex;

use crate::support;
use crate::support::auth::{HttpAuthService, filter, only, over_http};
use crate::support::guarded::{answer, world};
use crate::support::rules::{RuleSpec, edit, rule};
use crate::support::via::{Reply, Via};
use crate::support::world::World;

/// `/` and what the group of the pattern matched.
fn below_root(pattern: &str, group: usize) -> Filter {
    substitution(pattern, vec![PathPart::Text("/".into()), PathPart::Group(group)])
}

/// Groups of a pattern, one behind the other.
fn jailed(groups: usize) -> Vec<PathPart> {
    std::iter::once(PathPart::Text("/jail/".into())).chain((1..=groups).map(PathPart::Group)).collect()
}

fn substitution(pattern: &str, parts: Vec<PathPart>) -> Filter {
    let regex = Regex::new(&format!("^(?:{pattern})$")).unwrap();
    Filter::Substitution(Arc::new(PathSubstitution::new(regex, parts, [pattern, "test"])))
}

/// Fields with the value of a variable each, between brackets.
fn variables(variables: &[Variable]) -> Arc<HeaderTemplates> {
    let field = |variable: &Variable| {
        let name = format!("x-{}", variable.name().to_ascii_lowercase().replace('.', "-"));
        let parts = vec![
            TemplatePart::Text("[".into()),
            TemplatePart::Variable(*variable),
            TemplatePart::Text("]".into()),
        ];
        (name.parse().unwrap(), Template::new(parts))
    };
    Arc::new(HeaderTemplates { set: variables.iter().map(field).collect(), add: Box::default() })
}

fn response(status: u16, body: &str) -> Arc<DirectResponse> {
    Arc::new(DirectResponse {
        status: StatusCode::from_u16(status).unwrap(),
        content_type: (!body.is_empty()).then(|| HeaderValue::from_static("text/plain; charset=utf-8")),
        body: body.into(),
    })
}

fn answering(response: Arc<DirectResponse>) -> RuleSpec {
    RuleSpec { action: Action::Respond(response), ..rule() }
}

fn seen<'r>(reply: &'r Reply, name: &str) -> Option<&'r str> {
    reply.body.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")))
}

#[tokio::test]
async fn paths_are_made_by_expressions() {
    let rules = vec![
        rule().prefix("/shop").filter(below_root("/shop(/|$)(.*)", 2)),
        rule().prefix("/twice").filter(below_root("/twice/(.*)", 1)).backend_filter(below_root("/a/(.*)", 1)),
        rule().prefix("/escape").filter(below_root("/escape/x(.*)", 1)),
        rule().prefix("/raw").filter(substitution("/raw/(.*)", vec![PathPart::Group(1)])),
        rule().prefix("/halves").filter(substitution("/halves/(.)-(.)(.*)", jailed(3))),
        rule().prefix("/codes").filter(substitution("/codes/(%)25(2.)(%)25(2.)(.*)", jailed(5))),
    ];
    let (world, _backend) = World::echo(rules).await;
    let long = "a/".repeat(2000);
    for via in Via::ALL {
        for (asked, saw) in [
            ("/shop/cart/1?q=/shop/", "/cart/1?q=/shop/"),
            ("/shop", "/"),
            ("/shop/", "/"),
            ("/shop//a/../b", "/b"),
            ("/shop/a%20b", "/a%20b"),
            ("/shop/%61", "/a"),
            ("/shop/..a/b..", "/..a/b.."),
            ("/twice/a/b", "/b"),
            ("/twice/b/c", "/b/c"),
            ("/escape/y", "/escape/y"),
            ("/escape/x/a", "/a"),
            ("/halves/a-./..b", "/jail/a./..b"),
            (&format!("/shop/{long}"), &format!("/{long}")),
        ] {
            let reply = world.send(via, &format!("GET {asked}")).await;
            assert!(reply.body.starts_with(&format!("GET {saw}\n")), "{asked} {via:?}: {}", reply.body);
        }
        // No path, or one that would lead upwards.
        for asked in [
            "/escape/x..",
            "/escape/x../a",
            "/escape/x.",
            "/raw/a",
            "/raw/?a",
            "/halves/.-./a",
            "/halves/%2e-%2E/a",
            "/codes/%252e%252E/a",
            "/codes/%252f%252e./a",
        ] {
            let reply = world.send(via, &format!("GET {asked}")).await;
            assert_eq!(reply.status, 500, "{asked} {via:?}: {}", reply.body);
            assert_eq!(reply.body, "the route makes no path of this one\n");
        }
    }
    let reasons = world.proxy.stats().await.answers;
    let made = reasons.iter().find(|(reason, _)| reason.name() == "made_path");
    assert_eq!(made.map(|(_, count)| *count), Some(9 * 4), "{reasons:?}");
}

#[tokio::test]
async fn what_expressions_make_is_limited_in_length() {
    let bomb =
        substitution("/(.*)", [vec![PathPart::Text("/".into())], vec![PathPart::Group(1); 500]].concat());
    let (mut world, _backend) = World::echo(vec![rule().filter(bomb)]).await;
    assert_eq!(world.send(Via::Http1, "GET /ab").await.status, 200);
    assert_eq!(world.send(Via::Http1, &format!("GET /{}", "a".repeat(100))).await.status, 414);
    world.limit(Limits { target_bytes: 100, ..Limits::default() });
    world.apply().await;
    assert_eq!(world.send(Via::Http1, "GET /a").await.status, 414);
}

#[tokio::test]
async fn responses_take_the_place_of_backends() {
    let page = || response(503, "back at ten: 50 % off\n");
    let added = Filter::ResponseHeaders(edit(&[("retry-after", "60")], &[], &[]));
    let share = |target| {
        let backends = vec![WeightedBackend { weight: 1, target, filters: vec![added.clone()] }];
        RuleSpec { action: Action::Forward(Split::new(backends).unwrap()), ..rule() }
    };
    let rules = vec![
        RuleSpec { filters: vec![added.clone()], ..answering(page()).prefix("/down") },
        answering(response(204, "")).prefix("/nothing"),
        answering(response(304, "")).prefix("/same"),
        share(BackendTarget::Respond(page())).prefix("/share"),
    ];
    let (world, _backend) = World::echo(rules).await;
    for via in Via::ALL {
        for path in ["/down", "/share"] {
            for method in ["GET", "POST", "DELETE"] {
                let reply = world.send(via, &format!("{method} {path}?q\n\nbody")).await;
                assert_eq!(
                    (reply.status.as_u16(), &*reply.body),
                    (503, "back at ten: 50 % off\n"),
                    "{via:?}"
                );
                assert_eq!(reply.header("content-type"), Some("text/plain; charset=utf-8"));
                assert_eq!(reply.header("retry-after"), Some("60"));
            }
            let reply = world.send(via, &format!("HEAD {path}")).await;
            assert_eq!((reply.status.as_u16(), &*reply.body), (503, ""));
            assert_eq!(reply.header("content-length"), Some("22"), "{via:?} {reply:?}");
        }
        for (path, status) in [("/nothing", 204), ("/same", 304)] {
            let reply = world.send(via, &format!("GET {path}")).await;
            assert_eq!((reply.status.as_u16(), &*reply.body), (status, ""), "{via:?}");
            assert_eq!(reply.header("content-type"), None);
        }
    }
    let old = support::client::raw(world.address(Via::Http1), b"GET /down HTTP/1.0\r\n\r\n").await;
    assert!(old.starts_with("HTTP/1.0 503 ") && old.ends_with("50 % off\n"), "{old}");
    for via in [Via::H2c, Via::Http2Tls] {
        let call = "POST /down/Add\ncontent-type: application/grpc+proto\nte: trailers";
        let reply = world.send(via, call).await;
        assert_eq!((reply.status.as_u16(), reply.header("grpc-status")), (200, Some("14")), "{reply:?}");
        assert_eq!(reply.header("grpc-message"), Some("back at ten: 50 %25 off"));
        assert_eq!(reply.header("content-type"), Some("application/grpc+proto"));
        assert_eq!(reply.header("retry-after"), Some("60"));
    }
    let answered = world.proxy.stats().await.listeners.values().map(|it| it.requests[5]).sum::<u64>();
    assert_eq!(answered, 4 * 2 * 4 + 1 + 2, "gRPC's count as what they are");
}

#[tokio::test]
async fn headers_are_made_of_variables() {
    let all = variables(Variable::ALL);
    let rules = vec![
        RuleSpec { filters: vec![Filter::ResponseTemplates(all.clone())], ..answering(response(200, "x")) }
            .prefix("/own"),
        RuleSpec { filters: vec![Filter::ResponseTemplates(all.clone())], ..rule() }
            .redirect(|it| it.hostname = Some("b.test".into()))
            .prefix("/moved"),
        rule()
            .filter(Filter::RequestTemplates(all.clone()))
            .filter(Filter::ResponseTemplates(all.clone()))
            .rewrite(Some("in.test"), None),
    ];
    let (world, _backend) = World::echo(rules).await;
    for via in Via::ALL {
        let is_tls = matches!(via, Via::Http1Tls | Via::Http2Tls);
        let is_http2 = matches!(via, Via::H2c | Via::Http2Tls);
        let request = "PUT /a/../b%22c\nhost: Any.test\nx-client-address: [forged]";
        let reply = world.send(via, request).await;
        for (name, value) in [
            ("x-client-address", "[127.0.0.1]"),
            ("x-tls-servername", if is_tls { "[any.test]" } else { "[]" }),
            ("x-request-protocol", if is_http2 { "[HTTP/2]" } else { "[HTTP/1.1]" }),
            ("x-request-scheme", if is_tls { "[https]" } else { "[http]" }),
            ("x-request-host", "[any.test]"),
            ("x-request-method", "[PUT]"),
            ("x-request-path", "[/b%22c]"),
            ("x-listener-name", if is_tls { "[* with TLS]" } else { "[*]" }),
            ("x-route-namespace", "[test]"),
            ("x-route-name", "[route]"),
        ] {
            assert_eq!(seen(&reply, name), Some(value), "{via:?}: {}", reply.body);
            assert_eq!(reply.header(name), Some(value), "{via:?}");
        }
        let id = seen(&reply, "x-request-id").unwrap();
        assert_eq!(reply.header("x-request-id"), Some(&*id.to_string()), "one id: {}", reply.body);
        let port = reply.header("x-client-port").unwrap().trim_matches(['[', ']']);
        assert!(port.parse::<u16>().unwrap() > 0);
        for (path, status) in [("/own", 200), ("/moved", 302)] {
            let reply = world.send(via, &format!("GET {path}")).await;
            assert_eq!(reply.status.as_u16(), status);
            assert_eq!(reply.header("x-request-path"), Some(&*format!("[{path}]")), "{via:?} {reply:?}");
        }
    }
}

/// By filters of both kinds: applications read `X_Who` as `X-Who`.
#[tokio::test]
async fn no_spelling_of_a_client_shadows_what_filters_decide() {
    let path = Filter::RequestTemplates(variables(&[Variable::Path]));
    let fixed = Filter::RequestHeaders(edit(&[("x-who", "gateway")], &[], &["x-debug"]));
    let (world, _backend) = World::echo(vec![rule().filter(path).filter(fixed)]).await;
    for via in Via::ALL {
        let forged = "x_request_path: evil\nx_who: evil\nx-who: evil\nx_debug: 1\nx-debug: 1\nx_whom: kept";
        let reply = world.send(via, &format!("GET /\nhost: any.test\n{forged}")).await;
        let lines: Vec<_> =
            reply.body.lines().filter(|line| line.contains("evil") || line.contains("debug")).collect();
        assert_eq!(lines, [""; 0], "{via:?}");
        for (name, value) in [("x-who", "gateway"), ("x-request-path", "[/]"), ("x_whom", "kept")] {
            assert_eq!(seen(&reply, name), Some(value), "{via:?}: {}", reply.body);
        }
    }
}

/// Neither with what the gateway decodes, nor with what it leaves as it is.
#[tokio::test]
async fn what_clients_choose_ends_neither_fields_nor_their_parts() {
    let all = variables(&[Variable::Path, Variable::Host, Variable::Method, Variable::RequestId]);
    let rules =
        vec![rule().filter(Filter::RequestTemplates(all.clone())).filter(Filter::ResponseTemplates(all))];
    let (world, _backend) = World::echo(rules).await;
    for via in Via::ALL {
        for (path, shown) in [
            ("/a%0d%0ax-evil:%201", "[/a%0d%0ax-evil:%201]"),
            ("/%0A%7F%22", "[/%0A%7F%22]"),
            ("/a;Domain=b,c", "[/a%3BDomain=b%2Cc]"),
            ("/%C3%A9", "[/%C3%A9]"),
        ] {
            let request = format!("PUT {path}\nhost: any.test\nx-request-id: a,b;c");
            let reply = world.send(via, &request).await;
            assert_eq!(reply.header("x-request-path"), Some(shown), "{via:?} {reply:?}");
            assert_eq!(seen(&reply, "x-request-path"), Some(shown), "{via:?}: {}", reply.body);
            assert_eq!((reply.header("x-evil"), seen(&reply, "x-evil")), (None, None), "{via:?}");
            assert!(!seen(&reply, "x-request-id").unwrap().contains(','), "a client's id is not taken");
        }
    }
}

#[tokio::test]
async fn fields_that_would_be_too_large_are_refused() {
    let paths = variables(&[Variable::Path; 8]);
    let rules =
        vec![rule().filter(Filter::RequestTemplates(paths.clone())).filter(Filter::ResponseTemplates(paths))];
    let (world, _backend) = World::echo(rules).await;
    assert_eq!(world.send(Via::Http1, &format!("GET /{}", "a".repeat(1000))).await.status, 200);
    assert_eq!(world.send(Via::Http1, &format!("GET /{}", "a".repeat(3000))).await.status, 431);
}

#[tokio::test]
async fn responses_are_for_those_whom_auth_services_let_pass() {
    let auth = HttpAuthService::start(|request| match request.headers().get("authorization") {
        Some(_) => answer(200, &[], ""),
        None => answer(401, &[("www-authenticate", "Basic")], "who?"),
    })
    .await;
    let guard = || filter(over_http(|_| {}));
    let named = || Filter::ResponseTemplates(variables(&[Variable::RouteName]));
    let target = BackendTarget::Respond(response(200, "secret"));
    let backends = vec![WeightedBackend { weight: 1, target, filters: vec![guard()] }];
    let of_backend = RuleSpec { action: Action::Forward(Split::new(backends).unwrap()), ..rule() };
    let rules = vec![
        RuleSpec { filters: vec![named(), guard()], ..answering(response(200, "secret")) }.prefix("/rule"),
        of_backend.filter(named()).prefix("/backend"),
    ];
    let (world, backend) = world(auth.address, BackendProtocol::Http1, rules).await;
    for via in Via::ALL {
        for path in ["/rule", "/backend"] {
            let reply = world.send(via, &format!("GET {path}")).await;
            assert_eq!((reply.status.as_u16(), &*reply.body), (401, "who?"), "{via:?} {path}");
            assert_eq!(reply.header("x-route-name"), Some("[route]"), "{via:?} {reply:?}");
            let reply = world.send(via, &format!("GET {path}\nauthorization: t")).await;
            assert_eq!((reply.status.as_u16(), &*reply.body), (200, "secret"), "{via:?} {path}");
            assert_eq!(reply.header("x-route-name"), Some("[route]"), "{via:?} {reply:?}");
        }
    }
    assert_eq!((auth.asked().len(), backend.requests()), (16, 0));
}

#[tokio::test]
async fn responses_are_for_those_whom_policies_let_pass() {
    let by = || Protection::by(ObjectName::new("test", "p"));
    let policy = |protection| {
        TrafficPolicy::of(vec![Level { target: "HTTPRoute test/r".into(), protection: Arc::new(protection) }])
    };
    let deny = vec!["127.0.0.0/8".parse().unwrap()];
    let list = ClientList { deny, ..ClientList::default() };
    let denied = policy(Protection { clients: Some(ClientRules::new(vec![list])), ..by() });
    let requests = NonZeroU32::new(2).unwrap();
    let rate = RateLimit {
        requests,
        period: Period::Hour,
        burst: requests,
        key: RateKey::All,
        scope: RateScope::Node,
    };
    let limited = policy(Protection { rate_limits: [rate].into(), ..by() });
    let target = BackendTarget::Respond(response(200, "x"));
    let share = WeightedBackend { weight: 1, target, filters: Vec::new() };
    let of_backend = RuleSpec { action: Action::Forward(Split::new(vec![share]).unwrap()), ..rule() };
    let rules = vec![
        answering(response(200, "x")).prefix("/rule").policy(denied.clone()),
        of_backend.prefix("/backend").policy(denied.clone()),
        answering(response(200, "x")).prefix("/limited").policy(limited),
        answering(response(200, "x")).prefix("/open"),
    ];
    let (mut world, _backend) = World::echo(rules).await;
    for via in Via::ALL {
        for (path, status) in [("/rule", 403), ("/backend", 403), ("/open", 200)] {
            assert_eq!(world.send(via, &format!("GET {path}")).await.status, status, "{via:?} {path}");
        }
    }
    for status in [200, 200, 429] {
        assert_eq!(world.send(Via::Http1, "GET /limited").await.status, status);
    }
    world.policy = denied;
    world.apply().await;
    for via in Via::ALL {
        assert_eq!(world.send(via, "GET /open").await.status, 403, "{via:?}");
    }
}

#[tokio::test]
async fn auth_services_see_what_templates_make() {
    let auth = HttpAuthService::start(|_| answer(200, &[], "")).await;
    let guard = over_http(|http| {
        http.request =
            ["x-client-address", "x-request-id", "x-tls-servername"].map(|it| it.parse().unwrap()).into();
        http.response = only(&["x-user"]);
    });
    let seen_by_auth = [Variable::ClientAddress, Variable::RequestId];
    let rules = vec![
        rule()
            .filter(Filter::RequestTemplates(variables(&seen_by_auth)))
            .filter(filter(guard.clone()))
            .filter(Filter::RequestTemplates(variables(&[Variable::ServerName]))),
    ];
    let (mut world, _backend) = world(auth.address, BackendProtocol::Http1, rules).await;
    let field = |request: &http::Request<bytes::Bytes>, name: &str| {
        request.headers().get(name).map(|value| value.to_str().unwrap().to_owned())
    };
    let forged = "GET /\nhost: any.test\nx-client-address: [forged]";
    for via in Via::ALL {
        let reply = world.send(via, forged).await;
        assert_eq!(reply.status, 200, "{via:?} {reply:?}");
        let [asked] = auth.asked().try_into().unwrap();
        assert_eq!(field(&asked, "x-client-address").as_deref(), Some("[127.0.0.1]"), "{via:?}");
        assert_eq!(field(&asked, "x-request-id").as_deref(), seen(&reply, "x-request-id"), "{via:?}");
        assert_eq!(field(&asked, "x-tls-servername"), None, "made behind the service");
        assert_eq!(seen(&reply, "x-client-address"), Some("[127.0.0.1]"));
    }
    // The same behind a filter of the listener, after which the request is routed.
    world.filters = vec![ListenerFilter::ExternalAuth(guard)];
    world.apply().await;
    for via in Via::ALL {
        let reply = world.send(via, forged).await;
        assert_eq!(reply.status, 200, "{via:?} {reply:?}");
        let [of_listener, of_rule] = auth.asked().try_into().unwrap();
        assert_eq!(field(&of_listener, "x-client-address").as_deref(), Some("[forged]"));
        assert_eq!(field(&of_rule, "x-client-address").as_deref(), Some("[127.0.0.1]"), "{via:?}");
        let is_tls = matches!(via, Via::Http1Tls | Via::Http2Tls);
        let name = if is_tls { "[any.test]" } else { "[]" };
        assert_eq!(seen(&reply, "x-tls-servername"), Some(name), "{via:?}: {}", reply.body);
    }
}
