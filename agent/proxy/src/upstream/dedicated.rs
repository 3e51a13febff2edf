//! Connections to backends for bytes of any protocol: each client's connection has its own.

use std::io;
use std::net::SocketAddr;

use portcullis_model::BackendName;

use crate::core::ending::Ending;
use crate::upstream::attempt::Undecided;
use crate::upstream::balance::Asked;
use crate::upstream::endpoint::{Channel, Dedicated};
use crate::upstream::health::places::Full;
use crate::upstream::hops::{Hops, Passed};
use crate::upstream::pool::Pools;
use crate::upstream::proxy_header::Ends;
use crate::upstream::tls::is_tls_failure;

const ATTEMPTS: usize = 3;

#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    #[error("the Service has no ready endpoint")]
    NoEndpoint,
    #[error("the backend has as many connections as its limits permit")]
    Full,
    #[error("cannot connect to {0}: {1}")]
    Connect(SocketAddr, io::Error),
}

/// Tries other endpoints when one cannot be connected to.
pub(crate) async fn connect(
    pools: &Pools,
    name: &BackendName,
    client: Ends,
    hops: &Hops,
    passed: Passed,
    channel: Channel,
) -> Result<Dedicated, DialError> {
    let (mut avoid, mut failure) = (None, DialError::NoEndpoint);
    for attempt in 0..ATTEMPTS {
        let asked = Asked { preference: Some(client.client.ip()).into(), headers: None, avoid };
        let endpoint = pools.pick(name, asked).filter(|it| Some(it.address) != avoid);
        let Some(endpoint) = endpoint else { break };
        if attempt > 0 {
            pools.counters.retries.increment();
        }
        let place = endpoint.health.as_ref().map(|health| health.backend.connection());
        let place = place.transpose().map_err(|Full| DialError::Full)?;
        // The client may be gone before the outcome is known.
        let _undecided = endpoint.health.as_deref().map(Undecided::connection);
        match endpoint.dedicated(&pools.counters, client, hops, passed, channel, place).await {
            Ok(connection) => return Ok(connection),
            Err(error) => {
                avoid = Some(endpoint.address);
                failure = DialError::Connect(endpoint.address, error);
            }
        }
    }
    Err(failure)
}

// === impl DialError ===

impl DialError {
    pub(crate) fn ending(&self) -> Ending {
        match self {
            Self::NoEndpoint => Ending::NoEndpoint,
            Self::Full => Ending::BackendFull,
            Self::Connect(_, error) if error.kind() == io::ErrorKind::TimedOut => Ending::ConnectTimeout,
            Self::Connect(_, error) if is_tls_failure(error) => Ending::BackendTls,
            Self::Connect(..) => Ending::ConnectFailed,
        }
    }

    /// The endpoint that was tried last.
    pub(crate) fn endpoint(&self) -> Option<SocketAddr> {
        match self {
            Self::NoEndpoint | Self::Full => None,
            Self::Connect(endpoint, _) => Some(*endpoint),
        }
    }
}
