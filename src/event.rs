//! What the agent tells those who listen: small notes, and that a log moved.
//!
//! Rows and deltas are never sent to a listener. They lie in the store and in the tab's open chunk, and a
//! listener that was woken takes from there what its peer can hold; so a slow one costs nothing, and what
//! waits for it merges by itself. A note carries the newest seq at its time: it comes after that row and
//! before the next.

use crate::chunk::{Seq, TabNo};
use std::sync::Arc;

/// A small event, rendered once as the frame that clients get.
#[derive(Clone, Debug)]
pub struct Note {
    /// the tab that it speaks of, if any
    pub tab: Option<TabNo>,
    /// only for clients whose visible tab this is
    pub visible_only: bool,
    /// the tab's newest seq when it happened
    pub after: Seq,
    /// a whole frame, at most 8 KiB
    pub json: Arc<str>,
}

/// One who listens to the agent. Called under the agent's lock: it only takes note and wakes its own thread.
pub trait Listener: Send + Sync {
    /// A note. A listener without room remembers that it lost one.
    fn post(&self, note: &Note);
    /// The tab's log or open chunk moved.
    fn wake(&self, tab: TabNo);
}
