//! Configurations for the page to show: a shop with tenants, with some things that are wrong, and
//! with names that a careless page would run; and ten thousand routes.

use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::support::backend;

/// Sets `hacked` where it is taken for markup.
pub(crate) const HOSTILE: &str = "<img src=x onerror=hacked=1><script>hacked=1</script>";

/// Ends in nine days.
fn secret() -> String {
    let mut parameters = rcgen::CertificateParams::new(vec!["*.example".to_owned()]).unwrap();
    parameters.not_after = (SystemTime::now() + Duration::from_secs(9 * 86400 + 3600)).into();
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = parameters.self_signed(&key).unwrap();
    format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: web, namespace: infra}}\ntype: kubernetes.io/tls\ndata:\n  \
         tls.crt: {}\n  tls.key: {}\n",
        STANDARD.encode(certificate.pem()),
        STANDARD.encode(key.serialize_pem())
    )
}

const GATEWAYS: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: web, namespace: infra}
spec:
  gatewayClassName: portcullis
  addresses: [{value: ADDRESS}]
  allowedListeners: {namespaces: {from: All}}
  listeners:
  - {name: http, protocol: HTTP, port: 8080, allowedRoutes: {namespaces: {from: All}}}
  - {name: https, protocol: HTTPS, port: 8443, allowedRoutes: {namespaces: {from: All}}, tls: {certificateRefs: [{name: web}]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata: {name: blog, namespace: blog}
spec:
  parentRef: {name: web, namespace: infra}
  listeners:
  - {name: own, protocol: HTTP, port: 8080, hostname: blog.example}
";

fn service(namespace: &str, name: &str, port: u16) -> String {
    format!(
        "---
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: {namespace}}}
spec: {{ports: [{{port: 80}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {name}, namespace: {namespace}, labels: {{kubernetes.io/service-name: {name}}}}}
addressType: IPv4
ports: [{{port: {port}}}]
endpoints: [{{addresses: [127.0.0.1]}}, {{addresses: [127.0.0.2]}}]
"
    )
}

fn route(namespace: &str, name: &str, parent: &str, host: &str, rules: &str) -> String {
    format!(
        "---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: {name}, namespace: {namespace}}}
spec:
  parentRefs: [{parent}]
  hostnames: [{host}]
  rules:
{rules}
"
    )
}

/// Ten routes.
pub(crate) fn shop() -> Vec<(&'static str, String)> {
    const WEB: &str = "{name: web, namespace: infra}";
    let to = |name: &str| format!("  - backendRefs: [{{name: {name}, port: 80}}]");
    let (cart, home, blog) = (backend("cart"), backend("home"), backend("blog"));
    let split = "  - matches: [{path: {value: /cart}}]
    backendRefs: [{name: cart, port: 80, weight: 90}, {name: home, port: 80, weight: 10}]
  - matches: [{path: {value: /cart}, method: POST, headers: [{name: x-canary, value: always}]}]
    backendRefs: [{name: home, port: 80}]
  - backendRefs: [{name: home, port: 80}]";
    let hostile = format!(
        "  - matches: [{{path: {{value: /hostile}}, headers: [{{name: x-hostile, value: '{HOSTILE}'}}]}}]
    backendRefs: [{{name: home, port: 80}}]"
    );
    let redirect =
        "  - filters: [{type: RequestRedirect, requestRedirect: {scheme: https, statusCode: 301}}]";
    let routes = [
        route("shop", "web", WEB, "shop.example", split),
        route("shop", "hostile", WEB, "hostile.example", &hostile),
        route("shop", "api", WEB, "api.example", &to("cart")),
        route("shop", "old", WEB, "old.example", redirect),
        route("shop", "lost", WEB, "lost.example", &to("nowhere")),
        route("shop", "asleep", WEB, "asleep.example", &to("asleep")),
        route("shop", "img", WEB, "img.example", &to("home")),
        route("shop", "stranger", "{name: other, namespace: infra}", "stranger.example", &to("home")),
        route("blog", "posts", "{kind: ListenerSet, name: blog}", "blog.example", &to("blog")),
        route("blog", "feed", WEB, "feed.example", &to("blog")),
    ];
    let asleep = service("shop", "asleep", 1);
    let asleep = asleep.split("---\napiVersion: discovery").next().unwrap_or_default();
    let services = [
        service("shop", "cart", cart),
        service("shop", "home", home),
        asleep.to_owned(),
        service("blog", "blog", blog),
    ];
    let unknown =
        format!("---\napiVersion: v1\nkind: Service\nmetadata: {{name: \"{HOSTILE}\", namespace: shop}}\n");
    vec![
        ("gateway.yaml", format!("{GATEWAYS}---\n{}", secret())),
        ("shop.yaml", routes.concat()),
        ("services.yaml", services.concat()),
        ("hostile.yaml", unknown),
    ]
}

/// So many routes, each with a host of its own; one of a hundred wants a backend that is not
/// there.
pub(crate) fn many(number: usize) -> Vec<(&'static str, String)> {
    let gateway = GATEWAYS.split("---").next().unwrap_or_default();
    let gateway = gateway.split("  - {name: https").next().unwrap_or_default().to_owned();
    let rule = |at| {
        let backend = if at % 100 == 0 { "nowhere" } else { "home" };
        format!("  - backendRefs: [{{name: {backend}, port: 80}}]")
    };
    let parent = "{name: web, namespace: infra}";
    let one =
        |at| route("shop", &format!("route-{at:05}"), parent, &format!("host-{at:05}.example"), &rule(at));
    let routes: String = (0..number).map(one).collect();
    vec![
        ("gateway.yaml", gateway),
        ("routes.yaml", routes),
        ("services.yaml", service("shop", "home", backend("home"))),
    ]
}
