//! From a message to a turn: idempotent sends, the queue of a running tab, and steering.
//!
//! A message is in the store before its sender is told so. One sent while a turn runs is queued; it becomes
//! its own user row at the next tool boundary, or starts the next turn after a clean end. After a stop, an
//! error or a restart it stays until the owner sends again.

use super::fold::Pen;
use super::slots::Job;
use super::split::{Cut, parts};
use super::stop::Stop;
use super::{Agent, Refusal, frames};
use crate::chunk::*;
use crate::store::{BeginTurn, Known, Queued, Sent, StoreError, Tab, TabChange, now};
use std::sync::Arc;

/// A tab's title, when its first message gives it one.
const TITLE_BYTES: usize = 80;

/// A message that becomes user rows.
struct Message<'a> {
    client_id: &'a str,
    text: &'a str,
    steered: bool,
}

impl Agent {
    /// Takes a message; it is in the store when this returns. The same `client_id` and text again give the
    /// same answer.
    pub fn send(&self, tab: TabNo, client_id: &str, text: &str) -> Result<Sent, Refusal> {
        self.check(client_id, text)?;
        let _deciding = self.decide();
        let stored = self.known_tab(tab)?;
        match self.store.known(tab, client_id, text)? {
            Known::Same(sent) => return Ok(sent),
            Known::Other => {
                return Err(Refusal::Conflict("this clientId was used for another text".to_owned()));
            }
            Known::New => {}
        }
        self.check_open(&stored)?;
        if self.look(tab, |live| live.turn.is_some()) == Some(true) {
            return self.enqueue(tab, client_id, text);
        }
        let sent = self.begin(tab, Some(Message { client_id, text, steered: false }))?;
        if stored.title.is_empty() {
            self.name_tab(tab, text);
        }
        Ok(sent)
    }

    /// Takes a queued message back.
    pub fn cancel_queued(&self, tab: TabNo, message: MessageNo) -> Result<(), Refusal> {
        self.known_tab(tab)?;
        let _deciding = self.decide();
        let gone = self.store.unqueue(tab, message)?;
        let gone = gone.ok_or_else(|| Refusal::NotFound(format!("there is no queued message {message}")))?;
        self.lives.post(tab, true, frames::cancelled(tab, &gone), |_| {});
        Ok(())
    }

    /// Starts a turn with what was left in the queue; nothing happens while one runs, or when the queue is
    /// empty.
    pub fn send_queue(&self, tab: TabNo) -> Result<(), Refusal> {
        self.known_tab(tab)?;
        let _deciding = self.decide();
        if self.look(tab, |live| live.turn.is_some()) == Some(false) {
            self.start_queued(tab)?;
        }
        Ok(())
    }

    fn check(&self, client_id: &str, text: &str) -> Result<(), Refusal> {
        let safe = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
        if !(1..=64).contains(&client_id.len()) || !client_id.bytes().all(safe) {
            return Err(Refusal::Bad("clientId must be 1 to 64 of A-Z a-z 0-9 _ -".to_owned()));
        }
        if text.trim().is_empty() {
            return Err(Refusal::Bad("text is blank".to_owned()));
        }
        let limit = self.config.budget.message_bytes;
        if text.len() > limit {
            return Err(Refusal::TooLarge(format!("text must be at most {limit} bytes (message_bytes)")));
        }
        Ok(())
    }

    /// Refuses to begin or queue anything in an archived tab, or while the server stops. Asked under the
    /// deciding lock, so that neither can come between the answer and what follows.
    pub(super) fn check_open(&self, tab: &Tab) -> Result<(), Refusal> {
        if tab.archived {
            return Err(Refusal::Conflict("the tab is archived; bring it back first".to_owned()));
        }
        if self.closing() {
            return Err(Refusal::Conflict("the server is stopping".to_owned()));
        }
        Ok(())
    }

    fn enqueue(&self, tab: TabNo, client_id: &str, text: &str) -> Result<Sent, Refusal> {
        let no = self.store.enqueue(tab, client_id, text)?;
        let head = shorten(text, 1024).to_owned();
        let message = Queued { no, client_id: client_id.to_owned(), head, bytes: text.len() as u64 };
        self.lives.post(tab, true, frames::queued(tab, &message), |_| {});
        Ok(Sent::Queued(no))
    }

    /// Begins a turn with all that is queued; tells whether there was anything. Called under the deciding
    /// lock.
    pub(super) fn start_queued(&self, tab: TabNo) -> Result<bool, Refusal> {
        if self.store.queue(tab)?.is_empty() {
            return Ok(false);
        }
        self.check_open(&self.known_tab(tab)?)?;
        self.begin(tab, None).map(|_| true)
    }

    /// Begins a turn with all that is queued and then `message`: rows first, then everyone is told, then it
    /// gets a slot.
    fn begin(&self, tab: TabNo, message: Option<Message<'_>>) -> Result<Sent, Refusal> {
        let queue = self.store.queue(tab)?;
        let mut seq = self.look(tab, |live| live.newest).unwrap_or(0) + 1;
        let (mut rows, mut consumed) = (Vec::new(), Vec::new());
        for queued in &queue {
            consumed.push((queued, seq));
            let text = self.store.queued_text(tab, queued.no)?.unwrap_or_default();
            let message = Message { client_id: &queued.client_id, text: &text, steered: false };
            rows.extend(self.user_rows(&mut seq, TurnNo(0), 1, &message)?);
        }
        if let Some(message) = &message {
            rows.extend(self.user_rows(&mut seq, TurnNo(0), 1, message)?);
        }
        let begin = BeginTurn {
            tab,
            rows: &mut rows,
            consumed: &queue.iter().map(|queued| queued.no).collect::<Vec<_>>(),
            sent: message.as_ref().map(|message| (message.client_id, message.text)),
            status: self.first_status(),
        };
        self.start_turn(begin, false, || {
            self.lives.change(tab, |live| live.newest = seq - 1);
            for (queued, seq) in consumed {
                self.lives.post(tab, true, frames::consumed(tab, queued, seq), |_| {});
            }
        })
    }

    /// How a turn that began now would stand.
    pub(super) fn first_status(&self) -> TurnStatus {
        if self.slots.busy() { TurnStatus::Waiting } else { TurnStatus::Running }
    }

    /// Begins a turn under the deciding lock: it is stored, then everyone is told of it and, by `tell`, of
    /// its rows, then it gets a slot. `by_hand`: it is a summary and nothing else.
    pub(super) fn start_turn(
        &self,
        begin: BeginTurn<'_>,
        by_hand: bool,
        tell: impl FnOnce(),
    ) -> Result<Sent, Refusal> {
        let stop = Stop::new().map_err(|error| {
            Refusal::Store(StoreError::Broken(format!("no descriptor for another turn: {error}")))
        })?;
        let (tab, waits) = (begin.tab, begin.status == TurnStatus::Waiting);
        let turn = self.store.begin_turn(begin)?;
        let stop = Arc::new(stop);
        // Before anyone hears of the turn, so that a stop that answers the first frame is not lost.
        self.stops().insert(tab, stop.clone());
        self.lives.post(tab, true, frames::turn_start(tab, turn), |live| live.turn = Some(turn));
        self.set_status(tab, if waits { TabStatus::Waiting } else { TabStatus::Running });
        tell();
        self.slots.push(Job { by_hand, ..Job::new(tab, turn, stop, self.config.budget.attempts) });
        Ok(if waits { Sent::Waiting(turn) } else { Sent::Started(turn) })
    }

    /// At a tool boundary: what is queued becomes user rows of the running turn.
    pub(super) fn steer(&self, pen: &Pen) -> Result<(), StoreError> {
        let _deciding = self.decide();
        for queued in self.store.queue(pen.tab)? {
            let Some(text) = self.store.queued_text(pen.tab, queued.no)? else { continue };
            let first = pen.next_seq();
            let message = Message { client_id: &queued.client_id, text: &text, steered: true };
            let rows = self.user_rows(&mut first.clone(), pen.turn, pen.step + 1, &message)?;
            self.store.append_queued(pen.tab, &rows, queued.no)?;
            pen.show(&rows);
            self.lives.post(pen.tab, true, frames::consumed(pen.tab, &queued, first), |_| {});
        }
        Ok(())
    }

    fn user_rows(
        &self,
        seq: &mut Seq,
        turn: TurnNo,
        step: u32,
        message: &Message<'_>,
    ) -> Result<Vec<Row>, StoreError> {
        let time = self.sends_time()?.then(|| self.store.local_time()).transpose()?;
        let base = UserText {
            client_id: message.client_id.to_owned(),
            steered: message.steered,
            ..Default::default()
        };
        let longest = UserText { part: u32::MAX, time: time.clone(), ..base.clone() };
        let room = self.config.budget.chunk_bytes - json(&longest).len();
        let row = |(at, text): (usize, &str)| {
            let time = time.clone().filter(|_| at == 0);
            let data = UserText { text: text.to_owned(), part: at as u32, time, ..base.clone() };
            let row = Row {
                seq: *seq + at as Seq,
                turn,
                step,
                role: Role::User,
                kind: Kind::Text,
                data: json(&data),
                opaque: None,
                created_at: now(),
            };
            debug_assert!(
                row.data.len() <= self.config.budget.chunk_bytes,
                "a user row keeps to chunk_bytes"
            );
            row
        };
        let rows: Vec<Row> =
            parts(message.text, Cut::Lines, |_| room).into_iter().enumerate().map(row).collect();
        *seq += rows.len() as Seq;
        Ok(rows)
    }

    fn sends_time(&self) -> Result<bool, StoreError> {
        Ok(self.setting("sendTime")?.unwrap_or(self.config.send_time))
    }

    /// Names a tab after its first message.
    fn name_tab(&self, tab: TabNo, text: &str) {
        let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
        let short = shorten(line, TITLE_BYTES);
        let title =
            if short.len() < line.len() { format!("{}…", short.trim_end()) } else { short.to_owned() };
        match self.store.change_tab(tab, &TabChange { title: Some(title), ..Default::default() }) {
            Ok(_) => self.tell_tab(tab),
            Err(error) => log::warn!("tab {tab} cannot be named: {error}"),
        }
    }
}
