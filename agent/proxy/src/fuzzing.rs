//! Parsers of what clients and backends send, for `tests/fuzz` alone: each function runs the code
//! that serves, and tells in plain types what came of it. Nothing here judges; what must hold is
//! said there.

mod bodies;
mod connections;
mod credentials;
mod fields;
mod negotiation;
mod requests;
mod responses;
mod routes;

pub use bodies::{ChunkedBody, Frames, WebFormat, chunked_body, from_base64, grpc_web};
pub use connections::{
    ClientFrames, check_answer, client_certificate, client_frames, grpc_timeout, grpc_timeout_told,
    is_serving,
};
pub use credentials::{claim, credential, login, names_issuer, without_cookie};
pub use fields::{forwarded, listed_client, proxy_client, proxy_headers, trace_context};
pub use negotiation::{coding, upgrade};
pub use requests::{Framed, OwnRequest, framed, own_requests};
pub use responses::{ResponseSeen, responses};
pub use routes::{Routed, routed};

pub use crate::http::auth::fuzzing::{AuthOutcome, by_grpc};
pub use crate::http::session::fuzzing::{session_contents, session_endpoint, session_token, session_tokens};
pub use crate::upstream::http2::wire::fuzzing::{BackendFrames, backend_frames, first_window};

/// The parser refuses the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;
