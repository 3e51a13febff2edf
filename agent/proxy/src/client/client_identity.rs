//! The certificate that a client has shown, in the header fields by which backends learn of it.
//! Only one that the listener's authorities have vouched for becomes fields: the handshake is over.

use std::fmt::Write;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderName, HeaderValue};
use portcullis_model::{ClientCertificates, IdentityField, TlsTermination};
use rustls::ServerConnection;
use rustls::pki_types::CertificateDer;
use x509_parser::asn1_rs::ToDer;
use x509_parser::prelude::{AttributeTypeAndValue, FromDer, GeneralName, X509Certificate, X509Name};

use crate::core::head::FieldsMut;

/// Bytes of a field. One that would be longer is left out: part of a certificate, or of its names,
/// would say something else.
const LONGEST: usize = 16 << 10;

/// Attributes of a subject by the names that they have in text (RFC 4514 section 3, and those of
/// OpenSSL).
const ATTRIBUTES: [(&str, &str); 11] = [
    ("2.5.4.3", "CN"),
    ("2.5.4.5", "serialNumber"),
    ("2.5.4.6", "C"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.9", "STREET"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("0.9.2342.19200300.100.1.1", "UID"),
    ("0.9.2342.19200300.100.1.25", "DC"),
    ("1.2.840.113549.1.9.1", "emailAddress"),
];

/// Fields of requests; at least one.
#[derive(Debug)]
pub(crate) struct ClientIdentity(Box<[(HeaderName, HeaderValue)]>);

impl ClientIdentity {
    /// `None` unless the listener wants backends to learn it, and the client's certificate was
    /// verified.
    pub(crate) fn of(tls: &TlsTermination, session: &ServerConnection) -> Option<Box<Self>> {
        let fields = &tls.options.identity;
        if fields.is_empty() || !matches!(tls.clients, ClientCertificates::Required(_)) {
            return None;
        }
        let (leaf, chain) = session.peer_certificates()?.split_first()?;
        let fields = fields.iter().filter_map(|field| {
            let (name, value) = match field {
                IdentityField::ClientCert => ("client-cert", bytes(leaf)),
                IdentityField::ClientCertChain if chain.is_empty() => return None,
                IdentityField::ClientCertChain => {
                    ("client-cert-chain", chain.iter().map(bytes).collect::<Vec<_>>().join(", "))
                }
                IdentityField::ForwardedClientCert => ("x-forwarded-client-cert", forwarded(leaf)?),
            };
            if value.len() > LONGEST {
                tracing::debug!(
                    field = name,
                    bytes = value.len(),
                    "a client's certificate is too long for a field"
                );
                return None;
            }
            Some((HeaderName::from_static(name), HeaderValue::try_from(value).ok()?))
        });
        let fields: Box<[_]> = fields.collect();
        // A chain says nothing without the certificate that it is of.
        let is_whole = fields.first().is_some_and(|(name, _)| name != "client-cert-chain");
        is_whole.then(|| Box::new(Self(fields)))
    }

    pub(crate) fn insert(&self, fields: &mut impl FieldsMut) {
        for (name, value) in &self.0 {
            fields.insert(name.clone(), value.clone());
        }
    }
}

/// As a byte sequence of structured fields (RFC 8941 section 3.3.5).
fn bytes(certificate: &CertificateDer<'_>) -> String {
    format!(":{}:", STANDARD.encode(certificate))
}

/// An element of `X-Forwarded-Client-Cert`: the SHA-256 of the certificate, its subject, and those
/// of its names that are URIs or names of hosts. `None` if it cannot be read.
pub(crate) fn forwarded(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let mut element = String::from("Hash=");
    for byte in digest(&SHA256, certificate).as_ref() {
        write!(element, "{byte:02x}").ok()?;
    }
    write!(element, ";Subject=\"{}\"", subject(parsed.subject())).ok()?;
    let names = parsed.subject_alternative_name().ok()?;
    let names = names.map(|extension| extension.value.general_names.as_slice()).unwrap_or_default();
    let uris = names.iter().filter_map(|name| match name {
        GeneralName::URI(uri) => Some(("URI", *uri)),
        _ => None,
    });
    let hosts = names.iter().filter_map(|name| match name {
        GeneralName::DNSName(host) => Some(("DNS", *host)),
        _ => None,
    });
    for (key, name) in uris.chain(hosts).filter(|(_, name)| is_name(name)) {
        let is_bare = !name.contains([',', ';', '=']);
        let quotes = if is_bare { "" } else { "\"" };
        write!(element, ";{key}={quotes}{name}{quotes}").ok()?;
    }
    Some(element)
}

/// True unless it has characters that neither URIs nor names of hosts have: an authority may let
/// others through, and they would end the name for backends that read it.
fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\')
}

/// In the form of RFC 4514, the last attribute first, and no quotation mark or backslash in it but
/// those that escape: it is put between quotation marks.
fn subject(name: &X509Name<'_>) -> String {
    let parts: Vec<_> =
        name.iter_rdn().map(|part| part.iter().map(attribute).collect::<Vec<_>>().join("+")).collect();
    parts.into_iter().rev().collect::<Vec<_>>().join(",")
}

fn attribute(attribute: &AttributeTypeAndValue<'_>) -> String {
    let oid = attribute.attr_type().to_id_string();
    let known = ATTRIBUTES.iter().find(|(known, _)| *known == oid);
    match (known, attribute.as_str()) {
        (Some((_, name)), Ok(text)) => format!("{name}={}", escaped(text)),
        _ => {
            let der = attribute.attr_value().to_der_vec().unwrap_or_default();
            let digits: String = der.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{oid}=#{digits}")
        }
    }
}

fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for (at, byte) in text.bytes().enumerate() {
        let is_edge = at == 0 || at + 1 == text.len();
        match byte {
            b'"' | b'\\' | 0..=0x1f | 0x7f.. => {
                let _ = write!(escaped, "\\{byte:02X}");
            }
            b'+' | b',' | b';' | b'<' | b'>' | b'=' => escaped.extend(['\\', char::from(byte)]),
            b' ' if is_edge => escaped.push_str("\\ "),
            b'#' if at == 0 => escaped.push_str("\\#"),
            _ => escaped.push(char::from(byte)),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use rcgen::string::Ia5String;
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    use super::*;

    fn certificate(common_name: &str, names: &[SanType]) -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::OrganizationName, "Acme, Inc.");
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.distinguished_name.push(DnType::CustomDnType(vec![1, 2, 3, 4]), "x");
        params.subject_alt_names = names.to_vec();
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    fn text(text: &str) -> Ia5String {
        text.try_into().unwrap()
    }

    #[test]
    fn a_certificate_says_no_more_than_it_has() {
        let certificate = certificate(
            "a\";URI=spiffe://forged;Subject=\"\\é\n",
            &[
                SanType::DnsName(text("a.example")),
                SanType::DnsName(text("b\";Subject=\"CN=root")),
                SanType::URI(text("spiffe://shop/cart")),
                SanType::URI(text("urn:x;Subject=CN,b=c")),
                SanType::URI(text("urn:x y")),
                SanType::Rfc822Name(text("a@example.com")),
            ],
        );
        let element = forwarded(&certificate).unwrap();
        let (hash, rest) = element.split_at("Hash=".len() + 64);
        assert!(hash["Hash=".len()..].bytes().all(|digit| digit.is_ascii_hexdigit()), "{hash}");
        assert_eq!(
            rest,
            ";Subject=\"1.2.3.4=#0c0178,O=Acme\\, Inc.,CN=a\\22\\;URI\\=spiffe://forged\\;Subject\\=\\22\\5C\\C3\\A9\\0A\";\
             URI=spiffe://shop/cart;URI=\"urn:x;Subject=CN,b=c\";DNS=a.example"
        );
        assert!(HeaderValue::try_from(element).is_ok());
    }

    #[test]
    fn what_is_special_at_an_edge_is_escaped_there() {
        assert_eq!(escaped("# a # "), "\\# a #\\ ");
        assert_eq!(escaped(" "), "\\ ");
    }
}
