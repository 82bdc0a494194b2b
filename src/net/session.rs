//! What one client is told over its WebSocket: hello, windows, pages, rows and deltas as they come, notes.
//!
//! Nothing is queued for a client but notes. When its thread is woken it looks at the visible tab under the
//! agent's lock and takes what the client lacks: rows from the store (they are committed before anyone is
//! told), then the open chunk's new text. So deltas merge by themselves, and a client that is far behind gets
//! a new window and not every row. A note bears the seq after which it comes: rows up to there go first. A
//! snapshot and the subscription to its tab are one moment, since both happen under the agent's lock.

mod asks;
mod frames;
mod show;

use super::mailbox::Mailbox;
use super::registry::Ticket;
use super::window::{End, Evict, Limits, Window};
use super::ws::{Gone, Wire};
use super::{PROTOCOL, Shared, access, json, settings};
use crate::agent::live::{Live, Open};
use crate::agent::{Refusal, tab_json};
use crate::chunk::{DeviceNo, Seq, TabNo};
use crate::event::Note;
use crate::store::StoreError;
use asks::{Ask, Resume};
use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Wrong frames that are answered before the socket is closed.
const FAULTS_MAX: u32 = 5;
/// After this long without a wrong frame they are forgotten.
const FAULTS_FORGOTTEN: Duration = Duration::from_secs(60);
/// A second overflow of the mailbox within this time closes the socket.
const OVERFLOW_REST: Duration = Duration::from_secs(30);
/// Least time between two `tail`s.
const TAIL_REST: Duration = Duration::from_millis(500);
/// Frames of a client that are answered before it is looked what it lacks.
const ASKS_AT_ONCE: usize = 4;

/// Serves a socket until it ends.
pub fn run(shared: &Arc<Shared>, ticket: &Ticket, wire: &mut Wire) -> Gone {
    let begun = greet(shared, ticket, wire);
    let (device, hello) = match begun {
        Ok(greeted) => greeted,
        Err(gone) => return gone,
    };
    // Before the welcome's snapshot is taken: what happens between is told twice rather than never.
    let _subscription = shared.agent.subscribe(wire.mailbox.clone());
    let own = (hello.chunk_limit, hello.byte_limit);
    let mut session = Session {
        shared,
        mailbox: wire.mailbox.clone(),
        wire,
        own,
        limits: Limits { rows: 0, bytes: 0 },
        view: None,
        dirty: false,
        faults: 0,
        fault_at: None,
        overflow_at: None,
        windows: 0,
    };
    let served = session.begin(hello.resume).and_then(|()| session.serve());
    log::debug!("the socket of {device} ends");
    match served {
        Ok(never) => match never {},
        Err(gone) => gone,
    }
}

/// Waits for the first frame, a `hello` with a good token.
fn greet(shared: &Arc<Shared>, ticket: &Ticket, wire: &mut Wire) -> Result<(DeviceNo, Ask), Gone> {
    let by = Instant::now() + Duration::from_millis(shared.config.budget.hello_ms as u64);
    let text = loop {
        if let Some(text) = wire.read()? {
            break text;
        }
        if Instant::now() >= by {
            return Err(Gone::Close(1008, "no hello"));
        }
        wire.wait(Some(by))?;
    };
    let hello = json::parse::<Ask>(text.as_bytes()).ok().filter(|ask| ask.kind == "hello");
    let Some(hello) = hello else { return Err(Gone::Close(1008, "hello was expected")) };
    let known = |token: &str| access::device_of(token, &shared.store).map_err(|_| Gone::Close(1013, "store"));
    let unknown = Gone::Close(4401, "no or unknown token");
    let Some(token) = hello.token.as_deref() else { return Err(unknown) };
    let Some(device) = known(token)? else { return Err(unknown) };
    if hello.protocol != Some(u64::from(PROTOCOL)) {
        return Err(Gone::Close(1008, "only protocol 1 is spoken"));
    }
    ticket.set_socket(device, wire.mailbox.clone());
    // Whoever revoked the device before it stood in the registry did not find this socket there.
    if known(token)?.is_none() {
        return Err(Gone::Close(4401, "token revoked"));
    }
    Ok((device, hello))
}

enum Never {}

struct Session<'a> {
    shared: &'a Arc<Shared>,
    wire: &'a mut Wire,
    mailbox: Arc<Mailbox>,
    /// what the client's hello asked for
    own: (Option<u64>, Option<u64>),
    limits: Limits,
    view: Option<View>,
    /// the visible tab may have moved since it was last looked at
    dirty: bool,
    faults: u32,
    fault_at: Option<Instant>,
    overflow_at: Option<Instant>,
    /// how many windows were sent
    windows: u64,
}

/// What the client holds of its visible tab.
struct View {
    tab: TabNo,
    window: Window,
    /// the open chunk as far as the client has it
    open: Option<Cursor>,
    /// the window is still being filled up
    fill: Option<Fill>,
    /// the log's newest seq as the client was last told
    told: Seq,
    tail_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cursor {
    seq: Seq,
    version: u32,
    sent: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fill {
    Older,
    /// both ends in turn; this one is next
    Both(End),
}

/// What the visible tab has that the client lacks.
enum Lack {
    /// notes came first
    Notes,
    /// rows up to this seq
    Rows(Seq),
    /// the log's newest seq, to be told of only
    Tail(Seq),
    /// the open chunk is new to the client, or was replaced
    Chunk(Box<Open>),
    /// more text of the open chunk
    Delta(Cursor, String),
    /// the open chunk is gone without a row
    NoChunk,
    Nothing,
}

impl Session<'_> {
    fn serve(&mut self) -> Result<Never, Gone> {
        loop {
            // What woke this thread is mostly a delta, so that goes out before the socket is asked.
            let more = self.advance()?;
            let mut asked = 0;
            while asked < ASKS_AT_ONCE
                && let Some(text) = self.wire.read()?
            {
                self.take(&text)?;
                asked += 1;
            }
            if asked == 0 && !more {
                let by = self.tail_due();
                self.wire.wait(by)?;
            }
        }
    }

    /// Welcome, and the window of a client that comes back.
    fn begin(&mut self, resume: Option<Resume>) -> Result<(), Gone> {
        self.limits = self.limits_now()?;
        let Some(resume) = resume else { return self.welcome(false) };
        let Ok(tab) = resume.tab.parse() else { return self.welcome(false) };
        match self.resumable(tab, &resume)? {
            Some(window) => {
                self.welcome(true)?;
                self.keep(tab, window)
            }
            None => {
                self.welcome(false)?;
                if self.shared.agent.look(tab, |_| ()).is_none() {
                    return Ok(());
                }
                let place =
                    if resume.following { show::Place::Tail } else { show::Place::Around(resume.oldest_seq) };
                self.replace("", tab, place)
            }
        }
    }

    fn limits_now(&self) -> Result<Limits, Gone> {
        let stored = settings::limits(&self.shared.store).map_err(|fault| {
            log::warn!("the settings cannot be read: {}", fault.message);
            Gone::Close(1013, "store")
        })?;
        Ok(stored.of_client(self.shared.config.budget, self.own.0, self.own.1))
    }

    fn welcome(&mut self, resumed: bool) -> Result<(), Gone> {
        let tabs = self.shared.agent.tabs(false).map_err(|e| tabs_gone(&e))?;
        let budget = self.shared.config.budget;
        let mut frame = self.wire.frame();
        frame.push(&format!(
            r#"{{"type":"welcome","protocol":{PROTOCOL},"epoch":"{}","limits":{{"#,
            self.shared.epoch
        ))?;
        frame.push(&format!(
            r#""chunkLimit":{},"byteLimit":{},"chunkBytes":{},"pageLimit":{}}},"tabs":["#,
            self.limits.rows, self.limits.bytes, budget.chunk_bytes, budget.page_rows
        ))?;
        let mut first = true;
        for tab in tabs {
            // One that was erased meanwhile is left out.
            let view = match self.shared.agent.tab(tab) {
                Ok(view) => view,
                Err(Refusal::NotFound(_)) => continue,
                Err(e) => return Err(tabs_gone(&e)),
            };
            frame.push(if std::mem::take(&mut first) { "" } else { "," })?;
            frame.push(&tab_json(&view))?;
        }
        frame.push(&format!(r#"],"approvals":[],"resumed":{resumed}}}"#))?;
        frame.end()
    }

    /// One thing that the client lacks; whether there may be more.
    fn advance(&mut self) -> Result<bool, Gone> {
        self.wire.quiet()?;
        if self.mailbox.take_overflowed() {
            self.resync()?;
            return Ok(true);
        }
        if self.mailbox.take_limits_changed() {
            self.change_limits()?;
        }
        if let Some(note) = self.mailbox.take_note() {
            self.tell(&note)?;
            return Ok(true);
        }
        self.dirty |= self.mailbox.take_moved();
        if self.dirty && self.pull()? {
            return Ok(true);
        }
        self.fill()
    }

    /// Notes were lost: everything is told anew.
    fn resync(&mut self) -> Result<(), Gone> {
        if self.overflow_at.is_some_and(|at| at.elapsed() < OVERFLOW_REST) {
            return Err(Gone::Close(1013, "too slow; try again"));
        }
        self.overflow_at = Some(Instant::now());
        self.welcome(false)?;
        let Some(view) = &self.view else { return Ok(()) };
        let following = view.window.following();
        let place = if following { show::Place::Tail } else { show::Place::Around(view.window.oldest()) };
        self.replace("", view.tab, place)
    }

    fn change_limits(&mut self) -> Result<(), Gone> {
        let limits = self.limits_now()?;
        if limits == self.limits {
            return Ok(());
        }
        self.limits = limits;
        let evict = self.view.as_mut().and_then(|view| view.window.set_limits(limits));
        self.evict("", evict)?;
        self.wire.send(&format!(
            r#"{{"type":"limits","chunkLimit":{},"byteLimit":{}}}"#,
            limits.rows, limits.bytes
        ))?;
        self.leave_tail_if_full()
    }

    fn tell(&mut self, note: &Note) -> Result<(), Gone> {
        let visible = self.view.as_ref().map(|view| view.tab);
        if note.tab.is_some() && note.tab == visible {
            self.dirty = true;
            let windows = self.windows;
            while self.lacks_rows(note.after) {
                self.deliver(note.after)?;
            }
            if note.visible_only && windows != self.windows {
                // The client was far behind: the window that it got is newer than the note.
                return Ok(());
            }
        } else if note.visible_only {
            // It was posted for a tab that is no longer the visible one.
            return Ok(());
        }
        self.wire.send(&note.json)
    }

    fn lacks_rows(&self, upto: Seq) -> bool {
        self.view.as_ref().is_some_and(|view| !view.window.detached() && view.window.newest() < upto)
    }

    /// Looks at the visible tab and sends one thing that the client lacks; whether there may be more.
    fn pull(&mut self) -> Result<bool, Gone> {
        let Some(view) = &self.view else {
            self.dirty = false;
            return Ok(false);
        };
        let (mailbox, row_max) = (&self.mailbox, self.shared.config.budget.chunk_bytes);
        let lack = self
            .shared
            .agent
            .look(view.tab, |live| if mailbox.is_empty() { view.lacks(live, row_max) } else { Lack::Notes });
        let tab = view.tab;
        match lack {
            None => {
                // The tab was erased.
                self.show_none();
            }
            Some(Lack::Notes) => return Ok(true),
            Some(Lack::Rows(upto)) => {
                self.deliver(upto)?;
                return Ok(true);
            }
            Some(Lack::Tail(newest)) => return self.tail(newest),
            Some(Lack::Chunk(open)) => {
                let cursor = Cursor { seq: open.seq, version: open.version, sent: open.text().len() };
                let row = open.row();
                drop(open);
                let mut out = format!(r#"{{"type":"chunk-open","tab":"{tab}","chunk":"#);
                row.write_json(&mut out);
                out.push('}');
                self.wire.send(&out)?;
                self.set_open(Some(cursor));
            }
            Some(Lack::Delta(cursor, text)) => {
                let text = crate::chunk::json(&text);
                let seq = cursor.seq;
                self.wire
                    .send(&format!(r#"{{"type":"chunk-delta","tab":"{tab}","seq":{seq},"text":{text}}}"#))?;
                self.set_open(Some(cursor));
            }
            Some(Lack::NoChunk) => {
                let newest = view.window.newest();
                self.evict("", Some(Evict::After(newest)))?;
            }
            Some(Lack::Nothing) => {}
        }
        self.dirty = false;
        Ok(false)
    }

    fn show_none(&mut self) {
        self.view = None;
        self.mailbox.show(None);
    }

    fn set_open(&mut self, cursor: Option<Cursor>) {
        if let Some(view) = &mut self.view {
            view.open = cursor;
        }
    }

    /// Sends one batch of rows up to `upto`; room is made first, or the tail is left.
    fn deliver(&mut self, upto: Seq) -> Result<(), Gone> {
        let budget = self.shared.config.budget;
        let Some(view) = &mut self.view else { return Ok(()) };
        let (tab, newest) = (view.tab, view.window.newest());
        // Below a page, the rows themselves cost less than a new window and its filling.
        let far = self.limits.rows.max(budget.page_rows) as Seq;
        if view.window.following() && upto.saturating_sub(newest) > far {
            return self.replace("", tab, show::Place::Tail);
        }
        let rows = self.shared.store.rows(tab, newest, upto, budget.row_buffer_bytes).map_err(store_gone)?;
        if rows.is_empty() {
            // Erased meanwhile.
            self.show_none();
            return Ok(());
        }
        let mut out = String::new();
        for row in rows {
            let Some(view) = &mut self.view else { return Ok(()) };
            let bytes = row.data.len();
            if view.window.following() {
                let evict = view.window.make_room(End::Newer, 1, bytes);
                if evict.is_some() {
                    view.fill = None;
                }
                self.evict("", evict)?;
            } else if view.window.full(bytes.max(budget.chunk_bytes)) {
                return self.leave_tail();
            }
            out.clear();
            let _ = write!(out, r#"{{"type":"chunk","tab":"{tab}","chunk":"#);
            row.write_json(&mut out);
            let _ = write!(out, r#","total":{}}}"#, upto.max(row.seq));
            self.wire.send(&out)?;
            if let Some(view) = &mut self.view {
                view.window.push_newer(row.seq, bytes as u32);
                view.told = upto.max(row.seq);
                view.open = view.open.filter(|open| open.seq > row.seq);
            }
        }
        self.leave_tail_if_full()
    }

    /// A reader's window that is full gives the open chunk up, and is told only how much there is.
    fn leave_tail_if_full(&mut self) -> Result<(), Gone> {
        let row_max = self.shared.config.budget.chunk_bytes;
        let full =
            |view: &View| !view.window.following() && !view.window.detached() && view.window.full(row_max);
        if self.view.as_ref().is_some_and(full) { self.leave_tail() } else { Ok(()) }
    }

    fn leave_tail(&mut self) -> Result<(), Gone> {
        let Some(view) = &mut self.view else { return Ok(()) };
        view.window.set_detached(true);
        self.dirty = true;
        if view.open.is_none() {
            return Ok(());
        }
        let newest = view.window.newest();
        self.evict("", Some(Evict::After(newest)))
    }

    /// Tells what has to be dropped, with the `req` of the answer that it precedes.
    fn evict(&mut self, req: &str, evict: Option<Evict>) -> Result<(), Gone> {
        let (Some(evict), Some(view)) = (evict, &mut self.view) else { return Ok(()) };
        let (which, seq) = match evict {
            Evict::Before(seq) => ("before", seq),
            Evict::After(seq) => {
                view.open = None;
                ("after", seq)
            }
        };
        self.wire.send(&format!(r#"{{"type":"evict",{req}"tab":"{}","{which}":{seq}}}"#, view.tab))
    }

    fn tail(&mut self, newest: Seq) -> Result<bool, Gone> {
        let Some(view) = &mut self.view else { return Ok(false) };
        if view.tail_at.is_some_and(|at| at.elapsed() < TAIL_REST) {
            // Still dirty: the serving loop comes back when it is due.
            return Ok(false);
        }
        view.tail_at = Some(Instant::now());
        view.told = newest;
        self.dirty = false;
        let tab = view.tab;
        self.wire.send(&format!(r#"{{"type":"tail","tab":"{tab}","newest":{newest},"total":{newest}}}"#))?;
        Ok(false)
    }

    fn tail_due(&self) -> Option<Instant> {
        let at = self.view.as_ref().and_then(|view| view.tail_at);
        at.filter(|_| self.dirty).map(|at| at + TAIL_REST)
    }
}

impl View {
    /// What the client lacks of a tab as it is now.
    fn lacks(&self, live: &Live, row_max: usize) -> Lack {
        if self.window.detached() {
            return if live.newest == self.told { Lack::Nothing } else { Lack::Tail(live.newest) };
        }
        if live.newest > self.window.newest() {
            return Lack::Rows(live.newest);
        }
        let shown = self.window.following() || !self.window.full(row_max);
        match (&live.open, self.open) {
            (Some(open), Some(cursor))
                if shown && open.seq == cursor.seq && open.version == cursor.version =>
            {
                match open.text().get(cursor.sent..) {
                    Some("") => Lack::Nothing,
                    Some(text) => {
                        Lack::Delta(Cursor { sent: cursor.sent + text.len(), ..cursor }, text.to_owned())
                    }
                    // Shorter than what was sent: replaced without a new version.
                    None => Lack::Chunk(Box::new(open.clone())),
                }
            }
            (Some(open), _) if shown && open.seq == self.window.newest() + 1 => {
                Lack::Chunk(Box::new(open.clone()))
            }
            (_, Some(_)) => Lack::NoChunk,
            _ => Lack::Nothing,
        }
    }
}

fn tabs_gone(e: &Refusal) -> Gone {
    log::warn!("a WebSocket ends because the tabs cannot be read: {e}");
    Gone::Close(1013, "store")
}

fn store_gone(e: StoreError) -> Gone {
    log::warn!("a WebSocket ends because the store cannot be read: {e}");
    Gone::Close(1013, "store")
}

#[cfg(test)]
mod tests;
