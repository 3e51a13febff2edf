//! Hellos of real clients. Those in `hellos` were recorded from Chromium 156 (with GREASE, a
//! post-quantum key share, and extensions in random order), `openssl s_client` and curl with
//! OpenSSL 3.0, and Go 1.26; those of rustls are made anew each time.

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use rustls_pki_types::ServerName;

pub(crate) struct Hello {
    pub(crate) client: String,
    pub(crate) bytes: Vec<u8>,
    pub(crate) name: Option<String>,
}

macro_rules! recorded {
    ($($file:literal $name:expr;)*) => {
        [$(($file, include_bytes!(concat!("hellos/", $file, ".bin")) as &[u8], $name)),*]
    };
}

const RECORDED: [(&str, &[u8], Option<&str>); 13] = recorded! {
    "chromium-early" Some("h16.app.example.com");
    "chromium-middle" Some("h33.app.example.com");
    "chromium-second-segment" Some("h21.app.example.com");
    "chromium-late" Some("h8.app.example.com");
    "chromium-last" Some("h0.app.example.com");
    "curl" Some("app.example.com");
    "curl-address" None;
    "go" Some("app.example.com");
    "go-long" Some("a-rather-long-label-of-a-tenant.another-label-that-is-long.preview.deployments.example.com");
    "openssl-alpn" Some("app.example.com");
    "openssl-no-name" None;
    "openssl-tls12" Some("app.example.com");
    "openssl-tls13" Some("app.example.com");
};

pub(crate) fn corpus() -> Vec<Hello> {
    let recorded = RECORDED.into_iter().map(|(client, bytes, name)| Hello {
        client: client.to_owned(),
        bytes: bytes.to_vec(),
        name: name.map(str::to_owned),
    });
    recorded.chain(rustls()).collect()
}

/// Extensions come in random order.
fn rustls() -> Vec<Hello> {
    let label = "x".repeat(63);
    let longest = format!("{label}.{label}.{label}.{}", "y".repeat(61));
    let names = ["a.b", "App.Example.COM", "x.wild.example.com", &longest];
    let with_names = names.into_iter().flat_map(|name| (0..6).map(move |_| Some(name)));
    let hellos = with_names.chain([None]).enumerate().map(|(index, name)| Hello {
        client: format!("rustls {index}"),
        bytes: rustls_hello(name),
        name: name.map(str::to_ascii_lowercase),
    });
    hellos.collect()
}

fn rustls_hello(name: Option<&str>) -> Vec<u8> {
    let post_quantum = [aws_lc_rs::kx_group::X25519MLKEM768, aws_lc_rs::kx_group::X25519];
    let provider = CryptoProvider { kx_groups: post_quantum.to_vec(), ..aws_lc_rs::default_provider() };
    let config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    // An address is not sent.
    let name = ServerName::try_from(name.unwrap_or("10.0.0.1").to_owned()).unwrap();
    let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).unwrap();
    bytes
}
