//! The limits of watches, as the command line and the endpoint have them.

/// Operators who wait at a time.
pub(crate) const MAX_WATCHES: usize = 4;
/// Seconds that are waited for, unless said otherwise, and at most.
pub(crate) const USUAL_TIME: u64 = 30;
pub(crate) const LONGEST_TIME: u64 = 300;
/// Requests of one watch.
pub(crate) const MOST_REQUESTS: u64 = 10;
