//! Parsers of what clients and backends send, for `tests/fuzz` alone: each function runs the code
//! that serves, and tells in plain types what came of it. Nothing here judges; what must hold is
//! said there.

mod bodies;
mod credentials;
mod fields;
mod negotiation;
mod requests;
mod responses;
mod routes;

pub use bodies::{ChunkedBody, Frames, WebFormat, chunked_body, from_base64, grpc_web};
pub use credentials::{claim, credential, login, names_issuer, without_cookie};
pub use fields::{forwarded, listed_client, proxy_client, proxy_headers, trace_context};
pub use negotiation::{coding, upgrade};
pub use requests::{Framed, OwnRequest, framed, own_requests};
pub use responses::{ResponseSeen, responses};
pub use routes::{Routed, routed};

pub use crate::http::auth::fuzzing::{AuthOutcome, by_grpc};

/// The parser refuses the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;
