//! Keys of `options` of TLS, which every implementation may define some of.
//! "Implementation-specific definitions MUST use domain-prefixed names"; others "are reserved for
//! key names defined by Gateway API".

use std::collections::BTreeMap;

use portcullis_model::{IdentityField, SessionTickets, TlsOptions, TlsVersion};

/// The domain of options that are ours.
const OWN_DOMAIN: &str = "portcullis.dev";

const MINIMUM_VERSION: &str = "portcullis.dev/minimum-version";
const CIPHER_SUITES: &str = "portcullis.dev/cipher-suites";
const SESSION_TICKETS: &str = "portcullis.dev/session-tickets";
pub(crate) const FORWARD_CLIENT_CERTIFICATE: &str = "portcullis.dev/forward-client-certificate";

/// True of a key that is another implementation's. All others have to be known: what an option was
/// to forbid must not be done without it. Domains are the same in upper and lower case.
pub(crate) fn is_foreign(option: &str) -> bool {
    let Some((domain, _)) = option.split_once('/') else { return false };
    let domain = domain.to_ascii_lowercase();
    domain != OWN_DOMAIN && !domain.strip_suffix(OWN_DOMAIN).is_some_and(|sub| sub.ends_with('.'))
}

/// The options of a listener where TLS ends.
///
/// # Errors
/// All that is wrong with them.
pub(crate) fn of_listener(options: &BTreeMap<String, String>) -> Result<TlsOptions, Vec<String>> {
    let mut parsed = TlsOptions::default();
    let (mut unknown, mut problems) = (Vec::new(), Vec::new());
    for (key, value) in options.iter().filter(|(key, _)| !is_foreign(key)) {
        let read = match key.as_str() {
            MINIMUM_VERSION => minimum_version(value).map(|version| parsed.minimum_version = version),
            CIPHER_SUITES => list(value, TlsOptions::cipher_suite)
                .map(|suites| parsed.cipher_suites = suites.into())
                .map_err(|name| {
                    let known: Vec<_> = TlsOptions::cipher_suite_names().collect();
                    format!("{name:?} is no cipher suite that we have; there are {}", known.join(", "))
                }),
            SESSION_TICKETS => session_tickets(value).map(|tickets| parsed.tickets = tickets),
            FORWARD_CLIENT_CERTIFICATE => list(value, identity_field)
                .map(|mut fields| {
                    fields.sort_unstable();
                    parsed.identity = fields.into();
                })
                .map_err(|name| {
                    let known = IdentityField::ALL.map(IdentityField::name);
                    format!("{name:?} is no field that we know; there are {}", known.join(", "))
                }),
            _ => {
                unknown.push(key.as_str());
                continue;
            }
        };
        problems.extend(read.err().map(|problem| format!("tls.options {key}: {problem}")));
    }
    if !unknown.is_empty() {
        problems.push(format!(
            "tls.options has {}, which is no option that we know: remove it; what an option was to forbid must not \
             be served without it",
            unknown.join(", ")
        ));
    }
    let suites = &parsed.cipher_suites;
    if !suites.is_empty() && suites.iter().all(|suite| TlsVersion::of(*suite) < parsed.minimum_version) {
        problems.push(format!(
            "tls.options {CIPHER_SUITES}: none of the suites is of TLS {} or later, which {MINIMUM_VERSION} asks for",
            parsed.minimum_version.name()
        ));
    }
    let identity = &parsed.identity;
    if identity.contains(&IdentityField::ClientCertChain) && !identity.contains(&IdentityField::ClientCert) {
        problems.push(format!(
            "tls.options {FORWARD_CLIENT_CERTIFICATE}: Client-Cert-Chain says nothing without Client-Cert: name both"
        ));
    }
    if problems.is_empty() { Ok(parsed) } else { Err(problems) }
}

fn minimum_version(value: &str) -> Result<TlsVersion, String> {
    let known = [TlsVersion::Tls12, TlsVersion::Tls13];
    let version = known.into_iter().find(|version| version.name() == value);
    version.ok_or_else(|| format!("there is no version {value:?}; use 1.2 or 1.3"))
}

fn session_tickets(value: &str) -> Result<SessionTickets, String> {
    match value {
        "on" => Ok(SessionTickets::Given),
        "off" => Ok(SessionTickets::NotGiven),
        _ => Err(format!("{value:?} is neither on nor off")),
    }
}

fn identity_field(name: &str) -> Option<IdentityField> {
    IdentityField::ALL.into_iter().find(|field| field.name().eq_ignore_ascii_case(name))
}

/// The entries of a list with commas, each once; or the first that is unknown.
fn list<T: PartialEq>(value: &str, of: impl Fn(&str) -> Option<T>) -> Result<Vec<T>, String> {
    let mut entries = Vec::new();
    for name in value.split(',').map(str::trim) {
        let entry = of(name).ok_or_else(|| name.to_owned())?;
        if !entries.contains(&entry) {
            entries.push(entry);
        }
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(options: &[(&str, &str)]) -> Result<TlsOptions, String> {
        let options = options.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        of_listener(&options.collect()).map_err(|problems| problems.join("; "))
    }

    #[test]
    fn options_say_how_tls_ends() {
        assert_eq!(parse(&[("example.com/minimum-version", "1.1")]), Ok(TlsOptions::default()));
        let all = parse(&[
            (MINIMUM_VERSION, "1.3"),
            (
                CIPHER_SUITES,
                "TLS_AES_256_GCM_SHA384, TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,TLS_AES_256_GCM_SHA384",
            ),
            (SESSION_TICKETS, "off"),
            (FORWARD_CLIENT_CERTIFICATE, "client-cert,X-Forwarded-Client-Cert"),
        ]);
        let suites = ["TLS_AES_256_GCM_SHA384", "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"];
        let expected = TlsOptions {
            minimum_version: TlsVersion::Tls13,
            cipher_suites: suites.iter().filter_map(|name| TlsOptions::cipher_suite(name)).collect(),
            tickets: SessionTickets::NotGiven,
            identity: [IdentityField::ClientCert, IdentityField::ForwardedClientCert].into(),
        };
        assert_eq!(all, Ok(expected));
    }

    #[test]
    fn what_is_not_known_is_refused() {
        for (key, value, told) in [
            ("portcullis.dev/minimum-versoin", "1.3", "which is no option that we know"),
            ("sub.portcullis.dev/session-tickets", "off", "which is no option that we know"),
            ("Portcullis.dev/minimum-version", "1.3", "which is no option that we know"),
            ("sub.PORTCULLIS.DEV/session-tickets", "off", "which is no option that we know"),
            ("minimum-version", "1.3", "which is no option that we know"),
            (MINIMUM_VERSION, "1.1", "there is no version \"1.1\"; use 1.2 or 1.3"),
            (MINIMUM_VERSION, "TLS1.3", "there is no version"),
            (MINIMUM_VERSION, "", "there is no version"),
            (SESSION_TICKETS, "Off", "\"Off\" is neither on nor off"),
            (CIPHER_SUITES, "", "\"\" is no cipher suite that we have; there are TLS_AES_128_GCM_SHA256, "),
            (CIPHER_SUITES, "TLS_AES_128_GCM_SHA256,", "\"\" is no cipher suite"),
            (CIPHER_SUITES, "TLS_RSA_WITH_AES_128_CBC_SHA", "is no cipher suite that we have"),
            (
                FORWARD_CLIENT_CERTIFICATE,
                "client-cert-chain",
                "Client-Cert-Chain says nothing without Client-Cert",
            ),
            (
                FORWARD_CLIENT_CERTIFICATE,
                "X-Client-Cert",
                "is no field that we know; there are Client-Cert, ",
            ),
        ] {
            let problem = parse(&[(key, value)]).unwrap_err();
            assert!(problem.starts_with("tls.options ") && problem.contains(told), "{problem}");
        }
        let none_left =
            parse(&[(MINIMUM_VERSION, "1.3"), (CIPHER_SUITES, "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256")]);
        assert!(none_left.unwrap_err().contains("none of the suites is of TLS 1.3 or later"));
    }
}
