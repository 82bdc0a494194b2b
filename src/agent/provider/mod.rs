//! Providers: from a tab's rows to a stream of deltas.
//!
//! One call of [`ask`] is one HTTP request. The request's body is streamed out of the store
//! ([`crate::agent::wire`]), the answer is parsed line by line from a bounded buffer ([`sse`]) and handed on
//! as [`Delta`]s, whichever API it came from. Retry lies above ([`retry`]).

pub mod anthropic;
pub mod calls;
pub mod cause;
pub mod demo;
pub mod dial;
pub mod facts;
pub mod halves;
pub mod http;
pub mod models;
pub mod openai;
pub mod quirks;
pub mod retry;
pub mod sse;
pub mod think;
pub mod tls;

use crate::agent::stop::Stop;
use crate::agent::wire::{self, Body, Form, Part, Rows, Spec};
use crate::budget::Budget;
use crate::chunk::Usage;
use crate::config::{ApiKind, Provider};
use crate::store::{Prefix, Store, Stored};
use halves::Halves;
use http::{ErrorText, Reply, Request};
use quirks::Quirks;
use sse::{Piece, Sse};
use std::io::Read;

pub use facts::Facts;
pub use models::models;
pub use wire::Plan;

/// What a provider's stream says, one piece at a time. Blocks come one after the other: a new block, or
/// `BlockEnd`, ends the one before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta<'a> {
    /// more of the answer; begins a text block if none is open
    Text(&'a str),
    /// more of the thinking; begins a thinking block if none is open
    Thinking(&'a str),
    /// the signature of the open thinking block, or of an empty one; never empty
    Signature(&'a str),
    /// a whole block of redacted thinking
    Redacted(&'a str),
    /// a tool call begins; the id may be empty, unsafe or already used
    Call {
        /// the provider's id
        id: &'a str,
        /// the tool's name as the model wrote it
        name: &'a str,
    },
    /// more of the open call's arguments, as JSON text
    Arguments(&'a str),
    /// the open block is whole
    BlockEnd,
}

/// Takes deltas; an error ends the stream at once and comes back from [`ask`].
pub trait Sink {
    /// One delta. What it borrows is gone afterwards.
    fn delta(&mut self, delta: Delta<'_>) -> Result<(), Fault>;
}

/// How a whole stream ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finish {
    /// nothing more to say
    End,
    /// tools are to be run
    Calls,
    /// the output limit
    MaxTokens,
    /// the context is full
    ContextFull,
    /// the provider refused, with its explanation
    Refused(String),
    /// a word that is not known: shown, and treated as the end
    Other(String),
}

/// No request has more tokens, whatever a provider tells: so a tab's sum is never too large for the store.
const TOKENS_MAX: u64 = 1 << 32;

/// A whole answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// how it ended
    pub finish: Finish,
    /// tokens, as far as the provider told
    pub usage: Usage,
}

/// Why there is no whole answer. Messages say what happened and what to do, in one or two sentences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// the owner stopped the turn
    Stopped,
    /// the stream began and broke off (end of file, reset, silence, an error inside the stream)
    Cut {
        /// what happened
        message: String,
        /// tokens told before
        usage: Usage,
    },
    /// the provider answered with an error, or could not be reached
    Refusal {
        /// HTTP status, if there was one
        status: Option<u16>,
        /// what happened and what to do
        message: String,
        /// trying again may help
        retryable: bool,
        /// how long the provider asks to wait
        retry_after_ms: Option<u64>,
    },
    /// a budget was passed: which, and its limit
    TooBig(String),
    /// the store failed while the request was read from it or the answer written to it
    Store(crate::store::StoreError),
}

/// One request: what it says, and whom it asks.
pub struct Ask<'a> {
    /// where the rows are
    pub store: &'a Store,
    /// the limits
    pub budget: &'a Budget,
    /// whom
    pub provider: &'a Provider,
    /// the model as the provider names it
    pub model: &'a str,
    /// what the model takes
    pub facts: Facts,
    /// how hard the model is to think; left out of the request if it does not take that word
    pub effort: Option<&'a str>,
    /// which rows
    pub part: Part<'a>,
    /// the tab's frozen prefix
    pub prefix: &'a Prefix,
}

impl<'a> Ask<'a> {
    fn spec(&self, quirks: Quirks) -> Spec<'a> {
        let told = Told { facts: self.facts, effort: self.effort };
        spec(self.provider, self.model, told, self.part, self.prefix, quirks)
    }
}

/// What is known of the model, and what is asked of it.
#[derive(Clone, Copy, Default)]
struct Told<'a> {
    facts: Facts,
    effort: Option<&'a str>,
}

fn spec<'a>(
    provider: &'a Provider,
    model: &'a str,
    told: Told<'a>,
    part: Part<'a>,
    prefix: &'a Prefix,
    quirks: Quirks,
) -> Spec<'a> {
    let max_tokens = quirks.facts(told.facts).answer_tokens(provider.max_tokens);
    let form = match provider.kind {
        ApiKind::Anthropic => {
            Form::Anthropic(quirks.anthropic(wire::anthropic::Fields::of(&told.facts, max_tokens)))
        }
        ApiKind::OpenAi | ApiKind::Demo => Form::OpenAi(quirks.openai(provider)),
    };
    let effort = told.effort.filter(|word| match told.facts.efforts {
        Some(efforts) => efforts.has(word),
        // A server that does not tell refuses what it does not know, and is not asked again.
        None => provider.kind != ApiKind::Anthropic,
    });
    let model_id = format!("{}/{}", provider.name, model);
    Spec { part, prefix, model_id, model, effort, max_tokens, form }
}

/// The first pass over the rows: the body's length, its content blocks and their hash; and what a cache
/// depends on besides. Asks nobody.
pub fn plan(ask: &Ask<'_>) -> Stored<(Plan, String)> {
    let spec = ask.spec(quirks::known(ask.provider, ask.model));
    let plan = wire::plan(ask.store, &spec, ask.budget)?;
    let shape = plan.shape(&spec);
    Ok((plan, shape))
}

/// Makes one request and hands its answer to the sink. Waits no longer than the provider's limits, and ends
/// within a second of a stop. The demo provider is asked elsewhere.
pub fn ask(ask: &Ask<'_>, plan: &Plan, stop: &Stop, sink: &mut dyn Sink) -> Result<Answer, Fault> {
    ask_rows(ask.store, ask.provider, ask.budget, plan, stop, sink, &|quirks| ask.spec(quirks), ask.model)
}

/// A request is made again with fewer fields at most so often.
const REPAIRS_MAX: u32 = 8;

#[allow(clippy::too_many_arguments)]
fn ask_rows<'s, R: Rows>(
    rows: &R,
    provider: &Provider,
    budget: &Budget,
    plan: &Plan,
    stop: &Stop,
    sink: &mut dyn Sink,
    spec: &dyn Fn(Quirks) -> Spec<'s>,
    model: &str,
) -> Result<Answer, Fault> {
    let mut repairs = 0;
    loop {
        let quirks = quirks::known(provider, model);
        let spec = spec(quirks);
        let mut body = Body::new(rows, &spec, budget, plan);
        let length = body.left();
        let request = Request {
            url: answer_url(provider),
            body: Some((&mut body, length)),
            times: http::times(provider),
        };
        let opened = http::open(provider, request, stop);
        if let Some(fault) = body.fault() {
            return Err(Fault::Store(fault));
        }
        let reply = opened?;
        if reply.status.is_success() {
            return receive(provider, budget, reply, stop, sink);
        }
        let fault = http::failed(provider, reply);
        match &fault {
            // A server that does not know a field gets the request again without it, and ever after; so does
            // one in whose context the answer that was asked for would not fit.
            Fault::Refusal { status: Some(400 | 422), message, .. }
                if repairs < REPAIRS_MAX && quirks::learn(provider, model, quirks, message, &spec) =>
            {
                repairs += 1;
            }
            _ => return Err(fault),
        }
    }
}

/// Where answers are asked for. `base_url` may or may not name the API's version, or be whole already.
pub fn answer_url(provider: &Provider) -> String {
    match provider.kind {
        ApiKind::Anthropic => join(&provider.base_url, "/messages"),
        _ => join(&provider.base_url, "/chat/completions"),
    }
}

fn join(base: &str, path: &str) -> String {
    let base = base.trim_end_matches('/');
    let base = base.strip_suffix(path).unwrap_or(base);
    let start = base.find("://").map_or(0, |at| at + 3);
    let last =
        base.split_at(start).1.split_once('/').map_or("", |(_, path)| path.rsplit('/').next().unwrap_or(""));
    let versioned = last == "openai"
        || last.strip_prefix('v').is_some_and(|rest| rest.starts_with(|digit: char| digit.is_ascii_digit()));
    if versioned { format!("{base}{path}") } else { format!("{base}/v1{path}") }
}

/// From an API's events to deltas.
trait Decoder {
    /// Takes an event; tells whether it was one, or only a sign of life.
    fn event(&mut self, name: &str, data: &str, out: &mut Shown<'_>) -> Result<bool, Fault>;
    /// Nothing that follows matters.
    fn done(&self) -> bool;
    /// Enough came to call the answer whole.
    fn whole(&self) -> bool;
    /// An answer was recognised.
    fn begun(&self) -> bool;
    /// Tokens as far as told.
    fn usage(&self) -> Usage;
    /// The stream ended and the answer is whole.
    fn end(&mut self, out: &mut Shown<'_>) -> Result<Answer, Fault>;
}

/// A sink that remembers whether it was given anything.
struct Shown<'a> {
    sink: &'a mut dyn Sink,
    any: bool,
}

impl Sink for Shown<'_> {
    fn delta(&mut self, delta: Delta<'_>) -> Result<(), Fault> {
        self.any = true;
        self.sink.delta(delta)
    }
}

impl Shown<'_> {
    /// An error inside a stream: a cut once something was shown, else as if the request had been refused.
    fn fault(&self, error: ErrorText, usage: Usage) -> Fault {
        let said = if error.message.is_empty() { &error.kind } else { &error.message };
        let message = match error.status {
            Some(status) => format!("the provider reported an error ({status}): {said}"),
            None => format!("the provider reported an error: {said}"),
        };
        if self.any {
            return Fault::Cut { message, usage };
        }
        let retryable = error.passes();
        http::refusal(error.status, message, retryable, None)
    }
}

/// What the body turns out to be, by its first byte that is no space.
enum Nature {
    Unknown,
    Events,
    /// JSON or a web page where a stream was due
    Document(Vec<u8>),
}

const READ_BYTES: usize = 8 * 1024;

struct Stream<'a> {
    provider: &'a Provider,
    sse: Sse,
    nature: Nature,
    document_max: usize,
    halves: Halves,
    decoder: &'a mut dyn Decoder,
    out: Shown<'a>,
}

fn receive(
    provider: &Provider,
    budget: &Budget,
    mut reply: Reply,
    stop: &Stop,
    sink: &mut dyn Sink,
) -> Result<Answer, Fault> {
    let mut anthropic;
    let mut openai;
    let decoder: &mut dyn Decoder = match provider.kind {
        ApiKind::Anthropic => {
            anthropic = anthropic::Anthropic::new(budget);
            &mut anthropic
        }
        _ => {
            openai = openai::OpenAi::new(budget);
            &mut openai
        }
    };
    let mut stream = Stream {
        provider,
        sse: Sse::new(budget.event_bytes),
        nature: Nature::Unknown,
        document_max: budget.event_bytes,
        halves: Halves::default(),
        decoder,
        out: Shown { sink, any: false },
    };
    let mut buffer = vec![0; READ_BYTES];
    loop {
        if stop.is_raised() {
            return Err(Fault::Stopped);
        }
        let amount = match reply.body.read(&mut buffer) {
            Ok(0) => break,
            Ok(amount) => amount,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            // Some servers end with a reset; an answer that is whole stays whole.
            Err(_) if stream.decoder.whole() && !stop.is_raised() => break,
            Err(error) => return Err(stream.broken(&error, &reply)),
        };
        match stream.take(buffer.split_at(amount).0)? {
            true => reply.patience.event(),
            false => reply.patience.sign_of_life(),
        }
        if stream.decoder.done() {
            break;
        }
    }
    if stop.is_raised() {
        return Err(Fault::Stopped);
    }
    stream.end()
}

impl Stream<'_> {
    /// Takes what was read; tells whether an event was in it.
    fn take(&mut self, mut bytes: &[u8]) -> Result<bool, Fault> {
        if matches!(self.nature, Nature::Unknown) {
            bytes = bytes.trim_ascii_start();
            match bytes.first() {
                None => return Ok(false),
                Some(b'{' | b'[' | b'<') => self.nature = Nature::Document(Vec::new()),
                Some(_) => self.nature = Nature::Events,
            }
        }
        if let Nature::Document(document) = &mut self.nature {
            if document.len() + bytes.len() > self.document_max {
                return Err(Fault::TooBig(format!(
                    "provider {} sent a document longer than event_bytes ({} bytes) instead of a stream",
                    self.provider.name, self.document_max
                )));
            }
            document.extend_from_slice(bytes);
            return Ok(false);
        }
        let mut real = false;
        let (decoder, out, halves) = (&mut *self.decoder, &mut self.out, &mut self.halves);
        self.sse.feed(bytes, &mut |piece| {
            if let Piece::Event { name, data } = piece {
                real |= decoder.event(name, &halves.mend(data), out)?;
            }
            Ok(())
        })?;
        Ok(real)
    }

    fn end(&mut self) -> Result<Answer, Fault> {
        if let Nature::Document(document) = std::mem::replace(&mut self.nature, Nature::Events) {
            return self.document(&String::from_utf8_lossy(&document));
        }
        let (decoder, out, halves) = (&mut *self.decoder, &mut self.out, &mut self.halves);
        self.sse.finish(&mut |piece| {
            if let Piece::Event { name, data } = piece {
                decoder.event(name, &halves.mend(data), out)?;
            }
            Ok(())
        })?;
        if self.decoder.whole() {
            return self.decoder.end(&mut self.out);
        }
        let name = &self.provider.name;
        if self.decoder.begun() {
            let message = format!("provider {name} closed the connection in the middle of its answer");
            return Err(Fault::Cut { message, usage: self.decoder.usage() });
        }
        Err(http::refusal(
            None,
            format!("provider {name} closed the connection without an answer"),
            true,
            None,
        ))
    }

    /// Some servers answer an error, or the whole answer, as one JSON document under status 200; proxies, a
    /// web page.
    fn document(&mut self, text: &str) -> Result<Answer, Fault> {
        if !text.starts_with('<') {
            self.decoder.event("", &self.halves.mend(text), &mut self.out)?;
            if self.decoder.whole() {
                return self.decoder.end(&mut self.out);
            }
        }
        let said = ErrorText::read(text).message;
        let name = &self.provider.name;
        let message =
            format!("provider {name} sent no stream but a document: check base_url; it begins: {said}");
        Err(http::refusal(None, message, false, None))
    }

    fn broken(&self, error: &std::io::Error, reply: &Reply) -> Fault {
        let usage = self.decoder.begun().then(|| self.decoder.usage());
        http::broken(self.provider, error, reply.patience.halt(), usage)
    }
}

#[cfg(test)]
mod tests;
