//! The tasks of a core, all of which stay on its thread.

use std::process;
use std::thread;

/// Ends the process when it is dropped by a panic.
struct AbortOnPanic;

/// For what a core cannot do without. A panic in a connection's task ends that connection; one in
/// these tasks would leave a core that looks alive and serves nothing, so it ends the process, and
/// the next one takes over the kernel's programs.
pub(crate) async fn or_abort<T>(body: impl Future<Output = T>) -> T {
    let _abort = AbortOnPanic;
    body.await
}

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            process::abort();
        }
    }
}
