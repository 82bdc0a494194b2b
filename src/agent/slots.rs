//! Slots: how many turns run at once, and who waits.
//!
//! A turn between two threads is a [`Job`]: a few numbers, since all else is in its rows. A job that waits
//! for a slot or for its next try at the provider holds no thread. One scheduler thread gives out slots in
//! the order of arrival; a job that was stopped while it waited is ended at once, without one.

use super::Agent;
use super::ending::Ending;
use super::provider::retry::Retry;
use super::stop::Stop;
use super::turn::{self, Pause};
use crate::budget::METERS;
use crate::chunk::{MessageNo, TabNo, TurnNo};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A turn that has begun and is not sealed.
pub struct Job {
    /// its tab
    pub tab: TabNo,
    /// the turn
    pub turn: TurnNo,
    /// raised by the owner or at the server's end
    pub stop: Arc<Stop>,
    /// the step that was begun last
    pub step: u32,
    /// that step is to be asked for again
    pub again: bool,
    /// tries of that step
    pub retry: Retry,
    /// the model of the step that was begun last
    pub model: Option<String>,
    /// requests made, other tries and those for summaries included
    pub requests: usize,
    /// summaries that the step asked for
    pub summaries: u32,
    /// the provider found the conversation too long, in these words
    pub overflow: Option<String>,
    /// the turn is a summary that the owner asked for, and nothing else: the newest message that lay in the
    /// queue before (0: none), since what was left there goes on waiting for its owner
    pub by_hand: Option<MessageNo>,
    /// it was told that the provider left the conversation's beginning out
    pub told_truncated: bool,
    /// tool calls made
    pub calls: usize,
    /// the last answer was cut by the output limit inside a call
    pub truncated: bool,
    /// all thinking before was dropped, because the provider refused it; that is tried once
    pub thinking_dropped: bool,
    /// how it is to end, once the store can write that down
    pub ending: Option<Ending>,
}

struct Waiting {
    ready: VecDeque<Job>,
    later: Vec<(Instant, Job)>,
    running: usize,
    closed: bool,
}

/// The slots and those who wait for one.
pub struct Slots {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    count: usize,
}

impl Slots {
    /// `count` slots, all free.
    pub fn new(count: usize) -> Slots {
        let waiting = Waiting { ready: VecDeque::new(), later: Vec::new(), running: 0, closed: false };
        Slots { waiting: Mutex::new(waiting), changed: Condvar::new(), count }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Nothing that can panic runs under this lock.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a job that came now would have to wait.
    pub fn busy(&self) -> bool {
        let waiting = self.lock();
        waiting.running + waiting.ready.len() >= self.count
    }

    /// Adds a job behind all that wait.
    pub fn push(&self, job: Job) {
        self.lock().ready.push_back(job);
        self.changed.notify_all();
    }

    fn push_later(&self, time: Duration, job: Job) {
        self.lock().later.push((Instant::now() + time, job));
        self.changed.notify_all();
    }

    /// Looks again at every job: one was stopped.
    pub fn nudge(&self) {
        // Under the lock, so that the scheduler is either before its look or already waiting.
        let _waiting = self.lock();
        self.changed.notify_all();
    }

    /// Waits until nothing runs or waits, at most `time`; tells whether it came to that.
    pub fn drain(&self, time: Duration) -> bool {
        let end = Instant::now() + time;
        let mut waiting = self.lock();
        while waiting.running + waiting.ready.len() + waiting.later.len() > 0 {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let woken = self.changed.wait_timeout(waiting, left);
            waiting = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Ends the scheduler.
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    fn release(&self) {
        self.lock().running -= 1;
        self.changed.notify_all();
    }

    /// The next job to do, and whether in a slot; `None` once closed.
    fn next(&self) -> Option<(Job, bool)> {
        let mut waiting = self.lock();
        loop {
            if waiting.closed {
                return None;
            }
            let now = Instant::now();
            while let Some(at) = waiting.later.iter().position(|(due, job)| *due <= now || job.ends_now()) {
                let (_, job) = waiting.later.swap_remove(at);
                waiting.ready.push_back(job);
            }
            if let Some(at) = waiting.ready.iter().position(Job::ends_now) {
                waiting.running += 1;
                return waiting.ready.remove(at).map(|job| (job, false));
            }
            if waiting.running < self.count
                && let Some(job) = waiting.ready.pop_front()
            {
                waiting.running += 1;
                return Some((job, true));
            }
            let due = waiting.later.iter().map(|(due, _)| due.saturating_duration_since(now)).min();
            let time = due.unwrap_or(Duration::from_secs(3600));
            waiting = self.changed.wait_timeout(waiting, time).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Job {
    /// A turn's first job.
    pub fn new(tab: TabNo, turn: TurnNo, stop: Arc<Stop>, attempts: usize) -> Job {
        Job {
            tab,
            turn,
            stop,
            step: 0,
            again: false,
            retry: Retry::new(attempts),
            model: None,
            requests: 0,
            summaries: 0,
            overflow: None,
            by_hand: None,
            told_truncated: false,
            calls: 0,
            truncated: false,
            thinking_dropped: false,
            ending: None,
        }
    }

    /// Nothing is left but to end it, which needs no slot.
    fn ends_now(&self) -> bool {
        self.stop.is_raised() && self.ending.is_none()
    }
}

/// The scheduler's thread: gives out slots until closed.
pub fn schedule(agent: &Arc<Agent>) {
    while let Some((job, slot)) = agent.slots.next() {
        if !slot {
            work(agent, job);
            continue;
        }
        let thread = std::thread::Builder::new()
            .name(format!("turn {}", job.turn))
            .stack_size(agent.config.budget.turn_stack_bytes);
        // The job is handed over through a cell, so that it is still here if there is no thread to be had.
        let cell = Arc::new(Mutex::new(Some(job)));
        let (theirs, agent_) = (cell.clone(), agent.clone());
        let spawned = thread.spawn(move || {
            let job = theirs.lock().unwrap_or_else(PoisonError::into_inner).take();
            job.into_iter().for_each(|job| work(&agent_, job));
        });
        if let Err(error) = spawned {
            log::error!("no thread for a turn: {error}; trying again in 1 s");
            if let Some(job) = cell.lock().unwrap_or_else(PoisonError::into_inner).take() {
                agent.slots.push_later(Duration::from_secs(1), job);
            }
            agent.slots.release();
        }
    }
}

fn work(agent: &Arc<Agent>, mut job: Job) {
    let permit = METERS.turns.take(1, usize::MAX);
    let done = catch_unwind(AssertUnwindSafe(|| turn::run(agent, &mut job)));
    let pause = done.unwrap_or_else(|_| {
        METERS.panics.count();
        log::error!("turn {} of tab {} ended by a fault in Siskin", job.turn, job.tab);
        // A fault in the ending itself is not met again at once, over and over.
        let rest = if job.ending.is_some() { turn::SEAL_AGAIN } else { Duration::ZERO };
        job.ending = Some(Ending::panicked());
        Pause::Later(rest)
    });
    drop(permit);
    match pause {
        Pause::Ended => {}
        Pause::Later(time) => agent.slots.push_later(time, job),
    }
    agent.slots.release();
}
