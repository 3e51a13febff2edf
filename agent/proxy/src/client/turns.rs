//! Turns of TLS handshakes on a core: the dear part of each, key exchange and signature, is
//! computed in one go, and a listener whose clients flood it must not have all of the core's time.
//! Handshakes wait by listener, and listeners take turns. A turn lasts for the first poll of a
//! handshake, so that a client that stalls holds none; after each, everything else of the core has
//! its turn.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use tokio::sync::{Notify, oneshot};

/// Handshakes that may wait for a listener on a core.
pub(crate) const MOST_WAITING: usize = 256;

/// The turns of a core.
#[derive(Default)]
pub(crate) struct HandshakeTurns {
    /// Listeners that have handshakes waiting, each once, in the order of their turns.
    waiting: RefCell<VecDeque<Rc<HandshakeQueue>>>,
    /// True from when a turn is given until it has been seen that it is over.
    is_given: Cell<bool>,
    over: Notify,
}

/// The handshakes of a listener that wait for a turn.
#[derive(Default)]
pub(crate) struct HandshakeQueue(RefCell<VecDeque<oneshot::Sender<Turn>>>);

/// The right to compute. Over when it is dropped, wherever that happens.
pub(crate) struct Turn(Rc<HandshakeTurns>);

/// As many handshakes wait for the listener as may.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct QueueFull;

// === impl HandshakeTurns ===

impl HandshakeTurns {
    /// Waits for a turn of the listener, if another handshake has one.
    pub(crate) async fn take(self: &Rc<Self>, queue: &Rc<HandshakeQueue>) -> Result<Turn, QueueFull> {
        if !self.is_given.replace(true) {
            return Ok(Turn(self.clone()));
        }
        let turn = self.enqueue(queue)?;
        // Senders are only dropped with their turn given, or with their receiver gone.
        turn.await.map_err(|_| QueueFull)
    }

    fn enqueue(&self, queue: &Rc<HandshakeQueue>) -> Result<oneshot::Receiver<Turn>, QueueFull> {
        let mut handshakes = queue.0.borrow_mut();
        let is_waiting = !handshakes.is_empty();
        if handshakes.len() >= MOST_WAITING {
            handshakes.retain(|handshake| !handshake.is_closed());
        }
        if handshakes.len() >= MOST_WAITING {
            return Err(QueueFull);
        }
        let (sender, turn) = oneshot::channel();
        handshakes.push_back(sender);
        if !is_waiting {
            self.waiting.borrow_mut().push_back(queue.clone());
        }
        Ok(turn)
    }

    /// Gives turns, one after the other. A task of its own, so that whatever else became ready in
    /// the meantime comes before the next.
    pub(crate) async fn give_forever(self: Rc<Self>) {
        loop {
            self.over.notified().await;
            match self.next() {
                // A handshake that is gone by now drops its turn, and this goes on.
                Some(handshake) => drop(handshake.send(Turn(self.clone()))),
                None => self.is_given.set(false),
            }
        }
    }

    /// The next listener's first handshake that still waits.
    fn next(&self) -> Option<oneshot::Sender<Turn>> {
        let mut waiting = self.waiting.borrow_mut();
        while let Some(queue) = waiting.pop_front() {
            let mut handshakes = queue.0.borrow_mut();
            let next = std::iter::from_fn(|| handshakes.pop_front()).find(|next| !next.is_closed());
            let has_more = !handshakes.is_empty();
            drop(handshakes);
            if has_more {
                waiting.push_back(queue);
            }
            if next.is_some() {
                return next;
            }
        }
        None
    }
}

// === impl Turn ===

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.over.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::{Builder, LocalOptions};
    use tokio::task::{JoinHandle, spawn_local, yield_now};

    use super::*;

    /// The order in which handshakes had their turns.
    type Order = Rc<RefCell<Vec<&'static str>>>;

    fn on_a_core<T>(body: impl Future<Output = T>) -> T {
        Builder::new_current_thread().build_local(LocalOptions::default()).unwrap().block_on(body)
    }

    fn start() -> (Rc<HandshakeTurns>, Order) {
        let turns = Rc::<HandshakeTurns>::default();
        spawn_local(turns.clone().give_forever());
        (turns, Order::default())
    }

    fn handshake(
        turns: &Rc<HandshakeTurns>,
        queue: &Rc<HandshakeQueue>,
        order: &Order,
        name: &'static str,
    ) -> JoinHandle<Result<(), QueueFull>> {
        let (turns, queue, order) = (turns.clone(), queue.clone(), order.clone());
        spawn_local(async move {
            let turn = turns.take(&queue).await?;
            order.borrow_mut().push(name);
            drop(turn);
            Ok(())
        })
    }

    /// Lets the tasks run until so many handshakes wait.
    async fn waiting(queue: &HandshakeQueue, number: usize) {
        for _ in 0..10_000 {
            if queue.0.borrow().len() == number {
                return;
            }
            yield_now().await;
        }
        panic!("{} wait, not {number}", queue.0.borrow().len());
    }

    #[test]
    fn a_flood_for_one_listener_costs_another_one_turn() {
        on_a_core(async {
            let (turns, order) = start();
            let [flooded, quiet] = [(); 2].map(|()| Rc::<HandshakeQueue>::default());
            let held = turns.take(&flooded).await.unwrap();
            let flood: Vec<_> = (0..200).map(|_| handshake(&turns, &flooded, &order, "flood")).collect();
            waiting(&flooded, 200).await;
            let quiet_one = handshake(&turns, &quiet, &order, "quiet");
            waiting(&quiet, 1).await;
            drop(held);
            quiet_one.await.unwrap().unwrap();
            let position = order.borrow().iter().position(|name| *name == "quiet");
            assert_eq!(position, Some(1), "one of the flood has its turn before");
            for task in flood {
                task.await.unwrap().unwrap();
            }
            assert_eq!(order.borrow().len(), 201, "all had theirs");
        });
    }

    #[test]
    fn so_many_wait_for_a_listener_and_no_more() {
        on_a_core(async {
            let (turns, order) = start();
            let queue = Rc::<HandshakeQueue>::default();
            let held = turns.take(&queue).await.unwrap();
            let waiting: Vec<_> =
                (0..MOST_WAITING).map(|_| handshake(&turns, &queue, &order, "waits")).collect();
            self::waiting(&queue, MOST_WAITING).await;
            assert_eq!(turns.take(&queue).await.err(), Some(QueueFull));
            let other = handshake(&turns, &Rc::default(), &order, "other");
            for task in &waiting[..10] {
                task.abort();
            }
            for task in waiting.into_iter().take(10) {
                assert!(task.await.unwrap_err().is_cancelled());
            }
            let more = handshake(&turns, &queue, &order, "waits");
            self::waiting(&queue, MOST_WAITING - 10 + 1).await;
            drop(held);
            other.await.unwrap().unwrap();
            more.await.unwrap().unwrap();
            assert_eq!(order.borrow().len(), MOST_WAITING - 10 + 2);
        });
    }

    #[test]
    fn a_turn_whose_client_is_gone_is_given_on() {
        on_a_core(async {
            let (turns, order) = start();
            let queue = Rc::<HandshakeQueue>::default();
            let held = turns.take(&queue).await.unwrap();
            let gone = handshake(&turns, &queue, &order, "gone");
            let next = handshake(&turns, &queue, &order, "next");
            waiting(&queue, 2).await;
            drop(held);
            gone.abort();
            next.await.unwrap().unwrap();
            handshake(&turns, &queue, &order, "last").await.unwrap().unwrap();
            assert!(order.borrow().ends_with(&["next", "last"]), "{order:?}");
        });
    }
}
