//! Requests that every proxy is asked.

use super::site::Size;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// HTTP/1.1, 64 connections kept open, to the host with one route.
    Http1,
    /// The same to random routes of the host with many.
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
