//! Attempts at getting a response to a request that is bytes already. They are those of
//! [`attempt`](crate::upstream::attempt), for backends that have no state that cores share.

use std::net::SocketAddr;

use crate::upstream::attempt::{ATTEMPTS, AttemptError};
use crate::upstream::balance::{Asked, Preference};
use crate::upstream::endpoint::{Freshness, PlainFailure, ResponseBody};
use crate::upstream::http1::plain::{PlainRequest, PlainResponse};
use crate::upstream::pool::PlainBackend;

/// A response, as far as it has not been seen.
pub(crate) struct PlainAnswer<T> {
    pub seen: T,
    pub endpoint: SocketAddr,
    /// `None` if it was whole.
    pub body: Option<ResponseBody>,
}

/// Tries again where that is safe: no connection could be made; or a kept connection turned out to
/// be closed, and either nothing of the request was sent or it may be sent twice (RFC 9110 section
/// 9.2.2).
pub(crate) async fn send<T>(
    backend: &PlainBackend,
    preference: Preference,
    request: &PlainRequest,
    mut see: impl FnMut(SocketAddr, PlainResponse<'_>) -> T,
) -> Result<PlainAnswer<T>, AttemptError> {
    let (mut avoid, mut freshness, mut failure) = (None, Freshness::Any, AttemptError::NoEndpoint);
    let mut again = None;
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            again = backend.again();
            let Some(again) = &again else { break };
            again.counters().retries.increment();
        }
        let backend = again.as_ref().unwrap_or(backend);
        let asked = Asked { preference, headers: None, avoid };
        let endpoint = backend.pick(asked).filter(|it| Some(it.address) != avoid);
        let Some(endpoint) = endpoint else { break };
        let address = endpoint.address;
        let connection = match endpoint.plain_connection(backend.counters(), freshness).await {
            Ok(connection) => connection,
            Err(error) => {
                avoid = Some(address);
                failure = AttemptError::Connect(address, error);
                continue;
            }
        };
        match connection.exchange(request, |response| see(address, response)).await {
            Ok((seen, body)) => return Ok(PlainAnswer { seen, endpoint: address, body }),
            Err(PlainFailure { error, may_be_sent_again }) => {
                failure = AttemptError::of(address, error, None);
                if !may_be_sent_again {
                    return Err(failure);
                }
                freshness = Freshness::New;
            }
        }
    }
    Err(failure)
}
