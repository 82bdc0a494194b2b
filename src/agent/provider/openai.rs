//! Chat completions as really spoken: events of the stream to [`Delta`]s.
//!
//! Every field may be null, missing or of an unexpected type; what is not understood is ignored, and what
//! matters is decided by what was received: calls make a tool turn whatever `finish_reason` says, and only a
//! `finish_reason` or `[DONE]` makes an answer whole. Costs one pass over each event; strings are borrowed
//! from it where JSON allows.

use super::calls::{Arguments, Calls, Piece};
use super::http::ErrorText;
use super::think::Think;
use super::{Answer, Decoder, Delta, Fault, Finish, Shown, Sink, TOKENS_MAX};
use crate::budget::Budget;
use crate::chunk::{Usage, shorten};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;

type Raw<'a> = Option<&'a RawValue>;

#[derive(Deserialize)]
struct Chunk<'a> {
    #[serde(borrow, default)]
    choices: Raw<'a>,
    #[serde(borrow, default)]
    usage: Raw<'a>,
    #[serde(borrow, default)]
    error: Raw<'a>,
    #[serde(borrow, default)]
    object: Raw<'a>,
    #[serde(borrow, default)]
    detail: Raw<'a>,
    #[serde(borrow, default)]
    code: Raw<'a>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(borrow, default)]
    index: Raw<'a>,
    #[serde(borrow, default)]
    delta: Raw<'a>,
    #[serde(borrow, default)]
    message: Raw<'a>,
    #[serde(borrow, default)]
    text: Raw<'a>,
    #[serde(borrow, default)]
    finish_reason: Raw<'a>,
}

#[derive(Deserialize)]
struct Change<'a> {
    #[serde(borrow, default)]
    content: Raw<'a>,
    #[serde(borrow, default)]
    reasoning_content: Raw<'a>,
    #[serde(borrow, default)]
    reasoning: Raw<'a>,
    #[serde(borrow, default)]
    reasoning_details: Raw<'a>,
    #[serde(borrow, default)]
    tool_calls: Raw<'a>,
    #[serde(borrow, default)]
    function_call: Raw<'a>,
    #[serde(borrow, default)]
    refusal: Raw<'a>,
}

#[derive(Deserialize)]
struct Part<'a> {
    #[serde(borrow, default)]
    text: Raw<'a>,
}

#[derive(Deserialize)]
struct CallPart<'a> {
    #[serde(borrow, default)]
    index: Raw<'a>,
    #[serde(borrow, default)]
    id: Raw<'a>,
    #[serde(borrow, default)]
    function: Raw<'a>,
}

#[derive(Deserialize)]
struct Function<'a> {
    #[serde(borrow, default)]
    name: Raw<'a>,
    #[serde(borrow, default)]
    arguments: Raw<'a>,
}

#[derive(Deserialize)]
struct Tokens<'a> {
    #[serde(borrow, default)]
    prompt_tokens: Raw<'a>,
    #[serde(borrow, default)]
    completion_tokens: Raw<'a>,
    #[serde(borrow, default)]
    prompt_tokens_details: Raw<'a>,
    #[serde(borrow, default)]
    prompt_cache_hit_tokens: Raw<'a>,
}

#[derive(Deserialize)]
struct Cached<'a> {
    #[serde(borrow, default)]
    cached_tokens: Raw<'a>,
}

fn typed<'a, T: Deserialize<'a>>(raw: Raw<'a>) -> Option<T> {
    raw.and_then(|raw| serde_json::from_str(raw.get()).ok())
}

/// A string, or nothing.
fn string<'a>(raw: Raw<'a>) -> Cow<'a, str> {
    #[derive(Deserialize)]
    struct Text<'a>(#[serde(borrow)] Cow<'a, str>);
    typed::<Text<'a>>(raw).map_or(Cow::Borrowed(""), |text| text.0)
}

/// A string, or an array of parts with text, joined.
fn content<'a>(raw: Raw<'a>) -> Cow<'a, str> {
    match raw.and_then(|raw| raw.get().bytes().next()) {
        Some(b'[') => {
            let parts: Vec<Part<'_>> = typed(raw).unwrap_or_default();
            Cow::Owned(parts.iter().map(|part| string(part.text)).collect())
        }
        _ => string(raw),
    }
}

/// An explanation longer than this is cut.
const REFUSAL_BYTES_MAX: usize = 2048;

/// The events of one stream; see the module's text.
pub struct OpenAi {
    think: Think,
    calls: Calls,
    /// text that came while a call was not whole
    late: String,
    late_max: usize,
    usage: Usage,
    finish: Option<String>,
    refusal: String,
    done: bool,
    /// something of the answer was understood
    begun: bool,
}

impl OpenAi {
    /// For one stream.
    pub fn new(budget: &Budget) -> OpenAi {
        OpenAi {
            think: Think::default(),
            calls: Calls::new(budget.arguments_bytes, budget.calls),
            late: String::new(),
            late_max: budget.chunk_bytes,
            usage: Usage::default(),
            finish: None,
            refusal: String::new(),
            done: false,
            begun: false,
        }
    }

    fn choice(&mut self, choice: &Choice<'_>, sink: &mut dyn Sink) -> Result<(), Fault> {
        if typed::<i64>(choice.index).is_some_and(|index| index != 0) {
            return Ok(());
        }
        self.begun = true;
        let present = |raw: Raw<'_>| raw.is_some_and(|raw| raw.get() != "null");
        let change = if present(choice.delta) { choice.delta } else { choice.message };
        if let Some(change) = typed::<Change<'_>>(change) {
            self.change(&change, sink)?;
        } else {
            self.answer(&string(choice.text), sink)?;
        }
        let reason = string(choice.finish_reason);
        if !reason.is_empty() {
            self.finish = Some(shorten(&reason, 64).to_owned());
        }
        Ok(())
    }

    fn change(&mut self, change: &Change<'_>, sink: &mut dyn Sink) -> Result<(), Fault> {
        let thought = reasoning(change);
        if !thought.is_empty() {
            self.calls.settle(sink)?;
            if !self.calls.busy() {
                sink.delta(Delta::Thinking(&thought))?;
            }
        }
        self.answer(&content(change.content), sink)?;
        let refused = string(change.refusal);
        let room = REFUSAL_BYTES_MAX.saturating_sub(self.refusal.len());
        self.refusal.push_str(shorten(&refused, room));
        let parts: Vec<CallPart<'_>> = typed(change.tool_calls).unwrap_or_default();
        for part in &parts {
            self.call(typed(part.index), &string(part.id), part.function, sink)?;
        }
        if let Some(function) = change.function_call.filter(|function| function.get() != "null") {
            self.call(None, "", Some(function), sink)?;
        }
        Ok(())
    }

    fn answer(&mut self, text: &str, sink: &mut dyn Sink) -> Result<(), Fault> {
        if text.is_empty() {
            return Ok(());
        }
        self.calls.settle(sink)?;
        if !self.calls.busy() {
            return self.think.text(text, sink);
        }
        // Some servers send a line end after a call that is still open.
        if self.late.len() + text.len() > self.late_max {
            return Err(Fault::TooBig(format!(
                "more than chunk_bytes ({} bytes) of text came inside a tool call",
                self.late_max
            )));
        }
        self.late.push_str(text);
        Ok(())
    }

    fn call(
        &mut self,
        index: Option<i64>,
        id: &str,
        function: Raw<'_>,
        sink: &mut dyn Sink,
    ) -> Result<(), Fault> {
        let function: Option<Function<'_>> = typed(function);
        let (name, raw) = function.map_or((Cow::Borrowed(""), None), |f| (string(f.name), f.arguments));
        let text = string(raw);
        let arguments = match raw.map(|raw| raw.get()) {
            None => Arguments::None,
            Some(value) if value.starts_with('"') => Arguments::Text(&text),
            Some(value) => Arguments::Value(value),
        };
        if !self.calls.any() {
            self.think.finish(sink)?;
        }
        self.calls.piece(Piece { index, id, name: &name, arguments }, sink)
    }

    fn count(&mut self, raw: Raw<'_>) {
        let Some(tokens) = typed::<Tokens<'_>>(raw) else { return };
        let cached =
            typed::<Cached<'_>>(tokens.prompt_tokens_details).and_then(|all| typed(all.cached_tokens));
        let cached: Option<u64> = cached.or_else(|| typed(tokens.prompt_cache_hit_tokens));
        if let Some(prompt) = typed::<u64>(tokens.prompt_tokens) {
            let prompt = prompt.min(TOKENS_MAX);
            self.usage.cache_read = cached.unwrap_or(0).min(prompt);
            self.usage.input = prompt - self.usage.cache_read;
        }
        if let Some(output) = typed::<u64>(tokens.completion_tokens) {
            self.usage.output = output.min(TOKENS_MAX);
        }
        self.usage = self.usage.bounded();
    }
}

fn reasoning<'a>(change: &Change<'a>) -> Cow<'a, str> {
    for raw in [change.reasoning_content, change.reasoning] {
        let text = content(raw);
        if !text.is_empty() {
            return text;
        }
    }
    content(change.reasoning_details)
}

impl Decoder for OpenAi {
    fn event(&mut self, name: &str, data: &str, out: &mut Shown<'_>) -> Result<bool, Fault> {
        if self.done {
            return Ok(false);
        }
        if data.trim() == "[DONE]" {
            self.done = true;
            return Ok(true);
        }
        let Ok(chunk) = serde_json::from_str::<Chunk<'_>>(data) else {
            if name == "error" {
                return Err(out.fault(ErrorText::read(data), self.usage));
            }
            log::debug!("an event that is no JSON object is skipped: {:?}", shorten(data, 200));
            return Ok(false);
        };
        self.count(chunk.usage);
        let choices: Vec<Choice<'_>> = typed(chunk.choices).unwrap_or_default();
        let error = chunk.error.filter(|error| !matches!(error.get(), "null" | "{}" | "\"\"" | "false"));
        // An error may stand beside the last piece of the answer, which is shown first.
        for choice in &choices {
            self.choice(choice, out)?;
        }
        if let Some(error) = error {
            return Err(out.fault(ErrorText::read(error.get()), self.usage));
        }
        let bare =
            choices.is_empty() && (chunk.detail.is_some() || (chunk.code.is_some() && chunk.usage.is_none()));
        if name == "error" || string(chunk.object) == "error" || bare {
            return Err(out.fault(ErrorText::read(data), self.usage));
        }
        Ok(true)
    }

    fn done(&self) -> bool {
        self.done
    }

    fn usage(&self) -> Usage {
        self.usage
    }

    fn whole(&self) -> bool {
        self.done || self.finish.is_some()
    }

    fn begun(&self) -> bool {
        self.begun
    }

    fn end(&mut self, out: &mut Shown<'_>) -> Result<Answer, Fault> {
        let reason = self.finish.take().unwrap_or_default();
        if matches!(reason.as_str(), "error" | "insufficient_system_resource") {
            let message = format!("the provider ended the answer with {reason:?}");
            let kind = "server_error".to_owned();
            return Err(out.fault(ErrorText { message, kind, status: None }, self.usage));
        }
        self.calls.finish(out)?;
        let late = std::mem::take(&mut self.late);
        if !late.trim().is_empty() {
            self.think.text(&late, out)?;
        }
        self.think.finish(out)?;
        // Said here, the last text is committed before the connection's end is worked on.
        out.delta(Delta::BlockEnd)?;
        let finish = match reason.as_str() {
            "content_filter" => Finish::Refused(if self.refusal.is_empty() {
                "the provider's content filter stopped the answer".to_owned()
            } else {
                std::mem::take(&mut self.refusal)
            }),
            _ if !self.refusal.is_empty() => Finish::Refused(std::mem::take(&mut self.refusal)),
            "length" => Finish::MaxTokens,
            _ if self.calls.any() => Finish::Calls,
            "" | "stop" | "tool_calls" | "function_call" | "eos" | "end_turn" => Finish::End,
            other => Finish::Other(other.to_owned()),
        };
        Ok(Answer { finish, usage: self.usage })
    }
}

#[cfg(test)]
mod tests;
