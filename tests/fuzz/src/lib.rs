//! One function per parser that strangers, tenants or backends reach: it takes any bytes and
//! asserts what must hold of them, which is more than that nothing panics. Two readers of the same
//! bytes agree, what was printed reads the same, and it does not matter how bytes were cut.
//!
//! `cargo test` replays `corpus/TARGET`; `cargo xtask fuzz` looks for bytes that are not there.

mod accept_encoding;
mod auth_answers;
mod backend_frames;
mod chunked_body;
mod client_certificates;
mod client_frames;
mod client_hello;
mod credentials;
mod dns_answers;
mod fields;
mod forwarded_for;
mod frames;
mod grpc_timeout;
mod grpc_web;
mod hand_over;
mod health_answers;
mod http1_requests;
mod http1_response;
mod key_files;
mod library;
mod manifests;
mod names;
mod nginx_snippets;
mod packet;
mod path;
mod proxy_header;
mod route_match;
mod sessions;
mod tokens;
mod traceparent;
mod upgrade;
mod web_text;

/// A parser, by the name of its corpus.
#[derive(Clone, Copy)]
pub struct Target {
    pub name: &'static str,
    /// Panics if something does not hold.
    pub run: fn(&[u8]),
}

pub const TARGETS: &[Target] = &[
    Target { name: "accept_encoding", run: accept_encoding::run },
    Target { name: "auth_answers", run: auth_answers::run },
    Target { name: "backend_frames", run: backend_frames::run },
    Target { name: "chunked_body", run: chunked_body::run },
    Target { name: "client_certificates", run: client_certificates::run },
    Target { name: "client_frames", run: client_frames::run },
    Target { name: "client_hello", run: client_hello::run },
    Target { name: "credentials", run: credentials::run },
    Target { name: "dns_answers", run: dns_answers::run },
    Target { name: "forwarded_for", run: forwarded_for::run },
    Target { name: "grpc_timeout", run: grpc_timeout::run },
    Target { name: "grpc_web", run: grpc_web::run },
    Target { name: "hand_over", run: hand_over::run },
    Target { name: "health_answers", run: health_answers::run },
    Target { name: "http1_requests", run: http1_requests::run },
    Target { name: "http1_response", run: http1_response::run },
    Target { name: "key_files", run: key_files::run },
    Target { name: "manifests", run: manifests::run },
    Target { name: "names", run: names::run },
    Target { name: "nginx_snippets", run: nginx_snippets::run },
    Target { name: "packet", run: packet::run },
    Target { name: "path", run: path::run },
    Target { name: "proxy_header", run: proxy_header::run },
    Target { name: "route_match", run: route_match::run },
    Target { name: "sessions", run: sessions::run },
    Target { name: "tokens", run: tokens::run },
    Target { name: "traceparent", run: traceparent::run },
    Target { name: "upgrade", run: upgrade::run },
    Target { name: "web_text", run: web_text::run },
];

pub fn target(name: &str) -> Option<Target> {
    TARGETS.iter().copied().find(|target| target.name == name)
}

/// Sizes of pieces in which bytes come; the last is all at once.
const PIECES: [usize; 4] = [1, 2, 7, usize::MAX >> 1];
