//! The absence of the API server, for the log: a line when nothing that was asked of it has been
//! answered for a while, and one when it answers again. Everything shares a connection, so that it
//! is said once, and not by each of those who wait for an answer.

use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::problem;

/// An API server that was only started again is back by then.
const LASTING: Duration = Duration::from_secs(2);

/// The error of a request, as the client has it.
pub(super) type RequestError = Box<dyn Error + Send + Sync>;

#[derive(Clone, Debug, Default)]
pub(super) struct Outage(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// The first request since the last answer that got none.
    since: Option<Instant>,
    is_logged: bool,
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
    /// Takes note of how a request ended.
    pub(super) fn note<T>(&self, ended: &Result<T, RequestError>) {
        let answer = if ended.is_ok() { Answer::Given } else { Answer::Missing };
        match (self.turn(answer), ended) {
            (Turn::Begins, Err(error)) => tracing::warn!(
                "the API server does not answer: {}; what is served stays as it is, and nothing is written until it does",
                problem(&**error)
            ),
            (Turn::Ends, _) => tracing::info!("the API server answers again"),
            _ => {}
        }
    }

    fn turn(&self, answer: Answer) -> Turn {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if answer == Answer::Given {
            let State { is_logged, .. } = std::mem::take(&mut *state);
            return if is_logged { Turn::Ends } else { Turn::None };
        }
        let since = *state.since.get_or_insert_with(Instant::now);
        if state.is_logged || since.elapsed() < LASTING {
            return Turn::None;
        }
        state.is_logged = true;
        Turn::Begins
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_is_said_once_however_many_ask_and_only_if_it_lasts() {
        let outage = Outage::default();
        assert_eq!(outage.turn(Answer::Missing), Turn::None);
        tokio::time::advance(LASTING / 2).await;
        assert_eq!(outage.turn(Answer::Given), Turn::None, "it was only started again");
        assert_eq!(outage.turn(Answer::Missing), Turn::None);
        tokio::time::advance(LASTING).await;
        let turns: Vec<_> =
            (0..15).map(|_| outage.turn(Answer::Missing)).filter(|turn| *turn != Turn::None).collect();
        assert_eq!(turns, [Turn::Begins]);
        assert_eq!((outage.turn(Answer::Given), outage.turn(Answer::Given)), (Turn::Ends, Turn::None));
    }
}
