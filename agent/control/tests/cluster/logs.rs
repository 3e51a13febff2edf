//! Log lines of the code under test. Every test runs on a thread of its own, so a thread's
//! lines are a test's.

use std::cell::RefCell;
use std::io::{self, Write};
use std::sync::Once;
use std::time::Duration;

use tokio::time::Instant;

use crate::fixture::{DEADLINE, Fixture, NAMESPACE_PREFIX};

thread_local! {
    static LINES: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Everything logged on this thread from now on.
pub(crate) struct Logs(());

struct ThisThread;

impl Logs {
    pub(crate) fn capture() -> Self {
        static LISTEN: Once = Once::new();
        LISTEN.call_once(|| {
            let subscriber = tracing_subscriber::fmt().with_env_filter("portcullis_control=info");
            subscriber.with_ansi(false).with_writer(|| ThisThread).init();
        });
        LINES.take();
        Self(())
    }

    /// In lower case.
    pub(crate) fn with(&self, words: &str) -> Vec<String> {
        let Self(()) = self;
        let text = LINES.with_borrow(|lines| String::from_utf8(lines.clone()).unwrap()).to_lowercase();
        text.lines().filter(|line| line.contains(words)).map(str::to_owned).collect()
    }

    /// Warnings, in lower case, without those about objects of other tests: an agent of the whole
    /// cluster sees their namespaces go, and parents before children.
    pub(crate) fn warnings(&self, fixture: &Fixture) -> Vec<String> {
        let mut lines = self.with("warn");
        lines.retain(|line| !line.contains(NAMESPACE_PREFIX) || line.contains(&fixture.name));
        lines
    }

    /// Waits for a line with these words, in lower case.
    pub(crate) async fn until(&self, words: &str) {
        let deadline = Instant::now() + DEADLINE;
        while self.with(words).is_empty() {
            assert!(Instant::now() < deadline, "the log never says {words:?}, but {:?}", self.with(""));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Write for ThisThread {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LINES.with_borrow_mut(|lines| lines.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
