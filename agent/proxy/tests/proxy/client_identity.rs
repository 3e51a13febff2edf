//! Certificates of clients in requests to backends: those that were verified, and none that a
//! client claims.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::Request;
use portcullis_model::{ClientCertificates, IdentityField, Listener, Serves, TlsOptions};
use rcgen::SanType;
use rcgen::string::Ia5String;
use tokio::net::TcpStream;

use crate::support::authority::{Authority, anchors, authority, identity};
use crate::support::backend::Backend;
use crate::support::client::{self, Identity};
use crate::support::fixture::{Gateway, ListenerSpec, RouteSpec, snapshot};

/// Spellings of fields that say whose certificate it is. Where header fields become variables,
/// those with underscores are the same.
const FORGED: [(&str, &str); 8] = [
    ("Client-Cert", ":Zm9yZ2Vk:"),
    ("client_cert", ":Zm9yZ2Vk:"),
    ("CLIENT-CERT-CHAIN", ":Zm9yZ2Vk:"),
    ("X-Forwarded-Client-Cert", "Hash=forged"),
    ("x_forwarded_client_cert", "Hash=forged"),
    ("x-forwarded-Client_Cert", "Hash=forged"),
    ("SSL-Client-Verify", "forged"),
    ("x-ssl-client-s-dn", "CN=forged"),
];

fn listener(name: &'static str, host: &'static str, clients: ClientCertificates) -> Listener {
    let mut listener = ListenerSpec::new(name, host, true, vec![RouteSpec::to("/", "app/echo:80")]).build();
    let Serves::Https { tls, .. } = &mut listener.serves else { panic!("it serves {:?}", listener.serves) };
    tls.clients = clients;
    tls.options = Arc::new(TlsOptions { identity: IdentityField::ALL.into(), ..TlsOptions::default() });
    listener
}

async fn gateway(listeners: impl IntoIterator<Item = Listener>) -> (Gateway, Backend) {
    let (backend, gateway) = (Backend::echo().await, Gateway::start());
    let snapshot = snapshot(gateway.address, listeners, &[("app/echo:80", &[backend.address])]);
    gateway.proxy.apply(Arc::new(snapshot)).await;
    (gateway, backend)
}

/// The lines about clients that the backend saw of a request that forges all it can, over HTTP/1
/// and over HTTP/2.
async fn seen(gateway: &Gateway, name: &'static str, shown: Option<&Identity>) -> [Vec<String>; 2] {
    let mut seen = [const { Vec::new() }; 2];
    for (alpn, seen) in [&b"http/1.1"[..], b"h2"].into_iter().zip(&mut seen) {
        let stream = TcpStream::connect(gateway.address).await.unwrap();
        let stream = client::tls_showing(stream, name, alpn, shown).await.unwrap();
        let mut request = Request::get(format!("https://{name}/"));
        for (field, value) in FORGED {
            request = request.header(field, value);
        }
        let request = request.body(Bytes::new()).unwrap();
        let answer = match alpn {
            b"h2" => client::http2(stream, request).await,
            _ => client::http1(stream, request).await,
        };
        assert_eq!(answer.status(), 200);
        let lines = answer.into_body();
        assert!(!lines.contains("forged") && !lines.contains("Zm9yZ2Vk"), "{lines}");
        seen.extend(lines.lines().filter(|line| line.contains("client")).map(str::to_owned));
        seen.sort();
    }
    seen
}

fn required(authority: &Authority) -> ClientCertificates {
    ClientCertificates::Required([anchors(authority)].into())
}

#[tokio::test]
async fn backends_learn_whose_certificate_was_verified() {
    let one = authority("one");
    let (gateway, _backend) = gateway([listener("strict", "strict.example.com", required(&one))]).await;
    let uri = Ia5String::try_from("spiffe://shop/cart").unwrap();
    let shown = identity(&one, |params| {
        params.distinguished_name.push(rcgen::DnType::CommonName, "cart\", f0rged");
        params.subject_alt_names.push(SanType::URI(uri));
    });
    let chain = vec![shown.0[0].clone(), one.der().clone()];
    let chained = (chain, shown.1.clone_key());
    for shown in [&shown, &chained] {
        for lines in seen(&gateway, "strict.example.com", Some(shown)).await.map(|lines| lines.join("\n")) {
            let leaf = STANDARD.encode(&shown.0[0]);
            assert!(lines.contains(&format!("client-cert: :{leaf}:\n")), "{lines}");
            assert!(
                lines
                    .contains(";Subject=\"CN=cart\\22\\, f0rged\";URI=spiffe://shop/cart;DNS=client.example"),
                "{lines}"
            );
            let chain = format!("client-cert-chain: :{}:", STANDARD.encode(one.der()));
            assert_eq!(lines.contains(&chain), shown.0.len() == 2, "{lines}");
        }
    }
}

#[tokio::test]
async fn whatever_was_not_verified_is_not_told() {
    let one = authority("one");
    let (gateway, _backend) = gateway([
        listener("any", "any.example.com", ClientCertificates::Any),
        listener("unasked", "unasked.example.com", ClientCertificates::NotAsked),
    ])
    .await;
    let shown = identity(&one, |_| {});
    for name in ["any.example.com", "unasked.example.com"] {
        for shown in [Some(&shown), None] {
            assert_eq!(seen(&gateway, name, shown).await, [const { Vec::<String>::new() }; 2], "{name}");
        }
    }
}

/// Part of a certificate's names would say something else than the certificate.
#[tokio::test]
async fn what_is_too_long_for_a_field_is_left_out_whole() {
    let one = authority("one");
    let (gateway, _backend) = gateway([listener("strict", "strict.example.com", required(&one))]).await;
    let shown = identity(&one, |params| {
        let names = (0..900).map(|at| format!("a-rather-long-name-{at:04}.example"));
        params.subject_alt_names.extend(names.map(|name| SanType::DnsName(name.try_into().unwrap())));
    });
    assert_eq!(seen(&gateway, "strict.example.com", Some(&shown)).await, [const { Vec::<String>::new() }; 2]);
}

#[tokio::test]
async fn plain_listeners_pass_no_claims_on_either() {
    let plain = ListenerSpec::new("plain", "*", false, vec![RouteSpec::to("/", "app/echo:80")]).build();
    let (gateway, _backend) = gateway([plain]).await;
    let fields: String = FORGED.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let request = format!("GET / HTTP/1.1\r\nhost: a.example.com\r\n{fields}connection: close\r\n\r\n");
    let answer = client::raw(gateway.address, request.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200") && !answer.to_lowercase().contains("forged"), "{answer}");
    assert!(!answer.contains("Zm9yZ2Vk"), "{answer}");
}
