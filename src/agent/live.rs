//! What is going on in each tab: its newest seq, the open chunk, the turn that runs, and who listens.
//!
//! All of it stands under one lock that is held for a copy of at most one chunk and never during input or
//! output. A snapshot and a subscription taken under it are therefore one moment: nothing is missed or
//! doubled between them.

use crate::chunk::*;
use crate::event::{Listener, Note};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Content of the chunk that is receiving deltas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenData {
    /// an answer
    Text(AssistantText),
    /// thinking
    Thinking(Thinking),
    /// a call's arguments
    Call(ToolCall),
    /// a running tool's output
    Result(ToolResult),
}

/// The chunk that is receiving deltas: it has its seq, and is not yet in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// the seq that it will have
    pub seq: Seq,
    /// its turn
    pub turn: TurnNo,
    /// its request
    pub step: u32,
    /// changes when the content is replaced instead of appended to
    pub version: u32,
    /// when it was opened
    pub created_at: Millis,
    /// its content so far
    pub data: OpenData,
}

impl Open {
    /// The text, arguments or result so far.
    pub fn text(&self) -> &str {
        match &self.data {
            OpenData::Text(data) => &data.text,
            OpenData::Thinking(data) => &data.text,
            OpenData::Call(data) => &data.arguments,
            OpenData::Result(data) => &data.result,
        }
    }

    /// The same, to append to.
    pub fn text_mut(&mut self) -> &mut String {
        match &mut self.data {
            OpenData::Text(data) => &mut data.text,
            OpenData::Thinking(data) => &mut data.text,
            OpenData::Call(data) => &mut data.arguments,
            OpenData::Result(data) => &mut data.result,
        }
    }

    /// The row that it would be if it were sealed now, and the `OpenChunk` that clients see.
    pub fn row(&self) -> Row {
        let (role, kind, data) = match &self.data {
            OpenData::Text(data) => (Role::Assistant, Kind::Text, json(data)),
            OpenData::Thinking(data) => (Role::Assistant, Kind::Thinking, json(data)),
            OpenData::Call(data) => (Role::Assistant, Kind::ToolCall, json(data)),
            OpenData::Result(data) => (Role::Tool, Kind::ToolResult, json(data)),
        };
        Row {
            seq: self.seq,
            turn: self.turn,
            step: self.step,
            role,
            kind,
            data,
            opaque: None,
            created_at: self.created_at,
        }
    }
}

/// One tab as it is now.
#[derive(Clone, Debug)]
pub struct Live {
    /// the newest row of the log; its total, too
    pub newest: Seq,
    /// the turn that has not ended
    pub turn: Option<TurnNo>,
    /// the chunk that is receiving deltas
    pub open: Option<Open>,
    /// how the tab stands
    pub status: TabStatus,
}

struct Hub {
    tabs: HashMap<TabNo, Live>,
    listeners: Vec<(u64, Arc<dyn Listener>)>,
    next: u64,
}

/// All tabs and all listeners.
pub struct Lives {
    hub: Mutex<Hub>,
}

/// Ends a listener's subscription when dropped.
pub struct Subscription {
    lives: Arc<Lives>,
    id: u64,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.lives.lock().listeners.retain(|(id, _)| *id != self.id);
    }
}

impl Lives {
    /// Without tabs or listeners.
    pub fn new() -> Lives {
        Lives { hub: Mutex::new(Hub { tabs: HashMap::new(), listeners: Vec::new(), next: 0 }) }
    }

    fn lock(&self) -> MutexGuard<'_, Hub> {
        // A panic under this lock leaves at worst one delta out of an open chunk.
        self.hub.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a listener to the notes and moves of all tabs.
    pub fn subscribe(self: &Arc<Self>, listener: Arc<dyn Listener>) -> Subscription {
        let mut hub = self.lock();
        hub.next += 1;
        let id = hub.next;
        hub.listeners.push((id, listener));
        Subscription { lives: self.clone(), id }
    }

    /// Looks at a tab; nothing moves meanwhile, and notes come wholly before or wholly after.
    pub fn look<R>(&self, tab: TabNo, look: impl FnOnce(&Live) -> R) -> Option<R> {
        self.lock().tabs.get(&tab).map(look)
    }

    /// Adds a tab, or removes it.
    pub fn set(&self, tab: TabNo, live: Option<Live>) {
        let mut hub = self.lock();
        match live {
            Some(live) => hub.tabs.insert(tab, live),
            None => hub.tabs.remove(&tab),
        };
    }

    /// Changes a tab, then wakes those who listen.
    pub fn change<R>(&self, tab: TabNo, change: impl FnOnce(&mut Live) -> R) -> Option<R> {
        let mut hub = self.lock();
        let done = change(hub.tabs.get_mut(&tab)?);
        for (_, listener) in &hub.listeners {
            listener.wake(tab);
        }
        Some(done)
    }

    /// Changes a tab and posts a note about it, as one moment.
    pub fn post(&self, tab: TabNo, visible_only: bool, json: String, change: impl FnOnce(&mut Live)) {
        let mut hub = self.lock();
        let Some(live) = hub.tabs.get_mut(&tab) else { return };
        change(live);
        let note = Note { tab: Some(tab), visible_only, after: live.newest, json: json.into() };
        for (_, listener) in &hub.listeners {
            listener.post(&note);
        }
    }

    /// Posts a note to every listener that is not tied to a tab's place.
    pub fn tell(&self, tab: Option<TabNo>, json: String) {
        let hub = self.lock();
        let after = tab.and_then(|tab| hub.tabs.get(&tab)).map_or(0, |live| live.newest);
        let note = Note { tab, visible_only: false, after, json: json.into() };
        for (_, listener) in &hub.listeners {
            listener.post(&note);
        }
    }
}

impl Default for Lives {
    fn default() -> Lives {
        Lives::new()
    }
}
