//! A tenant's part: a namespace with a certificate, a ListenerSet, a route and a backend of its
//! own.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use portcullis_netns_tests::VIP;
use portcullis_testbed::{Answer, Authority, Certificate, TlsClient};

/// It takes ListenerSets of labelled namespaces.
pub(crate) const GATEWAY: &str = "\
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: infra}
spec:
  gatewayClassName: portcullis
  addresses: [{type: IPAddress, value: {VIP}}]
  allowedListeners: {namespaces: {from: Selector, selector: {matchLabels: {edge: allowed}}}}
---
apiVersion: v1
kind: Secret
metadata: {name: not-yours, namespace: infra}
type: kubernetes.io/tls
";

pub(crate) struct Tenant {
    /// Of its namespace, too.
    pub(crate) name: String,
    pub(crate) host: String,
    pub(crate) certificate: Certificate,
}

/// Differences between tenants in good and in bad health.
pub(crate) struct Manifests {
    pub(crate) namespace: String,
    pub(crate) labels: &'static str,
    /// A document; empty if there is none.
    pub(crate) secret: String,
    pub(crate) listener: Listener,
    /// In flow style, as the next.
    pub(crate) matches: &'static str,
    pub(crate) backend: &'static str,
}

pub(crate) struct Listener {
    pub(crate) port: u16,
    pub(crate) protocol: &'static str,
    pub(crate) hostname: String,
    /// In flow style; the protocols without TLS must not have it.
    pub(crate) tls: &'static str,
    pub(crate) routes: &'static str,
}

pub(crate) fn address() -> SocketAddr {
    SocketAddr::new(VIP.parse().unwrap(), 443)
}

impl Tenant {
    pub(crate) fn new(number: usize, authority: &Authority) -> Result<Self> {
        let name = format!("tenant-{number:03}");
        let host = host(number);
        Ok(Self { certificate: authority.issue(&[&host])?, name, host })
    }

    /// In good health.
    pub(crate) fn manifests(&self) -> Manifests {
        Manifests {
            namespace: self.name.clone(),
            labels: "{edge: allowed}",
            secret: self.certificate.secret(&self.name, "tls"),
            listener: Listener {
                port: 443,
                protocol: "HTTPS",
                hostname: self.host.clone(),
                tls: "{certificateRefs: [{name: tls}]}",
                routes: "{}",
            },
            matches: "[{path: {type: PathPrefix, value: /}}]",
            backend: "app",
        }
    }

    /// With its own certificate, which the client checks, and by its own route.
    pub(crate) fn is_served(&self, client: &TlsClient) -> Result<()> {
        self.is_own(&client.connect(address(), &self.host)?.get("/")?)
    }

    pub(crate) fn is_own(&self, answer: &Answer) -> Result<()> {
        let own = format!("x-tenant: {}\r\n", self.name);
        ensure!(answer.status == 200 && answer.head.contains(&own), "{}: {answer:?}", self.name);
        Ok(())
    }
}

pub(crate) fn host(number: usize) -> String {
    format!("t{number}.example.com")
}

impl Manifests {
    pub(crate) fn yaml(&self) -> String {
        let Self { namespace, labels, secret, matches, backend, .. } = self;
        let Listener { port, protocol, hostname, tls, routes } = &self.listener;
        let tls = if tls.is_empty() { String::new() } else { format!(", tls: {tls}") };
        format!(
            "apiVersion: v1
kind: Namespace
metadata: {{name: {namespace}, labels: {labels}}}
{secret}---
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata: {{name: web, namespace: {namespace}}}
spec:
  parentRef: {{name: edge, namespace: infra}}
  listeners:
  - {{name: web, port: {port}, protocol: {protocol}, hostname: {hostname}, allowedRoutes: {routes}{tls}}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: web, namespace: {namespace}}}
spec:
  parentRefs: [{{group: gateway.networking.k8s.io, kind: ListenerSet, name: web}}]
  rules:
  - matches: {matches}
    filters:
    - type: ResponseHeaderModifier
      responseHeaderModifier: {{set: [{{name: X-Tenant, value: {namespace}}}]}}
    backendRefs: [{{name: {backend}, port: 80}}]
---
apiVersion: v1
kind: Service
metadata: {{name: app, namespace: {namespace}}}
spec: {{ports: [{{port: 80}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: app-1, namespace: {namespace}, labels: {{kubernetes.io/service-name: app}}}}
addressType: IPv4
ports: [{{port: 8080}}]
endpoints: [{{addresses: [10.2.0.2]}}]
"
        )
    }
}
