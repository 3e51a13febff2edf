//! Certificates of clients: who is let in, and who is not.

use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use portcullis_model::{ClientCertificates, Listener, Serves, Snapshot};
use portcullis_proxy::HandshakeFailure;
use rustls::version::{TLS12, TLS13};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use crate::support::authority::{Authority, anchors, authority, identity};
use crate::support::backend::Backend;
use crate::support::client::{self, asked_for_certificate};
use crate::support::fixture::{Gateway, ListenerSpec, RouteSpec, snapshot};

/// Listeners whose clients are asked for certificates, by the first label of their name.
fn listener(name: &'static str, host: &'static str, clients: ClientCertificates) -> Listener {
    let mut listener = ListenerSpec::new(name, host, true, vec![RouteSpec::to("/", "app/echo:80")]).build();
    let Serves::Https { tls, .. } = &mut listener.serves else { panic!("it serves {:?}", listener.serves) };
    tls.clients = clients;
    listener
}

fn of(gateway: &Gateway, backend: &Backend, listeners: impl IntoIterator<Item = Listener>) -> Snapshot {
    snapshot(gateway.address, listeners, &[("app/echo:80", &[backend.address])])
}

#[tokio::test]
async fn clients_show_what_the_authorities_vouch_for() {
    let [one, other] = [authority("one"), authority("other")];
    let required =
        |sets: &[&Authority]| ClientCertificates::Required(sets.iter().map(|it| anchors(it)).collect());
    let (backend, gateway) = (Backend::echo().await, Gateway::start());
    let listeners = [
        listener("one", "one.example.com", required(&[&one])),
        listener("both", "both.example.com", required(&[&one, &other])),
        listener("nobody", "nobody.example.com", required(&[])),
        listener("any", "any.example.com", ClientCertificates::Any),
        listener("unasked", "unasked.example.com", ClientCertificates::NotAsked),
    ];
    gateway.proxy.apply(Arc::new(of(&gateway, &backend, listeners))).await;

    let of_one = identity(&one, |_| {});
    let of_other = identity(&other, |_| {});
    let expired = identity(&one, |params| params.not_after = rcgen::date_time_ymd(2020, 1, 1));
    let for_servers = identity(&one, |params| {
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    });
    let mut refused = 0;
    for version in [&TLS12, &TLS13] {
        for (name, shown, is_let_in) in [
            ("one.example.com", Some(&of_one), true),
            ("one.example.com", Some(&of_other), false),
            ("one.example.com", Some(&expired), false),
            ("one.example.com", Some(&for_servers), false),
            ("one.example.com", None, false),
            ("both.example.com", Some(&of_one), false),
            ("both.example.com", Some(&of_other), false),
            ("both.example.com", None, false),
            ("nobody.example.com", Some(&of_one), false),
            ("nobody.example.com", None, false),
            ("any.example.com", Some(&of_one), true),
            ("any.example.com", Some(&of_other), true),
            ("any.example.com", Some(&expired), true),
            ("any.example.com", None, true),
            ("unasked.example.com", Some(&of_other), true),
            ("unasked.example.com", None, true),
        ] {
            let answer = asked_for_certificate(gateway.address, name, version, shown).await;
            let case = format!("{name}, {version:?}, {answer:?}");
            match is_let_in {
                true => assert_eq!(answer.unwrap(), "HTTP/1.1 200", "{case}"),
                false => assert!(answer.is_err(), "{case}"),
            }
            refused += u64::from(!is_let_in);
        }
    }
    let failures = gateway.proxy.stats().await.handshake_failures;
    assert_eq!(failures[&HandshakeFailure::ClientCertificate], refused);
    assert_eq!(failures.get(&HandshakeFailure::Protocol).copied().unwrap_or_default(), 0);
}

/// A session would be resumed without the certificate that it began with.
#[tokio::test]
async fn sessions_are_resumed_only_where_nobody_is_asked() {
    let (backend, gateway) = (Backend::echo().await, Gateway::start());
    let listeners = [
        listener("any", "any.example.com", ClientCertificates::Any),
        listener("unasked", "unasked.example.com", ClientCertificates::NotAsked),
    ];
    gateway.proxy.apply(Arc::new(of(&gateway, &backend, listeners))).await;
    let config = client::resuming();
    for (name, resumes) in [("any.example.com", false), ("unasked.example.com", true)] {
        assert!(!client::exchange_resuming(&config, gateway.address, name).await);
        assert_eq!(client::exchange_resuming(&config, gateway.address, name).await, resumes, "{name}");
    }
}

#[tokio::test]
async fn no_request_gets_past_by_way_of_a_neighbour() {
    let (backend, gateway) = (Backend::echo().await, Gateway::start());
    let required = ClientCertificates::Required([anchors(&authority("one"))].into());
    let listeners = [
        listener("strict", "strict.example.com", required),
        listener("wild", "*.example.com", ClientCertificates::NotAsked),
    ];
    gateway.proxy.apply(Arc::new(of(&gateway, &backend, listeners))).await;
    let stream = TcpStream::connect(gateway.address).await.unwrap();
    let stream = client::tls(stream, Some("a.example.com"), b"h2").await.unwrap();
    let request = Request::get("https://strict.example.com/").body(Bytes::new()).unwrap();
    assert_eq!(client::http2(stream, request).await.status(), 421);
}

#[tokio::test]
async fn connections_from_before_end_when_certificates_are_asked_for() {
    let (backend, gateway) = (Backend::echo().await, Gateway::start());
    let is_asked = |clients| of(&gateway, &backend, [listener("a", "a.example.com", clients)]);
    gateway.proxy.apply(Arc::new(is_asked(ClientCertificates::NotAsked))).await;
    let stream = TcpStream::connect(gateway.address).await.unwrap();
    let mut before = client::tls(stream, Some("a.example.com"), b"http/1.1").await.unwrap();
    let required = ClientCertificates::Required([anchors(&authority("one"))].into());
    gateway.proxy.apply(Arc::new(is_asked(required))).await;
    before.read_to_end(&mut Vec::new()).await.unwrap();
}
