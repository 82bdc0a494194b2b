//! From deltas to chunks: the one place where a provider's stream becomes rows.
//!
//! A fold takes the deltas of one step. The block that is arriving is the tab's open chunk; when it is full
//! or whole it is committed, and only then shown as sealed. Rows are contiguous, no row's data is longer than
//! `chunk_bytes`, and the parts of a block hold every byte of it. At most one chunk of text and one call's
//! arguments are held.

use super::live::{Lives, Open, OpenData};
use super::provider::{Delta, Fault, Sink};
use super::split::{Cut, Fences, cut_point, parts};
use crate::budget::{Budget, METERS};
use crate::chunk::*;
use crate::store::{CallState, Store, StoreError, now};
use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

/// A call that a step asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// unique in the tab
    pub id: String,
    /// the tool
    pub name: String,
    /// whole JSON text
    pub arguments: String,
    /// the arguments are a JSON object
    pub good: bool,
}

/// Where a fold writes: the end of one tab's log.
#[derive(Clone)]
pub struct Pen {
    /// the log
    pub store: Arc<Store>,
    /// the tabs as clients see them
    pub lives: Arc<Lives>,
    /// the limits
    pub budget: &'static Budget,
    /// the tab
    pub tab: TabNo,
    /// the turn
    pub turn: TurnNo,
    /// the step
    pub step: u32,
}

impl Pen {
    /// The seq that the next row will have.
    pub fn next_seq(&self) -> Seq {
        self.lives.look(self.tab, |live| live.newest).unwrap_or(0) + 1
    }

    /// A row of this step.
    pub fn row(&self, seq: Seq, role: Role, kind: Kind, data: String) -> Row {
        debug_assert!(data.len() <= self.budget.chunk_bytes, "a row's data keeps to chunk_bytes");
        Row { seq, turn: self.turn, step: self.step, role, kind, data, opaque: None, created_at: now() }
    }

    /// Commits rows and shows them.
    pub fn write(&self, rows: &[Row]) -> Result<(), StoreError> {
        self.store.append(self.tab, rows)?;
        self.show(rows);
        Ok(())
    }

    /// Shows rows that are committed.
    pub fn show(&self, rows: &[Row]) {
        let Some(last) = rows.last() else { return };
        self.lives.change(self.tab, |live| {
            live.newest = last.seq;
            live.open = None;
        });
    }

    /// A tool's result as rows, cut into parts.
    pub fn result_rows(&self, call: &Call, result: &str, last: ToolResult) -> Vec<Row> {
        let base = ToolResult { call_id: call.id.clone(), name: call.name.clone(), ..last };
        let room = self.budget.chunk_bytes - json(&ToolResult { part: u32::MAX, ..base.clone() }).len();
        let texts = parts(result, Cut::Lines, |_| room);
        let first = self.next_seq();
        let count = texts.len();
        texts
            .into_iter()
            .enumerate()
            .map(|(at, text)| {
                let mut data = ToolResult { result: text.to_owned(), part: at as u32, ..base.clone() };
                if at + 1 < count {
                    (data.is_error, data.exit_code, data.ms, data.truncated) = (None, None, None, None);
                }
                self.row(first + at as Seq, Role::Tool, Kind::ToolResult, json(&data))
            })
            .collect()
    }
}

/// The block that is arriving.
struct Block {
    kind: Kind,
    no: u32,
    part: u32,
    since: Instant,
    /// escaped bytes that its open chunk may hold
    room: usize,
    /// escaped bytes that its open chunk holds
    used: usize,
    /// whether the open chunk is shown; text and thinking wait for their first byte
    shown: bool,
    fences: Fences,
    signature: Option<String>,
    /// the whole call, when it is one
    call: Option<Call>,
}

/// Folds one step's deltas.
pub struct Fold {
    pen: Pen,
    block: Option<Block>,
    blocks: u32,
    calls: Vec<Call>,
    argument_bytes: usize,
    wrote: bool,
    last_was_call: bool,
}

/// What a step's deltas came to.
#[derive(Debug, Default)]
pub struct Folded {
    /// whole calls, in order
    pub calls: Vec<Call>,
    /// anything was shown
    pub shown: bool,
    /// the last block was a call
    pub last_was_call: bool,
}

impl Fold {
    /// Before the first delta.
    pub fn new(pen: Pen) -> Fold {
        Fold {
            pen,
            block: None,
            blocks: 0,
            calls: Vec::new(),
            argument_bytes: 0,
            wrote: false,
            last_was_call: false,
        }
    }

    /// Whether anything was shown: after that a request is not sent again.
    pub fn shown(&self) -> bool {
        self.wrote || self.block.as_ref().is_some_and(|block| block.shown)
    }

    /// The stream is whole: seals what is open.
    pub fn finish(mut self) -> Result<Folded, StoreError> {
        self.end_block(false)?;
        Ok(self.folded())
    }

    /// The stream broke off or was stopped: seals what is open and marks a call that was arriving as cut.
    pub fn cut(mut self) -> Result<Folded, StoreError> {
        self.end_block(true)?;
        Ok(self.folded())
    }

    fn folded(self) -> Folded {
        Folded { calls: self.calls, shown: self.wrote, last_was_call: self.last_was_call }
    }

    fn begin(&mut self, kind: Kind, call: Option<Call>) -> &mut Block {
        let no = self.blocks;
        self.blocks += 1;
        self.block.insert(Block {
            kind,
            no,
            part: 0,
            since: Instant::now(),
            room: 0,
            used: 0,
            shown: false,
            fences: Fences::default(),
            signature: None,
            call,
        })
    }

    fn append(&mut self, kind: Kind, text: &str) -> Result<(), StoreError> {
        if text.is_empty() {
            return Ok(());
        }
        if self.block.as_ref().is_none_or(|block| block.kind != kind) {
            self.end_block(false)?;
            self.begin(kind, None);
        }
        let mut rest = text;
        loop {
            self.ensure_open();
            let Some(block) = &mut self.block else { return Ok(()) };
            let fit = escaped_fit(rest, block.room - block.used);
            let (now, later) = rest.split_at(fit);
            block.used += escaped_len(now);
            self.pen.lives.change(self.pen.tab, |live| {
                if let Some(open) = &mut live.open {
                    open.text_mut().push_str(now);
                }
            });
            if later.is_empty() {
                return Ok(());
            }
            self.seal_full()?;
            rest = later;
        }
    }

    /// Shows the block's chunk if it is not shown yet.
    fn ensure_open(&mut self) {
        let Some(block) = &mut self.block else { return };
        if !block.shown {
            block.shown = true;
            open_part(&self.pen, block, String::new());
        }
    }

    /// Seals the open chunk, which is full, and goes on in the next part.
    fn seal_full(&mut self) -> Result<(), StoreError> {
        let Some(block) = &mut self.block else { return Ok(()) };
        let Some(mut open) = self.pen.lives.look(self.pen.tab, |live| live.open.clone()).flatten() else {
            return Ok(());
        };
        let cut = match block.kind {
            Kind::Text => Cut::Markdown,
            Kind::Thinking => Cut::Lines,
            _ => Cut::Anywhere,
        };
        let at = cut_point(open.text(), cut, &block.fences);
        let tail = open.text_mut().split_off(at);
        if block.kind == Kind::Text {
            block.fences.read(open.text());
        }
        let row = sealed(&open);
        self.pen.store.append(self.pen.tab, std::slice::from_ref(&row))?;
        self.wrote = true;
        block.part += 1;
        open_part(&self.pen, block, tail);
        Ok(())
    }

    /// Seals the last part of the block that is arriving, if there is one.
    fn end_block(&mut self, cut: bool) -> Result<(), StoreError> {
        let Some(mut block) = self.block.take() else { return Ok(()) };
        if !block.shown {
            // A block without text is no chunk, unless the provider wants it back.
            let Some(signature) = block.signature else { return Ok(()) };
            let data = Thinking { block: block.no, ms: Some(millis(block.since)), ..Default::default() };
            return self.write_opaque(data, signature);
        }
        // The block's last delta woke its readers, and on a busy processor they wait behind this thread; so
        // they go first, for the commits and the sync that follow take ten times as long as what they do.
        std::thread::yield_now();
        let open = self.pen.lives.look(self.pen.tab, |live| live.open.clone()).flatten();
        let Some(mut open) = open else { return Ok(()) };
        if let OpenData::Thinking(data) = &mut open.data {
            data.ms = Some(millis(block.since));
        }
        self.wrote = true;
        self.last_was_call = block.call.is_some();
        match block.call.take() {
            Some(call) => self.end_call(open, call, cut),
            None => {
                let mut row = sealed(&open);
                row.opaque = block.signature.map(String::into_bytes);
                self.pen.write(&[row])
            }
        }
    }

    fn end_call(&mut self, mut open: Open, mut call: Call, cut: bool) -> Result<(), StoreError> {
        let state = if cut {
            CallState::Cut
        } else {
            if call.arguments.trim().is_empty() {
                call.arguments = "{}".to_owned();
                *open.text_mut() = "{}".to_owned();
            }
            call.good = is_object(&call.arguments);
            if call.good { CallState::Good } else { CallState::Bad }
        };
        if let OpenData::Call(data) = &mut open.data {
            data.cut = cut;
        }
        let row = sealed(&open);
        self.pen.store.append_call(self.pen.tab, &row, &call.id, state)?;
        self.pen.show(std::slice::from_ref(&row));
        if !cut {
            self.calls.push(call);
        }
        Ok(())
    }

    fn write_opaque(&mut self, data: Thinking, opaque: String) -> Result<(), StoreError> {
        let seq = self.pen.next_seq();
        let mut row = self.pen.row(seq, Role::Assistant, Kind::Thinking, json(&data));
        row.opaque = Some(opaque.into_bytes());
        self.pen.write(&[row])?;
        self.wrote = true;
        self.last_was_call = false;
        Ok(())
    }

    fn begin_call(&mut self, id: &str, name: &str) -> Result<(), Fault> {
        self.end_block(false)?;
        if self.calls.len() >= self.pen.budget.calls {
            return Err(Fault::TooBig(format!(
                "the model asked for more than {} tool calls at once (budget calls)",
                self.pen.budget.calls
            )));
        }
        let call =
            Call { id: self.call_id(id)?, name: tool_name(name), arguments: String::new(), good: false };
        self.begin(Kind::ToolCall, Some(call));
        self.ensure_open();
        Ok(())
    }

    /// The provider's id if it is safe and new in this tab, else one of Siskin's own.
    fn call_id(&self, id: &str) -> Result<String, StoreError> {
        let free = |id: &str| {
            let here = self.calls.iter().any(|call| call.id == id);
            Ok::<bool, StoreError>(!here && self.pen.store.call_state(self.pen.tab, id)?.is_none())
        };
        if is_safe(id) && free(id)? {
            return Ok(id.to_owned());
        }
        // Nine letters and digits, which the strictest chat templates want; the seq makes it unique.
        let mut n = self.pen.next_seq();
        loop {
            let own = format!("c{n:08}");
            if free(&own)? {
                return Ok(own);
            }
            n += 1;
        }
    }

    fn arguments(&mut self, text: &str) -> Result<(), Fault> {
        let limit = self.pen.budget.arguments_bytes;
        let Some(call) = self.block.as_mut().and_then(|block| block.call.as_mut()) else { return Ok(()) };
        self.argument_bytes += text.len();
        METERS.arguments_bytes.set(self.argument_bytes);
        if self.argument_bytes > limit {
            return Err(Fault::TooBig(format!(
                "the arguments of the tool calls are longer than {} KiB (budget arguments_bytes)",
                limit / 1024
            )));
        }
        call.arguments.push_str(text);
        Ok(self.append(Kind::ToolCall, text)?)
    }
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Fault {
        Fault::Store(error)
    }
}

impl Sink for Fold {
    fn delta(&mut self, delta: Delta<'_>) -> Result<(), Fault> {
        match delta {
            Delta::Text(text) => self.append(Kind::Text, text)?,
            Delta::Thinking(text) => self.append(Kind::Thinking, text)?,
            Delta::Signature(signature) => {
                if self.block.as_ref().is_none_or(|block| block.kind != Kind::Thinking) {
                    self.end_block(false)?;
                    self.begin(Kind::Thinking, None);
                }
                if let Some(block) = &mut self.block {
                    block.signature = Some(signature.to_owned());
                }
            }
            Delta::Redacted(data) => {
                self.end_block(false)?;
                let block = self.blocks;
                self.blocks += 1;
                self.write_opaque(Thinking { block, redacted: true, ..Default::default() }, data.to_owned())?;
            }
            Delta::Call { id, name } => self.begin_call(id, name)?,
            Delta::Arguments(text) => self.arguments(text)?,
            Delta::BlockEnd => self.end_block(false)?,
        }
        Ok(())
    }
}

/// Opens the block's next part as the tab's open chunk, with `text` in it, and shows the part before as
/// sealed.
fn open_part(pen: &Pen, block: &mut Block, text: String) {
    let (no, part) = (block.no, block.part);
    let data = match block.kind {
        Kind::Thinking => OpenData::Thinking(Thinking { text, block: no, part, ..Default::default() }),
        Kind::ToolCall => {
            let (call_id, name) =
                block.call.as_ref().map(|c| (c.id.clone(), c.name.clone())).unwrap_or_default();
            OpenData::Call(ToolCall { call_id, name, arguments: text, block: no, part, cut: false })
        }
        _ => OpenData::Text(AssistantText { text, block: no, part, md: block.fences.md() }),
    };
    let (turn, step) = (pen.turn, pen.step);
    let mut open = Open { seq: 0, turn, step, version: 0, created_at: now(), data };
    block.used = escaped_len(open.text());
    // What sealing may add: a thinking's duration, a call's mark.
    const SEAL_ADDS: usize = 32;
    block.room = pen.budget.chunk_bytes - (open.row().data.len() - block.used) - SEAL_ADDS;
    pen.lives.change(pen.tab, |live| {
        if let Some(before) = live.open.take() {
            live.newest = before.seq;
        }
        open.seq = live.newest + 1;
        live.open = Some(open);
    });
}

fn sealed(open: &Open) -> Row {
    Row { created_at: now(), ..open.row() }
}

fn millis(since: Instant) -> u64 {
    since.elapsed().as_millis() as u64
}

/// Whether an id can be sent to every provider.
fn is_safe(id: &str) -> bool {
    (1..=64).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

/// The model's name for a tool, in the characters that every provider takes back.
fn tool_name(name: &str) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() || c == '_' || c == '-' { c } else { '_' };
    let name: String = name.trim().chars().take(64).map(safe).collect();
    if name.is_empty() { "unnamed".to_owned() } else { name }
}

/// Whether `text` is exactly one JSON object that every provider takes back: no NUL, no half of a surrogate
/// pair, no number beyond all bounds, at most 127 levels. Nothing of it is kept.
fn is_object(text: &str) -> bool {
    text.trim_start().starts_with('{') && serde_json::from_str::<Sound>(text).is_ok()
}

/// A value that was read whole. serde's `IgnoredAny` would skip strings unread, and has no limit of depth.
struct Sound;

impl<'de> Deserialize<'de> for Sound {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Sound, D::Error> {
        from.deserialize_any(Sound)
    }
}

impl<'de> Visitor<'de> for Sound {
    type Value = Sound;

    fn expecting(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        text.write_str("JSON without NUL")
    }

    fn visit_unit<E>(self) -> Result<Sound, E> {
        Ok(Sound)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Sound, E> {
        Ok(Sound)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Sound, E> {
        Ok(Sound)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Sound, E> {
        Ok(Sound)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Sound, E> {
        Ok(Sound)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Sound, E> {
        if text.contains('\0') { Err(E::custom("NUL")) } else { Ok(Sound) }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Sound, A::Error> {
        while items.next_element::<Sound>()?.is_some() {}
        Ok(Sound)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Sound, A::Error> {
        while fields.next_entry::<Sound, Sound>()?.is_some() {}
        Ok(Sound)
    }
}

#[cfg(test)]
mod tests;
