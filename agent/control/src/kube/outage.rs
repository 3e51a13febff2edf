//! The absence of the API server: a line in the log when nothing that was asked of it has been
//! answered for a while, and one when it answers again; and for those who look for the reason,
//! since when it is. Everything shares a connection, so that it is said once, and not by each of
//! those who wait for an answer.

use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::problem;

/// An API server that was only started again is back by then.
const LASTING: Duration = Duration::from_secs(2);

/// The error of a request, as the client has it.
pub(super) type RequestError = Box<dyn Error + Send + Sync>;

/// The requests of an agent so far, answered or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contact {
    /// The time at which the newest request that has an answer was made.
    pub answered: Option<Instant>,
    /// The time at which the first one since that has none ended.
    pub silent_since: Option<Instant>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Outage {
    is_logged: Arc<Mutex<bool>>,
    contact: watch::Sender<Contact>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    Given,
    Missing,
}

/// The consequence of a request for the log.
#[derive(Debug, PartialEq, Eq)]
enum Turn {
    None,
    Begins,
    Ends,
}

// === impl Outage ===

impl Outage {
    pub(super) fn contact(&self) -> watch::Receiver<Contact> {
        self.contact.subscribe()
    }

    /// Takes note of how a request ended that was made at this time.
    pub(super) fn note<T>(&self, made: Instant, ended: &Result<T, RequestError>) {
        let answer = if ended.is_ok() { Answer::Given } else { Answer::Missing };
        match (self.turn(made, answer), ended) {
            (Turn::Begins, Err(error)) => tracing::warn!(
                "the API server does not answer: {}; what is served stays as it is, and nothing is written until it does",
                problem(&**error)
            ),
            (Turn::Ends, _) => tracing::info!("the API server answers again"),
            _ => {}
        }
    }

    fn turn(&self, made: Instant, answer: Answer) -> Turn {
        let mut is_logged = self.is_logged.lock().unwrap_or_else(PoisonError::into_inner);
        let Contact { answered, silent_since } = *self.contact.borrow();
        if answer == Answer::Given {
            self.contact.send_replace(Contact { answered: answered.max(Some(made)), silent_since: None });
            return if std::mem::take(&mut *is_logged) { Turn::Ends } else { Turn::None };
        }
        let since = silent_since.unwrap_or_else(Instant::now);
        if silent_since.is_none() {
            self.contact.send_replace(Contact { answered, silent_since: Some(since) });
        }
        if *is_logged || since.elapsed() < LASTING {
            return Turn::None;
        }
        *is_logged = true;
        Turn::Begins
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_is_said_once_however_many_ask_and_only_if_it_lasts() {
        let outage = Outage::default();
        assert_eq!(outage.turn(Instant::now(), Answer::Missing), Turn::None);
        tokio::time::advance(LASTING / 2).await;
        assert_eq!(outage.turn(Instant::now(), Answer::Given), Turn::None, "it was only started again");
        assert_eq!(outage.turn(Instant::now(), Answer::Missing), Turn::None);
        tokio::time::advance(LASTING).await;
        let turns: Vec<_> = (0..15)
            .map(|_| outage.turn(Instant::now(), Answer::Missing))
            .filter(|turn| *turn != Turn::None)
            .collect();
        assert_eq!(turns, [Turn::Begins]);
        assert_eq!(
            (outage.turn(Instant::now(), Answer::Given), outage.turn(Instant::now(), Answer::Given)),
            (Turn::Ends, Turn::None)
        );
    }
}
