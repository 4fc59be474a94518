//! Where batches of agents wait for each other: those that arrive while a transaction is at work go into the next one
//! together.
//!
//! Always true here: each is answered for itself, after its commit; one that spoils its transaction spoils nobody else's.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::{Mutex, mpsc, oneshot};
use uuid::Uuid;

use super::accept::{Arrival, Verified, repeats, take_all};
use super::ctx::Platform;
use super::error::ServiceError;
use crate::store::StoreError;
use crate::wire::ack::Acknowledgement;

/// Batches that one transaction takes.
const GROUP_MAX: usize = 64;
/// Bytes of one transaction's batches, nearly.
const GROUP_BYTES_MAX: usize = 8 << 20;
/// Batches that wait; whoever comes then waits outside.
const WAITING_MAX: usize = 256;
/// Streams whose marks are remembered.
const MARKS_MAX: usize = 100_000;
/// Transactions at once, where the database can.
const AT_ONCE: usize = 2;

type Answer = Result<Acknowledgement, ServiceError>;

struct Waiting {
    arrival: Arrival,
    reply: oneshot::Sender<Answer>,
}

/// A batch that may have been taken before.
struct Asking {
    from: Verified,
    reply: oneshot::Sender<Option<Acknowledgement>>,
}

/// The door of the journal.
#[derive(Debug, Clone)]
pub struct Intake {
    waiting: mpsc::Sender<Waiting>,
    asking: mpsc::Sender<Asking>,
    marks: Arc<Marks>,
}

/// Up to which number streams were taken, as far as this process saw it: a hint, by which a repeat is looked up before it
/// is read. What it does not know, or knows wrongly after a restore, goes the whole way.
#[derive(Debug, Default)]
struct Marks(std::sync::Mutex<HashMap<Uuid, i64>>);

impl Marks {
    fn locked(&self) -> std::sync::MutexGuard<'_, HashMap<Uuid, i64>> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn note(&self, stream: &str, mark: i64) {
        let Ok(stream) = Uuid::parse_str(stream) else { return };
        let mut marks = self.locked();
        if marks.len() >= MARKS_MAX && !marks.contains_key(&stream) {
            marks.clear();
        }
        marks.insert(stream, mark);
    }
}

impl Intake {
    /// Starts to take batches, on a runtime that outlives the requests.
    #[must_use]
    pub fn start(platform: &Platform, runtime: &Handle) -> Self {
        let (waiting, queue) = mpsc::channel(WAITING_MAX);
        let (asking, asked) = mpsc::channel(WAITING_MAX);
        runtime.spawn(answer_repeats(platform.clone(), asked));
        let queue = Arc::new(Mutex::new(queue));
        let at_once = if platform.store.is_embedded() { 1 } else { AT_ONCE };
        for _ in 0..at_once {
            runtime.spawn(take_groups(platform.clone(), Arc::clone(&queue)));
        }
        Self { waiting, asking, marks: Arc::default() }
    }

    /// The answer to a batch that was taken before, if it was with the same bytes.
    pub async fn repeat(&self, from: &Verified) -> Option<Acknowledgement> {
        let mark = self.marks.locked().get(&from.claims.stream).copied();
        if mark.is_none_or(|mark| mark < from.claims.sequence) {
            return None;
        }
        let (reply, answer) = oneshot::channel();
        self.asking.send(Asking { from: from.clone(), reply }).await.ok()?;
        answer.await.ok().flatten()
    }

    /// Takes a batch, with others that come at the same time. Cancelling the caller cancels nothing.
    ///
    /// # Errors
    /// As [`super::accept::accept`].
    pub async fn take(&self, arrival: Arrival) -> Answer {
        let (reply, answer) = oneshot::channel();
        let gone = |_| ServiceError::from(StoreError::Abandoned);
        self.waiting.send(Waiting { arrival, reply }).await.map_err(|_| StoreError::Abandoned)?;
        let answer = answer.await.map_err(gone)?;
        if let Ok(answer) = &answer {
            self.marks.note(&answer.stream, answer.mark);
        }
        answer
    }
}

/// Looks up many at once. What cannot be looked up now goes the whole way.
async fn answer_repeats(platform: Platform, mut asked: mpsc::Receiver<Asking>) {
    while let Some(first) = asked.recv().await {
        let mut group = vec![first];
        while group.len() < GROUP_MAX {
            let Ok(next) = asked.try_recv() else { break };
            group.push(next);
        }
        let (froms, replies): (Vec<_>, Vec<_>) =
            group.into_iter().map(|each| (each.from, each.reply)).unzip();
        let answers = repeats(&platform, froms).await.unwrap_or_default();
        let answers = answers.into_iter().chain(std::iter::repeat(None));
        for (reply, answer) in replies.into_iter().zip(answers) {
            let _gone = reply.send(answer);
        }
    }
}

async fn take_groups(platform: Platform, queue: Arc<Mutex<mpsc::Receiver<Waiting>>>) {
    loop {
        let mut group = Vec::new();
        {
            let mut queue = queue.lock().await;
            let Some(first) = queue.recv().await else { return };
            let mut bytes = first.arrival.size();
            group.push(first);
            while group.len() < GROUP_MAX && bytes < GROUP_BYTES_MAX {
                let Ok(next) = queue.try_recv() else { break };
                bytes = bytes.saturating_add(next.arrival.size());
                group.push(next);
            }
        }
        take_group(&platform, group).await;
    }
}

async fn take_group(platform: &Platform, group: Vec<Waiting>) {
    let (arrivals, replies): (Vec<_>, Vec<_>) =
        group.into_iter().map(|each| (Arc::new(each.arrival), each.reply)).unzip();
    match take_all(platform, arrivals.clone()).await {
        Ok(answers) => {
            for (answer, reply) in answers.into_iter().zip(replies) {
                // A caller that went away wants no answer; its batch is taken all the same.
                let _gone = reply.send(answer);
            }
        }
        Err(error) if error.will_pass() || arrivals.len() == 1 => {
            let mut error = Some(error);
            for reply in replies {
                let _gone = reply.send(Err(error.take().unwrap_or_else(|| StoreError::Abandoned.into())));
            }
        }
        // One of them may be to blame: each for itself then.
        Err(_) => {
            for (arrival, reply) in arrivals.into_iter().zip(replies) {
                let answer = take_all(platform, vec![arrival]).await;
                let answer = answer.and_then(|mut answers| match answers.pop() {
                    Some(answer) => answer,
                    None => Err(StoreError::Abandoned.into()),
                });
                let _gone = reply.send(answer);
            }
        }
    }
}
