//! Responses that no client reads: what is left of one is read all the same, within limits, because
//! its connection can be used again then.

use std::future::poll_fn;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;

use crate::core::window::Windows;
use crate::upstream::endpoint::ResponseBody;

/// Bytes that are read at once.
const PIECE: usize = 16 << 10;
/// The rest of a response that a retry is to replace: bytes, and the time that it may take.
const REST: usize = 64 << 10;
const REST_TIME: Duration = Duration::from_secs(1);

/// Reads up to so many bytes. The windows are those that the request was sent with.
pub(crate) async fn discard(mut body: ResponseBody, windows: &Rc<Windows>, most: usize) {
    let mut left = most;
    while !body.is_end_stream() {
        let frame = poll_fn(|cx| body.poll_frame(cx, PIECE)).await;
        let read = match &frame {
            Some(Ok(frame)) => frame.data_ref().map_or(0, Bytes::len),
            Some(Err(_)) => return,
            None => break,
        };
        match left.checked_sub(read) {
            Some(rest) => left = rest,
            None => return,
        }
        windows.renew();
    }
    body.release();
}

/// Reads the rest of a response that a retry is to replace, beside the retry.
pub(crate) fn discard_rest(body: ResponseBody, windows: Rc<Windows>) {
    if body.is_end_stream() {
        return body.release();
    }
    tokio::task::spawn_local(async move { timeout(REST_TIME, discard(body, &windows, REST)).await });
}
