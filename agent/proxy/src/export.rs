//! Spans and lines of the access log on their way to a collector, by OTLP over HTTP. All of it is
//! on one thread, `telemetry`, to which cores hand over what they have gathered: a collector that
//! is down or slow costs spans and lines, which are counted, and no request anything.

mod logs;
mod message;
mod post;
mod signal;
mod traces;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::core::otlp::Collector;
use crate::core::stats::ExportStats;
use crate::core::task::or_abort;
use crate::export::logs::Logs;
use crate::export::message::Sender;
use crate::export::post::Post;
use crate::export::signal::{Counts, run};
use crate::export::traces::Traces;
use crate::trace::queue::SpanQueue;

/// Spans that may wait, of all cores together.
const SPANS: usize = 8192;
/// Batches of lines that may wait here; there are more behind them, with the access log's thread.
const LINE_BATCHES: usize = 2;
/// The time that an agent that stops waits for the collector.
const FINISH_TIMEOUT: Duration = Duration::from_secs(2);

/// The handle of the thread.
#[derive(Debug)]
pub(crate) struct Exporter {
    spans: Option<SpanQueue>,
    lines: Option<mpsc::Sender<Vec<u8>>>,
    counts: [(&'static str, Arc<Counts>); 2],
    ended: oneshot::Receiver<()>,
}

impl Exporter {
    /// # Errors
    /// When there is no thread.
    pub(crate) fn start(collector: &Collector) -> io::Result<Self> {
        let (spans, spans_of) = SpanQueue::new(SPANS);
        let room = spans.room.clone();
        let (lines, lines_of) = mpsc::channel(LINE_BATCHES);
        let (end, ended) = oneshot::channel();
        let [of_spans, of_lines] = [(); 2].map(|()| Arc::<Counts>::default());
        let counts = [("traces", of_spans.clone()), ("logs", of_lines.clone())];
        let collector = collector.clone();
        std::thread::Builder::new().name("telemetry".to_owned()).spawn(move || {
            let sender = Sender::new(&collector.resource);
            let post = |path| Post::new(collector.clone(), path);
            let traces = run(spans_of, Traces { sender: sender.clone(), room }, post("v1/traces"), of_spans);
            let logs = run(lines_of, Logs(sender.clone()), post("v1/logs"), of_lines);
            match Builder::new_current_thread().enable_all().build_local(LocalOptions::default()) {
                Ok(runtime) => drop(runtime.block_on(or_abort(async { tokio::join!(traces, logs) }))),
                Err(error) => tracing::error!(%error, "spans and lines are lost, and counted: no runtime"),
            }
            let _ = end.send(());
        })?;
        Ok(Self { spans: Some(spans), lines: Some(lines), counts, ended })
    }

    pub(crate) fn spans(&self) -> Option<SpanQueue> {
        self.spans.clone()
    }

    pub(crate) fn lines(&self) -> Option<mpsc::Sender<Vec<u8>>> {
        self.lines.clone()
    }

    pub(crate) fn read(&self) -> impl Iterator<Item = (&'static str, ExportStats)> {
        self.counts.iter().map(|(signal, counts)| (*signal, counts.read()))
    }

    /// Waits until everything is sent that cores have handed over; they must be gone.
    pub(crate) async fn finish(mut self) {
        (self.spans, self.lines) = (None, None);
        if timeout(FINISH_TIMEOUT, self.ended).await.is_err() {
            tracing::warn!("the last spans and lines are lost: the collector does not take them");
        }
    }
}
