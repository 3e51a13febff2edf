//! The access log: a line per answered request of the Gateways that have one. A core gathers lines
//! and hands them over a few times a second to a thread that writes them, so that a request never
//! waits for the reader of the log. A reader that is too slow loses lines, which are counted.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use portcullis_model::LogFormat;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::core::counter::Counter;
use crate::core::log_limit::LogLimit;
use crate::core::settings::LogOutput;
use crate::core::waiting_room::WaitingRoom;
use crate::log::rotated::Rotated;

/// Bytes that a core gathers at most before it hands them over.
const BATCH: usize = 32 << 10;
/// Bytes that may wait to be written, of all cores together.
const WAITING: usize = 4 << 20;
/// The time that an agent that stops waits for the reader of the log.
const FINISH_TIMEOUT: Duration = Duration::from_secs(1);

/// A core's part.
pub(crate) struct AccessLog {
    lines: RefCell<Vec<u8>>,
    writer: Sender<Vec<u8>>,
    /// In bytes.
    room: Arc<WaitingRoom>,
    /// All lines have this one, whatever form Gateways want.
    format: Option<LogFormat>,
    /// Lines.
    pub lost: Counter,
}

/// The thread that writes.
#[derive(Debug)]
pub(crate) struct LogWriter {
    lines: Sender<Vec<u8>>,
    room: Arc<WaitingRoom>,
    ended: oneshot::Receiver<()>,
    format: Option<LogFormat>,
    /// Lines that the thread had, and could not write.
    lost: Arc<AtomicU64>,
}

/// The place that lines are written to.
enum Output {
    File(Arc<File>),
    Rotated(Rotated),
    Collector(mpsc::Sender<Vec<u8>>),
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

    /// The form of a line that a Gateway wants in this one.
    pub(crate) fn format(&self, wanted: LogFormat) -> LogFormat {
        self.format.unwrap_or(wanted)
    }

    pub(crate) fn flush(&self) {
        let mut lines = self.lines.borrow_mut();
        if !lines.is_empty() {
            self.hand_over(&mut lines);
        }
    }

    fn hand_over(&self, lines: &mut Vec<u8>) {
        // A batch that waits is no larger than what is in it.
        let is_taken = self.room.take(lines.len());
        if !is_taken || self.writer.send(lines.to_vec()).is_err() {
            memchr::memchr_iter(b'\n', lines).for_each(|_| self.lost.increment());
        }
        lines.clear();
        if !is_taken && self.room.is_log_due() {
            tracing::warn!(
                "lines of the access log are lost, and counted: {} MiB wait to be written; look whether its reader, \
                 disk or collector keeps up",
                WAITING >> 20
            );
        }
    }
}

// === impl LogWriter ===

impl LogWriter {
    /// `collector` takes batches of lines, if there is one.
    ///
    /// # Errors
    /// When there is no such output, or no thread.
    pub(crate) fn start(output: &LogOutput, collector: Option<mpsc::Sender<Vec<u8>>>) -> io::Result<Self> {
        let format = matches!(output, LogOutput::Collector).then_some(LogFormat::Json);
        let mut output = match output {
            LogOutput::Stdout => {
                Output::File(Arc::new(File::from(io::stdout().as_fd().try_clone_to_owned()?)))
            }
            LogOutput::File(file) => Output::File(file.clone()),
            LogOutput::Rotated(settings) => Output::Rotated(Rotated::open(settings)?),
            LogOutput::Collector => {
                Output::Collector(collector.ok_or_else(|| io::Error::other("there is no collector"))?)
            }
        };
        let lost = Arc::<AtomicU64>::default();
        let lost_here = lost.clone();
        let (lines, to_write) = channel::<Vec<u8>>();
        let room = WaitingRoom::new(WAITING);
        let room_here = room.clone();
        let (end, ended) = oneshot::channel();
        std::thread::Builder::new().name("access-log".to_owned()).spawn(move || {
            let logged = LogLimit::default();
            for batch in to_write {
                room_here.leave(batch.len());
                let lines = memchr::memchr_iter(b'\n', &batch).count() as u64;
                if let Err(error) = output.write(batch) {
                    lost_here.fetch_add(lines, Relaxed);
                    if logged.is_due() {
                        tracing::error!(%error, "cannot write the access log: its lines are lost");
                    }
                }
            }
            let _ = end.send(());
        })?;
        Ok(Self { lines, room, ended, format, lost })
    }

    pub(crate) fn for_core(&self) -> AccessLog {
        let (writer, room, format) = (self.lines.clone(), self.room.clone(), self.format);
        AccessLog { lines: RefCell::default(), writer, room, format, lost: Counter::default() }
    }

    /// Lines that were handed over, and could not be written.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Relaxed)
    }

    /// Waits until everything is written that cores have handed over; they must be gone.
    pub(crate) async fn finish(self) {
        drop(self.lines);
        if timeout(FINISH_TIMEOUT, self.ended).await.is_err() {
            tracing::warn!("the end of the access log is lost: its reader does not keep up");
        }
    }
}

// === impl Output ===

impl Output {
    fn write(&mut self, batch: Vec<u8>) -> io::Result<()> {
        match self {
            Self::File(file) => (&**file).write_all(&batch),
            Self::Rotated(file) => file.write(&batch),
            // A collector that is slow holds this thread up, and then cores lose lines.
            Self::Collector(lines) => lines.blocking_send(batch).map_err(io::Error::other),
        }
    }
}
