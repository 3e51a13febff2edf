//! Passwords are slow to check, and meant to be: a thread of its own does it, below all others.
//! Each core asks one question of a file at a time, so that no client stops a core, and the clients
//! of one file do not keep those of others waiting for long. Namespaces take turns, however many
//! files they have.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::{Arc, OnceLock, mpsc};

use aws_lc_rs::{constant_time, digest};
use portcullis_model::{BasicPasswords, PasswordFile, PasswordHash};
use rustix::process::setpriority_process;
use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_setaffinity};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::core::reason::Reason;
use crate::http::authenticate::credential::Login;

/// Requests of a core that wait for a file.
const MOST_WAITING: usize = 32;
/// The bytes of a password that bcrypt looks at. A longer one is wrong: any end would be as good.
const MOST_PASSWORD: usize = 72;
/// Of the thread: requests come first.
const NICE: i32 = 10;

/// The thread, which is there from the first question on.
#[derive(Debug)]
pub(crate) struct PasswordThread {
    questions: OnceLock<mpsc::Sender<Question>>,
    /// The CPUs of the process, not those of the core that asks first.
    cpus: Option<CpuSet>,
}

struct Question {
    namespace: Arc<str>,
    hash: Box<str>,
    password: Vec<u8>,
    answer: oneshot::Sender<bool>,
    /// Held until there is an answer, even if the client does not wait for it.
    _turn: OwnedSemaphorePermit,
}

/// Questions that wait: of those of one namespace the oldest, then of the next.
#[derive(Default)]
struct Waiting(VecDeque<VecDeque<Question>>);

/// A core's questions.
pub(crate) struct Turns {
    thread: Arc<PasswordThread>,
    queues: RefCell<Vec<Rc<Queue>>>,
}

/// The requests of a core that wait for a file.
struct Queue {
    file: Arc<PasswordFile>,
    turn: Arc<Semaphore>,
    waiting: Cell<usize>,
}

/// A request that waits in a queue, or asks.
struct Waiter<'t> {
    turns: &'t Turns,
    queue: Rc<Queue>,
}

/// The permission to ask.
pub(crate) struct Turn<'t> {
    permit: OwnedSemaphorePermit,
    waiter: Waiter<'t>,
}

// === impl PasswordThread ===

impl PasswordThread {
    fn ask(&self, question: Question) -> Result<(), Reason> {
        let questions = self.questions.get_or_init(|| {
            let (sender, questions) = mpsc::channel::<Question>();
            let cpus = self.cpus;
            let started = std::thread::Builder::new().name("passwords".to_owned()).spawn(move || {
                // Best effort, both.
                let _ = cpus.map(|cpus| sched_setaffinity(None, &cpus));
                let _ = setpriority_process(Some(gettid()), NICE);
                let mut waiting = Waiting::default();
                while let Some(question) = waiting.next(&questions) {
                    if !question.answer.is_closed() {
                        let is_right = bcrypt::verify(&question.password, &question.hash).unwrap_or(false);
                        let _ = question.answer.send(is_right);
                    }
                }
            });
            if let Err(error) = started {
                tracing::error!(%error, "no thread that checks passwords: they are refused");
            }
            sender
        });
        questions.send(question).map_err(|_| Reason::AuthBusy)
    }
}

/// Made before cores are pinned.
impl Default for PasswordThread {
    fn default() -> Self {
        Self { questions: OnceLock::new(), cpus: sched_getaffinity(None).ok() }
    }
}

// === impl Waiting ===

impl Waiting {
    /// The next question, if need be one that is yet to come. `None`: there will be no more.
    fn next(&mut self, questions: &mpsc::Receiver<Question>) -> Option<Question> {
        questions.try_iter().for_each(|question| self.push(question));
        self.pop().or_else(|| questions.recv().ok())
    }

    fn push(&mut self, question: Question) {
        let of_namespace = |of: &&mut VecDeque<Question>| {
            of.front().is_some_and(|first| first.namespace == question.namespace)
        };
        match self.0.iter_mut().find(of_namespace) {
            Some(of_namespace) => of_namespace.push_back(question),
            None => self.0.push_back(VecDeque::from([question])),
        }
    }

    fn pop(&mut self) -> Option<Question> {
        let mut of_namespace = self.0.pop_front()?;
        let question = of_namespace.pop_front();
        if !of_namespace.is_empty() {
            self.0.push_back(of_namespace);
        }
        question
    }
}

// === impl Turns ===

impl Turns {
    pub(crate) fn new(thread: Arc<PasswordThread>) -> Self {
        Self { thread, queues: RefCell::default() }
    }

    /// `None` if too many wait already.
    pub(crate) async fn wait(&self, file: &Arc<PasswordFile>) -> Option<Turn<'_>> {
        let known = self.queues.borrow().iter().find(|queue| Arc::ptr_eq(&queue.file, file)).cloned();
        let queue = known.unwrap_or_else(|| {
            let turn = Arc::new(Semaphore::new(1));
            let queue = Rc::new(Queue { file: file.clone(), turn, waiting: Cell::new(0) });
            self.queues.borrow_mut().push(queue.clone());
            queue
        });
        if queue.waiting.get() >= MOST_WAITING {
            return None;
        }
        queue.waiting.update(|waiting| waiting + 1);
        let waiter = Waiter { turns: self, queue };
        let permit = waiter.queue.turn.clone().acquire_owned().await.ok()?;
        Some(Turn { permit, waiter })
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.queue.waiting.update(|waiting| waiting - 1);
        // A question that is still asked keeps its queue, or others would be asked beside it.
        let is_idle = |queue: &Queue| queue.waiting.get() == 0 && queue.turn.available_permits() > 0;
        self.turns.queues.borrow_mut().retain(|queue| !is_idle(queue));
    }
}

// === impl Turn ===

impl Turn<'_> {
    /// # Errors
    /// When the thread cannot be asked.
    pub(crate) async fn verify(self, basic: &BasicPasswords, login: &Login) -> Result<bool, Reason> {
        let file = &basic.users;
        let known = file.hash(login.user());
        let Some(hash) = known.or_else(|| file.slowest_hash()) else { return Ok(false) };
        let is_right = match hash {
            PasswordHash::Sha1(hash) => {
                let given = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, login.password());
                constant_time::verify_slices_are_equal(given.as_ref(), hash).is_ok()
            }
            PasswordHash::Bcrypt(_) if login.password().len() > MOST_PASSWORD => false,
            PasswordHash::Bcrypt(hash) => {
                let (answer, answered) = oneshot::channel();
                let Self { permit, waiter } = self;
                let password = login.password().to_vec();
                let (namespace, hash) = (basic.namespace.clone(), hash.clone());
                let question = Question { namespace, hash, password, answer, _turn: permit };
                waiter.turns.thread.ask(question)?;
                answered.await.map_err(|_| Reason::AuthBusy)?
            }
        };
        Ok(is_right && known.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_take_turns() {
        let turn = Arc::new(Semaphore::new(10));
        let (sender, questions) = mpsc::channel();
        for (namespace, hash) in [("a", "1"), ("a", "2"), ("a", "3"), ("b", "4"), ("c", "5"), ("b", "6")] {
            let (answer, _) = oneshot::channel();
            let permit = turn.clone().try_acquire_owned().unwrap();
            let (namespace, hash, password) = (namespace.into(), hash.into(), Vec::new());
            sender.send(Question { namespace, hash, password, answer, _turn: permit }).unwrap();
        }
        drop(sender);
        let mut waiting = Waiting::default();
        let order: Vec<_> = std::iter::from_fn(|| waiting.next(&questions)).map(|it| it.hash).collect();
        assert_eq!(order.concat(), "145263");
    }
}
