//! Mirrors: backends that get copies of requests, and whose responses no client reads. A copy never
//! delays or fails the request that it is of: it is sent beside it, within limits, and given up
//! where it does not keep pace.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use foldhash::fast::RandomState;
use http::StatusCode;
use portcullis_model::BackendName;
use tokio::task::spawn_local;
use tokio::time::sleep;

use crate::core::shares::{CoreShares, Share};
use crate::core::stats::Mirrored;
use crate::core::window::Windows;
use crate::upstream::attempt;
use crate::upstream::discard::discard;
use crate::upstream::endpoint::Downstream;
use crate::upstream::pool::Pools;
use crate::upstream::request::{Copies, CopyEnd, CopyWatch, Outgoing, Resend, Upload};

/// Copies under way on a core, of which those to backends of one namespace may be half, and to one
/// backend.
const MOST: usize = 1024;
const MOST_TO_BACKEND: usize = 128;
/// Bytes of request bodies that mirrors are yet to take, on a core; those of one namespace half.
const ROOM: usize = 16 << 20;
/// The time that a mirror has from the request's last byte to its response's.
const TIME: Duration = Duration::from_secs(30);
/// Bytes of a response that are read.
const RESPONSE: usize = 1 << 20;

/// Those of a core.
pub(crate) struct Mirrors {
    pools: Rc<Pools>,
    room: CoreShares,
    under_way: CoreShares,
    by_backend: RefCell<HashMap<BackendName, usize, RandomState>>,
}

/// A copy under way.
struct Slot {
    mirrors: Rc<Mirrors>,
    name: BackendName,
    place: Share,
}

// === impl Mirrors ===

impl Mirrors {
    pub(crate) fn new(pools: Rc<Pools>) -> Rc<Self> {
        let [room, under_way] = [ROOM, MOST].map(CoreShares::new);
        Rc::new(Self { pools, room, under_way, by_backend: RefCell::default() })
    }

    /// Sends a copy of the request to each backend; its body is copied as it is read.
    pub(crate) fn send<'n>(
        self: &Rc<Self>,
        pools: &Rc<Pools>,
        names: impl Iterator<Item = &'n BackendName>,
        client: Option<IpAddr>,
        downstream: &Rc<Downstream>,
        outgoing: &mut Outgoing,
    ) {
        let mut copies = None;
        for name in names {
            let Some(slot) = Slot::take(self, name) else {
                self.pools.counters.mirrored(Mirrored::Busy);
                continue;
            };
            let (upload, watch) = if let Upload::Empty = outgoing.upload {
                (Upload::Empty, None)
            } else {
                let (copy, watch) =
                    copies.get_or_insert_with(Copies::default).add(self.room.of(name.namespace()));
                (Upload::Copied(Box::new(copy)), Some(watch))
            };
            let mut copy = Resend::of_head(outgoing).outgoing(upload);
            // Windows of the client's are for what it reads.
            copy.windows = Windows::http1();
            spawn_local(slot.send(pools.clone(), client, downstream.clone(), copy, watch));
        }
        if let Some(copies) = copies {
            outgoing.upload.copy_to(copies);
        }
    }
}

// === impl Slot ===

impl Slot {
    /// `None` if there are as many copies under way as there may be.
    fn take(mirrors: &Rc<Mirrors>, name: &BackendName) -> Option<Self> {
        let mut by_backend = mirrors.by_backend.borrow_mut();
        let to_backend = by_backend.get(name).copied().unwrap_or_default();
        let place = mirrors.under_way.of(name.namespace());
        if to_backend >= MOST_TO_BACKEND || !place.take(1) {
            return None;
        }
        by_backend.insert(name.clone(), to_backend + 1);
        Some(Self { mirrors: mirrors.clone(), name: name.clone(), place })
    }

    async fn send(
        self,
        pools: Rc<Pools>,
        client: Option<IpAddr>,
        downstream: Rc<Downstream>,
        copy: Box<Outgoing>,
        watch: Option<CopyWatch>,
    ) {
        let counters = &self.mirrors.pools.counters;
        let outcome = tokio::select! {
            biased;
            outcome = given_up(watch.as_ref()) => outcome,
            outcome = self.exchange(&pools, client, &downstream, copy) => outcome,
        };
        counters.mirrored(outcome);
        if let Some(watch) = watch {
            watch.abandon();
        }
    }

    async fn exchange(
        &self,
        pools: &Pools,
        client: Option<IpAddr>,
        downstream: &Downstream,
        copy: Box<Outgoing>,
    ) -> Mirrored {
        let windows = copy.windows.clone();
        match attempt::send(pools, &self.name, client.into(), downstream, copy).await {
            Ok(response) => {
                if response.status() != StatusCode::SWITCHING_PROTOCOLS {
                    discard(response.into_body(), &windows, RESPONSE).await;
                }
                Mirrored::Answered
            }
            Err(error) => {
                tracing::debug!(backend = %self.name, %error, "a mirror did not answer");
                Mirrored::Failed
            }
        }
    }
}

/// Waits until it is no use to go on.
async fn given_up(watch: Option<&CopyWatch>) -> Mirrored {
    let end = match watch {
        Some(watch) => watch.ended().await,
        None => CopyEnd::Complete,
    };
    match end {
        CopyEnd::Behind => Mirrored::Behind,
        CopyEnd::Broken => Mirrored::Broken,
        CopyEnd::Complete => {
            sleep(TIME).await;
            Mirrored::Timeout
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.place.give_back(1);
        let mut by_backend = self.mirrors.by_backend.borrow_mut();
        if let Some(count) = by_backend.get_mut(&self.name) {
            *count -= 1;
            if *count == 0 {
                by_backend.remove(&self.name);
            }
        }
    }
}
