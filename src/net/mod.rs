//! Connections: accept, HTTP, WebSocket, windows, mailboxes, access, static files.
//!
//! One thread accepts; each connection has a thread with a small stack, a permit and a place in the
//! [`registry`]. What a connection holds is bounded: a head in a fixed buffer, a body under a permit, and a
//! batch of rows on the way out.
//!
//! The path of a request: [`accept`] → [`conn`] ([`head`], [`access`]) → [`routes`] or [`assets`] →
//! [`respond`]. The path of a WebSocket: [`ws`] (its thread and its frames) → [`session`] (what the client
//! holds, and what it is told), over [`window`] (numbers only) and [`mailbox`] (small notes only). Rows and
//! text are pulled by the connection's own thread when its socket can take them, so a slow client costs its
//! own thread and nothing else. Nothing here speaks SQL or knows a provider.

pub mod accept;
pub mod access;
pub mod assets;
pub mod conn;
pub mod export;
pub mod head;
pub mod json;
pub mod mailbox;
pub mod registry;
pub mod respond;
pub mod routes;
pub mod session;
pub mod settings;
pub mod sock;
pub mod status;
pub mod window;
pub mod ws;

use crate::agent::Agent;
use crate::config::Config;
use crate::store::Store;
use access::Access;
use assets::Assets;
use registry::Registry;
use std::sync::Arc;
use std::time::Instant;

pub use accept::{Server, serve};

/// The protocol that this server speaks.
pub const PROTOCOL: u32 = 1;

/// What every connection needs.
pub struct Shared {
    /// the configuration
    pub config: Arc<Config>,
    /// the log
    pub store: Arc<Store>,
    /// the turns
    pub agent: Arc<Agent>,
    /// who may ask
    pub access: Access,
    /// changes when the server restarts
    pub epoch: String,
    /// when the server started
    pub started: Instant,
    links: export::Links,
    assets: Assets,
    registry: Arc<Registry>,
}

impl Shared {
    /// Fails when the system gives no random numbers.
    pub fn new(config: Arc<Config>, store: Arc<Store>, agent: Arc<Agent>) -> Result<Arc<Shared>, String> {
        Ok(Arc::new(Shared {
            access: Access::new(&config),
            epoch: access::random_id()?,
            started: Instant::now(),
            links: export::Links::default(),
            assets: Assets::new(config.static_dir.clone()),
            registry: Registry::new(config.budget),
            config,
            store,
            agent,
        }))
    }
}
