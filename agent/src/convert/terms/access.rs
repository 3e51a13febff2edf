//! Clients that may come, and how often: lists of addresses, passwords, certificates, limits.

use std::net::IpAddr;

use serde_json::{Value, json};

use super::super::snippet;
use super::{Outcome, Reading, list};

/// Addresses or ranges in one list of a TrafficPolicy.
const MOST_RANGES: usize = 128;
/// Of a limit, and of its burst.
const MOST_REQUESTS: u64 = 100_000;
/// Without effect if no certificate is asked for.
const OF_CERTIFICATES: &[&str] =
    &["auth-tls-pass-certificate-to-upstream", "auth-tls-secret", "auth-tls-verify-client"];

impl Reading<'_> {
    pub(super) fn access(&mut self) {
        self.ranges("whitelist-source-range", "allow");
        self.ranges("allowlist-source-range", "allow");
        let both = (self.get("whitelist-source-range"), self.get("allowlist-source-range"));
        if let (Some(white), Some(allow)) = both
            && white != allow
        {
            self.close(
                "whitelist-source-range",
                "allowlist-source-range is there, too, with other ranges: remove one of them",
            );
        }
        self.ranges("denylist-source-range", "deny");
        self.passwords();
        self.limits();
        match self.get("satisfy") {
            None => {}
            Some("any") => self.differs(
                "satisfy",
                "all have to be satisfied, the address and the credentials: fewer pass than before",
            ),
            Some(_) => self.say("satisfy", Outcome::NotNeeded, "all have to be satisfied"),
        }
        if let Some(snippet) = self.get("configuration-snippet") {
            match snippet::fields(snippet) {
                Ok(fields) if self.terms.redirect.is_none() => self.snippet(&fields),
                Ok(_) => {}
                Err(first) => {
                    self.close(
                        "configuration-snippet",
                        format!("{first}: write what it does as filters and policies, and remove it"),
                    );
                }
            }
        }
        for annotation in ["enable-modsecurity", "enable-owasp-core-rules", "modsecurity-snippet"] {
            if self.get(annotation).is_some_and(|value| value != "false") {
                self.close(annotation, "there is no ModSecurity: put a web application firewall in front or behind, and remove it");
            }
        }
    }

    fn ranges(&mut self, annotation: &str, field: &str) {
        let Some(text) = self.get(annotation) else { return };
        let ranges = list(text);
        if let Some(wrong) = ranges.iter().find(|range| !is_range(range)) {
            return self.close(annotation, format!("{wrong:?} is no address or range"));
        }
        if ranges.is_empty() {
            return self.close(annotation, "there is no range in it");
        }
        if ranges.len() > MOST_RANGES {
            return self.close(annotation, format!("a list has {MOST_RANGES} ranges at most: join some"));
        }
        self.terms.traffic.insert(field.to_owned(), json!(ranges));
        self.became(annotation, format!("TrafficPolicy {field}; behind a load balancer, ListenerPolicy clientAddress or proxyProtocol names clients"));
    }

    fn passwords(&mut self) {
        let Some(kind) = self.get("auth-type") else { return };
        let namespace = self.ingress.namespace.as_str();
        let Some(secret) = self.get("auth-secret") else {
            return self.close("auth-type", "there is no auth-secret");
        };
        let (of, secret) = secret.split_once('/').unwrap_or((namespace, secret));
        if kind != "basic" {
            return self.close("auth-type", format!("{kind} is not spoken: use basic over HTTPS"));
        }
        if of != namespace {
            return self.close(
                "auth-secret",
                format!("a policy has Secrets of its own namespace only: copy {of}/{secret} to {namespace}"),
            );
        }
        if self.get("auth-secret-type").is_some_and(|form| form != "auth-file") {
            return self.close(
                "auth-secret-type",
                format!("write the users of Secret {secret} as one file `auth` of htpasswd -B"),
            );
        }
        let basic = json!({"secretRef": {"name": secret, "key": "auth"}, "forward": true});
        self.terms.traffic.insert("basic".to_owned(), basic);
        self.became("auth-type", "TrafficPolicy basic");
        self.parts(&["auth-secret-type"], "TrafficPolicy basic.secretRef, key auth");
        let given = self.world.object("Secret", namespace, secret);
        match given.map(|secret| users(secret).as_deref().map(other_forms)) {
            Some(Some(0)) => self.became("auth-secret", "TrafficPolicy basic.secretRef, key auth"),
            Some(None) => self.close("auth-secret", format!("Secret {secret} has no key auth: write its users there, by htpasswd -B")),
            Some(Some(count)) => self.close("auth-secret", format!("{count} users of Secret {secret} are in a form that is not read: make them by htpasswd -B")),
            None => self.differs("auth-secret", format!("Secret {secret} is not given: its users have to be of htpasswd -B (or {{SHA}}), others close the policy")),
        }
    }

    fn limits(&mut self) {
        let multiplier =
            self.get("limit-burst-multiplier").and_then(|it| it.parse::<u64>().ok()).unwrap_or(5);
        let mut limits = Vec::new();
        for (annotation, per) in [("limit-rps", "Second"), ("limit-rpm", "Minute")] {
            let Some(text) = self.get(annotation) else { continue };
            let requests = match text.parse::<u64>() {
                Ok(0) => {
                    self.say(annotation, Outcome::NotNeeded, "0 is no limit");
                    continue;
                }
                Ok(requests) => requests.min(MOST_REQUESTS),
                Err(_) => {
                    self.close(annotation, format!("{text:?} is no number of requests"));
                    continue;
                }
            };
            let burst = requests.saturating_mul(multiplier).clamp(1, MOST_REQUESTS);
            limits.push(
                json!({"requests": requests, "per": per, "burst": burst, "key": {"type": "ClientAddress"}}),
            );
            self.differs(
                annotation,
                format!(
                    "TrafficPolicy rateLimits, {requests} with a burst of {burst}; over it 429 in place of 503, for each node"
                ),
            );
        }
        if !limits.is_empty() {
            self.terms.traffic.insert("rateLimits".to_owned(), json!(limits));
            self.parts(&["limit-burst-multiplier"], "TrafficPolicy rateLimits burst");
        }
    }

    pub(super) fn client_certificates(&mut self) {
        if self.get("auth-tls-secret").is_none() {
            return;
        }
        match self.get("auth-tls-verify-client").unwrap_or("on") {
            "on" => {}
            "off" => {
                let ingress = self.ingress;
                for annotation in OF_CERTIFICATES.iter().filter(|it| ingress.get(it).is_some()) {
                    self.say(annotation, Outcome::NotNeeded, "no certificate is asked for");
                }
                return;
            }
            other => {
                return self.close("auth-tls-verify-client", format!("{other}: certificates are demanded or not asked for; the backend would not learn ssl-client-verify"));
            }
        }
        let secret = self.get("auth-tls-secret").unwrap_or_default();
        if let Some((of, secret)) = secret.split_once('/')
            && of != self.ingress.namespace
        {
            return self.close("auth-tls-secret", format!("a grant would let Gateways of {} show all of Secret {of}/{secret}: copy its ca.crt to a Secret of {}, and name that", self.ingress.namespace, self.ingress.namespace));
        }
        let hosts = self.ingress.rules.iter().filter_map(|(host, _)| self.servers.get(host));
        let all: Vec<_> = hosts.collect();
        if all.is_empty() {
            return self.close(
                "auth-tls-secret",
                "it has no host that could ask for certificates: name hosts in rules",
            );
        }
        if all.iter().any(|server| server.certificate.is_none()) {
            return self
                .close("auth-tls-secret", "its hosts need a certificate of their own (spec.tls) first");
        }
        let of = |server: &&super::super::servers::Server| {
            let owner = server.client_certificates.map(|index| &self.world.ingresses[index]);
            owner.is_some_and(|owner| {
                owner.namespace == self.ingress.namespace
                    && owner.get("auth-tls-secret") == self.get("auth-tls-secret")
            })
        };
        if !all.iter().all(of) {
            return self.close(
                "auth-tls-secret",
                "another Ingress of the host names another Secret: one host has one authority",
            );
        }
        if all.iter().any(|server| {
            server
                .certificate
                .as_ref()
                .is_some_and(|(index, _)| self.world.ingresses[*index].namespace != self.ingress.namespace)
        }) {
            return self.close(
                "auth-tls-secret",
                "the host's certificate is of another namespace: give it to this Ingress",
            );
        }
        // Of the listener, which is written even if the paths are closed.
        self.say("auth-tls-secret", Outcome::Differs, "a Gateway for this authority, attached to the common one; without a certificate the handshake fails (no 400)");
        if self.get("auth-tls-verify-client").is_some() {
            self.say("auth-tls-verify-client", Outcome::Became, "the Gateway's tls.frontend");
        }
        if self.ingress.is("auth-tls-pass-certificate-to-upstream") {
            self.say(
                "auth-tls-pass-certificate-to-upstream",
                Outcome::Differs,
                "Client-Cert (RFC 9440) and X-Forwarded-Client-Cert in place of ssl-client-cert",
            );
        }
    }
}

fn is_range(text: &str) -> bool {
    let (address, prefix) =
        text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
    let Ok(address) = address.parse::<IpAddr>() else { return false };
    let longest = if address.is_ipv4() { 32 } else { 128 };
    prefix.is_none_or(|prefix| prefix.parse::<u8>().is_ok_and(|prefix| prefix <= longest))
}

/// The file of users in a Secret, if it has one.
fn users(secret: &Value) -> Option<String> {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    if let Some(plain) = secret.pointer("/stringData/auth").and_then(Value::as_str) {
        return Some(plain.to_owned());
    }
    String::from_utf8(STANDARD.decode(secret.pointer("/data/auth")?.as_str()?).ok()?).ok()
}

/// Users whose passwords are neither bcrypt nor SHA.
fn other_forms(file: &str) -> usize {
    let is_read = |line: &&str| {
        let hash = line.split_once(':').map_or("", |(_, hash)| hash);
        ["$2y$", "$2a$", "$2b$", "{SHA}"].iter().any(|form| hash.starts_with(form))
    };
    file.lines().filter(|line| !line.trim().is_empty()).filter(|line| !is_read(line)).count()
}
