//! Certificates as a cluster would hold them.

use std::fmt::Write;
use std::net::IpAddr;

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType, date_time_ymd,
};

/// A certificate authority made for one run.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A chain and its key, as PEM.
#[derive(Clone)]
pub struct Certificate {
    pub chain: String,
    pub key: String,
}

impl Authority {
    pub fn new() -> Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "Portcullis test authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        Ok(Self(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?))
    }

    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// A P-256 server certificate.
    pub fn issue(&self, names: &[&str]) -> Result<Certificate> {
        self.sign(CertificateParams::default(), names)
    }

    /// One whose time is over.
    pub fn issue_expired(&self, names: &[&str]) -> Result<Certificate> {
        let mut params = CertificateParams::default();
        (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
        self.sign(params, names)
    }

    fn sign(&self, mut params: CertificateParams, names: &[&str]) -> Result<Certificate> {
        let key = KeyPair::generate()?;
        params.distinguished_name.push(DnType::CommonName, names.first().copied().unwrap_or_default());
        params.subject_alt_names = names.iter().map(|name| alternative(name)).collect::<Result<_>>()?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let chain = params.signed_by(&key, &self.0)?.pem();
        Ok(Certificate { chain, key: key.serialize_pem() })
    }
}

fn alternative(name: &str) -> Result<SanType> {
    match name.parse::<IpAddr>() {
        Ok(address) => Ok(SanType::IpAddress(address)),
        Err(_) => Ok(SanType::DnsName(name.try_into()?)),
    }
}

impl Certificate {
    /// A Secret of type kubernetes.io/tls, as a YAML document.
    pub fn secret(&self, namespace: &str, name: &str) -> String {
        let mut yaml = format!(
            "---\napiVersion: v1\nkind: Secret\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
             type: kubernetes.io/tls\nstringData:\n"
        );
        for (key, pem) in [("tls.crt", &self.chain), ("tls.key", &self.key)] {
            let _ = writeln!(yaml, "  {key}: |");
            pem.lines().for_each(|line| {
                let _ = writeln!(yaml, "    {line}");
            });
        }
        yaml
    }
}
