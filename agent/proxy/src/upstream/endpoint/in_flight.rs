//! The number of requests, connections and sessions that an endpoint is busy with.

use std::rc::Rc;

use crate::upstream::endpoint::Endpoint;

/// Something that an endpoint is busy with.
pub(crate) struct InFlight(Rc<Endpoint>);

// === impl InFlight ===

impl InFlight {
    pub(super) fn new(endpoint: &Rc<Endpoint>) -> Self {
        endpoint.in_flight.set(endpoint.in_flight.get() + 1);
        if let Some(whole) = endpoint.clients.whole() {
            whole.in_flight.set(whole.in_flight.get() + 1);
        }
        Self(endpoint.clone())
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.0
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.set(self.0.in_flight.get() - 1);
        if let Some(whole) = self.0.clients.whole() {
            whole.in_flight.set(whole.in_flight.get() - 1);
        }
    }
}
