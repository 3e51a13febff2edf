//! Messages for the supervisor of this process, systemd for instance, by its protocol
//! (sd_notify(3)). Without one (no `NOTIFY_SOCKET`) there are none. Knows nothing of what is
//! served.

use sd_notify::NotifyState;

/// This agent serves what it has read.
pub(crate) fn ready() {
    tell(NotifyState::Ready);
}

/// This agent was told to end, and drains.
pub(crate) fn stopping() {
    tell(NotifyState::Stopping);
}

/// Another process serves in this one's place, and the service goes on when this one has ended. To
/// be called by the one that was the main process: it may tell so, and is heard before its end.
pub(crate) fn succeeded_by(process: u32) {
    tell(NotifyState::MainPid(process));
}

fn tell(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!(%error, "the supervisor (NOTIFY_SOCKET) cannot be told of this agent's state");
    }
}
