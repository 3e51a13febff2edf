//! Requests that every proxy is asked.

use super::site::Size;

/// With `Host` twelve, of the kind and length that browsers send.
pub(super) const BROWSER: [(&str, &str); 11] = [
    ("User-Agent", "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"),
    ("Accept", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"),
    ("Accept-Language", "en-GB,en;q=0.7,de;q=0.3"),
    ("Accept-Encoding", "gzip, deflate, br, zstd"),
    ("Referer", "https://one.example.com/catalogue/items?page=7"),
    ("Cookie", "session=0f1e2d3c4b5a69788796a5b4c3d2e1f0; theme=dark; consent=1"),
    ("Cache-Control", "max-age=0"),
    ("Sec-Fetch-Dest", "document"),
    ("Sec-Fetch-Mode", "navigate"),
    ("Sec-Fetch-Site", "same-origin"),
    ("X-Request-Id", "7f3c1a52-9f0e-4d1f-8a86-0b6a5e0c9d11"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// HTTP/1.1, 64 connections kept open, to the host with one route.
    Http1,
    /// The same with the headers of a browser.
    Http1Browser,
    /// The first to random routes of the host with many.
    Http1Routes,
    /// HTTPS, HTTP/1.1, 64 connections kept open.
    Https,
    /// HTTP/2 over TLS, 8 connections of 10 concurrent requests.
    Http2,
    /// A connection for each request, with a full TLS 1.3 handshake.
    Handshakes,
}

pub(super) struct Workload {
    /// For `--workload`.
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) site: Size,
    pub(super) kind: Kind,
}

const fn workload(name: &'static str, title: &'static str, site: Size, kind: Kind) -> Workload {
    Workload { name, title, site, kind }
}

/// By site, so that each is set up once.
pub(super) const WORKLOADS: &[Workload] = &[
    workload("http1", "HTTP/1.1 keep-alive, 1 route", Size::Small, Kind::Http1),
    workload("browser", "HTTP/1.1 keep-alive, 12 headers", Size::Small, Kind::Http1Browser),
    workload("https", "HTTPS (HTTP/1.1) keep-alive", Size::Small, Kind::Https),
    workload("http2", "HTTP/2 over TLS", Size::Small, Kind::Http2),
    workload("handshakes", "Full TLS 1.3 handshake and one request", Size::Small, Kind::Handshakes),
    workload("routes-one", "10,000 routes configured, a host with 1 asked", Size::Routes, Kind::Http1),
    workload("routes", "10,000 routes of one host, random ones asked", Size::Routes, Kind::Http1Routes),
    workload(
        "certificates-https",
        "1,000 SNI certificates, HTTPS keep-alive",
        Size::Certificates,
        Kind::Https,
    ),
    workload("certificates", "1,000 SNI certificates, full handshakes", Size::Certificates, Kind::Handshakes),
];
