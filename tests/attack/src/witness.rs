//! The client beside the attackers, which asks for one thing after the other and is to get all of
//! it: mostly on a connection that stays open, now and then on a new one.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use portcullis_testbed::Connection;

/// A request that takes longer has failed: far more than a busy machine explains.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Requests on a connection.
const ON_A_CONNECTION: u64 = 20;

pub(crate) struct Witness {
    shared: Arc<Shared>,
    asking: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    over: AtomicBool,
    answered: AtomicU64,
    failed: AtomicU64,
    /// In microseconds.
    slowest: AtomicU64,
}

/// The requests of the client.
pub(crate) struct Seen {
    pub(crate) answered: u64,
    pub(crate) failed: u64,
    pub(crate) slowest: Duration,
}

// === impl Witness ===

impl Witness {
    pub(crate) fn start(address: SocketAddr, host: &'static str) -> Self {
        let shared = Arc::<Shared>::default();
        let seen = shared.clone();
        let asking = thread::spawn(move || {
            let mut connection = None;
            while !seen.over.load(Relaxed) {
                if seen.answered.load(Relaxed).is_multiple_of(ON_A_CONNECTION) {
                    connection = None;
                }
                let begun = Instant::now();
                match ask(&mut connection, address, host) {
                    Ok(()) => seen.answered.fetch_add(1, Relaxed),
                    Err(error) => {
                        println!("attack: the other client: {error:#}");
                        connection = None;
                        seen.failed.fetch_add(1, Relaxed)
                    }
                };
                let took = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
                seen.slowest.fetch_max(took, Relaxed);
                thread::sleep(Duration::from_millis(2));
            }
        });
        Self { shared, asking }
    }

    pub(crate) fn end(self) -> Seen {
        self.shared.over.store(true, Relaxed);
        let _ = self.asking.join();
        Seen {
            answered: self.shared.answered.load(Relaxed),
            failed: self.shared.failed.load(Relaxed),
            slowest: Duration::from_micros(self.shared.slowest.load(Relaxed)),
        }
    }
}

fn ask(connection: &mut Option<Connection<TcpStream>>, address: SocketAddr, host: &str) -> Result<()> {
    let open = match connection {
        Some(open) => open,
        None => {
            let stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            stream.set_nodelay(true)?;
            connection.insert(Connection::new(stream, host))
        }
    };
    let answer = open.get("/witness")?;
    ensure!(answer.status == 200, "{answer:?}");
    Ok(())
}
