//! The site that every proxy serves, independent of any proxy's configuration: by HTTP a host with
//! one route and a host with many, by HTTPS a number of hosts with a certificate each. All routes
//! lead to the same backend.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use portcullis_testbed::{Authority, Certificate};

pub(super) const ONE: &str = "one.example.com";
pub(super) const MANY: &str = "many.example.com";
pub(super) const HTTP_PORT: u16 = 8080;
pub(super) const HTTPS_PORT: u16 = 8443;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    /// One route, one certificate.
    Small,
    /// 10,000 routes of one host.
    Routes,
    /// 1,000 certificates.
    Certificates,
    /// Both.
    Full,
}

pub(super) struct Site {
    /// Of the certificates.
    pub(super) authority: Authority,
    pub(super) routes: usize,
    pub(super) hosts: Vec<Host>,
}

/// A host served by HTTPS.
pub(super) struct Host {
    pub(super) name: String,
    pub(super) certificate: Certificate,
    /// Chain and key, in a file each and in one file.
    pub(super) chain: PathBuf,
    pub(super) key: PathBuf,
    pub(super) both: PathBuf,
}

impl Size {
    pub(super) const fn routes(self) -> usize {
        match self {
            Self::Routes | Self::Full => 10_000,
            Self::Small | Self::Certificates => 1,
        }
    }

    pub(super) fn certificates(self) -> usize {
        match self {
            Self::Certificates | Self::Full => 1_000,
            Self::Small | Self::Routes => 1,
        }
    }
}

impl Site {
    /// Makes the certificates, in `directory`.
    pub(super) fn create(size: Size, directory: &Path) -> Result<Self> {
        let authority = Authority::new()?;
        let combined = directory.join("pem");
        fs::create_dir_all(&combined)?;
        let host = |number| {
            let name = host_name(number);
            let certificate = authority.issue(&[&name])?;
            let host = Host {
                chain: directory.join(format!("{name}.crt")),
                key: directory.join(format!("{name}.key")),
                both: combined.join(format!("{name}.pem")),
                name,
                certificate,
            };
            host.write()?;
            Ok(host)
        };
        let hosts = (0..size.certificates()).map(host).collect::<Result<_>>()?;
        Ok(Self { authority, routes: size.routes(), hosts })
    }

    /// The paths of the host with many routes.
    pub(super) fn paths(&self) -> impl Iterator<Item = String> {
        (0..self.routes).map(path)
    }
}

impl Host {
    fn write(&self) -> Result<()> {
        fs::write(&self.chain, &self.certificate.chain)?;
        fs::write(&self.key, &self.certificate.key)?;
        Ok(fs::write(&self.both, format!("{}{}", self.certificate.chain, self.certificate.key))?)
    }
}

pub(super) fn host_name(number: usize) -> String {
    format!("c{number}.example.com")
}

pub(super) fn path(number: usize) -> String {
    format!("/r/{number}")
}

/// A path at which the backend has so many KiB.
pub(super) fn large(kib: usize) -> String {
    format!("/large/{kib}")
}
