//! Header fields and CORS, the host that backends see, mirrors, and redirects in place of a
//! backend.

use serde_json::{Value, json};

use super::super::shape::is_host;
use super::super::snippet::Fields;
use super::{Outcome, Reading, list};

const METHODS: &str = "GET, PUT, POST, DELETE, PATCH, OPTIONS";
const HEADERS: &str = "DNT,Keep-Alive,User-Agent,X-Requested-With,If-Modified-Since,Cache-Control,Content-Type,Range,Authorization";

impl Reading<'_> {
    pub(super) fn headers(&mut self) {
        self.cors();
        let prefix = self.get("x-forwarded-prefix").filter(|it| !it.contains('$'));
        if let Some(prefix) = prefix {
            self.set(
                "RequestHeaderModifier",
                "requestHeaderModifier",
                json!({"name": "X-Forwarded-Prefix", "value": prefix}),
            );
            self.became("x-forwarded-prefix", "RequestHeaderModifier");
        } else if self.get("x-forwarded-prefix").is_some() {
            self.lost("x-forwarded-prefix", "groups of paths are no part of header fields: write the prefix");
        }
        if let Some(host) = self.get("upstream-vhost") {
            if is_host(host) && !host.starts_with('*') {
                self.terms.filters.push(json!({"type": "URLRewrite", "urlRewrite": {"hostname": host}}));
                self.became("upstream-vhost", "URLRewrite hostname");
            } else {
                self.lost("upstream-vhost", "it is no hostname (variables and ports are none): write a filter URLRewrite with hostname");
            }
        }
        self.custom_headers();
        self.mirror();
    }

    fn cors(&mut self) {
        if !self.ingress.is("enable-cors") {
            return;
        }
        let of = |annotation: &str, default: &str| list(self.get(annotation).unwrap_or(default));
        let only_any = |mut names: Vec<String>| {
            if names.iter().any(|name| name == "*") {
                names = vec!["*".to_owned()];
            }
            names
        };
        let origins = only_any(of("cors-allow-origin", "*"));
        let any = origins == ["*"];
        // Browsers take no credentials with `*`, which nginx sends as it is.
        let credentials = !any && self.get("cors-allow-credentials") != Some("false");
        let mut methods = only_any(of("cors-allow-methods", METHODS));
        methods.iter_mut().for_each(|method| *method = method.to_ascii_uppercase());
        let age = self.get("cors-max-age").and_then(|it| it.parse::<i32>().ok());
        let mut cors = json!({
            "allowOrigins": origins,
            "allowMethods": methods,
            "allowHeaders": only_any(of("cors-allow-headers", HEADERS)),
            "allowCredentials": credentials,
            "maxAge": age.unwrap_or(1_728_000),
        });
        let exposed = only_any(of("cors-expose-headers", ""));
        if !exposed.is_empty() {
            cors["exposeHeaders"] = json!(exposed);
        }
        let wildcard = origins.iter().any(|origin| origin.contains("*."));
        self.terms.filters.push(json!({"type": "CORS", "cors": cors}));
        self.became("enable-cors", "filter CORS; the backend's own Access-Control fields are removed");
        self.parts(&["cors-allow-headers", "cors-allow-methods", "cors-expose-headers"], "filter CORS");
        if age.is_some() {
            self.parts(&["cors-max-age"], "filter CORS");
        }
        if any {
            self.differs("cors-allow-credentials", "false, as browsers take none with the origin *");
        } else {
            self.parts(&["cors-allow-credentials"], "filter CORS");
        }
        if wildcard {
            self.differs("cors-allow-origin", "*. is for one label or more, not for exactly one");
        } else {
            self.parts(&["cors-allow-origin"], "filter CORS");
        }
    }

    pub(super) fn snippet(&mut self, fields: &Fields) {
        for field in &fields.request {
            self.set("RequestHeaderModifier", "requestHeaderModifier", field.clone());
        }
        for field in &fields.response {
            self.set("ResponseHeaderModifier", "responseHeaderModifier", field.clone());
        }
        for name in &fields.removed {
            self.modifier("ResponseHeaderModifier", "responseHeaderModifier", "remove", name.clone());
        }
        for name in &fields.hidden {
            self.modifier("RequestHeaderModifier", "requestHeaderModifier", "remove", name.clone());
        }
        self.became("configuration-snippet", "RequestHeaderModifier, ResponseHeaderModifier");
    }

    fn set(&mut self, kind: &str, field: &str, value: Value) {
        self.modifier(kind, field, "set", value);
    }

    /// A rule has one filter of a kind.
    fn modifier(&mut self, kind: &str, field: &str, list: &str, value: Value) {
        let filters = &mut self.terms.filters;
        let at = filters.iter().position(|filter| filter["type"] == kind).unwrap_or_else(|| {
            filters.push(json!({"type": kind, field: {}}));
            filters.len() - 1
        });
        match filters[at][field][list].as_array_mut() {
            Some(values) => values.push(value),
            None => filters[at][field][list] = json!([value]),
        }
    }

    fn custom_headers(&mut self) {
        let Some(name) = self.get("custom-headers") else { return };
        let own = self.ingress.namespace.as_str();
        let (namespace, name) = name.split_once('/').unwrap_or((own, name));
        if namespace != own {
            return self.close(
                "custom-headers",
                format!("ConfigMaps of its own namespace only: copy {namespace}/{name} to {own}"),
            );
        }
        let fields = self.world.object("ConfigMap", namespace, name).and_then(|it| it["data"].as_object());
        let Some(fields) = fields else {
            return self.lost(
                "custom-headers",
                format!("ConfigMap {namespace}/{name} is not given: give its manifest, too"),
            );
        };
        for (name, value) in fields {
            self.set(
                "ResponseHeaderModifier",
                "responseHeaderModifier",
                json!({"name": name, "value": value}),
            );
        }
        self.differs("custom-headers", "ResponseHeaderModifier, with what the ConfigMap has now");
    }

    fn mirror(&mut self) {
        let Some(target) = self.get("mirror-target") else { return };
        let parts = target
            .split_once("://")
            .map(|(scheme, rest)| (scheme, rest.split(['/', '$']).next().unwrap_or(rest)));
        let found = parts.and_then(|(scheme, authority)| self.in_cluster(scheme, authority));
        match found {
            Some((namespace, backend)) if namespace == self.ingress.namespace => {
                let reference = json!({"name": backend.service, "port": backend.port});
                self.terms
                    .filters
                    .push(json!({"type": "RequestMirror", "requestMirror": {"backendRef": reference}}));
                self.became("mirror-target", "RequestMirror");
            }
            _ => self.lost(
                "mirror-target",
                "it is no Service of the namespace: write a filter RequestMirror to one, or to an XBackend",
            ),
        }
    }

    pub(super) fn redirects(&mut self) {
        let of = [
            ("temporal-redirect", "temporal-redirect-code", 302),
            ("permanent-redirect", "permanent-redirect-code", 301),
        ];
        for (annotation, of_code, default) in of {
            let Some(url) = self.get(annotation) else { continue };
            if self.terms.redirect.is_some() {
                self.say(annotation, Outcome::NotNeeded, "temporal-redirect comes first, as before");
                continue;
            }
            let code = self.get(of_code).and_then(|it| it.parse::<u16>().ok());
            let code = code.filter(|it| [301, 302, 303, 307, 308].contains(it));
            match redirect(url, code.unwrap_or(default)) {
                Some(redirect) => {
                    if code.is_some() {
                        self.became(of_code, "RequestRedirect statusCode");
                    }
                    self.differs(annotation, "RequestRedirect; the request's query is kept");
                    self.terms.redirect = Some(redirect);
                }
                None => self.close(
                    annotation,
                    "it is more than a URL with host and path: write a filter RequestRedirect",
                ),
            }
        }
    }
}

fn redirect(url: &str, code: u16) -> Option<Value> {
    let mut redirect = json!({"statusCode": code});
    let (scheme, rest) = url.split_once("://")?;
    match scheme {
        "http" | "https" => redirect["scheme"] = json!(scheme),
        "$scheme" => {}
        _ => return None,
    }
    let (rest, keeps_path) = rest.strip_suffix("$request_uri").map_or((rest, false), |rest| (rest, true));
    let (authority, path) = rest.split_once('/').map_or((rest, ""), |(authority, path)| (authority, path));
    let (host, port) = authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port)));
    if !is_host(host)
        || host.starts_with('*')
        || path.contains(['$', '?', '#'])
        || keeps_path && !path.is_empty()
    {
        return None;
    }
    redirect["hostname"] = json!(host);
    if let Some(port) = port {
        redirect["port"] = json!(port.parse::<u16>().ok()?);
    }
    if !keeps_path {
        redirect["path"] = json!({"type": "ReplaceFullPath", "replaceFullPath": format!("/{path}")});
    }
    Some(redirect)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_are_hosts_and_paths() {
        let whole = json!({"statusCode": 301, "scheme": "https", "hostname": "a.example", "path": {"type": "ReplaceFullPath", "replaceFullPath": "/b"}});
        assert_eq!(redirect("https://a.example/b", 301), Some(whole));
        let kept = json!({"statusCode": 302, "hostname": "a.example", "port": 8443});
        assert_eq!(redirect("$scheme://a.example:8443$request_uri", 302), Some(kept));
        assert_eq!(redirect("https://a.example/?q=1", 302), None);
        assert_eq!(redirect("https://$host/", 302), None);
    }
}
