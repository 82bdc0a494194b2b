//! The Messages API's form of a request, in a fixed order of keys.
//!
//! Cache marks stand on the last tool, the last system block and the last block of the last two user
//! messages: what the request before this one wrote, and what the next one will read. Those are results or
//! texts that are not blank, so a mark never stands on thinking.

use super::Spec;
use super::history::Item;
use super::openai::tools;
use super::out::Out;
use crate::agent::provider::facts::{Efforts, Facts};
use crate::chunk::json;
use std::fmt::Write;

/// A cache mark.
pub const MARK: &str = r#","cache_control":{"type":"ephemeral"}"#;

/// How a model is asked to think.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thinking {
    /// the field is left out
    Unasked,
    /// the model decides; its thinking is told as a summary
    Adaptive,
    /// so many tokens
    Budget(u64),
}

/// The fields besides model, prefix and messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fields {
    /// how to think
    pub thinking: Thinking,
    /// whether an effort may be sent
    pub effort: bool,
}

impl Fields {
    /// The fields for a model that takes `facts`, of which at most `max_tokens` are asked for. Where nothing
    /// is known nothing is sent.
    pub fn of(facts: &Facts, max_tokens: u64) -> Fields {
        let ways = facts.thinking.unwrap_or_default();
        // At least 1024, and room must be left for the answer.
        let budget = (max_tokens / 2).min(8192);
        let thinking = match ways {
            _ if ways.adaptive => Thinking::Adaptive,
            _ if ways.budget && budget >= 1024 => Thinking::Budget(budget),
            _ => Thinking::Unasked,
        };
        Fields { thinking, effort: facts.efforts.is_some_and(|efforts| efforts != Efforts::NONE) }
    }
}

/// Everything before the first message. `bare_calls`: the last answer has calls and no thinking before them,
/// which thinking with a budget does not allow.
pub fn head(spec: &Spec<'_>, fields: &Fields, bare_calls: bool) -> String {
    let mut head =
        format!(r#"{{"model":{},"max_tokens":{},"stream":true"#, json(spec.model), spec.max_tokens.max(1));
    let _ = match fields.thinking {
        Thinking::Adaptive => write!(head, r#","thinking":{{"type":"adaptive","display":"summarized"}}"#),
        Thinking::Budget(tokens) if !bare_calls => {
            write!(head, r#","thinking":{{"type":"enabled","budget_tokens":{tokens}}}"#)
        }
        _ => Ok(()),
    };
    if let Some(effort) = spec.effort.filter(|_| fields.effort) {
        let _ = write!(head, r#","output_config":{{"effort":{}}}"#, json(effort));
    }
    if !spec.prefix.system.trim().is_empty() {
        let system = json(&spec.prefix.system);
        let _ = write!(head, r#","system":[{{"type":"text","text":{system}{MARK}}}]"#);
    }
    let tools = tools(spec.prefix);
    for (at, tool) in tools.iter().enumerate() {
        head.push_str(if at == 0 { r#","tools":["# } else { "," });
        let (name, description, schema) = (tool.name.get(), tool.description.get(), tool.parameters.get());
        let mark = if at + 1 == tools.len() { MARK } else { "" };
        let _ =
            write!(head, r#"{{"name":{name},"description":{description},"input_schema":{schema}{mark}}}"#);
    }
    if !tools.is_empty() {
        head.push(']');
    }
    head.push_str(r#","messages":["#);
    head
}

/// What a cache of the messages depends on besides their bytes.
pub fn shape(spec: &Spec<'_>, fields: &Fields, bare_calls: bool) -> String {
    let thinking = match fields.thinking {
        Thinking::Adaptive => "adaptive".to_owned(),
        Thinking::Budget(tokens) if !bare_calls => tokens.to_string(),
        _ => "unasked".to_owned(),
    };
    format!("effort={} thinking={thinking}", spec.effort.filter(|_| fields.effort).unwrap_or("unasked"))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Nobody,
    User,
    Assistant,
}

/// The block that is open.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Open {
    Nothing,
    /// inside a string
    Text,
    /// after the last field
    Fields,
    /// no argument was written yet
    NoInput,
    Input,
    /// no text of the result was written yet
    NoContent,
    /// inside the result's string
    Content,
}

/// Messages, one block after the other.
pub struct Writer {
    role: Role,
    open: Open,
    /// user messages begun
    users: u32,
    /// of how many the last two are marked; 0: none
    users_of_all: u32,
    /// blocks up to the end of the last user message, and of the one before
    tails: (u32, u32),
}

impl Writer {
    /// A writer whose cache marks stand on the last two of `users` user messages.
    pub fn new(users: u32) -> Writer {
        Writer { role: Role::Nobody, open: Open::Nothing, users: 0, users_of_all: users, tails: (0, 0) }
    }

    /// Blocks up to the end of the user message before the last one.
    pub fn tail_before(&self) -> u32 {
        self.tails.1
    }

    /// User messages so far.
    pub fn users(&self) -> u32 {
        self.users
    }

    fn close(&mut self, last: bool, out: &mut Out) {
        match std::mem::replace(&mut self.open, Open::Nothing) {
            Open::Nothing => return,
            Open::Text | Open::Content => out.raw("\""),
            Open::NoInput => out.raw("{}"),
            Open::Fields | Open::Input | Open::NoContent => {}
        }
        if last && self.role == Role::User && self.users + 2 > self.users_of_all && self.users_of_all > 0 {
            out.mark(MARK);
        }
        out.raw("}");
        out.block();
        if last && self.role == Role::User {
            self.tails = (out.blocks(), self.tails.0);
        }
    }

    fn begin(&mut self, role: Role, open: Open, block: &str, out: &mut Out) {
        self.close(role != self.role, out);
        if role == self.role {
            out.raw(",");
        } else {
            out.raw(match (self.role, role) {
                (Role::Nobody, Role::Assistant) => r#"{"role":"assistant","content":["#,
                (Role::Nobody, _) => r#"{"role":"user","content":["#,
                (_, Role::Assistant) => r#"]},{"role":"assistant","content":["#,
                _ => r#"]},{"role":"user","content":["#,
            });
            self.role = role;
            self.users += u32::from(role == Role::User);
        }
        out.raw(block);
        self.open = open;
    }

    /// Writes a part of a message.
    pub fn item(&mut self, item: &Item<'_>, out: &mut Out) {
        const TEXT: &str = r#"{"type":"text","text":""#;
        match *item {
            Item::User { new, time, text } => {
                if new {
                    self.begin(Role::User, Open::Text, TEXT, out);
                    if let Some(time) = time {
                        out.escaped(&format!("[{time}]\n"));
                    }
                }
                out.escaped(text);
            }
            Item::Text { new, text } => {
                if new {
                    self.begin(Role::Assistant, Open::Text, TEXT, out);
                }
                out.escaped(text);
            }
            Item::Thinking { new, text, signature } => {
                if new {
                    self.begin(Role::Assistant, Open::Text, r#"{"type":"thinking","thinking":""#, out);
                }
                out.escaped(text);
                if let Some(signature) = signature {
                    out.raw(r#"","signature":""#);
                    out.escaped(signature);
                }
            }
            Item::Redacted { data } => {
                self.begin(Role::Assistant, Open::Text, r#"{"type":"redacted_thinking","data":""#, out);
                out.escaped(data);
            }
            Item::Call { new, id, name, arguments } => {
                if new {
                    let block =
                        format!(r#"{{"type":"tool_use","id":{},"name":{},"input":"#, json(id), json(name));
                    self.begin(Role::Assistant, Open::NoInput, &block, out);
                }
                if !arguments.is_empty() {
                    out.raw(arguments);
                    self.open = Open::Input;
                }
            }
            Item::Result { new, id, text, end } => self.result(new, id, text, end, out),
        }
    }

    fn result(&mut self, new: bool, id: &str, text: &str, end: Option<bool>, out: &mut Out) {
        if new {
            let block = format!(r#"{{"type":"tool_result","tool_use_id":{}"#, json(id));
            self.begin(Role::User, Open::NoContent, &block, out);
        }
        if !text.is_empty() && self.open == Open::NoContent {
            out.raw(r#","content":""#);
            self.open = Open::Content;
        }
        out.escaped(text);
        if let Some(is_error) = end {
            if self.open == Open::Content {
                out.raw("\"");
            }
            if is_error {
                out.raw(r#","is_error":true"#);
            }
            self.open = Open::Fields;
        }
    }

    /// Closes the last message.
    pub fn end(&mut self, out: &mut Out) {
        self.close(true, out);
        if self.role != Role::Nobody {
            out.raw("]}");
        }
    }
}
