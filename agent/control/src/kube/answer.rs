//! Answers of the API server, read out of errors that may have come about on the way to it.

use std::error::Error;

use kube::runtime::watcher;

/// The status code of the API server's answer, if it answered.
pub(crate) fn code(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

/// The status code that the API server answered instead of a list or a watch, if it answered.
pub(crate) fn watch_code(error: &watcher::Error) -> Option<u16> {
    use watcher::Error::{InitialListFailed, WatchFailed, WatchStartFailed};
    match error {
        InitialListFailed(error) | WatchStartFailed(error) | WatchFailed(error) => code(error),
        watcher::Error::WatchError(status) => Some(status.code),
        watcher::Error::NoResourceVersion => None,
    }
}

/// The API server's own words, or else everything that led to not having any.
pub(crate) fn problem(error: &(dyn Error + 'static)) -> String {
    if let Some(status) = answered(error).filter(|status| !status.message.is_empty()) {
        return status.message.clone();
    }
    let mut text = String::new();
    for words in chain(error).map(ToString::to_string) {
        if !text.contains(&words) {
            let colon = if text.is_empty() { "" } else { ": " };
            text = format!("{text}{colon}{words}");
        }
    }
    text
}

/// The words of a problem by which it is known again. Numbers do not count: a certificate expired
/// another number of seconds ago each time.
pub(crate) fn wording(problem: &str) -> String {
    problem.chars().filter(|it| !it.is_ascii_digit()).collect()
}

/// The API server's answer that led to an error, if there was one.
pub(crate) fn answered<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e kube::core::Status> {
    let statuses = chain(error).filter_map(|error| match error.downcast_ref() {
        Some(kube::Error::Api(status)) => Some(&**status),
        _ => None,
    });
    statuses.last()
}

/// Tells whether the API server did not answer at all, for whatever reason.
pub(crate) fn is_unanswered(error: &(dyn Error + 'static)) -> bool {
    use kube::Error::{Auth, HyperError, Service};
    chain(error).any(|error| matches!(error.downcast_ref(), Some(Auth(_) | HyperError(_) | Service(_))))
}

fn chain<'e>(error: &'e (dyn Error + 'static)) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| (**error).source())
}
