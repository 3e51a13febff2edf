//! One fetch of a key set. What a backend answers may be anything: no more is read than a set may
//! have, nothing is followed, and all of it has the fetch's time.

use std::future::poll_fn;
use std::net::IpAddr;

use http::{HeaderValue, Request, StatusCode, header};
use portcullis_model::{KeyKinds, KeySet, RemoteKeySet};
use tokio::time::timeout;

use crate::core::window::Windows;
use crate::upstream::attempt;
use crate::upstream::endpoint::Downstream;
use crate::upstream::key_sets::LONGEST;
use crate::upstream::pool::Pools;
use crate::upstream::request::{Outgoing, Upload};

/// Bytes of a document.
const MOST: usize = 256 << 10;
/// Bytes that are read at once.
const PIECE: usize = 16 << 10;
/// Characters of what is said of a failure: some of it is the issuer's.
const LONGEST_REASON: usize = 256;

/// # Errors
/// The reason why there is no set, in words.
pub(super) async fn fetch(pools: &Pools, set: &RemoteKeySet) -> Result<KeySet, String> {
    let fetched = timeout(LONGEST, document(pools, set)).await;
    let document = fetched.unwrap_or_else(|_| Err(format!("no answer within {LONGEST:?}")))?;
    KeySet::parse(&document, KeyKinds::Public).map_err(|error| {
        let text = error.to_string();
        format!("what it answered {}", text.escape_debug().take(LONGEST_REASON).collect::<String>())
    })
}

async fn document(pools: &Pools, set: &RemoteKeySet) -> Result<Vec<u8>, String> {
    let (windows, downstream) = (Windows::http1(), Downstream::own());
    let outgoing = Outgoing::of(request(set).ok_or("its path is none")?, &windows);
    let sent = attempt::send(pools, &set.backend, None::<IpAddr>.into(), &downstream, outgoing).await;
    let response = sent.map_err(|error| error.to_string())?;
    if response.status() != StatusCode::OK {
        return Err(format!("it answered {}, not 200", response.status().as_u16()));
    }
    let mut body = response.into_body();
    let mut document = Vec::new();
    while !body.is_end_stream() {
        let Some(frame) = poll_fn(|cx| body.poll_frame(cx, PIECE)).await else { break };
        let frame = frame.map_err(|error| format!("it broke off: {error}"))?;
        let Ok(data) = frame.into_data() else { continue };
        if document.len() + data.len() > MOST {
            return Err(format!("what it answered has more than {MOST} bytes"));
        }
        document.extend_from_slice(&data);
        windows.renew();
    }
    body.release();
    Ok(document)
}

fn request(set: &RemoteKeySet) -> Option<Request<Upload>> {
    let request = Request::get(&*set.path)
        .header(header::HOST, &*set.host)
        .header(header::ACCEPT, HeaderValue::from_static("application/jwk-set+json, application/json"))
        .header(header::USER_AGENT, HeaderValue::from_static("portcullis-key-sets"));
    request.body(Upload::Empty).ok()
}
