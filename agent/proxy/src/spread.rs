//! The core that serves a connection. The kernel chooses by a connection's addresses alone, so that
//! a few meet at one core while another has none, or wait behind one that keeps its core busy. The
//! core that accepts a connection hands it to one that clearly has less to do.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tokio::net::TcpStream;
use tokio::sync::mpsc::WeakUnboundedSender;
use tokio_util::task::TaskTracker;

use crate::command::{Command, Handed};
use crate::core::settings::Placement;

/// So many connections are worth as much as the half of a core's time that it has beyond the first:
/// below that it has time for all.
const BUSY: u32 = 16;
/// The part of its connections that a core may have more than another one.
const UNEVEN: u32 = 8;

/// A core, as all of them see it.
#[derive(Debug)]
pub(crate) struct CoreLink {
    /// Of its connections, tunnels and sessions.
    tasks: TaskTracker,
    /// The time that it lately used beyond half of it, in connections: up to [`BUSY`].
    busy: AtomicU32,
    /// Snapshots that it serves or has served. All cores get the same ones in the same order.
    applied: AtomicU32,
    /// Weak: the proxy's own are what keeps a core going.
    commands: WeakUnboundedSender<Command>,
}

/// All cores, by number.
pub(crate) type CoreLinks = Arc<[CoreLink]>;

/// A core's view of the others.
pub(crate) struct Spread {
    placement: Placement,
    own: usize,
    cores: CoreLinks,
    /// The kernel's account of the thread. `None` where it keeps none: no core is busy then.
    schedule: Option<File>,
    used: Cell<Used>,
}

/// The thread's time on its processor at some time.
#[derive(Clone, Copy)]
struct Used {
    at: Instant,
    time: Duration,
}

// === impl CoreLink ===

impl CoreLink {
    pub(crate) fn new(commands: WeakUnboundedSender<Command>) -> Self {
        Self { tasks: TaskTracker::new(), busy: AtomicU32::new(0), applied: AtomicU32::new(0), commands }
    }

    /// Its connections, tunnels and sessions.
    pub(crate) fn open(&self) -> usize {
        self.tasks.len()
    }

    fn load(&self) -> u32 {
        let open = u32::try_from(self.open()).unwrap_or(u32::MAX);
        open.saturating_add(self.busy.load(Ordering::Relaxed))
    }
}

// === impl Spread ===

impl Spread {
    /// Of the core that calls it.
    pub(crate) fn new(placement: Placement, own: usize, cores: CoreLinks) -> Self {
        let schedule = File::open("/proc/thread-self/schedstat").ok();
        let used = Cell::new(Used::by(schedule.as_ref()));
        Self { placement, own, cores, schedule, used }
    }

    pub(crate) fn tasks(&self) -> &TaskTracker {
        &self.cores[self.own].tasks
    }

    /// Hands a connection to a core that has clearly less to do; it comes back if there is none.
    pub(crate) fn hand_over(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
    ) -> io::Result<Option<(TcpStream, SocketAddr)>> {
        let Some(core) = self.calmer() else { return Ok(Some((stream, peer))) };
        let Some(commands) = core.commands.upgrade() else { return Ok(Some((stream, peer))) };
        let handed = Handed { stream: stream.into_std()?, peer, place: core.tasks.token() };
        match commands.send(Command::Serve(handed)) {
            Ok(()) => Ok(None),
            // It takes no more, as it drains.
            Err(refused) => {
                let Command::Serve(Handed { stream, peer, .. }) = refused.0 else { return Ok(None) };
                Ok(Some((TcpStream::from_std(stream)?, peer)))
            }
        }
    }

    fn calmer(&self) -> Option<&CoreLink> {
        if self.placement == Placement::AsAccepted {
            return None;
        }
        let own = &self.cores[self.own];
        // One that has yet to learn of the port would refuse its connections.
        let applied = own.applied.load(Ordering::Relaxed);
        let others =
            self.cores.iter().enumerate().filter(|(number, core)| {
                *number != self.own && core.applied.load(Ordering::Relaxed) >= applied
            });
        let (core, least) = others.map(|(_, core)| (core, core.load())).min_by_key(|(_, load)| *load)?;
        (own.load() > least.saturating_add(least / UNEVEN)).then_some(core)
    }

    /// Tells the others that one more snapshot is served.
    pub(crate) fn tell_applied(&self) {
        self.cores[self.own].applied.fetch_add(1, Ordering::Relaxed);
    }

    /// Tells the others how busy the core has been since the last time.
    pub(crate) fn tell_busy(&self) {
        let now = Used::by(self.schedule.as_ref());
        let before = self.used.replace(now);
        let (used, passed) = (now.time.saturating_sub(before.time), now.at - before.at);
        let share = used.as_secs_f64() / passed.as_secs_f64().max(f64::MIN_POSITIVE);
        let busy = ((2.0 * share - 1.0).clamp(0.0, 1.0) * f64::from(BUSY)).round();
        self.cores[self.own].busy.store(busy as u32, Ordering::Relaxed);
    }
}

// === impl Used ===

impl Used {
    /// The account begins with the time on a processor, in nanoseconds.
    fn by(schedule: Option<&File>) -> Self {
        let mut account = [0; 64];
        let length = schedule.and_then(|file| file.read_at(&mut account, 0).ok()).unwrap_or(0);
        let account = String::from_utf8_lossy(&account[..length]);
        let time = account.split(' ').next().and_then(|nanoseconds| nanoseconds.parse().ok());
        Self { at: Instant::now(), time: Duration::from_nanos(time.unwrap_or(0)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_on_a_processor_is_known() {
        let schedule = File::open("/proc/thread-self/schedstat").unwrap();
        let before = Used::by(Some(&schedule)).time;
        let begun = Instant::now();
        // The kernel brings the account of a thread that runs up to date at its ticks only: that of
        // a new one may begin at nothing.
        while Used::by(Some(&schedule)).time == before {
            assert!(begun.elapsed() < Duration::from_secs(60), "{before:?}");
        }
    }
}
