//! The settings of proxies under test.

use portcullis_proxy::{Http1, Placement, Settings};

/// The default ones, with the code for HTTP/1 that the agent's variable chooses: CI runs the tests
/// with each. Connections stay at the core whose socket they came to.
pub fn settings() -> Settings {
    let http1 = match std::env::var("PORTCULLIS_HTTP1").as_deref() {
        Ok("own") | Err(_) => Http1::Own,
        Ok("library") => Http1::Library,
        Ok(other) => panic!("PORTCULLIS_HTTP1={other}: own or library"),
    };
    Settings { http1, placement: Placement::AsAccepted, ..Settings::default() }
}
