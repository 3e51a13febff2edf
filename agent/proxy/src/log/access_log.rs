//! The access log: a line per answered request of the Gateways that have one. A core gathers lines
//! and hands them over a few times a second to a thread that writes them, so that a request never
//! waits for the reader of the log. A reader that is too slow loses lines, which are counted.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::core::counter::Counter;
use crate::core::log_limit::LogLimit;
use crate::core::settings::LogOutput;

/// Bytes that a core gathers at most before it hands them over.
const BATCH: usize = 32 << 10;
/// Batches that may wait to be written, of all cores together.
const BATCHES: usize = 128;
/// The time that an agent that stops waits for the reader of the log.
const FINISH_TIMEOUT: Duration = Duration::from_secs(1);

/// A core's part.
pub(crate) struct AccessLog {
    lines: RefCell<Vec<u8>>,
    writer: SyncSender<Vec<u8>>,
    /// Lines.
    pub lost: Counter,
}

/// The thread that writes.
#[derive(Debug)]
pub(crate) struct LogWriter {
    lines: SyncSender<Vec<u8>>,
    ended: oneshot::Receiver<()>,
}

// === impl AccessLog ===

impl AccessLog {
    /// Takes a line, with its end.
    pub(crate) fn append(&self, line: &[u8]) {
        let mut lines = self.lines.borrow_mut();
        lines.extend_from_slice(line);
        if lines.len() >= BATCH {
            self.hand_over(&mut lines);
        }
    }

    pub(crate) fn flush(&self) {
        let mut lines = self.lines.borrow_mut();
        if !lines.is_empty() {
            self.hand_over(&mut lines);
        }
    }

    fn hand_over(&self, lines: &mut Vec<u8>) {
        let next = Vec::with_capacity(lines.capacity());
        if let Err(TrySendError::Full(lost) | TrySendError::Disconnected(lost)) =
            self.writer.try_send(std::mem::replace(lines, next))
        {
            memchr::memchr_iter(b'\n', &lost).for_each(|_| self.lost.increment());
        }
    }
}

// === impl LogWriter ===

impl LogWriter {
    /// # Errors
    /// When there is no standard output, or no thread.
    pub(crate) fn start(output: &LogOutput) -> io::Result<Self> {
        let output = match output {
            LogOutput::Stdout => Arc::new(File::from(io::stdout().as_fd().try_clone_to_owned()?)),
            LogOutput::File(file) => file.clone(),
        };
        let (lines, to_write) = sync_channel::<Vec<u8>>(BATCHES);
        let (end, ended) = oneshot::channel();
        std::thread::Builder::new().name("access-log".to_owned()).spawn(move || {
            let logged = LogLimit::default();
            for batch in to_write {
                if let Err(error) = (&*output).write_all(&batch)
                    && logged.is_due()
                {
                    tracing::error!(%error, "cannot write the access log: its lines are lost");
                }
            }
            let _ = end.send(());
        })?;
        Ok(Self { lines, ended })
    }

    pub(crate) fn for_core(&self) -> AccessLog {
        AccessLog { lines: RefCell::default(), writer: self.lines.clone(), lost: Counter::default() }
    }

    /// Waits until everything is written that cores have handed over; they must be gone.
    pub(crate) async fn finish(self) {
        drop(self.lines);
        if timeout(FINISH_TIMEOUT, self.ended).await.is_err() {
            tracing::warn!("the end of the access log is lost: its reader does not keep up");
        }
    }
}
