//! The Messages API: events of the stream to [`Delta`]s.
//!
//! Blocks come one after the other; a new block ends the one before it, since some servers close all of them
//! together at the end. An answer is whole only with `message_stop`. Unknown events, blocks and deltas are
//! ignored.

use super::http::ErrorText;
use super::{Answer, Decoder, Delta, Fault, Finish, Shown, Sink, TOKENS_MAX};
use crate::budget::Budget;
use crate::chunk::{Usage, shorten};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;

#[derive(Default, Deserialize)]
#[serde(default)]
struct Event<'a> {
    #[serde(borrow, rename = "type")]
    kind: Text<'a>,
    index: Option<i64>,
    #[serde(borrow)]
    message: Option<Message<'a>>,
    #[serde(borrow)]
    content_block: Option<Block<'a>>,
    #[serde(borrow)]
    delta: Option<Change<'a>>,
    usage: Option<Tokens>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

/// A string that is borrowed where it can be; null is empty.
#[derive(Debug, Default)]
struct Text<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Text<'a>, D::Error> {
        #[derive(Deserialize)]
        struct Borrowed<'a>(#[serde(borrow)] Cow<'a, str>);
        Ok(Text(Option::<Borrowed<'_>>::deserialize(from)?.map_or(Cow::Borrowed(""), |text| text.0)))
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Message<'a> {
    usage: Option<Tokens>,
    #[serde(borrow)]
    id: Text<'a>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Block<'a> {
    #[serde(borrow, rename = "type")]
    kind: Text<'a>,
    #[serde(borrow)]
    text: Text<'a>,
    #[serde(borrow)]
    thinking: Text<'a>,
    #[serde(borrow)]
    signature: Text<'a>,
    #[serde(borrow)]
    data: Text<'a>,
    #[serde(borrow)]
    id: Text<'a>,
    #[serde(borrow)]
    name: Text<'a>,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Change<'a> {
    #[serde(borrow)]
    text: Text<'a>,
    #[serde(borrow)]
    thinking: Text<'a>,
    #[serde(borrow)]
    signature: Text<'a>,
    #[serde(borrow)]
    partial_json: Text<'a>,
    #[serde(borrow)]
    stop_reason: Text<'a>,
    #[serde(borrow)]
    stop_details: Option<&'a RawValue>,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(default)]
struct Tokens {
    input_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
    output_tokens: Option<u64>,
}

#[derive(Debug)]
enum Open {
    Nothing,
    Text,
    Thinking,
    /// bytes of arguments so far, and the `input` that the block started with
    Call {
        bytes: usize,
        input: String,
    },
    /// a kind that is not known
    Other,
}

/// The events of one stream; see the module's text.
pub struct Anthropic {
    open: Open,
    index: Option<i64>,
    calls: bool,
    arguments_max: usize,
    usage: Usage,
    stop: String,
    details: String,
    done: bool,
    begun: bool,
}

impl Anthropic {
    /// For one stream.
    pub fn new(budget: &Budget) -> Anthropic {
        Anthropic {
            open: Open::Nothing,
            index: None,
            calls: false,
            arguments_max: budget.arguments_bytes,
            usage: Usage::default(),
            stop: String::new(),
            details: String::new(),
            done: false,
            begun: false,
        }
    }

    fn close(&mut self, sink: &mut dyn Sink) -> Result<(), Fault> {
        match std::mem::replace(&mut self.open, Open::Nothing) {
            Open::Nothing | Open::Other => return Ok(()),
            Open::Call { bytes: 0, input } => sink.delta(Delta::Arguments(&input))?,
            Open::Text | Open::Thinking | Open::Call { .. } => {}
        }
        sink.delta(Delta::BlockEnd)
    }

    fn start(&mut self, block: &Block<'_>, sink: &mut dyn Sink) -> Result<(), Fault> {
        self.close(sink)?;
        self.open = match &*block.kind.0 {
            "text" => Open::Text,
            "thinking" => Open::Thinking,
            "tool_use" => {
                self.calls = true;
                sink.delta(Delta::Call { id: &block.id.0, name: &block.name.0 })?;
                // A placeholder, unless no part of the arguments follows.
                let input = block.input.map_or("{}", |input| input.get());
                let input = if input == "null" { "{}" } else { input };
                Open::Call { bytes: 0, input: input.to_owned() }
            }
            "redacted_thinking" => {
                if !block.data.0.is_empty() {
                    sink.delta(Delta::Redacted(&block.data.0))?;
                }
                Open::Other
            }
            other => {
                log::debug!("a block of the unknown kind {:?} is ignored", shorten(other, 64));
                Open::Other
            }
        };
        self.thinking(&block.thinking.0, &block.signature.0, sink)?;
        self.text(&block.text.0, sink)
    }

    fn text(&mut self, text: &str, sink: &mut dyn Sink) -> Result<(), Fault> {
        match self.open {
            Open::Text if !text.is_empty() => sink.delta(Delta::Text(text)),
            _ => Ok(()),
        }
    }

    fn thinking(&mut self, text: &str, signature: &str, sink: &mut dyn Sink) -> Result<(), Fault> {
        if !matches!(self.open, Open::Thinking) {
            return Ok(());
        }
        if !text.is_empty() {
            sink.delta(Delta::Thinking(text))?;
        }
        if !signature.is_empty() {
            sink.delta(Delta::Signature(signature))?;
        }
        Ok(())
    }

    fn change(&mut self, index: Option<i64>, change: &Change<'_>, sink: &mut dyn Sink) -> Result<(), Fault> {
        if index.is_some() && self.index.is_some() && index != self.index {
            log::debug!("a delta of a block that is not open is ignored");
            return Ok(());
        }
        if matches!(self.open, Open::Nothing) {
            // A start that was left out: the delta tells what it was.
            self.open = match (change.text.0.is_empty(), change.thinking.0.is_empty()) {
                (false, _) => Open::Text,
                (_, false) => Open::Thinking,
                _ => return Ok(()),
            };
        }
        self.text(&change.text.0, sink)?;
        self.thinking(&change.thinking.0, &change.signature.0, sink)?;
        let part = &change.partial_json.0;
        if let Open::Call { bytes, .. } = &mut self.open
            && !part.is_empty()
        {
            *bytes += part.len();
            if *bytes > self.arguments_max {
                return Err(Fault::TooBig(format!(
                    "a tool call's arguments are longer than arguments_bytes ({} bytes)",
                    self.arguments_max
                )));
            }
            sink.delta(Delta::Arguments(part))?;
        }
        Ok(())
    }

    /// Numbers are cumulative: what is told replaces what was told.
    fn count(&mut self, tokens: Option<Tokens>) {
        let Some(tokens) = tokens else { return };
        let set = |to: &mut u64, from: Option<u64>| *to = from.map_or(*to, |told| told.min(TOKENS_MAX));
        set(&mut self.usage.input, tokens.input_tokens);
        set(&mut self.usage.cache_read, tokens.cache_read_input_tokens);
        set(&mut self.usage.cache_write, tokens.cache_creation_input_tokens);
        set(&mut self.usage.output, tokens.output_tokens);
        self.usage = self.usage.bounded();
    }
}

impl Decoder for Anthropic {
    fn event(&mut self, name: &str, data: &str, out: &mut Shown<'_>) -> Result<bool, Fault> {
        if self.done {
            return Ok(false);
        }
        let event: Event<'_> = match serde_json::from_str(data) {
            Ok(event) => event,
            Err(error) if name == "error" => {
                log::debug!("an error that is no object: {error}");
                return Err(out.fault(ErrorText::read(data), self.usage));
            }
            Err(error) => {
                log::debug!("an event is skipped: {error}: {:?}", shorten(data, 200));
                return Ok(false);
            }
        };
        let kind = if event.kind.0.is_empty() { name } else { &event.kind.0 };
        match kind {
            "ping" => return Ok(false),
            "error" => return Err(out.fault(ErrorText::read(data), self.usage)),
            "message_start" => {
                self.begun = true;
                let message = event.message.unwrap_or_default();
                log::debug!("message {:?}", shorten(&message.id.0, 64));
                self.count(message.usage);
            }
            "content_block_start" => {
                self.begun = true;
                self.start(&event.content_block.unwrap_or_default(), out)?;
                self.index = event.index;
            }
            "content_block_delta" => self.change(event.index, &event.delta.unwrap_or_default(), out)?,
            "content_block_stop" => {
                if event.index.is_none() || event.index == self.index {
                    self.close(out)?;
                }
            }
            "message_delta" => {
                self.count(event.usage);
                let change = event.delta.unwrap_or_default();
                if !change.stop_reason.0.is_empty() {
                    self.stop = shorten(&change.stop_reason.0, 64).to_owned();
                }
                if let Some(details) = change.stop_details.filter(|details| details.get() != "null") {
                    self.details = explanation(details.get());
                }
            }
            "message_stop" => {
                self.done = true;
                self.close(out)?;
            }
            _ if event.error.is_some_and(|error| error.get() != "null") => {
                return Err(out.fault(ErrorText::read(data), self.usage));
            }
            other => log::debug!("an event of the unknown kind {:?} is ignored", shorten(other, 64)),
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
        self.done
    }

    fn begun(&self) -> bool {
        self.begun
    }

    fn end(&mut self, _: &mut Shown<'_>) -> Result<Answer, Fault> {
        let finish = match self.stop.as_str() {
            "max_tokens" => Finish::MaxTokens,
            "model_context_window_exceeded" => Finish::ContextFull,
            "refusal" => Finish::Refused(if self.details.is_empty() {
                "the provider refused to answer this".to_owned()
            } else {
                std::mem::take(&mut self.details)
            }),
            _ if self.calls => Finish::Calls,
            "end_turn" | "stop_sequence" | "tool_use" | "" => Finish::End,
            other => Finish::Other(other.to_owned()),
        };
        Ok(Answer { finish, usage: self.usage })
    }
}

fn explanation(details: &str) -> String {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Details<'a> {
        #[serde(borrow)]
        category: Text<'a>,
        #[serde(borrow)]
        explanation: Text<'a>,
    }
    let details: Details<'_> = serde_json::from_str(details).unwrap_or_default();
    let text = if details.explanation.0.is_empty() { details.category } else { details.explanation };
    shorten(&text.0, 2048).to_owned()
}

#[cfg(test)]
mod tests;
