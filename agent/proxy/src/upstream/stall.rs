//! The time for which a backend takes nothing of a request that waits for it. It goes by the core's
//! clock, and there is a timer only once a backend had no room: neither a request without a body
//! nor a body that is taken as it comes has one.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

use crate::core::clock;

pub(crate) struct Stall {
    /// `None`: the backend may take its time.
    limit: Option<Duration>,
    /// Time since which nothing was taken, by the core's clock.
    since: Option<u32>,
    timer: Option<Pin<Box<Sleep>>>,
}

// === impl Stall ===

impl Stall {
    pub(crate) fn new(limit: Option<Duration>) -> Self {
        Self { limit, since: None, timer: None }
    }

    /// Something was taken, or there is nothing to take.
    pub(crate) fn end(&mut self) {
        self.since = None;
    }

    /// Counts from this time on.
    pub(crate) fn count_from(&mut self, since: u32) {
        self.since = Some(since);
    }

    /// True if so much time has passed since then that it is over.
    pub(crate) fn is_over_since(&self, since: u32) -> bool {
        self.limit.is_some_and(|limit| clock::now() - since >= clock::ticks(limit))
    }

    /// Nothing is taken now. Ready once that has lasted for too long.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(limit) = self.limit else { return Poll::Pending };
        let since = *self.since.get_or_insert_with(clock::now);
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(limit)));
        loop {
            ready!(timer.as_mut().poll(cx));
            // It may have been taken in between: the timer is not touched for every piece.
            let left = clock::ticks(limit).saturating_sub(clock::now() - since);
            if left == 0 {
                return Poll::Ready(());
            }
            timer.as_mut().reset(Instant::now() + clock::duration(left));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Waker;

    use super::*;

    fn poll(stall: &mut Stall) -> Poll<()> {
        stall.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[tokio::test]
    async fn only_time_in_which_nothing_was_taken_counts() {
        let mut stall = Stall::new(Some(clock::duration(1)));
        assert!(poll(&mut stall).is_pending());
        sleep(clock::duration(1)).await;
        stall.end();
        // The timer is over; the time is not.
        assert!(poll(&mut stall).is_pending());
        clock::advance();
        poll_fn(|cx| stall.poll(cx)).await;
        // Once more, from a time that is given.
        stall.count_from(clock::now());
        assert!(!stall.is_over_since(clock::now()) && poll(&mut stall).is_pending());
        clock::advance();
        assert!(stall.is_over_since(clock::now() - 1));
        poll_fn(|cx| stall.poll(cx)).await;
    }

    #[tokio::test]
    async fn without_a_limit_it_is_never_over() {
        let mut stall = Stall::new(None);
        assert!(poll(&mut stall).is_pending());
        (0..100).for_each(|_| clock::advance());
        assert!(poll(&mut stall).is_pending() && !stall.is_over_since(0));
    }
}
