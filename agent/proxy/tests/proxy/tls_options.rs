//! The terms on which listeners end TLS: versions, cipher suites, and tickets, which are good at
//! every agent with the same keys.

use std::sync::Arc;

use portcullis_model::{KeyRing, Listener, RingKey, Serves, SessionTickets, TlsOptions, TlsVersion};
use rustls::version::{TLS12, TLS13};
use rustls::{CipherSuite, ProtocolVersion, SupportedProtocolVersion};
use tokio::net::TcpStream;

use crate::support::backend::Backend;
use crate::support::client;
use crate::support::fixture::{Gateway, ListenerSpec, RouteSpec, snapshot};

const NAME: &str = "a.example.com";

fn listener(name: &'static str, host: &'static str, options: TlsOptions) -> Listener {
    let mut listener = ListenerSpec::new(name, host, true, vec![RouteSpec::to("/", "app/echo:80")]).build();
    let Serves::Https { tls, .. } = &mut listener.serves else { panic!("it serves {:?}", listener.serves) };
    tls.options = Arc::new(options);
    listener
}

async fn serve(gateway: &Gateway, backend: &Backend, listeners: impl IntoIterator<Item = Listener>) {
    let snapshot = snapshot(gateway.address, listeners, &[("app/echo:80", &[backend.address])]);
    gateway.proxy.apply(Arc::new(snapshot)).await;
}

/// The version and the suite that a client of one version comes to.
async fn negotiated(
    gateway: &Gateway,
    name: &'static str,
    version: &'static SupportedProtocolVersion,
) -> Option<(ProtocolVersion, CipherSuite)> {
    let stream = TcpStream::connect(gateway.address).await.unwrap();
    let stream = client::tls_by(stream, name, version).await.ok()?;
    let session = stream.get_ref().1;
    Some((session.protocol_version().unwrap(), session.negotiated_cipher_suite().unwrap().suite()))
}

#[tokio::test]
async fn listeners_of_a_port_have_versions_and_suites_of_their_own() {
    let (backend, gateway) = (Backend::echo().await, Gateway::start());
    let suites =
        |suites: &[CipherSuite]| TlsOptions { cipher_suites: suites.into(), ..TlsOptions::default() };
    let recent = TlsOptions { minimum_version: TlsVersion::Tls13, ..TlsOptions::default() };
    let both =
        [CipherSuite::TLS13_CHACHA20_POLY1305_SHA256, CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384];
    let listeners = [
        listener("usual", "usual.example.com", TlsOptions::default()),
        listener("recent", "recent.example.com", recent),
        listener("both", "both.example.com", suites(&both)),
        listener("old", "old.example.com", suites(&both[1..])),
    ];
    serve(&gateway, &backend, listeners).await;
    for (name, by_12, by_13) in [
        (
            "usual.example.com",
            Some(CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
            Some(CipherSuite::TLS13_AES_128_GCM_SHA256),
        ),
        ("recent.example.com", None, Some(CipherSuite::TLS13_AES_128_GCM_SHA256)),
        ("both.example.com", Some(both[1]), Some(both[0])),
        ("old.example.com", Some(both[1]), None),
    ] {
        let expected = by_12.map(|suite| (ProtocolVersion::TLSv1_2, suite));
        assert_eq!(negotiated(&gateway, name, &TLS12).await, expected, "{name}");
        let expected = by_13.map(|suite| (ProtocolVersion::TLSv1_3, suite));
        assert_eq!(negotiated(&gateway, name, &TLS13).await, expected, "{name}");
    }
}

fn ring(keys: &[(u64, u8)]) -> Arc<KeyRing> {
    let key = |(created, secret): &(u64, u8)| RingKey { created: *created, secret: [*secret; 32] };
    Arc::new(KeyRing::new(keys.iter().map(key).collect()))
}

#[tokio::test]
async fn sessions_are_resumed_at_agents_with_the_same_keys_and_at_the_same_listener() {
    let backend = Backend::echo().await;
    let gateway = async |name, keys: &[(u64, u8)]| {
        let gateway = Gateway::start();
        gateway.proxy.use_keys(ring(keys)).await;
        serve(&gateway, &backend, [listener(name, NAME, TlsOptions::default())]).await;
        gateway
    };
    let first = gateway("https", &[(1, 1)]).await;
    let (same, rotated) = (gateway("https", &[(1, 1)]).await, gateway("https", &[(1, 1), (2, 2)]).await);
    let (of_another_tenant, foreign) = (gateway("other", &[(1, 1)]).await, gateway("https", &[(1, 9)]).await);
    for version in [&TLS12, &TLS13] {
        for (at, resumes) in [(&same, true), (&rotated, true), (&of_another_tenant, false), (&foreign, false)]
        {
            let config = client::resuming_by(version);
            assert!(!client::exchange_resuming(&config, first.address, NAME).await);
            assert_eq!(client::exchange_resuming(&config, at.address, NAME).await, resumes, "{version:?}");
        }
        // Keys that came later are used at once.
        let config = client::resuming_by(version);
        foreign.proxy.use_keys(ring(&[(1, 1)])).await;
        assert!(!client::exchange_resuming(&config, first.address, NAME).await);
        assert!(client::exchange_resuming(&config, foreign.address, NAME).await);
        foreign.proxy.use_keys(ring(&[(1, 9)])).await;
    }
}

#[tokio::test]
async fn no_session_is_resumed_where_there_are_no_tickets() {
    let (backend, gateway) = (Backend::echo().await, Gateway::start());
    let without = || TlsOptions { tickets: SessionTickets::NotGiven, ..TlsOptions::default() };
    for version in [&TLS12, &TLS13] {
        let config = client::resuming_by(version);
        serve(&gateway, &backend, [listener("https", NAME, TlsOptions::default())]).await;
        assert!(!client::exchange_resuming(&config, gateway.address, NAME).await);
        assert!(client::exchange_resuming(&config, gateway.address, NAME).await);
        serve(&gateway, &backend, [listener("https", NAME, without())]).await;
        assert!(!client::exchange_resuming(&config, gateway.address, NAME).await, "a ticket from before");
        assert!(!client::exchange_resuming(&config, gateway.address, NAME).await);
    }
}
