//! The scrapers that may read metrics from outside of the node: those with a token, or with a
//! certificate. Files are read again when they change, as Secrets that are mounted do.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use http::header::AUTHORIZATION;
use http::request::Parts;
use portcullis_proxy::read_ordinary_file;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use crate::cli::MetricsArgs;

/// Bytes of a token, of a key, or of a certificate with those in between.
const LARGEST: u64 = 64 << 10;
/// Bytes of certificates of authorities: a system may have hundreds of them.
const LARGEST_AUTHORITIES: u64 = 1 << 20;

pub(crate) struct Access {
    token: Option<TokenFile>,
    tls: Option<TlsFiles>,
}

struct TokenFile {
    path: PathBuf,
    fault: FileFault,
}

struct TlsFiles {
    certificate: PathBuf,
    key: PathBuf,
    /// Of the scrapers' certificates.
    authorities: Option<PathBuf>,
    current: Mutex<Option<(Vec<FileState>, TlsAcceptor)>>,
    fault: FileFault,
}

/// Device, inode, size, and the times of the last changes of the file and of its contents. Times
/// alone are those of the kernel's ticks, and may be set.
type FileState = [i64; 7];

/// A fault of files that the log has: once, however many scrapers ask.
#[derive(Default)]
struct FileFault(Mutex<Option<String>>);

/// A file cannot be used; the log says why.
pub(crate) struct Unusable;

/// The answer to a scraper that may not read.
pub(crate) enum Refusal {
    /// No token, or another one.
    Token,
    /// The token is not there to compare with.
    Unknown,
}

// === impl Access ===

impl Access {
    /// # Errors
    /// When all who reach the address could read, and the operator has not said so.
    pub(crate) fn of(args: &MetricsArgs) -> Result<Self> {
        let token = args.metrics_token_file.clone();
        let token = token.map(|path| TokenFile { path, fault: FileFault::default() });
        let tls = args.metrics_certificate.as_ref().zip(args.metrics_key.as_ref());
        let tls = tls.map(|(certificate, key)| TlsFiles {
            certificate: certificate.clone(),
            key: key.clone(),
            authorities: args.metrics_client_ca.clone(),
            current: Mutex::default(),
            fault: FileFault::default(),
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
        let access = Self { token, tls };
        // Nothing of metrics keeps an agent from serving: a file that is missing may come.
        access.token.as_ref().map(TokenFile::read);
        let _ = access.acceptor();
        Ok(access)
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// `None` without TLS.
    pub(crate) fn acceptor(&self) -> Result<Option<TlsAcceptor>, Unusable> {
        let Some(tls) = &self.tls else { return Ok(None) };
        tls.fault.checked(tls.acceptor()).map(Some).ok_or(Unusable)
    }

    pub(crate) fn admit(&self, request: &Parts) -> Result<(), Refusal> {
        let Some(file) = &self.token else { return Ok(()) };
        let token = file.read().ok_or(Refusal::Unknown)?;
        let given = request.headers.get(AUTHORIZATION).and_then(|value| {
            let (scheme, given) = value.as_bytes().split_at_checked(b"Bearer ".len())?;
            scheme.eq_ignore_ascii_case(b"Bearer ").then_some(given)
        });
        let is_it = given.is_some_and(|given| verify_slices_are_equal(given, token.as_bytes()).is_ok());
        if is_it { Ok(()) } else { Err(Refusal::Token) }
    }
}

// === impl TokenFile ===

impl TokenFile {
    fn read(&self) -> Option<String> {
        self.fault.checked(read_token(&self.path))
    }
}

fn read_token(path: &Path) -> Result<String> {
    let read = || format!("cannot read --metrics-token-file {}", path.display());
    let bytes = read_ordinary_file(path, LARGEST).with_context(read)?;
    let token = std::str::from_utf8(&bytes).with_context(read)?.trim();
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
        let states: Vec<_> = paths.into_iter().flatten().map(|path| state(path)).collect::<Result<_>>()?;
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((as_of, acceptor)) = &*current
            && *as_of == states
        {
            return Ok(acceptor.clone());
        }
        let acceptor = TlsAcceptor::from(Arc::new(self.config()?));
        *current = Some((states, acceptor.clone()));
        Ok(acceptor)
    }

    fn config(&self) -> Result<ServerConfig> {
        let Self { certificate, key, authorities, .. } = self;
        let chain = certificates(certificate, LARGEST)?;
        let read = || format!("no private key in --metrics-key {}", key.display());
        let private_key = read_ordinary_file(key, LARGEST).with_context(read)?;
        let private_key = PrivateKeyDer::from_pem_slice(&private_key).with_context(read)?;
        let provider = Arc::new(default_provider());
        let builder =
            ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
        let builder = match authorities {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for authority in certificates(path, LARGEST_AUTHORITIES)? {
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

fn state(path: &Path) -> Result<FileState> {
    let of = fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?;
    let [device, inode, size] = [of.dev(), of.ino(), of.size()].map(u64::cast_signed);
    Ok([device, inode, size, of.ctime(), of.ctime_nsec(), of.mtime(), of.mtime_nsec()])
}

fn certificates(path: &Path, most: u64) -> Result<Vec<CertificateDer<'static>>> {
    let read = || format!("cannot read the certificates of {}", path.display());
    let pem = read_ordinary_file(path, most).with_context(read)?;
    let all = CertificateDer::pem_slice_iter(&pem);
    let all: Vec<_> = all.collect::<Result<_, _>>().with_context(read)?;
    if all.is_empty() {
        bail!("no certificate in {}", path.display());
    }
    Ok(all)
}

// === impl FileFault ===

impl FileFault {
    fn checked<T>(&self, result: Result<T>) -> Option<T> {
        let (checked, error) = match result {
            Ok(checked) => (Some(checked), None),
            Err(error) => (None, Some(format!("{error:#}"))),
        };
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = error.as_ref().filter(|error| told.as_ref() != Some(error)) {
            tracing::warn!("no scrapes are answered: {error}");
        }
        *told = error;
        checked
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// No writer comes: to open it, or to read it, would take for ever.
    #[test]
    fn nothing_waits_for_a_pipe() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let tls = TlsFiles {
            certificate: pipe.clone(),
            key: pipe.clone(),
            authorities: None,
            current: Mutex::default(),
            fault: FileFault::default(),
        };
        for problem in [read_token(&pipe).err(), tls.acceptor().err()] {
            let problem = format!("{:#}", problem.unwrap());
            assert!(problem.contains("it is no ordinary file"), "{problem}");
        }
    }

    #[test]
    fn a_token_is_read_up_to_its_limit() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("token");
        fs::write(&file, "secret\n").unwrap();
        assert_eq!(read_token(&file).unwrap(), "secret");
        fs::write(&file, "a".repeat(1 << 20)).unwrap();
        let problem = format!("{:#}", read_token(&file).unwrap_err());
        assert!(problem.ends_with("token: it has more than 64 KiB"), "{problem}");
    }
}
