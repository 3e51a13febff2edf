//! The scrapers that may read metrics from outside of the node: those with a token, or with a
//! certificate. Files are read again when they change, as Secrets that are mounted do.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use http::header::AUTHORIZATION;
use http::request::Parts;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use crate::cli::MetricsArgs;

pub(crate) struct Access {
    token: Option<PathBuf>,
    tls: Option<TlsFiles>,
}

struct TlsFiles {
    certificate: PathBuf,
    key: PathBuf,
    /// Of the scrapers' certificates.
    authorities: Option<PathBuf>,
    /// By the times at which the files were changed.
    current: Mutex<Option<(Vec<SystemTime>, TlsAcceptor)>>,
}

/// The answer to a scraper that may not read.
pub(crate) enum Refusal {
    /// No token, or another one.
    Token,
    /// The token is not there to compare with.
    Unknown(anyhow::Error),
}

// === impl Access ===

impl Access {
    /// # Errors
    /// When a file cannot be used, or when all who reach the address could read, and the operator
    /// has not said so.
    pub(crate) fn of(args: &MetricsArgs) -> Result<Self> {
        let token = args.metrics_token_file.clone();
        let tls = args.metrics_certificate.as_ref().zip(args.metrics_key.as_ref());
        let tls = tls.map(|(certificate, key)| TlsFiles {
            certificate: certificate.clone(),
            key: key.clone(),
            authorities: args.metrics_client_ca.clone(),
            current: Mutex::default(),
        });
        let Some(address) = args.metrics_address else { return Ok(Self { token, tls }) };
        let is_open = token.is_none() && args.metrics_client_ca.is_none();
        if is_open && !address.ip().is_loopback() && !args.metrics_open {
            bail!(
                "--metrics-address {address}: all who reach it could read. Give scrapers a token (--metrics-token-file) \
                 or certificates (--metrics-client-ca), or say --metrics-open"
            );
        }
        if token.is_some() && tls.is_none() && !address.ip().is_loopback() {
            tracing::warn!(
                "--metrics-token-file: tokens come to {address} in clear text, for all on the way to read: add \
                 --metrics-certificate and --metrics-key"
            );
        }
        if let Some(path) = &token {
            read_token(path)?;
        }
        if let Some(tls) = &tls {
            tls.acceptor()?;
        }
        Ok(Self { token, tls })
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// `None` without TLS.
    pub(crate) fn acceptor(&self) -> Result<Option<TlsAcceptor>> {
        self.tls.as_ref().map(TlsFiles::acceptor).transpose()
    }

    pub(crate) fn admit(&self, request: &Parts) -> Result<(), Refusal> {
        let Some(path) = &self.token else { return Ok(()) };
        let token = read_token(path).map_err(Refusal::Unknown)?;
        let given = request.headers.get(AUTHORIZATION).and_then(|value| {
            let (scheme, given) = value.as_bytes().split_at_checked(b"Bearer ".len())?;
            scheme.eq_ignore_ascii_case(b"Bearer ").then_some(given)
        });
        let is_it = given.is_some_and(|given| verify_slices_are_equal(given, token.as_bytes()).is_ok());
        if is_it { Ok(()) } else { Err(Refusal::Token) }
    }
}

fn read_token(path: &Path) -> Result<String> {
    let read = || format!("cannot read --metrics-token-file {}", path.display());
    let text = fs::read_to_string(path).with_context(read)?;
    let token = text.trim();
    if token.is_empty() {
        bail!("--metrics-token-file {} is empty", path.display());
    }
    Ok(token.to_owned())
}

// === impl TlsFiles ===

impl TlsFiles {
    /// With the files as they are now.
    fn acceptor(&self) -> Result<TlsAcceptor> {
        let paths = [Some(&self.certificate), Some(&self.key), self.authorities.as_ref()];
        let changed = paths.into_iter().flatten().map(|path| {
            let read = || format!("cannot read {}", path.display());
            fs::metadata(path).and_then(|it| it.modified()).with_context(read)
        });
        let changed: Vec<_> = changed.collect::<Result<_>>()?;
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((as_of, acceptor)) = &*current
            && *as_of == changed
        {
            return Ok(acceptor.clone());
        }
        let acceptor = TlsAcceptor::from(Arc::new(self.config()?));
        *current = Some((changed, acceptor.clone()));
        Ok(acceptor)
    }

    fn config(&self) -> Result<ServerConfig> {
        let Self { certificate, key, authorities, .. } = self;
        let chain = certificates(certificate)?;
        let read = || format!("no private key in --metrics-key {}", key.display());
        let private_key = PrivateKeyDer::from_pem_file(key).with_context(read)?;
        let provider = Arc::new(default_provider());
        let builder =
            ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
        let builder = match authorities {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for authority in certificates(path)? {
                    let refused = || format!("{}: this is no authority", path.display());
                    roots.add(authority).with_context(refused)?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider).build()?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let pair = || format!("{} and {} are no pair", certificate.display(), key.display());
        builder.with_single_cert(chain, private_key).with_context(pair)
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = || format!("cannot read the certificates of {}", path.display());
    let all = CertificateDer::pem_file_iter(path).with_context(read)?;
    let all: Vec<_> = all.collect::<Result<_, _>>().with_context(read)?;
    if all.is_empty() {
        bail!("no certificate in {}", path.display());
    }
    Ok(all)
}
