//! Parsers of what clients and backends send, for `tests/fuzz` alone: each function runs the code
//! that serves, and tells in plain types what came of it. Nothing here judges; what must hold is
//! said there.

mod bodies;
mod credentials;
mod fields;
mod requests;
mod responses;

pub use bodies::{ChunkedBody, chunked_body, from_base64};
pub use credentials::{claim, credential, login, names_issuer, without_cookie};
pub use fields::{proxy_client, proxy_headers, trace_context};
pub use requests::{Framed, OwnRequest, framed, own_requests};
pub use responses::{ResponseSeen, responses};

/// The parser refuses the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;
