//! The agent: turns, from a message to a sealed answer. It knows nothing of sockets.
//!
//! `net` uses only what is public here: send, stop, tabs, look and subscribe.

pub mod cache;
pub mod context;
pub mod ending;
pub mod fold;
pub mod frames;
pub mod live;
pub mod models;
pub mod prompt;
pub mod provider;
pub mod queue;
pub mod slots;
pub mod split;
pub mod stop;
pub mod summary;
pub mod tabs;
pub mod tools;
pub mod turn;
pub mod wire;

use crate::chunk::*;
use crate::config::Config;
use crate::event::Listener;
use crate::store::{Prefix, PrefixNo, Sealed, Store, StoreError, Tab};
use fold::Pen;
pub use frames::tab as tab_json;
use live::{Live, Lives, Subscription};
pub use models::{Model, Models};
use slots::{Job, Slots};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use stop::Stop;

/// Why the agent did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// there is no such tab, message or model
    NotFound(String),
    /// the request itself is wrong
    Bad(String),
    /// it does not fit what is going on
    Conflict(String),
    /// larger than this budget allows
    TooLarge(String),
    /// a counted thing is at its limit
    Full(&'static str),
    /// the store has no space, or is broken
    Store(StoreError),
}

/// A tab and how it stands.
#[derive(Clone, Debug)]
pub struct TabView {
    /// as stored
    pub tab: Tab,
    /// as it is now
    pub status: TabStatus,
}

/// All tabs and their turns.
pub struct Agent {
    /// what is going on in each tab
    pub lives: Arc<Lives>,
    store: Arc<Store>,
    config: Arc<Config>,
    slots: Slots,
    /// the stop signal of each turn that is not sealed
    stops: Mutex<HashMap<TabNo, Arc<Stop>>>,
    /// held while it is decided what a tab does next: by a send, and by the end of a turn
    deciding: Mutex<()>,
    models: models::Cache,
    closing: AtomicBool,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refusal::NotFound(text) | Refusal::Bad(text) | Refusal::Conflict(text) => f.write_str(text),
            Refusal::TooLarge(text) => f.write_str(text),
            Refusal::Full(limit) => write!(f, "{limit} of the budget is reached"),
            Refusal::Store(error) => error.fmt(f),
        }
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Refusal {
        match error {
            StoreError::Full(what) => Refusal::Full(what),
            other => Refusal::Store(other),
        }
    }
}

impl Agent {
    /// Takes up the store's tabs and starts the scheduler.
    pub fn start(store: Arc<Store>, config: Arc<Config>) -> Result<Arc<Agent>, String> {
        let agent = Arc::new(Agent {
            lives: Arc::new(Lives::new()),
            slots: Slots::new(config.budget.turns),
            store,
            config,
            stops: Mutex::new(HashMap::new()),
            deciding: Mutex::new(()),
            models: models::Cache::default(),
            closing: AtomicBool::new(false),
        });
        agent.load_tabs().map_err(|error| format!("cannot read the tabs: {error}"))?;
        let scheduler = agent.clone();
        std::thread::Builder::new()
            .name("scheduler".to_owned())
            .stack_size(agent.config.budget.turn_stack_bytes)
            .spawn(move || slots::schedule(&scheduler))
            .map_err(|error| format!("cannot start a thread: {error}"))?;
        Ok(agent)
    }

    /// Stops a tab's turn, whatever it is doing. Nothing happens when it is idle.
    pub fn stop(&self, tab: TabNo) -> Result<(), Refusal> {
        // The store is not asked: a stop works while it cannot be read, too.
        self.look(tab, |_| ()).ok_or_else(|| no_tab(tab))?;
        if let Some(stop) = self.stops().get(&tab) {
            stop.raise();
        }
        self.slots.nudge();
        Ok(())
    }

    /// Listens to notes and moves of all tabs.
    pub fn subscribe(&self, listener: Arc<dyn Listener>) -> Subscription {
        self.lives.subscribe(listener)
    }

    /// Looks at a tab as it is now; see [`Lives::look`].
    pub fn look<R>(&self, tab: TabNo, look: impl FnOnce(&Live) -> R) -> Option<R> {
        self.lives.look(tab, look)
    }

    /// Posts a frame to every client: settings, notices.
    pub fn tell(&self, json: String) {
        self.lives.tell(None, json);
    }

    /// Seals every turn that has begun as interrupted, within 3 s.
    pub fn shut_down(&self) {
        let deciding = self.decide();
        self.closing.store(true, Ordering::SeqCst);
        for stop in self.stops().values() {
            stop.raise();
        }
        drop(deciding);
        self.slots.nudge();
        if !self.slots.drain(Duration::from_secs(3)) {
            log::warn!("some turns did not end in time; they are repaired at the next start");
        }
        self.slots.close();
    }

    fn closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    fn stops(&self) -> MutexGuard<'_, HashMap<TabNo, Arc<Stop>>> {
        // Only map operations run under this lock.
        self.stops.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn decide(&self) -> MutexGuard<'_, ()> {
        self.deciding.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known_tab(&self, tab: TabNo) -> Result<Tab, Refusal> {
        self.store.tab(tab)?.ok_or_else(|| no_tab(tab))
    }

    fn pen(&self, job: &Job) -> Pen {
        Pen {
            store: self.store.clone(),
            lives: self.lives.clone(),
            budget: self.config.budget,
            tab: job.tab,
            turn: job.turn,
            step: job.step.max(1),
        }
    }

    /// A tab's frozen prefix and its number, rendered when its first turn asks for it.
    fn prefix(&self, tab: TabNo) -> Result<(PrefixNo, Prefix), StoreError> {
        if let Some(prefix) = self.store.prefix(tab)? {
            return Ok(prefix);
        }
        let prefix = self.new_prefix()?;
        Ok((self.store.freeze(tab, &prefix, &[])?, prefix))
    }

    /// The prefix of a tab that begins now.
    fn new_prefix(&self) -> Result<Prefix, StoreError> {
        let prompt: Option<String> = self.setting("systemPrompt")?;
        Ok(prompt::prefix(prompt.as_deref().or(self.config.system_prompt.as_deref())))
    }

    /// Renders a tab's prefix anew, where a new generation begins anyway: what changed since is told by
    /// rows.
    fn refreeze(&self, pen: &Pen) -> Result<(), StoreError> {
        let Some((_, old)) = self.store.prefix(pen.tab)? else { return Ok(()) };
        let new = self.new_prefix()?;
        let mut rows = Vec::new();
        for (differs, kind, text) in [
            (old.tools != new.tools, "tools-changed", "The tools are those of this version of Siskin now."),
            (old.system != new.system, "prompt-changed", "The system prompt is the present one now."),
        ] {
            if differs {
                let data =
                    SystemData { kind: kind.to_owned(), text: text.to_owned(), ..SystemData::default() };
                let seq = pen.next_seq() + rows.len() as Seq;
                rows.push(pen.row(seq, Role::System, Kind::System, json(&data)));
            }
        }
        if !rows.is_empty() {
            self.store.freeze(pen.tab, &new, &rows)?;
            pen.show(&rows);
        }
        Ok(())
    }

    /// A stored setting: JSON text, as `net` checked and wrote it.
    fn setting<T: serde::de::DeserializeOwned>(&self, key: &str) -> Result<Option<T>, StoreError> {
        Ok(self.store.setting(key)?.and_then(|text| serde_json::from_str(&text).ok()))
    }

    fn set_status(&self, tab: TabNo, status: TabStatus) {
        self.lives.post(tab, false, frames::status(tab, status), |live| live.status = status);
    }

    fn show_retry(&self, tab: TabNo, attempt: u32, delay: Duration, message: &str) {
        let status = TabStatus::Retrying;
        let delay_ms = delay.as_millis() as u64;
        let frame = frames::status_detail(tab, status, attempt, delay_ms, message);
        self.lives.post(tab, false, frame, |live| live.status = status);
    }

    /// Tells what a running turn does that shows in no row.
    fn show_working(&self, tab: TabNo, message: &str) {
        let status = TabStatus::Running;
        let frame = frames::status_working(tab, status, message);
        self.lives.post(tab, false, frame, |live| live.status = status);
    }

    /// Tells everyone that a turn is durable, and decides what its tab does next.
    fn turn_sealed(&self, job: &Job, sealed: &Sealed, stop: StopReason) {
        let (tab, _deciding) = (job.tab, self.decide());
        self.stops().remove(&tab);
        let failed = matches!(stop, StopReason::Error | StopReason::Cut);
        let status = if failed { TabStatus::Error } else { TabStatus::Idle };
        self.lives.post(tab, true, frames::turn_sealed(tab, job.turn, sealed, stop), |live| {
            live.turn = None;
            live.status = status;
        });
        let goes_on = matches!(stop, StopReason::End | StopReason::MaxTokens) && !self.closing();
        let next = match job.by_hand {
            _ if !goes_on => Ok(false),
            Some(left) => self.start_newer(tab, left),
            None => self.start_queued(tab),
        };
        match &next {
            Ok(_) => {}
            Err(Refusal::Conflict(why)) => log::debug!("tab {tab}: what was queued stays: {why}"),
            Err(error) => log::error!("tab {tab}: what was queued cannot be started: {error}"),
        }
        if !matches!(next, Ok(true)) {
            self.set_status(tab, status);
        }
        self.tell_tab(tab);
    }

    /// Tells everyone how a tab is now.
    fn tell_tab(&self, tab: TabNo) {
        match self.tab(tab) {
            Ok(view) => self.lives.tell(Some(tab), frames::tab_changed(&view)),
            Err(error) => log::debug!("tab {tab} cannot be told: {error}"),
        }
    }
}

fn no_tab(tab: TabNo) -> Refusal {
    Refusal::NotFound(format!("there is no tab {tab}"))
}

#[cfg(test)]
mod tests;
