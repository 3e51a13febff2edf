//! Requests all the time, over connections that stay open, and when any of them failed.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::http::Connection;

const CONNECTIONS: usize = 8;
const PAUSE: Duration = Duration::from_millis(2);

pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<Seen>>,
}

#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) answered: u64,
    /// Times at which those that failed were asked.
    pub(crate) failed: Vec<Instant>,
}

impl Load {
    pub(crate) fn start(to: SocketAddr, host: &str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let clients = (0..CONNECTIONS).map(|_| {
            let (stop, host) = (stop.clone(), host.to_owned());
            std::thread::spawn(move || ask(to, &host, &stop))
        });
        Self { clients: clients.collect(), stop }
    }

    pub(crate) fn finish(self) -> Seen {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Seen::default();
        for seen in self.clients.into_iter().map(|client| client.join().unwrap()) {
            all.answered += seen.answered;
            all.failed.extend(seen.failed);
        }
        all
    }
}

fn ask(to: SocketAddr, host: &str, stop: &AtomicBool) -> Seen {
    let (mut seen, mut connection) = (Seen::default(), Connection::to(to));
    while !stop.load(Ordering::Relaxed) {
        let asked = Instant::now();
        match connection.get(host, "/") {
            Ok(200) => seen.answered += 1,
            _ => seen.failed.push(asked),
        }
        std::thread::sleep(PAUSE);
    }
    seen
}
