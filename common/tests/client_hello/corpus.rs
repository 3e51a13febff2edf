//! Hellos of real clients. Those in `hellos` were recorded from Chromium 156 (with GREASE, a
//! post-quantum key share, and extensions in random order), `openssl s_client` and curl with
//! OpenSSL 3.0, and Go 1.26; those of rustls are made anew each time.

use std::sync::Arc;

use rustls::client::{EchConfig, EchGreaseConfig, EchMode};
use rustls::crypto::hpke::{Hpke, HpkePublicKey};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::{ClientConfig, ClientConnection, ConfigBuilder, RootCertStore, WantsVerifier};
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
    recorded.chain(rustls()).chain(encrypted()).collect()
}

/// With an encrypted hello inside (ECH), or what looks like it: only the outer name can be read.
fn encrypted() -> Vec<Hello> {
    const PUBLIC: &str = "public.example.net";
    const HIDDEN: &str = "hidden.app.example.com";
    let suite = aws_lc_rs::hpke::DH_KEM_X25519_HKDF_SHA256_AES_128;
    let (key, _) = suite.generate_key_pair().unwrap();
    let of_server = EchConfig::new(ech_configs(&key, PUBLIC).into(), &[suite]).unwrap();
    let modes = [
        ("rustls, ECH", EchMode::from(of_server), PUBLIC),
        ("rustls, GREASE of ECH", EchMode::from(EchGreaseConfig::new(suite, key)), HIDDEN),
    ];
    let hello = |(client, mode, name): (&str, EchMode, &str)| {
        let config = ClientConfig::builder_with_provider(provider()).with_ech(mode).unwrap();
        Hello { client: client.to_owned(), bytes: first_bytes(config, HIDDEN), name: Some(name.to_owned()) }
    };
    modes.map(hello).into()
}

/// An `ECHConfigList` (RFC 9849, section 4) of one key, for X25519, HKDF-SHA256 and AES-128-GCM.
fn ech_configs(key: &HpkePublicKey, public_name: &str) -> Vec<u8> {
    let with_length = |bytes: &[u8]| [&(bytes.len() as u16).to_be_bytes(), bytes].concat();
    let key = [&[7, 0, 0x20][..], &with_length(&key.0)].concat();
    let suites = with_length(&[0, 1, 0, 1]);
    let name = [&[0, public_name.len() as u8], public_name.as_bytes()].concat();
    let contents = [key, suites, name, with_length(&[])].concat();
    with_length(&[&[0xfe, 0x0d][..], &with_length(&contents)].concat())
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
    let config = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    // An address is not sent.
    first_bytes(config.unwrap(), name.unwrap_or("10.0.0.1"))
}

/// With a post-quantum key share.
fn provider() -> Arc<CryptoProvider> {
    let post_quantum = [aws_lc_rs::kx_group::X25519MLKEM768, aws_lc_rs::kx_group::X25519];
    Arc::new(CryptoProvider { kx_groups: post_quantum.to_vec(), ..aws_lc_rs::default_provider() })
}

fn first_bytes(config: ConfigBuilder<ClientConfig, WantsVerifier>, name: &str) -> Vec<u8> {
    let config = config.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).unwrap();
    bytes
}
