//! The wire: from a frozen prefix and a tab's rows to the bytes of a request, as a pure function, streamed.
//!
//! A first pass over the rows ([`plan`]) counts the body's bytes and content blocks and finds the cache
//! marks' places; a second ([`Body`]) gives the bytes row by row. Both are the same generator ([`history`]),
//! so they cannot disagree. What it never emits, whatever the log says: a call without a result or a result
//! without a call, an empty text, a thinking block without signature or of an earlier generation, anything
//! of a refused step. Two batches of rows and the row at hand are held (about 100 KiB at most), whatever the
//! length.
//!
//! Within a generation each request's blocks begin with those of the request before it, byte for byte. The
//! first pass checks that against the hashes that the requests left on their steps ([`Plan::changed`]).

pub mod anthropic;
pub mod history;
pub mod openai;
pub mod out;

use crate::budget::Budget;
use crate::chunk::*;
use crate::store::{CallState, Generation, Prefix, Step, Store, StoreError, Stored};
use history::History;
use out::Out;
use std::io::{self, Read};

/// What the wire asks of the log.
pub trait Rows {
    /// Rows after `after` up to and with `upto`, as many as fit `bytes_max`, at least one if any.
    fn rows(&self, tab: TabNo, after: Seq, upto: Seq, bytes_max: usize) -> Stored<Vec<Row>>;
    /// What became of a request.
    fn step(&self, turn: TurnNo, step: u32) -> Stored<Option<Step>>;
    /// How a call is replayed.
    fn call_state(&self, tab: TabNo, call_id: &str) -> Stored<Option<CallState>>;
}

impl Rows for Store {
    fn rows(&self, tab: TabNo, after: Seq, upto: Seq, bytes_max: usize) -> Stored<Vec<Row>> {
        Store::rows(self, tab, after, upto, bytes_max)
    }

    fn step(&self, turn: TurnNo, step: u32) -> Stored<Option<Step>> {
        Store::step(self, turn, step)
    }

    fn call_state(&self, tab: TabNo, call_id: &str) -> Stored<Option<CallState>> {
        Store::call_state(self, tab, call_id)
    }
}

/// Which part of a log is sent.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// the tab
    pub tab: TabNo,
    /// the last row
    pub upto: Seq,
    /// where the rows begin that are sent as they are
    pub generation: Generation,
    /// one more text in the user's role after them
    pub closing: Option<&'a str>,
}

/// Which form a request takes, and all it depends on besides the rows.
#[derive(Clone, Debug)]
pub struct Spec<'a> {
    /// which rows
    pub part: Part<'a>,
    /// the frozen prefix
    pub prefix: &'a Prefix,
    /// `provider/model`, as steps name it
    pub model_id: String,
    /// the model as the provider names it
    pub model: &'a str,
    /// how hard to think
    pub effort: Option<&'a str>,
    /// most tokens of the answer; 0: not told
    pub max_tokens: u64,
    /// the API's own part
    pub form: Form,
}

/// What is particular to an API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// the Messages API
    Anthropic(anthropic::Fields),
    /// chat completions
    OpenAi(openai::Fields),
}

/// What the first pass found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// bytes of the body
    pub bytes: u64,
    /// content blocks in the messages
    pub blocks: u32,
    /// hash of system prompt, tools and blocks, cache marks aside, in hex
    pub hash: String,
    /// bytes of the messages
    messages: u64,
    /// user messages that may bear a cache mark
    users: u32,
    /// blocks up to the end of the user message before the last one, where the second cache mark stands
    pub tail_before: u32,
    /// where the blocks stopped being those that an earlier request of this generation sent
    pub changed: Option<Changed>,
    /// the request answers calls of a message that does not start with thinking
    bare_calls: bool,
}

/// Blocks that are no longer what they were; nothing but an edited log or another version of this program
/// does that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changed {
    /// counted from 1: the first block that may be another
    pub block: u32,
    /// the row that it may come from
    pub row: Seq,
}

/// Makes the first pass.
pub fn plan<R: Rows>(rows: &R, spec: &Spec<'_>, budget: &Budget) -> Stored<Plan> {
    let mut out = Out::counting();
    prefix_bytes(spec, &mut out);
    let mut history = History::new(rows, spec, budget, 0);
    while history.next(&mut out)? {}
    let users = history.users();
    let marks = u64::from(users.min(2)) * anthropic::MARK.len() as u64;
    let mut plan = Plan {
        bytes: 0,
        blocks: out.blocks(),
        hash: out.hash(),
        messages: out.total() + marks,
        users,
        tail_before: history.tail_before(),
        changed: history.changed(),
        bare_calls: history.bare_calls(),
    };
    plan.bytes = plan.length(spec);
    Ok(plan)
}

/// The hash covers what a cache hit depends on, in the order in which providers read it.
fn prefix_bytes(spec: &Spec<'_>, out: &mut Out) {
    out.hash_only(spec.prefix.tools.as_bytes());
    out.hash_only(spec.prefix.system.as_bytes());
}

const TAIL: &str = "]}";

impl Plan {
    fn head(&self, spec: &Spec<'_>) -> String {
        match spec.form {
            Form::Anthropic(fields) => anthropic::head(spec, &fields, self.bare_calls),
            Form::OpenAi(fields) => openai::head(spec, &fields),
        }
    }

    /// What a cache depends on besides the bytes: how the model is to think.
    pub fn shape(&self, spec: &Spec<'_>) -> String {
        match spec.form {
            Form::Anthropic(fields) => anthropic::shape(spec, &fields, self.bare_calls),
            Form::OpenAi(fields) => openai::shape(spec, &fields),
        }
    }

    /// The body's length with these fields, which may be others than those of the plan.
    pub fn length(&self, spec: &Spec<'_>) -> u64 {
        self.head(spec).len() as u64 + self.messages + TAIL.len() as u64
    }
}

enum Stage {
    Head,
    Messages,
    End,
}

/// The second pass: the body's bytes as a reader that gives exactly the plan's length, or an error.
pub struct Body<'a, R: Rows> {
    spec: &'a Spec<'a>,
    plan: &'a Plan,
    history: History<'a, R>,
    out: Out,
    at: usize,
    stage: Stage,
    left: u64,
    fault: Option<StoreError>,
}

impl<'a, R: Rows> Body<'a, R> {
    /// A body for a plan of the same rows and spec.
    pub fn new(rows: &'a R, spec: &'a Spec<'a>, budget: &Budget, plan: &'a Plan) -> Body<'a, R> {
        Body {
            spec,
            plan,
            history: History::new(rows, spec, budget, plan.users),
            out: Out::keeping(),
            at: 0,
            stage: Stage::Head,
            left: plan.length(spec),
            fault: None,
        }
    }

    /// Bytes that are still to come.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// The store's error that ended the reading, if one did.
    pub fn fault(&mut self) -> Option<StoreError> {
        self.fault.take()
    }

    /// Puts the next piece into `out`; `false` after the last.
    fn fill(&mut self) -> Stored<bool> {
        self.out.clear();
        self.at = 0;
        match self.stage {
            Stage::Head => {
                self.out.raw(&self.plan.head(self.spec));
                self.stage = Stage::Messages;
            }
            Stage::Messages => {
                if !self.history.next(&mut self.out)? {
                    self.out.raw(TAIL);
                    self.stage = Stage::End;
                }
            }
            Stage::End => return Ok(false),
        }
        Ok(true)
    }
}

impl<R: Rows> Read for Body<'_, R> {
    /// Fills `into`, though a row may be small: each read becomes a write to the socket.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < into.len() {
            if self.at == self.out.bytes().len() {
                match self.fill() {
                    Ok(true) => continue,
                    Ok(false) => break,
                    // What this call has copied is lost, as the whole request is.
                    Err(error) => {
                        self.fault = Some(error);
                        return Err(io::Error::other("the request's body cannot be read from the store"));
                    }
                }
            }
            let ready = self.out.bytes().split_at(self.at).1;
            let room = into.split_at_mut(done).1;
            let amount = ready.len().min(room.len());
            room.split_at_mut(amount).0.copy_from_slice(ready.split_at(amount).0);
            self.at += amount;
            done += amount;
        }
        let Some(left) = self.left.checked_sub(done as u64) else {
            return Err(io::Error::other("the request's body is too long"));
        };
        self.left = left;
        // ureq would ask for ever for what is missing.
        if done == 0 && !into.is_empty() && left > 0 {
            return Err(io::Error::other("the request's body is too short"));
        }
        Ok(done)
    }
}

#[cfg(test)]
pub(crate) mod tests;
