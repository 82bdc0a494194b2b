//! The agent: turns, from a message to a sealed answer. It knows nothing of sockets.
//!
//! `net` uses only what is public here: send, stop, tabs, look and subscribe.

pub mod live;
pub mod prompt;
pub mod provider;
pub mod stop;
pub mod tools;
pub mod wire;

use crate::chunk::*;
use crate::config::Config;
use crate::event::Listener;
use crate::store::{NewTab, Sent, Store, StoreError, Tab, TabChange};
use live::{Live, Lives, Subscription};
use std::sync::Arc;

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

/// The answer to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// what became of it
    pub sent: Sent,
    /// its turn waits for a slot
    pub waiting: bool,
}

/// A tab and how it stands.
#[derive(Clone, Debug)]
pub struct TabView {
    /// as stored
    pub tab: Tab,
    /// as it is now
    pub status: TabStatus,
}

/// A model that can be chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// `provider/model`
    pub id: String,
    /// the provider's name
    pub provider: String,
    /// shown
    pub name: String,
    /// tokens of its context, if known
    pub context_tokens: Option<u64>,
}

/// The models of all providers, and what went wrong while asking.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Models {
    /// at most `models` of the budget
    pub models: Vec<Model>,
    /// provider and message
    pub errors: Vec<(String, String)>,
}

/// All tabs and their turns.
pub struct Agent {
    /// what is going on in each tab
    pub lives: Arc<Lives>,
}

#[allow(unused_variables, missing_docs)]
impl Agent {
    pub fn start(store: Arc<Store>, config: Arc<Config>) -> Result<Arc<Agent>, String> {
        todo!()
    }
    /// Takes a message; it is in the store when this returns. Idempotent by `client_id`.
    pub fn send(self: &Arc<Self>, tab: TabNo, client_id: &str, text: &str) -> Result<Accepted, Refusal> {
        todo!()
    }
    pub fn stop(&self, tab: TabNo) -> Result<(), Refusal> {
        todo!()
    }
    pub fn cancel_queued(&self, tab: TabNo, message: MessageNo) -> Result<(), Refusal> {
        todo!()
    }
    /// Starts a turn with what was left in the queue.
    pub fn send_queue(self: &Arc<Self>, tab: TabNo) -> Result<(), Refusal> {
        todo!()
    }
    pub fn tabs(&self, archived: bool) -> Result<Vec<TabView>, Refusal> {
        todo!()
    }
    pub fn tab(&self, tab: TabNo) -> Result<TabView, Refusal> {
        todo!()
    }
    /// Missing fields get the defaults of settings and config; checks model and workdir.
    pub fn create_tab(&self, new: NewTab) -> Result<TabView, Refusal> {
        todo!()
    }
    pub fn change_tab(&self, tab: TabNo, change: TabChange) -> Result<TabView, Refusal> {
        todo!()
    }
    /// Stops and archives; with `purge` also erases its rows.
    pub fn remove_tab(&self, tab: TabNo, purge: bool) -> Result<(), Refusal> {
        todo!()
    }
    /// Asks every provider that does not name its models (cached for a minute).
    pub fn models(&self) -> Models {
        todo!()
    }
    pub fn subscribe(&self, listener: Arc<dyn Listener>) -> Subscription {
        self.lives.subscribe(listener)
    }
    pub fn look<R>(&self, tab: TabNo, look: impl FnOnce(&Live) -> R) -> Option<R> {
        self.lives.look(tab, look)
    }
    /// Posts a frame to every client: settings, notices.
    pub fn tell(&self, json: String) {
        self.lives.tell(None, json)
    }
    /// Seals running turns as interrupted, within 3 s.
    pub fn shut_down(&self) {
        todo!()
    }
}

/// A tab as clients see it.
pub fn tab_json(view: &TabView) -> String {
    #[derive(serde::Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Sum {
        #[serde(flatten)]
        usage: Usage,
        #[serde(skip_serializing_if = "Option::is_none")]
        hit_rate: Option<f64>,
    }
    #[derive(serde::Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Out<'a> {
        id: TabNo,
        title: &'a str,
        model: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        effort: Option<&'a str>,
        workdir: &'a str,
        position: i64,
        created_at: Millis,
        updated_at: Millis,
        archived: bool,
        status: TabStatus,
        total: Seq,
        usage: Sum,
    }
    let tab = &view.tab;
    json(&Out {
        id: tab.no,
        title: &tab.title,
        model: &tab.model,
        effort: tab.effort.as_deref(),
        workdir: &tab.workdir,
        position: tab.position,
        created_at: tab.created_at,
        updated_at: tab.updated_at,
        archived: tab.archived,
        status: view.status,
        total: tab.total,
        usage: Sum { usage: tab.usage, hit_rate: tab.usage.hit_rate() },
    })
}
