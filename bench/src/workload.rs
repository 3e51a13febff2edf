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

/// The requests of a load generator.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) protocol: Protocol,
    pub(super) asked: Asked,
    pub(super) connections: usize,
    /// Requests a second, whatever the answers take; without it, a connection's next request waits
    /// for nothing but the answer.
    pub(super) rate: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    /// HTTP/1.1 over TLS.
    Https,
    /// Over TLS, each connection with ten requests at a time.
    Http2,
    /// A connection for each request, with a full TLS 1.3 handshake.
    Handshakes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// 1 KB, by nothing but a Host.
    Root,
    /// The same with the headers of a browser.
    Browser,
    /// The same with a body of 512 bytes.
    Post,
    /// Random routes of the host with many.
    Routes,
    /// So many KiB.
    Large(usize),
}

pub(super) struct Workload {
    /// For `--workload`.
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) site: Size,
    pub(super) load: Load,
}

impl Load {
    /// 64 connections that are kept open.
    pub(super) const HTTP1: Self =
        Self { protocol: Protocol::Http1, asked: Asked::Root, connections: 64, rate: None };
    pub(super) const HTTPS: Self = Self { protocol: Protocol::Https, ..Self::HTTP1 };
    const HTTP2: Self = Self { protocol: Protocol::Http2, connections: 8, ..Self::HTTP1 };
    const HANDSHAKES: Self = Self { protocol: Protocol::Handshakes, ..Self::HTTP1 };

    const fn asking(self, asked: Asked) -> Self {
        Self { asked, ..self }
    }

    const fn over(self, connections: usize) -> Self {
        Self { connections, ..self }
    }

    const fn at(self, rate: usize) -> Self {
        Self { rate: Some(rate), ..self }
    }
}

const fn workload(name: &'static str, title: &'static str, site: Size, load: Load) -> Workload {
    Workload { name, title, site, load }
}

const fn small(name: &'static str, title: &'static str, load: Load) -> Workload {
    workload(name, title, Size::Small, load)
}

/// By site, so that each is set up once.
pub(super) const WORKLOADS: &[Workload] = &[
    small("http1", "HTTP/1.1 keep-alive, 1 route", Load::HTTP1),
    small("browser", "HTTP/1.1 keep-alive, 12 headers", Load::HTTP1.asking(Asked::Browser)),
    small("post", "HTTP/1.1 keep-alive, POST of 512 bytes", Load::HTTP1.asking(Asked::Post)),
    small("few", "HTTP/1.1 keep-alive, 8 connections", Load::HTTP1.over(8)),
    small("steady", "HTTP/1.1 keep-alive, 12,000 requests a second", Load::HTTP1.over(60).at(12_000)),
    small("64k", "HTTP/1.1 keep-alive, 64 KiB", Load::HTTP1.asking(Asked::Large(64))),
    small("1m", "HTTP/1.1 keep-alive, 1 MiB", Load::HTTP1.asking(Asked::Large(1024))),
    small("https", "HTTPS (HTTP/1.1) keep-alive", Load::HTTPS),
    small("tls-64k", "HTTPS (HTTP/1.1) keep-alive, 64 KiB", Load::HTTPS.asking(Asked::Large(64))),
    small("http2", "HTTP/2 over TLS", Load::HTTP2),
    small("handshakes", "Full TLS 1.3 handshake and one request", Load::HANDSHAKES),
    workload("routes-one", "10,000 routes configured, a host with 1 asked", Size::Routes, Load::HTTP1),
    workload(
        "routes",
        "10,000 routes of one host, random ones asked",
        Size::Routes,
        Load::HTTP1.asking(Asked::Routes),
    ),
    workload(
        "certificates-https",
        "1,000 SNI certificates, HTTPS keep-alive",
        Size::Certificates,
        Load::HTTPS,
    ),
    workload("certificates", "1,000 SNI certificates, full handshakes", Size::Certificates, Load::HANDSHAKES),
];
