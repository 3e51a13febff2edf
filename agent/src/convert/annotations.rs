//! The annotations of ingress-nginx, as data: what is read elsewhere, what needs nothing here, and
//! what is lost, with what to do instead. `docs/tasks/from-ingress-nginx.md` has the same table.

use super::ingress::{Ingress, PREFIX};
use Fate::{Differs, Lost, NotNeeded, Protects, Read, Weakens};

/// The fate of an annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Another module translates it, and says what it became.
    Read,
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
    ("auth-response-headers", Read),
    ("auth-secret", Read),
    ("auth-secret-type", Read),
    ("auth-signin", Read),
    ("auth-signin-redirect-param", Lost("the auth service itself redirects to its sign-in")),
    ("auth-snippet", Protects("write what it does into the auth service")),
    ("auth-tls-error-page", Lost("a handshake without a good certificate fails, and has no page")),
    ("auth-tls-match-cn", Protects("use an authority that signs these clients alone")),
    ("auth-tls-pass-certificate-to-upstream", Read),
    ("auth-tls-secret", Read),
    ("auth-tls-verify-client", Read),
    ("auth-tls-verify-depth", Lost("chains have any length up to the authority")),
    ("auth-type", Read),
    ("auth-url", Read),
    ("backend-protocol", Read),
    ("canary", Read),
    ("canary-by-cookie", Read),
    ("canary-by-header", Read),
    ("canary-by-header-pattern", Read),
    ("canary-by-header-value", Read),
    ("canary-weight", Read),
    ("canary-weight-total", Read),
    ("client-body-buffer-size", NotNeeded("bodies stream")),
    ("configuration-snippet", Read),
    ("connection-proxy-header", NotNeeded("upgrades are passed on")),
    ("cors-allow-credentials", Read),
    ("cors-allow-headers", Read),
    ("cors-allow-methods", Read),
    ("cors-allow-origin", Read),
    ("cors-expose-headers", Read),
    ("cors-max-age", Read),
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
    ("limit-burst-multiplier", Read),
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
    ("permanent-redirect-code", Read),
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
    ("proxy-ssl-name", Read),
    ("proxy-ssl-protocols", Lost("TLS 1.2 and 1.3 are spoken to backends")),
    ("proxy-ssl-secret", Read),
    ("proxy-ssl-server-name", NotNeeded("the server name is always sent")),
    ("proxy-ssl-verify", Read),
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
    ("session-cookie-expires", Read),
    ("session-cookie-max-age", Read),
    ("session-cookie-name", Read),
    ("session-cookie-path", Read),
    ("session-cookie-samesite", Read),
    ("session-cookie-secure", NotNeeded("the cookie is Secure where the client came with TLS")),
    ("ssl-ciphers", Lost("tls.options portcullis.dev/cipher-suites of the listener")),
    ("ssl-passthrough", Read),
    ("ssl-prefer-server-ciphers", NotNeeded("the gateway chooses the suite")),
    ("ssl-redirect", Read),
    ("stream-snippet", Protects("write TCPRoutes and UDPRoutes, and remove it")),
    ("temporal-redirect", Read),
    ("temporal-redirect-code", Read),
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

/// True if an annotation keeps requests out.
pub(super) fn protects(ingress: &Ingress) -> bool {
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
}
