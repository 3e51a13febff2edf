//! Clients of tenants that do nothing wrong. No request of theirs may fail, and no connection may
//! end.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use portcullis_testbed::{Connection, TlsClient, TlsStream};

use super::tenant::{self, Tenant};

pub(crate) struct Load<'a> {
    client: &'a TlsClient,
    tenants: &'a [Tenant],
    /// One for each tenant.
    open: Mutex<Vec<Connection<TlsStream>>>,
    is_over: AtomicBool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    /// The one connection that each tenant's client has had from the beginning.
    OpenConnections,
    /// A connection for each request.
    NewConnections,
}

/// Ends the load, even if what runs meanwhile panics.
struct End<'a>(&'a AtomicBool);

impl<'a> Load<'a> {
    /// Opens the connections: to be called in the client's network namespace.
    pub(crate) fn open(client: &'a TlsClient, tenants: &'a [Tenant]) -> Result<Self> {
        let open = tenants.iter().map(|tenant| client.connect(tenant::address(), &tenant.host));
        let open = Mutex::new(open.collect::<Result<_>>()?);
        Ok(Self { client, tenants, open, is_over: AtomicBool::new(false) })
    }

    /// The load ends with the function.
    pub(crate) fn during<T>(&self, function: impl FnOnce() -> T) -> T {
        let _end = End(&self.is_over);
        function()
    }

    /// Asks tenant by tenant, until a last round after the end; returns how many requests were
    /// answered.
    pub(crate) fn run(&self, work: Work) -> Result<usize> {
        match work {
            Work::OpenConnections => self.on_open_connections(),
            Work::NewConnections => self.on_new_connections(),
        }
    }

    fn on_open_connections(&self) -> Result<usize> {
        let mut open = self.open.lock().unwrap();
        let mut answered = 0;
        loop {
            // Read before the round: the last round is one that began when all was over.
            let is_last = self.is_over.load(Ordering::Relaxed);
            for (tenant, connection) in self.tenants.iter().zip(open.iter_mut()) {
                let answer =
                    connection.get("/").with_context(|| format!("open connection, {}", tenant.name))?;
                tenant.is_own(&answer)?;
                answered += 1;
            }
            if is_last {
                return Ok(answered);
            }
        }
    }

    fn on_new_connections(&self) -> Result<usize> {
        let mut answered = 0;
        for tenant in self.tenants.iter().cycle() {
            if self.is_over.load(Ordering::Relaxed) && answered >= 2 * self.tenants.len() {
                break;
            }
            tenant.is_served(self.client).with_context(|| format!("new connection, {}", tenant.name))?;
            answered += 1;
        }
        Ok(answered)
    }
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
