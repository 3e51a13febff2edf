//! The predecessor's side: waits for an agent that is to serve in place of this one.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use anyhow::{Context, Result, bail};
use portcullis_node::Lock;
use portcullis_proxy::{CoreSockets, Sockets};
use rustix::process::geteuid;
use tokio::io::Interest;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::OwnedMutexGuard;

use super::message::{Inbox, MAX_DESCRIPTORS, Message, PROTOCOL, Received, Role, send};

/// The agent that serves, as its successor needs it.
pub(crate) trait Incumbent {
    /// Returns once it serves, and no other.
    fn serves(&self) -> impl Future<Output = ()> + Send;

    /// As long as the guard lives, it changes nothing.
    fn pause(&self) -> impl Future<Output = OwnedMutexGuard<()>> + Send;

    /// The sockets at which connections are taken.
    fn share(&self) -> impl Future<Output = io::Result<Sockets>> + Send;

    /// Another agent has ended while it was taking over, and may have changed the node.
    fn reclaim(&self);
}

/// The things that this agent hands over.
pub(crate) struct Offer {
    /// Others get nothing.
    pub installation: String,
    pub lock: Lock,
    /// Of directories.
    pub locks: Vec<OwnedFd>,
}

/// An agent that serves in place of this one.
pub(crate) struct Successor {
    conversation: Conversation,
    pub needs_admin_socket: bool,
}

struct Conversation {
    stream: UnixStream,
    inbox: Inbox,
}

impl Offer {
    /// Returns once another agent serves; it waits to be told that this one is done.
    ///
    /// # Errors
    /// When successors cannot be waited for.
    pub(crate) async fn accept(self, incumbent: impl Incumbent) -> io::Result<Successor> {
        // The lock of a successor is not there for others before it serves.
        incumbent.serves().await;
        let listener = UnixListener::from_std(self.lock.try_clone()?)?;
        loop {
            let (stream, _) = listener.accept().await?;
            let user = stream.peer_cred()?.uid();
            if user != 0 && user != geteuid().as_raw() {
                tracing::warn!("user {user} may not take over from this agent");
                continue;
            }
            let mut conversation = Conversation { stream, inbox: Inbox::default() };
            match self.hand_over(&mut conversation, &incumbent).await {
                Ok(needs_admin_socket) => return Ok(Successor { conversation, needs_admin_socket }),
                Err(error) => tracing::warn!("another agent does not take over: {error:#}"),
            }
        }
    }

    async fn hand_over(&self, other: &mut Conversation, incumbent: &impl Incumbent) -> Result<bool> {
        if let Some(reason) = self.objection(other).await? {
            other.send(&Message::Refused { reason: reason.clone() }, &[]).await?;
            bail!(reason);
        }
        tracing::info!("another agent is about to take over");
        let locks = self.locks.iter().map(AsFd::as_fd);
        let locks: Vec<_> = std::iter::once(self.lock.as_fd()).chain(locks).collect();
        other.send(&Message::Welcome, &locks).await?;
        match other.receive().await.context("it ended before it served")?.message {
            Message::Take => {}
            unexpected => bail!("it says {unexpected:?}"),
        }
        // Until the other one serves, or ends, nothing changes.
        let _pause = incumbent.pause().await;
        share(other, incumbent).await.inspect_err(|_| incumbent.reclaim())
    }

    /// The reason why the other one gets nothing.
    async fn objection(&self, other: &mut Conversation) -> Result<Option<String>> {
        match other.receive().await.context("it says nothing")?.message {
            Message::Hello { protocol, .. } if protocol < PROTOCOL => {
                Ok(Some(format!("it is of a newer version (protocol {PROTOCOL})")))
            }
            Message::Hello { installation, .. } if installation != self.installation => {
                let own = &self.installation;
                Ok(Some(format!("it belongs to {own}, and the other one to {installation}")))
            }
            Message::Hello { .. } => Ok(None),
            unexpected => bail!("it says {unexpected:?}"),
        }
    }
}

/// Returns when the other one serves, and whether it needs the path of the admin socket.
async fn share(other: &mut Conversation, incumbent: &impl Incumbent) -> Result<bool> {
    let shared = incumbent.share().await.context("its sockets cannot be shared")?;
    let Sockets { steered, bound, datagrams } = shared;
    let steered: Vec<_> = steered.iter().flat_map(descriptors).collect();
    other.send_all(Role::Steered, &steered).await?;
    let bound = bound.iter().map(AsFd::as_fd).chain(datagrams.iter().map(AsFd::as_fd));
    other.send_all(Role::Bound, &bound.collect::<Vec<_>>()).await?;
    other.send(&Message::AllSockets, &[]).await?;
    match other.receive().await.context("it ended before it served")?.message {
        Message::Serving { needs_admin_socket } => Ok(needs_admin_socket),
        unexpected => bail!("it says {unexpected:?}"),
    }
}

fn descriptors(pair: &CoreSockets) -> impl Iterator<Item = BorrowedFd<'_>> {
    std::iter::once(pair.v4.as_fd()).chain(pair.v6.as_ref().map(AsFd::as_fd))
}

// === impl Successor ===

impl Successor {
    /// This agent takes no connection any more, and writes nothing.
    pub(crate) async fn release(&mut self) {
        if let Err(error) = self.conversation.send(&Message::Released, &[]).await {
            tracing::warn!("the agent that took over has ended: {error:#}");
        }
    }

    /// Returns when it has ended.
    pub(crate) async fn ended(&mut self) {
        while self.conversation.receive().await.is_ok() {}
    }
}

// === impl Conversation ===

impl Conversation {
    async fn send_all(&self, role: Role, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        for part in descriptors.chunks(MAX_DESCRIPTORS) {
            self.send(&Message::Sockets { role }, part).await?;
        }
        Ok(())
    }

    async fn send(&self, message: &Message, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let stream = &self.stream;
        stream.async_io(Interest::WRITABLE, || send(stream, message, descriptors)).await
    }

    async fn receive(&mut self) -> io::Result<Received> {
        let Self { stream, inbox } = self;
        loop {
            if let Some(received) = stream.async_io(Interest::READABLE, || inbox.receive(&*stream)).await? {
                return Ok(received);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream};
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use tokio::sync::Mutex;

    use super::*;

    #[derive(Clone, Default)]
    struct Serving {
        turn: Arc<Mutex<()>>,
        reclaimed: Arc<AtomicUsize>,
    }

    impl Incumbent for Serving {
        async fn serves(&self) {}

        async fn pause(&self) -> OwnedMutexGuard<()> {
            self.turn.clone().lock_owned().await
        }

        async fn share(&self) -> io::Result<Sockets> {
            let bound = vec![std::net::TcpListener::bind("127.0.0.1:0")?];
            Ok(Sockets { bound, ..Sockets::default() })
        }

        fn reclaim(&self) {
            self.reclaimed.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// A successor that is asked nothing, and may end at any time.
    struct Other(StdUnixStream, Inbox);

    impl Other {
        fn connect(path: &Path) -> Self {
            Self(StdUnixStream::connect(path).unwrap(), Inbox::default())
        }

        fn says(&self, message: &Message) {
            send(&self.0, message, &[]).unwrap();
        }

        fn hears(&mut self) -> (Message, usize) {
            loop {
                if let Some(received) = self.1.receive(&self.0).unwrap() {
                    return (received.message, received.descriptors.len());
                }
            }
        }

        fn greets(mut self) -> Self {
            self.says(&Message::Hello { protocol: PROTOCOL, installation: "here".to_owned() });
            assert_eq!(self.hears(), (Message::Welcome, 2), "the lock, and that of a directory");
            self
        }

        fn takes(mut self) -> Self {
            self.says(&Message::Take);
            assert_eq!(self.hears(), (Message::Sockets { role: Role::Bound }, 1));
            assert_eq!(self.hears(), (Message::AllSockets, 0));
            self
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn an_agent_serves_on_unless_another_one_serves() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let lock = Lock::inherited(StdUnixListener::bind(&path).unwrap().into());
        let of_directory = std::fs::File::open(directory.path()).unwrap().into();
        let offer = Offer { installation: "here".to_owned(), lock, locks: vec![of_directory] };
        let serving = Serving::default();
        let accepting = tokio::spawn(offer.accept(serving.clone()));

        let incumbent = serving.clone();
        let others = thread::spawn(move || {
            let mut foreign = Other::connect(&path);
            foreign.says(&Message::Hello { protocol: PROTOCOL, installation: "there".to_owned() });
            assert!(matches!(foreign.hears().0, Message::Refused { .. }));
            drop(Other::connect(&path));
            drop(Other::connect(&path).greets());
            assert_eq!(incumbent.reclaimed.load(Ordering::SeqCst), 0, "they got nothing");

            let taking = Other::connect(&path).greets().takes();
            assert!(incumbent.turn.try_lock().is_err(), "it may change something");
            drop(taking);
            // The next one is only heard when the last one's end was.
            let mut last = Other::connect(&path).greets().takes();
            assert_eq!(incumbent.reclaimed.load(Ordering::SeqCst), 1);
            last.says(&Message::Serving { needs_admin_socket: true });
            assert_eq!(last.hears(), (Message::Released, 0));
        });
        let mut successor = accepting.await.unwrap().unwrap();
        assert!(successor.needs_admin_socket);
        successor.release().await;
        others.join().unwrap();
        successor.ended().await;
    }
}
