//! What an operator can choose, with defaults that are safe at the edge.

use std::time::Duration;

#[derive(Clone, Debug)]
pub struct Settings {
    /// Threads, each with sockets, pools and counters of its own.
    pub cores: usize,
    pub sockets: SocketMode,
    pub limits: Limits,
    /// Proxies in front of this one whose `X-Forwarded-For` is believed. 0: what the client sent is replaced.
    pub trusted_hops: usize,
    pub slashes: Slashes,
    /// Also send `Forwarded` (RFC 7239).
    pub forwarded: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketMode {
    /// One socket pair per core on loopback; the kernel steers every VIP's connections there.
    Steered,
    /// Every frontend is bound on every core with `SO_REUSEPORT`.
    Bound,
}

/// What `//` in a path means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slashes {
    /// The same as `/`, as most backends read it: routes cannot be evaded by an empty segment.
    Merge,
    /// An empty segment, for backends that tell the difference (object stores).
    Keep,
}

/// Budgets of one client connection and of the pools behind it.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Time for the request head, from the connection or from the head's first byte.
    pub header_read: Duration,
    pub handshake: Duration,
    /// Time between requests on an HTTP/1 connection.
    pub client_idle: Duration,
    /// Time without streams on an HTTP/2 connection.
    pub http2_idle: Duration,
    /// Bytes of the request target.
    pub uri: usize,
    /// Bytes of all header fields.
    pub header_bytes: usize,
    pub headers: usize,
    /// Concurrent HTTP/2 streams per connection.
    pub streams: u32,
    pub connect: Duration,
    /// Idle upstream connections per endpoint and core.
    pub idle_connections: usize,
    pub idle: Duration,
    /// How long open connections may finish after a drain began.
    pub drain: Duration,
}

// === impl Settings ===

impl Default for Settings {
    fn default() -> Self {
        Self {
            cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            sockets: SocketMode::Bound,
            limits: Limits::default(),
            trusted_hops: 0,
            slashes: Slashes::Merge,
            forwarded: false,
        }
    }
}

// === impl Limits ===

impl Default for Limits {
    fn default() -> Self {
        Self {
            header_read: Duration::from_secs(10),
            handshake: Duration::from_secs(10),
            client_idle: Duration::from_secs(60),
            http2_idle: Duration::from_secs(300),
            uri: 8 << 10,
            header_bytes: 32 << 10,
            headers: 100,
            streams: 100,
            connect: Duration::from_secs(5),
            idle_connections: 256,
            idle: Duration::from_secs(60),
            drain: Duration::from_secs(30),
        }
    }
}
