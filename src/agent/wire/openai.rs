//! The chat completions' form of a request, in a fixed order of keys.
//!
//! A step's texts come before its calls, whatever their order in the log: they share one message.
//!
//! The form is always that of the strictest chat templates, which cost the others nothing: one system
//! message, and that first; owner's texts in a row are one message, joined by a blank line; between a result
//! and the owner's text the assistant says [`NOTE`]; ids are nine letters and digits ([`wire_id`]).

use super::Spec;
use super::history::{Item, Pass};
use super::out::Out;
use crate::chunk::json;
use crate::store::Prefix;
use serde::Deserialize;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::fmt::Write;

/// What the assistant says between a result and the owner's text.
pub const NOTE: &str = r#"{"role":"assistant","content":"Noted."}"#;

const ID_BYTES: usize = 9;

/// A call's id as it goes on the wire: itself, if it is nine ASCII letters and digits, else nine that depend
/// on nothing but itself, so that call, result and every later request agree. Two ids of one tab meet with a
/// chance of one in 10^16.
pub fn wire_id(id: &str) -> Cow<'_, str> {
    const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    if id.len() == ID_BYTES && id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return Cow::Borrowed(id);
    }
    let hash = Sha256::digest(id);
    let mut rest = hash.iter().take(8).fold(0u64, |all, byte| all << 8 | u64::from(*byte));
    let mut made = String::with_capacity(ID_BYTES);
    for _ in 0..ID_BYTES {
        made.push(char::from(LETTERS[(rest % 62) as usize]));
        rest /= 62;
    }
    Cow::Owned(made)
}

/// The fields besides model, prefix and messages; some servers refuse some of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fields {
    /// ask for usage at the stream's end
    pub stream_options: bool,
    /// tell the most tokens of an answer
    pub max_tokens: bool,
    /// under the name that the vendor's reasoning models want
    pub max_completion_tokens: bool,
    /// tell how hard to think
    pub effort: bool,
    /// tell the tools
    pub tools: bool,
    /// send the reasoning back with calls
    pub replay_reasoning: bool,
}

/// A tool of the frozen prefix.
#[derive(Deserialize)]
pub struct Tool<'a> {
    /// JSON string
    #[serde(borrow)]
    pub name: &'a RawValue,
    /// JSON string
    #[serde(borrow)]
    pub description: &'a RawValue,
    /// JSON schema
    #[serde(borrow)]
    pub parameters: &'a RawValue,
}

/// The tools of a frozen prefix, in its order.
pub fn tools(prefix: &Prefix) -> Vec<Tool<'_>> {
    serde_json::from_str(&prefix.tools).unwrap_or_else(|error| {
        if !prefix.tools.is_empty() {
            log::warn!("the frozen tools cannot be read and are left out: {error}");
        }
        Vec::new()
    })
}

/// Everything before the first message, the system prompt's message included.
pub fn head(spec: &Spec<'_>, fields: &Fields) -> String {
    let mut head = format!(r#"{{"model":{},"stream":true"#, json(spec.model));
    if fields.stream_options {
        head.push_str(r#","stream_options":{"include_usage":true}"#);
    }
    if fields.max_tokens && spec.max_tokens > 0 {
        let name = if fields.max_completion_tokens { "max_completion_tokens" } else { "max_tokens" };
        let _ = write!(head, r#","{name}":{}"#, spec.max_tokens);
    }
    if let Some(effort) = spec.effort.filter(|_| fields.effort) {
        let _ = write!(head, r#","reasoning_effort":{}"#, json(effort));
    }
    let tools = if fields.tools { tools(spec.prefix) } else { Vec::new() };
    for (at, tool) in tools.iter().enumerate() {
        head.push_str(if at == 0 { r#","tools":["# } else { "," });
        let (name, description, schema) = (tool.name.get(), tool.description.get(), tool.parameters.get());
        let _ =
            write!(head, r#"{{"type":"function","function":{{"name":{name},"description":{description},"#);
        let _ = write!(head, r#""parameters":{schema}}}}}"#);
    }
    if !tools.is_empty() {
        head.push(']');
    }
    head.push_str(r#","messages":["#);
    if !spec.prefix.system.is_empty() {
        let _ = write!(head, r#"{{"role":"system","content":{}}}"#, json(&spec.prefix.system));
    }
    head
}

/// What a cache of the messages may depend on besides their bytes.
pub fn shape(spec: &Spec<'_>, fields: &Fields) -> String {
    format!("effort={}", spec.effort.filter(|_| fields.effort).unwrap_or("unasked"))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Open {
    Nothing,
    /// inside the owner's text
    User,
    /// inside the model's text
    Content,
    /// inside the reasoning
    Reasoning,
    /// inside a call's arguments
    Arguments {
        any: bool,
    },
    /// inside a result's text
    Result,
}

/// Messages, one after the other.
pub struct Writer {
    open: Open,
    any: bool,
    replay_reasoning: bool,
}

impl Writer {
    /// A writer; `system`: a message stands before the first.
    pub fn new(replay_reasoning: bool, system: bool) -> Writer {
        Writer { open: Open::Nothing, any: system, replay_reasoning }
    }

    /// The order of a step's rows.
    pub fn passes(&self) -> &'static [Pass] {
        match self.replay_reasoning {
            true => &[Pass::Texts, Pass::Reasoning, Pass::Calls],
            false => &[Pass::Texts, Pass::Calls],
        }
    }

    fn close(&mut self, out: &mut Out) {
        match std::mem::replace(&mut self.open, Open::Nothing) {
            Open::Nothing => return,
            Open::Arguments { any } => out.raw(if any { r#""}}]}"# } else { r#"{}"}}]}"# }),
            Open::User | Open::Content | Open::Reasoning | Open::Result => {
                // Before the quote: what is joined to a text later goes on from here.
                out.block();
                out.raw("\"}");
                return;
            }
        }
        out.block();
    }

    fn begin(&mut self, open: Open, message: &str, out: &mut Out) {
        self.close(out);
        if std::mem::replace(&mut self.any, true) {
            out.raw(",");
        }
        out.raw(message);
        self.open = open;
    }

    /// Writes a part of a message.
    pub fn item(&mut self, item: &Item<'_>, out: &mut Out) {
        match *item {
            Item::User { new, time, text } => {
                if new && self.open == Open::User {
                    out.block();
                    out.escaped("\n\n");
                } else if new {
                    // A part of the text's block, since it comes with the text.
                    if self.open == Open::Result {
                        self.begin(Open::Nothing, NOTE, out);
                    }
                    self.begin(Open::User, r#"{"role":"user","content":""#, out);
                }
                if let Some(time) = time.filter(|_| new) {
                    out.escaped(&format!("[{time}]\n"));
                }
                out.escaped(text);
            }
            Item::Text { new, text } => {
                if new && self.open == Open::Content {
                    out.block();
                    out.escaped("\n\n");
                } else if new {
                    self.begin(Open::Content, r#"{"role":"assistant","content":""#, out);
                }
                out.escaped(text);
            }
            Item::Thinking { new, text, .. } => {
                if self.open == Open::Reasoning {
                    if new {
                        out.escaped("\n\n");
                    }
                } else {
                    self.beside_content(out);
                    out.raw(r#","reasoning_content":""#);
                    self.open = Open::Reasoning;
                }
                out.escaped(text);
            }
            Item::Redacted { .. } => {}
            Item::Call { new, id, name, arguments } => {
                if new {
                    self.begin_call(id, name, out);
                }
                if !arguments.is_empty() {
                    out.escaped(arguments);
                    self.open = Open::Arguments { any: true };
                }
            }
            Item::Result { new, id, text, .. } => {
                if new {
                    let message = format!(r#"{{"role":"tool","tool_call_id":"{}","content":""#, wire_id(id));
                    self.begin(Open::Result, &message, out);
                }
                out.escaped(text);
            }
        }
    }

    /// Ends the content (there is always one) of the assistant's message, and stays in the message.
    fn beside_content(&mut self, out: &mut Out) {
        if self.open != Open::Content {
            self.begin(Open::Content, r#"{"role":"assistant","content":""#, out);
        }
        out.block();
        out.raw("\"");
    }

    fn begin_call(&mut self, id: &str, name: &str, out: &mut Out) {
        match self.open {
            Open::Arguments { any } => {
                out.raw(if any { r#""}}"# } else { r#"{}"}}"# });
                out.block();
                out.raw(",");
            }
            Open::Reasoning => {
                out.block();
                out.raw(r#"","tool_calls":["#);
            }
            _ => {
                self.beside_content(out);
                out.raw(r#","tool_calls":["#);
            }
        }
        out.raw(&format!(
            r#"{{"id":"{}","type":"function","function":{{"name":{},"arguments":""#,
            wire_id(id),
            json(name)
        ));
        self.open = Open::Arguments { any: false };
    }

    /// Closes the last message.
    pub fn end(&mut self, out: &mut Out) {
        self.close(out);
    }
}
