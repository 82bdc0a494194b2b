//! The generator: rows of the log to messages, one row at a time, in an order that every provider accepts.
//!
//! Before the rows of an assistant's step are given out they are surveyed together with the results after
//! them: which texts are not blank, which thinking is signed, which calls are answered. So everything can be
//! decided at a block's first part, though signatures and results come later. A survey reads rows that lie in
//! the batch at hand nearly always.

use super::{Changed, Form, Part, Rows, Spec, anthropic, openai};
use crate::agent::wire::out::Out;
use crate::budget::Budget;
use crate::chunk::*;
use crate::store::{CallState, Generation, Step, StoreError, Stored, Summary};
use serde::de::DeserializeOwned;

/// Bytes of rows that are read at once.
const BATCH_BYTES: usize = 32 * 1024;

/// A part of the messages, for an API's writer. `new` begins a block; without it the last one goes on.
pub enum Item<'a> {
    /// the owner's text
    User {
        /// begins a message of the owner
        new: bool,
        /// the local time that is given with it
        time: Option<&'a str>,
        /// its text
        text: &'a str,
    },
    /// the model's text
    Text {
        /// begins a block
        new: bool,
        /// its text
        text: &'a str,
    },
    /// the model's thinking
    Thinking {
        /// begins a block
        new: bool,
        /// its text
        text: &'a str,
        /// on the last part
        signature: Option<&'a str>,
    },
    /// hidden thinking
    Redacted {
        /// as the provider gave it
        data: &'a str,
    },
    /// a call
    Call {
        /// begins a call
        new: bool,
        /// its id
        id: &'a str,
        /// its tool
        name: &'a str,
        /// some of its arguments' JSON text
        arguments: &'a str,
    },
    /// a call's result
    Result {
        /// begins a result
        new: bool,
        /// the call's id
        id: &'a str,
        /// some of its text
        text: &'a str,
        /// on the last part: whether it is an error
        end: Option<bool>,
    },
}

/// Which of a step's rows are given out together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// all, in their order
    All,
    /// texts
    Texts,
    /// thinking, whatever its signature, if there are calls
    Reasoning,
    /// calls
    Calls,
}

/// An API's way to write messages.
pub enum Writer {
    /// the Messages API
    Anthropic(anthropic::Writer),
    /// chat completions
    OpenAi(openai::Writer),
}

impl Writer {
    fn item(&mut self, item: &Item<'_>, out: &mut Out) {
        match self {
            Writer::Anthropic(writer) => writer.item(item, out),
            Writer::OpenAi(writer) => writer.item(item, out),
        }
    }

    fn end(&mut self, out: &mut Out) {
        match self {
            Writer::Anthropic(writer) => writer.end(out),
            Writer::OpenAi(writer) => writer.end(out),
        }
    }

    fn passes(&self) -> &'static [Pass] {
        match self {
            Writer::Anthropic(_) => &[Pass::All],
            Writer::OpenAi(writer) => writer.passes(),
        }
    }
}

/// Rows by their seq, through two batches: where the reading goes on, and where a survey runs ahead.
struct Pages<'a, R> {
    rows: &'a R,
    tab: TabNo,
    upto: Seq,
    here: Vec<Row>,
    ahead: Vec<Row>,
}

fn place(batch: &[Row], seq: Seq) -> Option<usize> {
    let first = batch.first()?.seq;
    let at = usize::try_from(seq.checked_sub(first)?).ok()?;
    (at < batch.len()).then_some(at)
}

impl<R: Rows> Pages<'_, R> {
    fn row(&mut self, seq: Seq, surveying: bool) -> Stored<&Row> {
        if let Some(at) = place(&self.here, seq) {
            return Ok(&self.here[at]);
        }
        if place(&self.ahead, seq).is_none() {
            self.ahead.clear();
            self.ahead = self.rows.rows(self.tab, seq - 1, self.upto, BATCH_BYTES)?;
        }
        let Some(at) = place(&self.ahead, seq) else {
            return Err(StoreError::Broken(format!("row {seq} of tab {} is missing", self.tab)));
        };
        if surveying {
            return Ok(&self.ahead[at]);
        }
        // The reading has reached what was read ahead.
        std::mem::swap(&mut self.here, &mut self.ahead);
        self.ahead.clear();
        Ok(&self.here[at])
    }
}

/// A call that goes on the wire.
struct Call {
    id: String,
    /// replayed as `{}`
    bad: bool,
    /// its result has nothing but space
    blank: bool,
    /// it was given out, at least in part
    begun: bool,
    /// its result is whole
    ended: bool,
}

/// The rows of one step's answer.
struct Group {
    first: Seq,
    /// the first row after it
    end: Seq,
    at: Seq,
    pass: usize,
    /// blocks of text that are not blank
    texts: Vec<u32>,
    /// blocks of thinking that may be replayed
    signed: Vec<u32>,
}

#[derive(PartialEq, Eq)]
enum Key {
    User(String),
    Text(Seq, u32),
    Thinking(Seq, u32),
    Call(String),
    Result(String),
}

/// Messages out of rows; see the module's text.
pub struct History<'a, R> {
    pages: Pages<'a, R>,
    model_id: &'a str,
    writer: Writer,
    pos: Seq,
    group: Option<Group>,
    /// of the last group
    calls: Vec<Call>,
    /// what the last item was a part of
    key: Option<Key>,
    any_user: bool,
    /// the last answer that was given out begins with thinking
    led: bool,
    /// it has calls and does not
    bare: bool,
    generation: Generation,
    closing: Option<&'a str>,
    /// the row at which, and the blocks up to which, the bytes were found to be those of an earlier request
    checked: (Seq, u32),
    /// the row whose request's hash is expected, and after how many blocks
    expecting: Option<(Seq, u32)>,
    changed: Option<Changed>,
    calls_max: usize,
    stage: Stage,
}

#[derive(PartialEq, Eq)]
enum Stage {
    Summary,
    Rows,
    Closing,
    End,
    Ended,
}

/// Stands before a summary. It is part of what conversations have been sent, so it never changes.
const SUMMARY: &str = "The conversation before this was replaced by this summary of it:\n\n";

impl<'a, R: Rows> History<'a, R> {
    /// From the generation's first row on. The last two of `users` user messages bear cache marks; none if
    /// it is 0.
    pub fn new(rows: &'a R, spec: &'a Spec<'a>, budget: &Budget, users: u32) -> History<'a, R> {
        let writer = match spec.form {
            Form::Anthropic(_) => Writer::Anthropic(anthropic::Writer::new(users)),
            Form::OpenAi(fields) => {
                Writer::OpenAi(openai::Writer::new(fields.replay_reasoning, !spec.prefix.system.is_empty()))
            }
        };
        let Part { tab, upto, generation, closing } = spec.part;
        let pages = Pages { rows, tab, upto, here: Vec::new(), ahead: Vec::new() };
        let first = generation.summary.map_or(0, |summary| summary.upto) + 1;
        History {
            pages,
            model_id: &spec.model_id,
            writer,
            pos: first,
            group: None,
            calls: Vec::new(),
            key: None,
            any_user: false,
            led: false,
            bare: false,
            generation,
            closing,
            checked: (first, 0),
            expecting: None,
            changed: None,
            calls_max: budget.calls,
            stage: Stage::Summary,
        }
    }

    /// User messages so far that may bear a mark.
    pub fn users(&self) -> u32 {
        match &self.writer {
            Writer::Anthropic(writer) => writer.users(),
            Writer::OpenAi(_) => 0,
        }
    }

    /// Blocks up to the end of the user message before the last one.
    pub fn tail_before(&self) -> u32 {
        match &self.writer {
            Writer::Anthropic(writer) => writer.tail_before(),
            Writer::OpenAi(_) => 0,
        }
    }

    /// Where the blocks stopped being those of an earlier request.
    pub fn changed(&self) -> Option<Changed> {
        self.changed
    }

    /// Whether the last answer has calls and does not start with thinking.
    pub fn bare_calls(&self) -> bool {
        self.bare
    }

    /// Gives out the next row's bytes, if it has any; `false` after the last.
    pub fn next(&mut self, out: &mut Out) -> Stored<bool> {
        match self.stage {
            Stage::Summary => {
                self.stage = Stage::Rows;
                self.summary(out)?;
            }
            Stage::Rows if self.group.is_some() => self.group_row(out)?,
            Stage::Rows if self.pos > self.pages.upto => self.stage = Stage::Closing,
            Stage::Rows => self.row(out)?,
            Stage::Closing => {
                self.stage = Stage::End;
                if let Some(text) = self.closing {
                    self.own_text(text, out);
                }
            }
            Stage::End => {
                self.stage = Stage::Ended;
                self.writer.end(out);
                self.settle(out);
            }
            Stage::Ended => return Ok(false),
        }
        Ok(true)
    }

    fn summary(&mut self, out: &mut Out) -> Stored<()> {
        let Some(Summary { seq, .. }) = self.generation.summary else { return Ok(()) };
        let rows = self.pages.rows.rows(self.pages.tab, seq - 1, seq, BATCH_BYTES)?;
        let summary: Option<SystemData> = rows.first().and_then(read);
        let Some(summary) = summary else {
            return Err(StoreError::Broken(format!("the summary in row {seq} cannot be read")));
        };
        self.own_text(&format!("{SUMMARY}{}", summary.text), out);
        Ok(())
    }

    /// A text of Siskin's own, in the owner's role.
    fn own_text(&mut self, text: &str, out: &mut Out) {
        self.calls.clear();
        self.any_user = true;
        self.key = None;
        self.writer.item(&Item::User { new: true, time: None, text }, out);
    }

    fn row(&mut self, out: &mut Out) -> Stored<()> {
        let row = self.pages.row(self.pos, false)?;
        match (row.role, row.kind) {
            (Role::User, Kind::Text) => {
                let user: Option<UserText> = read(row);
                self.user(user, out);
            }
            (Role::Assistant, Kind::Text | Kind::Thinking | Kind::ToolCall) => return self.survey(out),
            (Role::Tool, Kind::ToolResult) => {
                let result: Option<ToolResult> = read(row);
                self.result(result, out);
            }
            _ => {}
        }
        self.pos += 1;
        Ok(())
    }

    /// Looks whether the last expectation came true.
    fn settle(&mut self, out: &mut Out) {
        let Some(expected) = self.expecting.take() else { return };
        match self.changed {
            None if out.met() => self.checked = expected,
            None => {
                let (row, blocks) = self.checked;
                self.changed = Some(Changed { block: blocks + 1, row });
            }
            Some(_) => {}
        }
    }

    /// An answer begins at `first`: what is sent before it has to be what its request sent.
    fn check(&mut self, first: Seq, told: &Step, out: &mut Out) {
        if !out.counts() || told.prefix_hash.is_empty() || first <= self.generation.since {
            return;
        }
        self.settle(out);
        out.expect(told.prefix_blocks, told.prefix_hash.clone());
        self.expecting = Some((first, told.prefix_blocks));
    }

    fn is_new(&mut self, key: Key, part: u32) -> bool {
        let new = part == 0 || self.key.as_ref() != Some(&key);
        self.key = Some(key);
        new
    }

    fn user(&mut self, user: Option<UserText>, out: &mut Out) {
        let Some(user) = user else { return };
        // Results that come after it would be out of place.
        self.calls.clear();
        let key = Key::User(user.client_id);
        let goes_on = user.part > 0 && self.key.as_ref() == Some(&key);
        // A message of nothing but space is refused when it is sent; this is the second wall.
        if !goes_on && user.time.is_none() && user.text.trim().is_empty() {
            return;
        }
        let new = self.is_new(key, user.part);
        self.any_user = true;
        self.writer.item(&Item::User { new, time: user.time.as_deref(), text: &user.text }, out);
    }

    fn result(&mut self, result: Option<ToolResult>, out: &mut Out) {
        let Some(result) = result else { return };
        let Some(at) = self.calls.iter().position(|call| call.id == result.call_id && !call.ended) else {
            log::warn!("a result without its call is left out of the request: {}", result.call_id);
            return;
        };
        let new = self.is_new(Key::Result(result.call_id), result.part);
        let call = &mut self.calls[at];
        let text = if call.blank { "" } else { result.result.as_str() };
        call.ended |= result.is_error.is_some();
        self.writer.item(&Item::Result { new, id: &call.id, text, end: result.is_error }, out);
    }

    /// Looks at a step's answer and its results before any of it is given out.
    fn survey(&mut self, out: &mut Out) -> Stored<()> {
        let first = self.pos;
        let (turn, step) = {
            let row = self.pages.row(first, false)?;
            (row.turn, row.step)
        };
        let told = self.pages.rows.step(turn, step)?;
        if let Some(told) = &told {
            self.check(first, told, out);
        }
        let same_model = told.as_ref().is_some_and(|told| told.model == self.model_id);
        let refused = told.is_some_and(|told| told.outcome == StepOutcome::Refused);
        let mut group =
            Group { first, end: first, at: first, pass: 0, texts: Vec::new(), signed: Vec::new() };
        let mut made: Vec<String> = Vec::new();
        let mut answers: Vec<(String, bool)> = Vec::new();
        let mut end = None;
        let mut seq = first;
        while seq <= self.pages.upto {
            let row = self.pages.row(seq, true)?;
            match (row.role, row.kind) {
                (Role::Assistant, Kind::Text | Kind::Thinking | Kind::ToolCall) => {
                    if end.is_some() || (row.turn, row.step) != (turn, step) {
                        break;
                    }
                    note_answer(row, self.generation.since, &mut group, &mut made, self.calls_max);
                }
                (Role::Tool, Kind::ToolResult) => {
                    end.get_or_insert(seq);
                    note_result(row, &mut answers, self.calls_max);
                }
                (Role::User, Kind::Text) => break,
                _ => {}
            }
            seq += 1;
        }
        group.end = end.unwrap_or(seq);
        if !same_model {
            group.signed.clear();
        }
        self.calls.clear();
        if refused || !self.any_user {
            self.pos = group.end;
            return Ok(());
        }
        for id in made {
            let Some((_, filled)) = answers.iter().find(|(answered, _)| *answered == id) else { continue };
            let bad = match self.pages.rows.call_state(self.pages.tab, &id)? {
                Some(CallState::Good) => false,
                Some(CallState::Bad) => true,
                Some(CallState::Cut) | None => continue,
            };
            self.calls.push(Call { id, bad, blank: !filled, begun: false, ended: false });
        }
        self.group = Some(group);
        Ok(())
    }

    /// Gives out the next row of the group, or ends it.
    fn group_row(&mut self, out: &mut Out) -> Stored<()> {
        let passes = self.writer.passes();
        let Some(group) = &mut self.group else { return Ok(()) };
        if group.at >= group.end {
            group.pass += 1;
            group.at = group.first;
            if group.pass >= passes.len() {
                self.pos = group.end;
                self.group = None;
            }
            return Ok(());
        }
        let seq = group.at;
        group.at += 1;
        let pass = passes[group.pass];
        // A group that is larger than a batch is read again for each pass, beside what lies at its start.
        let row = self.pages.row(seq, seq != self.pos)?;
        match (row.role, row.kind) {
            (Role::Assistant, Kind::Text) if matches!(pass, Pass::All | Pass::Texts) => {
                let text: Option<AssistantText> = read(row);
                self.text(text, out);
            }
            (Role::Assistant, Kind::Thinking) if matches!(pass, Pass::All | Pass::Reasoning) => {
                let opaque = row.opaque.clone();
                let thinking: Option<Thinking> = read(row);
                self.thinking(thinking, opaque, pass, out);
            }
            (Role::Assistant, Kind::ToolCall) if matches!(pass, Pass::All | Pass::Calls) => {
                let call: Option<ToolCall> = read(row);
                self.call(call, out);
            }
            _ => {}
        }
        Ok(())
    }

    /// A block of an answer is about to be given out; whether an answer begins with thinking holds until the
    /// next one, whatever texts of the owner come between.
    fn note_block(&mut self, thinking: bool) {
        if self.key.as_ref().is_none_or(|key| matches!(key, Key::User(_) | Key::Result(_))) {
            self.led = thinking;
            self.bare = false;
        }
    }

    fn text(&mut self, text: Option<AssistantText>, out: &mut Out) {
        let (Some(text), Some(group)) = (text, &self.group) else { return };
        if group.texts.contains(&text.block) {
            let key = Key::Text(group.first, text.block);
            self.note_block(false);
            let new = self.is_new(key, text.part);
            self.writer.item(&Item::Text { new, text: &text.text }, out);
        }
    }

    fn thinking(&mut self, thinking: Option<Thinking>, opaque: Option<Vec<u8>>, pass: Pass, out: &mut Out) {
        let (Some(thinking), Some(group)) = (thinking, &self.group) else { return };
        if pass == Pass::Reasoning {
            if !self.calls.is_empty() && !thinking.text.is_empty() {
                let key = Key::Thinking(group.first, thinking.block);
                let new = self.is_new(key, thinking.part);
                self.writer.item(&Item::Thinking { new, text: &thinking.text, signature: None }, out);
            }
            return;
        }
        if !group.signed.contains(&thinking.block) {
            return;
        }
        let key = Key::Thinking(group.first, thinking.block);
        self.note_block(true);
        let new = self.is_new(key, thinking.part);
        // Signatures are ASCII; what is not could not have come out of a JSON string.
        let opaque = opaque.map(|opaque| String::from_utf8_lossy(&opaque).into_owned());
        let item = match (&opaque, thinking.redacted) {
            (Some(data), true) => Item::Redacted { data },
            (signature, _) => Item::Thinking { new, text: &thinking.text, signature: signature.as_deref() },
        };
        self.writer.item(&item, out);
    }

    fn call(&mut self, call: Option<ToolCall>, out: &mut Out) {
        let Some(call) = call else { return };
        let Some(sent) = self.calls.iter_mut().find(|sent| sent.id == call.call_id) else { return };
        // Ids are unique in the store; a second call of one id would brick the tab.
        if call.part == 0 && std::mem::replace(&mut sent.begun, true) {
            return;
        }
        let bad = sent.bad;
        self.note_block(false);
        self.bare = !self.led;
        let arguments = match (bad, call.part) {
            (false, _) => call.arguments.as_str(),
            (true, 0) => "{}",
            (true, _) => "",
        };
        let key = Key::Call(call.call_id.clone());
        let new = part_of(&mut self.key, key, call.part);
        self.writer.item(&Item::Call { new, id: &call.call_id, name: &call.name, arguments }, out);
    }
}

fn part_of(last: &mut Option<Key>, key: Key, part: u32) -> bool {
    let new = part == 0 || last.as_ref() != Some(&key);
    *last = Some(key);
    new
}

fn read<T: DeserializeOwned>(row: &Row) -> Option<T> {
    match serde_json::from_str(&row.data) {
        Ok(data) => Some(data),
        Err(error) => {
            log::warn!("row {} cannot be read and is left out of the request: {error}", row.seq);
            None
        }
    }
}

/// What a survey wants to know of a row, whose text it need not copy.
fn note_answer(row: &Row, since: Seq, group: &mut Group, made: &mut Vec<String>, calls_max: usize) {
    let add = |list: &mut Vec<u32>, block: u32| {
        if !list.contains(&block) {
            list.push(block);
        }
    };
    match row.kind {
        Kind::Text => {
            if let Some(text) = read::<AssistantText>(row).filter(|text| !text.text.trim().is_empty()) {
                add(&mut group.texts, text.block);
            }
        }
        Kind::Thinking => {
            let signed = row.opaque.as_ref().is_some_and(|opaque| !opaque.is_empty()) && row.seq > since;
            if let Some(thinking) = read::<Thinking>(row).filter(|_| signed) {
                add(&mut group.signed, thinking.block);
            }
        }
        _ => {
            if let Some(call) = read::<ToolCall>(row)
                && !made.contains(&call.call_id)
                && made.len() < calls_max
            {
                made.push(call.call_id);
            }
        }
    }
}

fn note_result(row: &Row, answers: &mut Vec<(String, bool)>, calls_max: usize) {
    let Some(result) = read::<ToolResult>(row) else { return };
    let filled = !result.result.trim().is_empty();
    let room = answers.len() < calls_max;
    match answers.iter_mut().find(|(id, _)| *id == result.call_id) {
        Some((_, known)) => *known |= filled,
        None if room => answers.push((result.call_id, filled)),
        None => {}
    }
}
