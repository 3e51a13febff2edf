//! The way to speak to Services: protocol, TLS, time to connect, choice of endpoints.

use serde_json::json;

use super::requests::duration;
use super::{Outcome, Reading};

impl Reading<'_> {
    pub(super) fn backends(&mut self) {
        self.choice();
        if self.ingress.is_canary() {
            return;
        }
        match self.get("backend-protocol").map(str::to_ascii_uppercase).as_deref() {
            None => {}
            Some("HTTP" | "AUTO_HTTP") => {
                self.say("backend-protocol", Outcome::NotNeeded, "HTTP/1.1 is spoken without it");
            }
            Some("HTTPS") => self.tls("backend-protocol"),
            Some("GRPC") => self.http2(),
            Some("GRPCS") => {
                self.http2();
                self.tls("backend-protocol");
            }
            Some(other) => {
                self.close(
                    "backend-protocol",
                    format!("{other} is not spoken: put a server of HTTP in front of the application"),
                );
            }
        }
        if let Some(seconds) =
            self.get("proxy-connect-timeout").and_then(|it| it.trim_end_matches('s').parse::<u64>().ok())
        {
            self.terms
                .backend
                .insert("timeouts".to_owned(), json!({"connect": duration(seconds.clamp(1, 60))}));
            self.became("proxy-connect-timeout", "BackendPolicy timeouts.connect, 1m at most");
        }
    }

    fn http2(&mut self) {
        self.terms.backend.insert("protocol".to_owned(), json!("HTTP2"));
        self.became("backend-protocol", "BackendPolicy protocol HTTP2");
    }

    fn tls(&mut self, annotation: &str) {
        let mut validation = json!({});
        if let Some(name) = self.get("proxy-ssl-name") {
            validation["hostname"] = json!(name);
            self.became("proxy-ssl-name", "BackendTLSPolicy validation.hostname");
        }
        let (namespace, secret) = (self.ingress.namespace.as_str(), self.get("proxy-ssl-secret"));
        let secret = secret.map(|it| it.split_once('/').unwrap_or((namespace, it)));
        match secret {
            Some((of, secret)) if of == namespace => {
                validation["caCertificateRefs"] = json!([{"group": "", "kind": "Secret", "name": secret}]);
                self.differs("proxy-ssl-secret", "BackendTLSPolicy caCertificateRefs (ca.crt); for its tls.crt and tls.key write spec.tls.backend of the Gateway");
                self.became(annotation, "BackendTLSPolicy");
            }
            Some((of, secret)) => {
                self.differs("proxy-ssl-secret", format!("a BackendTLSPolicy has authorities of its own namespace: copy ca.crt of {of}/{secret}"));
                self.differs(annotation, "BackendTLSPolicy with ConfigMap SERVICE-ca: put ca.crt of its authority there; until then the answer is 500");
            }
            None => self.differs(annotation, "BackendTLSPolicy with ConfigMap SERVICE-ca: certificates are always verified; put ca.crt of the backend's authority there, until then the answer is 500. They have to be for SERVICE.NAMESPACE.svc, or what proxy-ssl-name says"),
        }
        match self.get("proxy-ssl-verify") {
            None => {}
            Some("on") => self.became("proxy-ssl-verify", "certificates are always verified"),
            Some(_) => self.differs("proxy-ssl-verify", "certificates are always verified"),
        }
        self.terms.backend_tls = Some(validation);
    }

    fn choice(&mut self) {
        if let Some(key) = self.get("upstream-hash-by") {
            if self.get("load-balance").is_some() {
                self.say("load-balance", Outcome::NotNeeded, "upstream-hash-by comes first, as before");
            }
            let hash = match key.trim_matches(['$', '{', '}']) {
                "remote_addr" | "binary_remote_addr" => Some(json!({"type": "ClientAddress"})),
                variable => [("http_", "Header"), ("cookie_", "Cookie")].iter().find_map(|(begin, kind)| {
                    let name = variable
                        .strip_prefix(begin)
                        .filter(|it| it.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'))?;
                    let name = if *kind == "Header" { name.replace('_', "-") } else { name.to_owned() };
                    Some(json!({"type": kind, "name": name}))
                }),
            };
            match hash {
                Some(hash) => {
                    self.terms
                        .backend
                        .insert("loadBalancing".to_owned(), json!({"type": "Hash", "hash": hash}));
                    self.became(
                        "upstream-hash-by",
                        "BackendPolicy loadBalancing Hash; keys move to other endpoints once",
                    );
                }
                None => self.lost(
                    "upstream-hash-by",
                    "a key is the client's address, a header or a cookie: BackendPolicy loadBalancing",
                ),
            }
            return;
        }
        match self.get("load-balance") {
            None => {}
            Some("round_robin") => {
                self.terms.backend.insert("loadBalancing".to_owned(), json!({"type": "RoundRobin"}));
                self.became("load-balance", "BackendPolicy loadBalancing RoundRobin");
            }
            Some("ewma") => self.differs("load-balance", "LeastRequest, which is the default"),
            Some(other) => {
                self.lost("load-balance", format!("{other} is not known: BackendPolicy loadBalancing"))
            }
        }
    }
}
