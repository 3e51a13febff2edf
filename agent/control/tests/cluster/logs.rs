//! What the code under test says in its log.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use tracing::subscriber::DefaultGuard;

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

/// Everything logged on this thread, hence by this test, from now on.
pub(crate) struct Logs {
    lines: Lines,
    _guard: DefaultGuard,
}

impl Logs {
    pub(crate) fn capture() -> Self {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt().with_env_filter("portcullis_control=info");
        let subscriber = subscriber.with_ansi(false).with_writer(move || writer.clone()).finish();
        Self { lines, _guard: tracing::subscriber::set_default(subscriber) }
    }

    pub(crate) fn with(&self, words: &str) -> Vec<String> {
        let text = String::from_utf8(self.lines.0.lock().unwrap().clone()).unwrap();
        text.lines().filter(|line| line.to_lowercase().contains(words)).map(str::to_owned).collect()
    }
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
