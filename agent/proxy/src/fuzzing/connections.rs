//! Frames of HTTP/2, certificates of clients, deadlines of gRPC, and answers to checks.

use std::time::Duration;

use http::{HeaderValue, StatusCode};
use rustls::pki_types::CertificateDer;

use super::Refused;
use crate::client::client_identity::forwarded;
use crate::client::frame_budget::FrameBudget;
use crate::http::grpc;
use crate::upstream::health::probe;

/// The outcome of a client's frames.
#[derive(Debug, PartialEq, Eq)]
pub struct ClientFrames {
    pub has_begun: bool,
    pub is_in_head: bool,
    /// Bytes of DATA.
    pub data: usize,
}

/// Follows frames that come in pieces of this size; they are refused if they are a flood.
pub fn client_frames(bytes: &[u8], piece: usize) -> Result<ClientFrames, Refused> {
    let mut budget = FrameBudget::default();
    for piece in bytes.chunks(piece.max(1)) {
        budget.follow(piece).map_err(|_| Refused)?;
    }
    Ok(ClientFrames {
        has_begun: budget.has_begun(),
        is_in_head: budget.is_in_head(),
        data: budget.take_data(),
    })
}

/// The `X-Forwarded-Client-Cert` that a backend gets of a certificate.
pub fn client_certificate(der: &[u8]) -> Option<String> {
    forwarded(&CertificateDer::from(der))
}

/// The time that a `grpc-timeout` gives.
pub fn grpc_timeout(value: &[u8]) -> Option<Duration> {
    grpc::duration(value)
}

/// The `grpc-timeout` that a backend is told.
pub fn grpc_timeout_told(limit: Duration) -> Option<HeaderValue> {
    grpc::timeout(limit)
}

/// The size of a head that answers a check, and its status; `Ok(None)` if there is more to come.
pub fn check_answer(bytes: &[u8]) -> Result<Option<(usize, StatusCode)>, Refused> {
    probe::head(bytes).map_err(|_| Refused)
}

/// True if the body of an answer to gRPC's check says that the service is served.
pub fn is_serving(body: &[u8]) -> bool {
    probe::judge(body).is_ok()
}
