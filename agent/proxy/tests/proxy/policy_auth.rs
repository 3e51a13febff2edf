//! Auth services that TrafficPolicies name: all levels' are asked, before the filters of the route,
//! and none can be got past.

use std::num::NonZeroU32;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, StatusCode};
use portcullis_model::{
    Action, AllowedNames, AllowedOrigins, ApiKeys, BackendProtocol, ClientKeys, Cors, CredentialForwarding,
    CredentialSource, Credentials, DirectResponse, ExternalAuth, Filter, Level, ObjectName, Protection,
    Requirement, TrafficPolicy,
};

use crate::support::auth::{
    DeniedHttpResponse, GrpcAuthService, HttpAuthService, OkHttpResponse, allowed, denied, field, filter,
    only, over_grpc, over_http,
};
use crate::support::backend::refusing;
use crate::support::guarded::{answer, outcomes, seen, world};
use crate::support::rules::{RuleSpec, backend_name, edit, rule};
use crate::support::via::Via;

fn policy(services: impl IntoIterator<Item = ExternalAuth>) -> Option<Arc<TrafficPolicy>> {
    let level = |auth| {
        let by = Protection::by(ObjectName::new("test", "p"));
        let protection = Protection { external_auth: Some(Arc::new(auth)), ..by };
        Level { target: "HTTPRoute test/r".into(), protection: Arc::new(protection) }
    };
    TrafficPolicy::of(services.into_iter().map(level).collect())
}

/// A question about the path in front of the request's.
fn level(prefix: &str) -> ExternalAuth {
    over_http(|http| {
        http.prefix = prefix.into();
        http.request = ["x-seen".parse().unwrap()].into();
        http.response = only(&["x-user", "x-seen"]);
    })
}

/// The levels that it was asked by, in order.
fn levels(service: &HttpAuthService) -> Vec<String> {
    let asked = service.asked();
    asked.iter().map(|request| request.uri().path().split('/').nth(1).unwrap().to_owned()).collect()
}

/// Lets a request pass unless its query has the level that asks.
async fn particular() -> HttpAuthService {
    HttpAuthService::start(|request: &Request<Bytes>| {
        let level = request.uri().path().split('/').nth(1).unwrap();
        if request.uri().query() == Some(level) {
            return answer(401, &[("x-said", "no")], "no");
        }
        let seen = request.headers().get("x-seen").map_or("", |seen| seen.to_str().unwrap());
        answer(200, &[("x-user", level), ("x-seen", &format!("{seen}{level}."))], "")
    })
    .await
}

#[tokio::test]
async fn every_level_has_to_let_the_request_pass_and_then_the_filter() {
    let auth = particular().await;
    let rules =
        vec![rule().policy(policy([level("/route"), level("/rule")])).filter(filter(level("/filter")))];
    let (mut world, backend) = world(auth.address, BackendProtocol::Http1, rules).await;
    world.policy = policy([level("/gateway"), level("/listener")]);
    world.apply().await;
    let all = ["gateway", "listener", "route", "rule", "filter"];
    for via in Via::ALL {
        let reply = world.send(via, "GET /a\nx-seen: forged\nX_User: eve\nx-user: eve").await;
        assert_eq!(reply.status, 200, "{via:?} {reply:?}");
        assert_eq!(seen(&reply, "x-user"), ["filter"], "each sees what those before it have added");
        assert_eq!(seen(&reply, "x-seen"), ["forgedgateway.listener.route.rule.filter."]);
        assert!(!reply.body.contains("eve"), "{reply:?}");
        assert_eq!(levels(&auth), all);
        for (at, level) in all.iter().enumerate() {
            let reply = world.send(via, &format!("POST /a?{level}\n\nbody")).await;
            assert_eq!((reply.status.as_u16(), reply.header("x-said")), (401, Some("no")), "{via:?} {level}");
            assert_eq!(levels(&auth), all[..=at], "no service behind it is asked");
        }
    }
    assert_eq!(backend.requests(), 4);
}

/// A second answer would be the same, unless another service has had its say since.
#[tokio::test]
async fn the_same_question_of_two_levels_is_asked_once() {
    let auth = particular().await;
    let rules = vec![
        rule().prefix("/again").policy(policy([level("/one"), level("/other"), level("/one")])),
        rule().policy(policy([level("/one"), level("/one")])).filter(filter(level("/one"))),
    ];
    let (mut world, _backend) = world(auth.address, BackendProtocol::Http1, rules).await;
    world.policy = policy([level("/one")]);
    world.apply().await;
    for via in Via::ALL {
        let reply = world.send(via, "GET /a").await;
        assert_eq!(reply.status, 200, "{via:?} {reply:?}");
        assert_eq!(levels(&auth), ["one", "one"], "the policies', and the filter's");
        assert_eq!(seen(&reply, "x-seen"), ["one.one."]);
        let reply = world.send(via, "GET /again").await;
        assert_eq!(seen(&reply, "x-seen"), ["one.other.one."], "{via:?} {reply:?}");
        assert_eq!(levels(&auth), ["one", "other", "one"]);
        assert_eq!(world.send(via, "GET /a?one").await.status, 401, "{via:?}");
        assert_eq!(levels(&auth), ["one"]);
    }
}

#[tokio::test]
async fn filters_see_and_change_what_policies_let_pass() {
    let auth = HttpAuthService::start(|request: &Request<Bytes>| {
        let is_set = request.headers().contains_key("x-seen");
        answer(if is_set { 403 } else { 200 }, &[("x-user", "ann")], "")
    })
    .await;
    let set = Filter::RequestHeaders(edit(&[("x-seen", "by-rule")], &[], &["x-user"]));
    let rules = vec![rule().policy(policy([level("")])).filter(set)];
    let (world, _backend) = world(auth.address, BackendProtocol::Http1, rules).await;
    for via in Via::ALL {
        let reply = world.send(via, "GET /").await;
        assert_eq!(reply.status, 200, "the policy's service is asked before the filter runs: {via:?}");
        assert_eq!((seen(&reply, "x-seen"), seen(&reply, "x-user")), (vec!["by-rule"], vec![]));
    }
}

#[tokio::test]
async fn credentials_come_first_and_the_service_is_told_whose_they_are() {
    let auth = HttpAuthService::start(|request: &Request<Bytes>| {
        let is_till = request.headers().get("x-seen").is_some_and(|client| client == "till");
        answer(if is_till { 200 } else { 403 }, &[], "")
    })
    .await;
    let mut clients = ClientKeys::default();
    clients.add("till", b"s3cret").unwrap();
    clients.add("kiosk", b"0ther").unwrap();
    let keys = ApiKeys {
        keys: [Arc::new(clients)].into(),
        source: CredentialSource::Header("x-api-key".parse().unwrap()),
        forwarding: CredentialForwarding::Remove,
        client_header: Some("x-seen".parse().unwrap()),
    };
    let protection = Protection {
        credentials: [Arc::new(Requirement::ApiKey(keys))].into(),
        ..Protection::by(ObjectName::new("test", "keys"))
    };
    let of_keys = Level { target: "HTTPRoute test/r".into(), protection: Arc::new(protection) };
    let rules = vec![rule().policy(TrafficPolicy::of(vec![of_keys]))];
    let (mut world, backend) = world(auth.address, BackendProtocol::Http1, rules).await;
    // The listener's service, and the rule's credentials: these are looked at first all the same.
    world.policy = policy([level("")]);
    world.apply().await;
    for via in Via::ALL {
        assert_eq!(world.send(via, "GET /\nx-seen: till").await.status, 401, "{via:?}");
        assert!(auth.asked().is_empty());
        assert_eq!(world.send(via, "GET /\nx-api-key: 0ther\nx-seen: till").await.status, 403, "{via:?}");
        assert_eq!(world.send(via, "GET /\nx-api-key: s3cret").await.status, 200, "{via:?}");
        assert_eq!(auth.asked().len(), 2);
    }
    assert_eq!(backend.requests(), 4);
}

#[tokio::test]
async fn a_service_gets_the_body_that_the_backend_gets() {
    let auth = GrpcAuthService::start(|question| {
        let request = question.attributes.as_ref().unwrap().request.as_ref().unwrap().http.as_ref().unwrap();
        match request.raw_body == b"fine" || request.body == "fine" {
            true => allowed(OkHttpResponse { headers: vec![field("x-user", "ann")], ..Default::default() }),
            false => denied(402, DeniedHttpResponse::default()),
        }
    })
    .await;
    let asked = ExternalAuth { body: NonZeroU32::new(10), ..over_grpc(only(&[])) };
    let (world, backend) =
        world(auth.address, BackendProtocol::H2c, vec![rule().policy(policy([asked]))]).await;
    for via in Via::ALL {
        let reply = world.send(via, "POST /\nx-user: eve\n\nfine").await;
        assert_eq!((reply.status, seen(&reply, "x-user")), (StatusCode::OK, vec!["ann"]), "{via:?}");
        assert!(reply.body.ends_with("\nfine"), "{reply:?}");
        assert_eq!(world.send(via, "POST /\n\nwrong").await.status, 402, "{via:?}");
        assert_eq!(world.send(via, "POST /\n\nfar too long").await.status, 413, "{via:?}");
    }
    assert_eq!(backend.requests(), 4);
}

#[tokio::test]
async fn answers_without_a_backend_are_guarded_and_preflight_requests_are_not_asked_about() {
    let auth = HttpAuthService::start(|_| answer(401, &[], "no")).await;
    let own = DirectResponse { status: StatusCode::ACCEPTED, content_type: None, body: "own".into() };
    let cors = Cors {
        origins: AllowedOrigins::Any,
        credentials: Credentials::Withheld,
        methods: AllowedNames::Any,
        headers: AllowedNames::Any,
        expose: None,
        max_age: 5,
    };
    let rules = vec![
        rule().redirect(|redirect| redirect.hostname = Some("b.test".into())),
        RuleSpec { action: Action::Respond(own.into()), ..rule().prefix("/respond") },
        rule().prefix("/forward").filter(Filter::Cors(cors.into())),
    ];
    let (mut world, backend) = world(auth.address, BackendProtocol::Http1, rules).await;
    world.policy = policy([level("")]);
    world.apply().await;
    for via in Via::ALL {
        for path in ["/", "/respond", "/forward", "/forward/../respond"] {
            let reply = world.send(via, &format!("GET {path}")).await;
            assert_eq!((reply.status.as_u16(), &*reply.body), (401, "no"), "{via:?} {path}");
            assert_eq!(reply.header("location"), None);
        }
        let preflight = "OPTIONS /forward\norigin: https://a.test\naccess-control-request-method: PUT";
        assert_eq!(world.send(via, preflight).await.status, 204, "browsers send no credentials: {via:?}");
        assert_eq!(world.send(via, "GET /forward\norigin: https://a.test").await.status, 401, "{via:?}");
    }
    assert_eq!(backend.requests(), 0);
}

#[tokio::test]
async fn no_request_passes_without_the_service() {
    let refusing = refusing();
    let rules = vec![rule().policy(policy([level("")]))];
    let (mut world, backend) = world(refusing, BackendProtocol::Http1, rules).await;
    for via in Via::ALL {
        assert_eq!(world.send(via, "GET /").await.status, 503, "{via:?}");
    }
    world.backends.retain(|backend| backend.name != backend_name("auth"));
    world.apply().await;
    for via in Via::ALL {
        assert_eq!(world.send(via, "GET /").await.status, 503, "{via:?}");
    }
    assert_eq!((backend.requests(), outcomes(&world).await), (0, [0, 0, 8]));
}
