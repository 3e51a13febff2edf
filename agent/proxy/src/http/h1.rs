//! HTTP/1 without the HTTP library: requests whose heads are certain, and their responses. An idle
//! connection holds no buffer, and what a request and its response need is written once.
//!
//! Anything else goes to the library, with its bytes as they came, before any of them was answered
//! or sent on ([`head::Reading::Uncertain`]); and comes back with the request after it.

mod exchange;
pub(crate) mod head;
pub(crate) mod intake;
mod response;
mod splice;
mod stream;

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use crate::client::clients::Client;
use crate::client::stream::Transport;
use crate::http::h1::exchange::Taken;
pub(crate) use crate::http::h1::head::Doubt;
use crate::http::h1::response::Persistence;
use crate::http::h1::stream::{OwnStream, Read, with_scratch};
use crate::http::service::Service;

/// Bytes of a head that are waited for here. Of a longer one the library knows how long it may be.
const HEAD: usize = 16 << 10;

/// A connection between two requests.
pub(crate) struct Unserved {
    pub transport: Transport,
    /// Bytes that were read, and are of no request that has been served.
    pub unread: Vec<u8>,
    /// There have been requests before those.
    pub has_served: bool,
}

/// Serves requests as long as they are certain. The connection comes back for the library, unless
/// it has come to its end.
pub(crate) async fn serve(
    unserved: Unserved,
    client: &Rc<Client>,
    service: &Service,
) -> Option<(Unserved, Doubt)> {
    let mut stream = OwnStream::new(unserved, client.progress.clone());
    loop {
        // Whatever a client has sent ahead by now: it may be without what its listener asks for.
        if client.is_finishing() && stream.has_served {
            stream.shut_down().await;
            return None;
        }
        let read = poll_fn(|cx| poll_request(&mut stream, cx, client)).await.ok()?;
        // A body may take as long as its client likes, and needs nothing of what is served.
        let answered = {
            let current = service.snapshot.load();
            let taken = match read {
                _ if client.is_finishing() && client.is_withdrawn(&current) => {
                    stream.shut_down().await;
                    return None;
                }
                Read::Kept => {
                    let mut unread = std::mem::take(&mut stream.unread);
                    exchange::take(&mut unread, &mut stream, client, service, &current)
                }
                Read::Scratch(bytes) => with_scratch(|scratch| {
                    exchange::take(&mut scratch[..bytes], &mut stream, client, service, &current)
                }),
                Read::End => {
                    stream.shut_down().await;
                    return None;
                }
            };
            match taken {
                Taken::Partial if stream.unread.len() < HEAD => {
                    stream.is_partial = true;
                    continue;
                }
                Taken::Partial => Err(Doubt::Connection),
                Taken::Uncertain(doubt) => Err(doubt),
                Taken::Request(request) => Ok(request.answer(&mut stream, client, service).await),
            }
        };
        let written = match answered {
            Err(doubt) => return Some((stream.into_unserved(), doubt)),
            Ok(Ok(answer)) => answer.write(&mut stream, &service.pipes).await,
            Ok(Err(error)) => Err(error),
        };
        match written {
            Ok(Persistence::Stays) => {}
            Ok(Persistence::Ends) => {
                stream.shut_down().await;
                return None;
            }
            Err(error) => {
                tracing::debug!(client = %client.peer, %error, "client connection ended");
                return None;
            }
        }
    }
}

/// Waits for bytes of a request, unless there are some that were not looked at.
fn poll_request(
    stream: &mut OwnStream,
    cx: &mut Context<'_>,
    client: &Client,
) -> Poll<std::io::Result<Read>> {
    if !stream.unread.is_empty() && !stream.is_partial {
        stream.progress.head_is_due();
        return Poll::Ready(Ok(Read::Kept));
    }
    loop {
        let before = stream.unread.len();
        match stream.poll_read(cx) {
            Poll::Pending if client.is_finishing() && (before == 0 || stream.has_served) => {
                return Poll::Ready(Ok(Read::End));
            }
            // A head that comes byte by byte is not parsed each time.
            Poll::Ready(Ok(Read::Kept)) if !stream.has_empty_line(before) && stream.unread.len() < HEAD => {}
            read => return Poll::Ready(ready!(read)),
        }
    }
}
