//! The annotations of ingress-nginx, as data: what is read elsewhere, what needs nothing here, and
//! what is lost, with what to do instead. `docs/tasks/from-ingress-nginx.md` has the same table.

use super::ingress::{Ingress, PREFIX};
use Fate::{Differs, Lost, NotNeeded, PartOf, Protects, Read, Weakens};

/// The fate of an annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Another module translates it, and says what it became.
    Read,
    /// Another module reads it, too, but only beside one of these, each an annotation, or an
    /// annotation and its value: `affinity: cookie`.
    PartOf(&'static [&'static str]),
    /// It asks for something that is so without it.
    NotNeeded(&'static str),
    /// It is done, but not by objects that are written.
    Differs(&'static str),
    /// Without effect from now on.
    Lost(&'static str),
    /// Without effect, too, and it kept something out.
    Weakens(&'static str),
    /// It keeps requests out and cannot be translated: its routes refuse all.
    Protects(&'static str),
}

const TLS: &[&str] = &["backend-protocol: HTTPS", "backend-protocol: GRPCS"];
const TRACES: &str =
    "traces by OTLP from agents with --otlp-endpoint; a TrafficPolicy tracing samples a route's requests";

pub(super) const ANNOTATIONS: &[(&str, Fate)] = &[
    ("affinity", Read),
    ("affinity-canary-behavior", NotNeeded("sessions stay at the version that they began with")),
    ("affinity-mode", NotNeeded("sessions stay as long as their endpoint (persistent)")),
    ("allowlist-source-range", Read),
    ("app-root", Read),
    ("auth-always-set-cookie", Lost("answers of the auth service set cookies only where they deny")),
    ("auth-cache-duration", Lost("the service is asked about each request")),
    ("auth-cache-key", Lost("the service is asked about each request")),
    ("auth-keepalive", NotNeeded("connections to auth services are kept")),
    ("auth-keepalive-requests", NotNeeded("connections to auth services are kept")),
    ("auth-keepalive-share-vars", NotNeeded("connections to auth services are kept")),
    ("auth-keepalive-timeout", Lost("BackendPolicy timeouts.idle of the auth service")),
    ("auth-method", Lost("the service is asked with the request's own method")),
    (
        "auth-proxy-set-headers",
        Protects(
            "the service may tell by them who is allowed: write RequestHeaderModifier in front of a filter ExternalAuth",
        ),
    ),
    ("auth-realm", Lost("the realm is the gateway's")),
    ("auth-request-redirect", Lost("the service gets the request's own path")),
    ("auth-response-headers", PartOf(&["auth-url"])),
    ("auth-secret", PartOf(&["auth-type"])),
    ("auth-secret-type", PartOf(&["auth-type"])),
    ("auth-signin", PartOf(&["auth-url"])),
    ("auth-signin-redirect-param", Lost("the auth service itself redirects to its sign-in")),
    ("auth-snippet", Protects("write what it does into the auth service")),
    ("auth-tls-error-page", Lost("a handshake without a good certificate fails, and has no page")),
    ("auth-tls-match-cn", Protects("use an authority that signs these clients alone")),
    ("auth-tls-pass-certificate-to-upstream", PartOf(&["auth-tls-secret"])),
    ("auth-tls-secret", Read),
    ("auth-tls-verify-client", PartOf(&["auth-tls-secret"])),
    ("auth-tls-verify-depth", Lost("chains have any length up to the authority")),
    ("auth-type", Read),
    ("auth-url", Read),
    ("backend-protocol", Read),
    ("canary", Read),
    ("canary-by-cookie", PartOf(&["canary: true"])),
    ("canary-by-header", PartOf(&["canary: true"])),
    ("canary-by-header-pattern", PartOf(&["canary-by-header"])),
    ("canary-by-header-value", PartOf(&["canary-by-header"])),
    ("canary-weight", PartOf(&["canary: true"])),
    ("canary-weight-total", PartOf(&["canary-weight"])),
    ("client-body-buffer-size", NotNeeded("bodies stream")),
    ("configuration-snippet", Read),
    ("connection-proxy-header", NotNeeded("upgrades are passed on")),
    ("cors-allow-credentials", PartOf(&["enable-cors: true"])),
    ("cors-allow-headers", PartOf(&["enable-cors: true"])),
    ("cors-allow-methods", PartOf(&["enable-cors: true"])),
    ("cors-allow-origin", PartOf(&["enable-cors: true"])),
    ("cors-expose-headers", PartOf(&["enable-cors: true"])),
    ("cors-max-age", PartOf(&["enable-cors: true"])),
    ("custom-headers", Read),
    ("custom-http-errors", Lost("the backend's own pages of errors reach clients")),
    ("default-backend", Lost("without endpoints the answer is 503")),
    ("denylist-source-range", Read),
    ("disable-proxy-intercept-errors", NotNeeded("the backend's errors reach clients")),
    ("enable-access-log", Lost("GatewayParameters accessLog, of a whole Gateway")),
    ("enable-cors", Read),
    ("enable-global-auth", Weakens("a TrafficPolicy with externalAuth on the Gateway is for all its routes")),
    ("enable-modsecurity", Read),
    ("enable-opentelemetry", Differs(TRACES)),
    ("enable-opentracing", Differs(TRACES)),
    ("enable-owasp-core-rules", Read),
    ("enable-rewrite-log", NotNeeded("portcullis explain says what a path becomes")),
    ("force-ssl-redirect", Read),
    ("from-to-www-redirect", Read),
    ("http2-push-preload", NotNeeded("browsers have given server push up")),
    ("limit-allowlist", Lost("the limit holds for these clients, too")),
    ("limit-burst-multiplier", PartOf(&["limit-rps", "limit-rpm"])),
    (
        "limit-connections",
        Weakens("ListenerPolicy connections and BackendPolicy limits are the nearest; neither is by client"),
    ),
    ("limit-rate", Lost("responses are as fast as clients read")),
    ("limit-rate-after", Lost("responses are as fast as clients read")),
    ("limit-rpm", Read),
    ("limit-rps", Read),
    ("limit-whitelist", Lost("the limit holds for these clients, too")),
    ("load-balance", Read),
    ("mirror-host", Lost("the mirror gets the request's own Host")),
    ("mirror-request-body", Lost("copies have the body")),
    ("mirror-target", Read),
    ("modsecurity-snippet", Read),
    ("modsecurity-transaction-id", Lost("there is no ModSecurity")),
    (
        "opentelemetry-trust-incoming-span",
        Differs("--trace-parents says whose traces go on: by default those of trusted proxies"),
    ),
    ("permanent-redirect", Read),
    ("permanent-redirect-code", PartOf(&["permanent-redirect"])),
    ("preserve-trailing-slash", NotNeeded("redirects to https keep the path")),
    ("proxy-body-size", Read),
    ("proxy-buffer-size", NotNeeded("heads of responses have 64 KiB (--max-response-header)")),
    ("proxy-buffering", NotNeeded("responses stream")),
    ("proxy-buffers-number", NotNeeded("responses stream")),
    ("proxy-busy-buffers-size", NotNeeded("responses stream")),
    ("proxy-connect-timeout", Read),
    ("proxy-cookie-domain", Lost("have the application set the cookie's domain")),
    ("proxy-cookie-path", Lost("have the application set the cookie's path")),
    ("proxy-http-version", NotNeeded("HTTP/1.1, or BackendPolicy protocol")),
    ("proxy-max-temp-file-size", NotNeeded("nothing is written to disk")),
    ("proxy-next-upstream", Read),
    ("proxy-next-upstream-timeout", Lost("timeouts.request bounds all attempts")),
    ("proxy-next-upstream-tries", Read),
    ("proxy-read-timeout", Read),
    ("proxy-redirect-from", Lost("have the application redirect to its public name")),
    ("proxy-redirect-to", Lost("have the application redirect to its public name")),
    ("proxy-request-buffering", NotNeeded("bodies stream")),
    ("proxy-send-timeout", NotNeeded("a backend that takes nothing of a body for 60 s is given up")),
    ("proxy-ssl-ciphers", Lost("suites of backends cannot be chosen")),
    ("proxy-ssl-name", PartOf(TLS)),
    ("proxy-ssl-protocols", Lost("TLS 1.2 and 1.3 are spoken to backends")),
    ("proxy-ssl-secret", PartOf(TLS)),
    ("proxy-ssl-server-name", NotNeeded("the server name is always sent")),
    ("proxy-ssl-verify", PartOf(TLS)),
    ("proxy-ssl-verify-depth", Lost("chains have any length up to the authority")),
    ("relative-redirects", Lost("redirects are absolute")),
    ("rewrite-target", Read),
    ("satisfy", Read),
    ("server-alias", Read),
    ("server-snippet", Protects("write what it does as filters and policies, and remove it")),
    ("service-upstream", NotNeeded("endpoints are used; changes of them take effect at once")),
    ("session-cookie-change-on-failure", NotNeeded("a session whose endpoint fails begins anew at another")),
    ("session-cookie-conditional-samesite-none", Lost("the cookie is SameSite=Strict")),
    ("session-cookie-domain", Lost("the cookie is of the request's host")),
    ("session-cookie-expires", PartOf(&["affinity: cookie"])),
    ("session-cookie-max-age", PartOf(&["affinity: cookie"])),
    ("session-cookie-name", PartOf(&["affinity: cookie"])),
    ("session-cookie-path", PartOf(&["affinity: cookie"])),
    ("session-cookie-samesite", PartOf(&["affinity: cookie"])),
    ("session-cookie-secure", NotNeeded("the cookie is Secure where the client came with TLS")),
    ("ssl-ciphers", Lost("tls.options portcullis.dev/cipher-suites of the listener")),
    ("ssl-passthrough", Read),
    ("ssl-prefer-server-ciphers", NotNeeded("the gateway chooses the suite")),
    ("ssl-redirect", Read),
    ("stream-snippet", Protects("write TCPRoutes and UDPRoutes, and remove it")),
    ("temporal-redirect", Read),
    ("temporal-redirect-code", PartOf(&["temporal-redirect"])),
    ("upstream-hash-by", Read),
    ("upstream-hash-by-subset", Lost("a key has one endpoint")),
    ("upstream-hash-by-subset-size", Lost("a key has one endpoint")),
    ("upstream-vhost", Read),
    ("use-port-in-redirects", NotNeeded("redirects have the port where it is not the scheme's")),
    ("use-regex", Read),
    ("whitelist-source-range", Read),
    ("x-forwarded-prefix", Read),
];

/// Of an annotation that is unknown, whatever it is: it may have kept requests out.
pub(super) fn fate(annotation: &str) -> Fate {
    let known = ANNOTATIONS.iter().find(|(name, _)| *name == annotation);
    known.map_or(Protects("it is not known: write what it does, and remove it"), |(_, fate)| *fate)
}

/// True if an annotation of the list is there, and is no part of one that is missing.
pub(super) fn has_one(ingress: &Ingress, wholes: &[&str]) -> bool {
    wholes.iter().any(|whole| {
        let (annotation, wanted) =
            whole.split_once(": ").map_or((*whole, None), |(annotation, value)| (annotation, Some(value)));
        let value = ingress.get(annotation).filter(|value| *value != "false");
        let is_there = value.is_some_and(|it| wanted.is_none_or(|wanted| it.eq_ignore_ascii_case(wanted)));
        is_there && !matches!(fate(annotation), PartOf(wholes) if !has_one(ingress, wholes))
    })
}

const PROTECTING: &[&str] = &[
    "allowlist-source-range",
    "auth-secret",
    "auth-tls-secret",
    "auth-type",
    "auth-url",
    "configuration-snippet",
    "denylist-source-range",
    "enable-modsecurity",
    "enable-owasp-core-rules",
    "limit-rpm",
    "limit-rps",
    "modsecurity-snippet",
    "proxy-body-size",
    "whitelist-source-range",
];

pub(super) fn is_known(annotation: &str) -> bool {
    ANNOTATIONS.iter().any(|(name, _)| *name == annotation)
}

/// True of an annotation that keeps requests out.
pub(super) fn keeps_out(annotation: &str) -> bool {
    PROTECTING.contains(&annotation) || matches!(fate(annotation), Protects(_) | Weakens(_))
}

/// True if an annotation keeps requests out.
pub(super) fn protects(ingress: &Ingress) -> bool {
    let closes = |name: &str| {
        let protects = matches!(fate(name), Protects(_));
        protects && ingress.get(name).is_some_and(|value| value != "false")
    };
    PROTECTING.iter().any(|annotation| ingress.get(annotation).is_some())
        || ingress.annotations.keys().filter_map(|name| name.strip_prefix(PREFIX)).any(closes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_order_and_names_each_once() {
        assert!(ANNOTATIONS.is_sorted_by(|(a, _), (b, _)| a < b));
        assert_eq!(fate("use-regex"), Read);
        assert_eq!(fate("enable-opentelemetry"), Differs(TRACES));
        assert!(matches!(fate("of-tomorrow"), Protects(_)));
    }

    #[test]
    fn parts_are_of_annotations_that_are_read() {
        let parts = ANNOTATIONS.iter().filter_map(|(_, fate)| match fate {
            PartOf(wholes) => Some(*wholes),
            _ => None,
        });
        for whole in parts.flatten() {
            let annotation = whole.split(": ").next().unwrap_or(whole);
            assert!(matches!(fate(annotation), Read | PartOf(_)), "{whole}");
        }
    }

    #[test]
    fn a_part_is_without_effect_without_its_whole() {
        let of = |annotations: &[(&str, &str)]| {
            let named = |(name, value): &(&str, &str)| (format!("{PREFIX}{name}"), (*value).to_owned());
            Ingress { annotations: annotations.iter().map(named).collect(), ..Ingress::default() }
        };
        assert!(has_one(&of(&[("backend-protocol", "https")]), TLS));
        assert!(!has_one(&of(&[("backend-protocol", "GRPC")]), TLS));
        let by_header = ("canary-by-header", "X-Canary");
        assert!(has_one(&of(&[by_header, ("canary", "true")]), &["canary-by-header"]));
        assert!(!has_one(&of(&[by_header]), &["canary-by-header"]));
        assert!(!has_one(&of(&[by_header, ("canary", "false")]), &["canary-by-header"]));
    }
}
