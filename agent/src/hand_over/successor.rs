//! The predecessor's side: waits for an agent that is to serve in place of this one.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use portcullis_node::Lock;
use portcullis_proxy::{CoreSockets, Sockets};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::OwnedMutexGuard;
use tokio::time::timeout;

use super::message::{Inbox, MAX_DESCRIPTORS, Message, PROTOCOL, Received, Role, send};
use super::socket::{self, Entrance};

/// Time for the first word, and for a message to be taken.
const CONVERSATION_TIME: Duration = Duration::from_secs(5);
/// Between attempts to accept, when the process is out of descriptors for instance.
const PAUSE: Duration = Duration::from_secs(1);

/// The agent that serves, as its successor needs it.
pub(crate) trait Incumbent {
    /// Returns once it has no predecessor, or none any more.
    fn stands_alone(&self) -> impl Future<Output = ()> + Send;

    /// As long as the guard lives, it changes nothing.
    fn pause(&self) -> impl Future<Output = OwnedMutexGuard<()>> + Send;

    /// The sockets at which connections are taken.
    fn share(&self) -> impl Future<Output = io::Result<Sockets>> + Send;

    /// Another agent that was taking over does not, and may have changed the node.
    fn reclaim(&self);
}

/// The things that this agent hands over.
pub(crate) struct Offer {
    /// In which others find the socket; `None` if this one hands nothing over.
    pub directory: Option<PathBuf>,
    /// Others get nothing.
    pub installation: String,
    pub lock: Lock,
    /// Of directories.
    pub locks: Vec<OwnedFd>,
    /// Time that a successor has to serve with what it was given: nothing is changed meanwhile.
    pub serving_time: Duration,
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
    /// Returns once another agent serves; it waits to be told that this one is done, and has the
    /// locks alone as soon as this one has ended.
    pub(crate) async fn accept(self, incumbent: impl Incumbent) -> Successor {
        // A successor is not one's predecessor's successor before it has its place.
        incumbent.stands_alone().await;
        let entrance = match self.directory.as_deref().map(socket::listen) {
            Some(Ok(entrance)) => entrance,
            Some(Err(error)) => {
                tracing::warn!("no agent can take over from this one without a gap: {error:#}");
                return std::future::pending().await;
            }
            None => return std::future::pending().await,
        };
        loop {
            let mut conversation = next(&entrance).await;
            match self.hand_over(&mut conversation, &incumbent).await {
                Ok(needs_admin_socket) => return Successor { conversation, needs_admin_socket },
                Err(error) => tracing::warn!("another agent does not take over: {error:#}"),
            }
        }
    }

    async fn hand_over(&self, other: &mut Conversation, incumbent: &impl Incumbent) -> Result<bool> {
        if let Err(objection) = self.welcome(other).await {
            other.refuse(&objection).await;
            return Err(objection);
        }
        // Until the other one serves, or ends, nothing changes.
        let pause = incumbent.pause().await;
        let shared = timeout(self.serving_time, share(other, incumbent)).await;
        let late = |_| Err(anyhow!("it does not serve within {:?}", self.serving_time));
        let problem = match shared.unwrap_or_else(late) {
            Ok(needs_admin_socket) => return Ok(needs_admin_socket),
            Err(problem) => problem,
        };
        other.refuse(&problem).await;
        incumbent.reclaim();
        if timeout(Duration::ZERO, other.ended()).await.is_err() {
            // It may still do what it was about to.
            drop(pause);
            other.ended().await;
            let _pause = incumbent.pause().await;
            incumbent.reclaim();
        }
        Err(problem)
    }

    /// Returns when the other one, which has the locks then, wants to serve.
    async fn welcome(&self, other: &mut Conversation) -> Result<()> {
        self.hear(other).await?;
        tracing::info!("another agent is about to take over");
        let locks = self.locks.iter().map(AsFd::as_fd);
        let locks: Vec<_> = std::iter::once(self.lock.as_fd()).chain(locks).collect();
        other.send(&Message::Welcome, &locks).await?;
        match other.receive().await.context("it ended before it served")?.message {
            Message::Take => Ok(()),
            unexpected => bail!("it says {unexpected:?}"),
        }
    }

    /// The first word of the other one; an error is the reason why it gets nothing.
    async fn hear(&self, other: &mut Conversation) -> Result<()> {
        let said = timeout(CONVERSATION_TIME, other.receive()).await.context("it says nothing")?;
        match said.context("it says nothing")?.message {
            Message::Hello { protocol, .. } if protocol < PROTOCOL => {
                bail!("the one that serves is of a newer version (protocol {PROTOCOL})")
            }
            Message::Hello { installation, .. } if installation != self.installation => {
                let own = &self.installation;
                bail!("the one that serves belongs to {own}, the other one to {installation}")
            }
            Message::Hello { .. } => Ok(()),
            unexpected => bail!("it says {unexpected:?}"),
        }
    }
}

/// Being out of descriptors, for instance, is no reason to stop waiting.
async fn next(entrance: &Entrance) -> Conversation {
    let mut is_logged = false;
    loop {
        let accepted = match entrance.listener() {
            Ok(listener) => listener.accept().await,
            Err(error) => Err(error),
        };
        match accepted {
            Ok((stream, _)) => return Conversation { stream, inbox: Inbox::default() },
            Err(error) if !is_logged => {
                is_logged = true;
                tracing::warn!("cannot be asked to hand over: {error}");
            }
            Err(_) => {}
        }
        tokio::time::sleep(PAUSE).await;
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

    /// Its number, if it is of this process namespace.
    pub(crate) fn process(&self) -> Option<u32> {
        let pid = self.conversation.stream.peer_cred().ok()?.pid()?;
        u32::try_from(pid).ok().filter(|pid| *pid != 0)
    }

    /// Returns when it has ended.
    pub(crate) async fn ended(&mut self) {
        self.conversation.ended().await;
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
        let sent = stream.async_io(Interest::WRITABLE, || send(stream, message, descriptors));
        timeout(CONVERSATION_TIME, sent).await?
    }

    /// One that has ended need not be told.
    async fn refuse(&self, problem: &anyhow::Error) {
        let _ = self.send(&Message::Refused { reason: format!("{problem:#}") }, &[]).await;
    }

    async fn ended(&mut self) {
        while self.receive().await.is_ok() {}
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
    use std::os::unix::net::{UnixListener, UnixStream as StdUnixStream};
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use tempfile::TempDir;
    use tokio::sync::{Mutex, watch};
    use tokio::task::JoinHandle;

    use super::*;

    #[derive(Clone)]
    struct Serving {
        turn: Arc<Mutex<()>>,
        reclaimed: watch::Sender<usize>,
        may_share: Arc<AtomicBool>,
    }

    impl Default for Serving {
        fn default() -> Self {
            Self { turn: Arc::default(), reclaimed: watch::Sender::new(0), may_share: Arc::new(true.into()) }
        }
    }

    impl Incumbent for Serving {
        async fn stands_alone(&self) {}

        async fn pause(&self) -> OwnedMutexGuard<()> {
            self.turn.clone().lock_owned().await
        }

        async fn share(&self) -> io::Result<Sockets> {
            if !self.may_share.load(Ordering::SeqCst) {
                return Err(io::Error::other("no descriptors left"));
            }
            let bound = vec![std::net::TcpListener::bind("127.0.0.1:0")?];
            Ok(Sockets { bound, ..Sockets::default() })
        }

        fn reclaim(&self) {
            self.reclaimed.send_modify(|count| *count += 1);
        }
    }

    impl Serving {
        fn reclaimed(&self) -> usize {
            *self.reclaimed.borrow()
        }

        fn await_reclaimed(&self, times: usize) {
            let mut reclaimed = self.reclaimed.subscribe();
            tokio::runtime::Builder::new_current_thread()
                .build()
                .unwrap()
                .block_on(async { drop(reclaimed.wait_for(|count| *count == times).await.unwrap()) });
        }
    }

    /// The parts of an agent that hands over.
    struct Surroundings {
        directory: TempDir,
        serving: Serving,
        accepting: JoinHandle<Successor>,
    }

    impl Surroundings {
        fn open(serving_time: Duration) -> Self {
            let directory = tempfile::tempdir().unwrap();
            let lock = UnixListener::bind(directory.path().join("lock")).unwrap();
            let offer = Offer {
                directory: Some(directory.path().join("hand-over")),
                installation: "here".to_owned(),
                lock: Lock::inherited(lock.into()),
                locks: vec![std::fs::File::open(directory.path()).unwrap().into()],
                serving_time,
            };
            let serving = Serving::default();
            let accepting = tokio::spawn(offer.accept(serving.clone()));
            Self { directory, serving, accepting }
        }

        /// The other agents' side.
        fn others(&self) -> (PathBuf, Serving) {
            (self.directory.path().join("hand-over"), self.serving.clone())
        }
    }

    /// A successor that is asked nothing, and may end at any time.
    struct Other(StdUnixStream, Inbox);

    impl Other {
        fn connect(directory: &Path) -> Self {
            loop {
                if let Some(stream) = socket::connect(directory).unwrap() {
                    return Self(stream, Inbox::default());
                }
                thread::yield_now();
            }
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

        fn hears_refusal(mut self) -> String {
            match self.hears() {
                (Message::Refused { reason }, 0) => reason,
                other => panic!("it hears {other:?}"),
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

        fn serves(mut self) -> Self {
            self.says(&Message::Serving { needs_admin_socket: true });
            assert_eq!(self.hears(), (Message::Released, 0));
            self
        }
    }

    const LONG: Duration = Duration::from_secs(600);

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn an_agent_serves_on_unless_another_one_serves() {
        let place = Surroundings::open(LONG);
        let (directory, incumbent) = place.others();
        let others = thread::spawn(move || {
            let foreign = Other::connect(&directory);
            foreign.says(&Message::Hello { protocol: PROTOCOL, installation: "there".to_owned() });
            assert!(foreign.hears_refusal().contains("belongs to here"));
            let older = Other::connect(&directory);
            older.says(&Message::Hello { protocol: PROTOCOL - 1, installation: "here".to_owned() });
            assert!(older.hears_refusal().contains("newer version"));
            drop(Other::connect(&directory));
            drop(Other::connect(&directory).greets());
            assert_eq!(incumbent.reclaimed(), 0, "they got nothing");

            let taking = Other::connect(&directory).greets().takes();
            assert!(incumbent.turn.try_lock().is_err(), "it may change something");
            drop(taking);
            // The next one is only heard when the last one's end was.
            let last = Other::connect(&directory).greets().takes();
            assert_eq!(incumbent.reclaimed(), 1);
            last.serves()
        });
        let mut successor = place.accepting.await.unwrap();
        assert!(successor.needs_admin_socket);
        successor.release().await;
        drop(others.join().unwrap());
        successor.ended().await;
    }

    /// It is told, so that it does not take silence for the other one's end.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_successor_that_gets_no_sockets_is_to_end() {
        let place = Surroundings::open(LONG);
        let (directory, incumbent) = place.others();
        let others = thread::spawn(move || {
            incumbent.may_share.store(false, Ordering::SeqCst);
            let other = Other::connect(&directory).greets();
            other.says(&Message::Take);
            assert!(other.hears_refusal().contains("no descriptors left"));
            incumbent.may_share.store(true, Ordering::SeqCst);
            Other::connect(&directory).greets().takes().serves()
        });
        place.accepting.await.unwrap().release().await;
        drop(others.join().unwrap());
    }

    /// Nothing would be changed for as long as it hangs; and it is not to go on when it no longer
    /// does.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_successor_that_hangs_with_the_sockets_is_left() {
        let place = Surroundings::open(Duration::from_millis(50));
        let (directory, incumbent) = place.others();
        let others = thread::spawn(move || {
            let hanging = Other::connect(&directory).greets().takes();
            incumbent.await_reclaimed(1);
            drop(incumbent.turn.blocking_lock());
            assert!(hanging.hears_refusal().contains("does not serve within"));
            // That was its last descriptor.
            incumbent.await_reclaimed(2);
        });
        others.join().unwrap();
        place.accepting.abort();
    }
}
