//! Names of header fields that a route may be about.

use http::HeaderName;

use crate::Fault;

/// These frame messages or belong to one connection; a route that changed them could smuggle
/// requests.
const FRAMING_HEADERS: [&str; 8] = [
    "connection",
    "content-length",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

pub(super) fn header_name(name: &str) -> Result<HeaderName, Fault> {
    let parsed = HeaderName::from_bytes(name.as_bytes());
    let name = parsed.map_err(|_| Fault::unsupported(format!("{name:?} is no header name")))?;
    if FRAMING_HEADERS.contains(&name.as_str()) {
        return Err(Fault::unsupported(format!(
            "header {name} belongs to the connection and cannot be changed by a route"
        )));
    }
    Ok(name)
}
