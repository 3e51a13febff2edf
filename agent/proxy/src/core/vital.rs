//! What a core cannot do without. A panic in a connection's task ends that connection; one in these tasks would leave a core
//! that looks alive and serves nothing, so it ends the process, and the next one takes over the kernel's programs.

use std::process;
use std::thread;

/// Ends the process when it is dropped by a panic.
struct Fuse;

pub(crate) async fn vital<T>(body: impl Future<Output = T>) -> T {
    let _fuse = Fuse;
    body.await
}

impl Drop for Fuse {
    fn drop(&mut self) {
        if thread::panicking() {
            process::abort();
        }
    }
}
