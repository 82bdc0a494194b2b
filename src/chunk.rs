//! The words that every part shares: tabs, turns, rows and what their `data` holds.
//!
//! A row's `data` is JSON text that clients may see; the structs here are its only shapes. `bytes` of a row
//! is the UTF-8 length of that text. `opaque` is provider-private and never leaves for a client.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Position in a tab's log: 1, 2, 3 … without gaps.
pub type Seq = u64;

/// Unix milliseconds, UTC.
pub type Millis = i64;

macro_rules! id {
    ($(#[doc = $doc:literal])+ $name:ident($inner:ty), $letter:literal) => {
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}{}", $letter, self.0)
            }
        }

        impl FromStr for $name {
            type Err = BadId;
            fn from_str(text: &str) -> Result<$name, BadId> {
                let digits = text.strip_prefix($letter).ok_or(BadId)?;
                if digits.is_empty() || digits.len() > 10 || !digits.bytes().all(|b| b.is_ascii_digit()) {
                    return Err(BadId);
                }
                digits.parse().map($name).map_err(|_| BadId)
            }
        }

        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }
    };
}

/// An id that no Siskin ever gave out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadId;

id! {
    /// A conversation; `t7` outside.
    TabNo(u32), 't'
}
id! {
    /// A turn; `u41` outside. 0 stands on rows that belong to no turn.
    TurnNo(u32), 'u'
}
id! {
    /// A queued message; `m5` outside.
    MessageNo(u32), 'm'
}
id! {
    /// A paired device; `d3` outside.
    DeviceNo(u32), 'd'
}

macro_rules! words {
    ($(#[doc = $doc:literal])+ $name:ident {
        $($(#[doc = $vdoc:literal])+ $variant:ident = $text:literal,)+
    }) => {
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[doc = $vdoc])+ $variant,)+ }

        impl $name {
            /// The word that stands in the database and on the wire.
            pub fn word(self) -> &'static str {
                match self { $($name::$variant => $text,)+ }
            }

            /// The value of a stored word.
            pub fn from_word(word: &str) -> Option<$name> {
                match word { $($text => Some($name::$variant),)+ _ => None }
            }
        }

        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(self.word())
            }
        }
    };
}

words! {
    /// Who speaks in a row.
    Role {
        /// the owner
        User = "user",
        /// the model
        Assistant = "assistant",
        /// a tool's result
        Tool = "tool",
        /// Siskin itself
        System = "system",
    }
}
words! {
    /// What a row holds.
    Kind {
        /// [`UserText`] or [`AssistantText`]
        Text = "text",
        /// [`Thinking`]
        Thinking = "thinking",
        /// [`ToolCall`]
        ToolCall = "tool_call",
        /// [`ToolResult`]
        ToolResult = "tool_result",
        /// [`ErrorData`]
        Error = "error",
        /// [`SystemData`]
        System = "system",
    }
}
words! {
    /// Why a turn ended.
    StopReason {
        /// the model had said what it had to say
        End = "end",
        /// the model's output limit
        MaxTokens = "max_tokens",
        /// the provider refused to answer
        Refused = "refused",
        /// stopped by the owner
        Cancelled = "cancelled",
        /// the server ended meanwhile
        Interrupted = "interrupted",
        /// the provider's stream broke off
        Cut = "cut",
        /// a limit on steps, calls or requests
        Limit = "limit",
        /// anything else; the turn's last row tells
        Error = "error",
    }
}
words! {
    /// How a turn stands.
    TurnStatus {
        /// for a slot
        Waiting = "waiting",
        /// in a slot
        Running = "running",
        /// for its owner
        WaitingApproval = "waiting_approval",
        /// ended by itself or by stop
        Done = "done",
        /// ended with the server
        Interrupted = "interrupted",
        /// ended by a fault
        Error = "error",
    }
}
words! {
    /// How a tab stands.
    TabStatus {
        /// nothing runs
        Idle = "idle",
        /// its turn waits for a slot
        Waiting = "waiting",
        /// its turn runs
        Running = "running",
        /// its turn waits for its owner
        WaitingApproval = "waiting_approval",
        /// its turn waits to ask the provider again
        Retrying = "retrying",
        /// its last turn ended with an error
        Error = "error",
    }
}
words! {
    /// What became of one request to the provider; decides what of its rows goes on the wire.
    StepOutcome {
        /// not ended yet
        Open = "open",
        /// the answer is whole
        Whole = "whole",
        /// the stream broke off or was stopped: `cut` calls stay off the wire
        Cut = "cut",
        /// the provider refused: none of the step's assistant rows go on the wire
        Refused = "refused",
    }
}

/// One row of a tab's log, as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// position
    pub seq: Seq,
    /// the turn it belongs to
    pub turn: TurnNo,
    /// the request within the turn, from 1
    pub step: u32,
    /// who speaks
    pub role: Role,
    /// what it is
    pub kind: Kind,
    /// JSON text that clients may see
    pub data: String,
    /// provider-private bytes: a signature, or redacted data
    pub opaque: Option<Vec<u8>>,
    /// when it was sealed
    pub created_at: Millis,
}

impl Row {
    /// The row as clients see it: a `ChunkRow`.
    pub fn write_json(&self, out: &mut String) {
        use std::fmt::Write;
        let wrote = write!(
            out,
            concat!(
                r#"{{"seq":{},"turnId":"{}","step":{},"role":"{}","type":"{}","#,
                r#""data":{},"bytes":{},"createdAt":{}}}"#
            ),
            self.seq,
            self.turn,
            self.step,
            self.role.word(),
            self.kind.word(),
            self.data,
            self.data.len(),
            self.created_at
        );
        debug_assert!(wrote.is_ok(), "writing to a string does not fail");
    }
}

fn is_zero(part: &u32) -> bool {
    *part == 0
}

fn is_false(flag: &bool) -> bool {
    !*flag
}

/// `text` of role `user`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UserText {
    /// what the owner wrote
    pub text: String,
    /// the sender's id of the message
    pub client_id: String,
    /// which part of the message
    #[serde(default, skip_serializing_if = "is_zero")]
    pub part: u32,
    /// local time with offset, as given to the model; on the first part only
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
    /// delivered at a tool boundary of a running turn
    #[serde(default, skip_serializing_if = "is_false")]
    pub steered: bool,
}

/// What a part of Markdown starts inside of, so that each row renders alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Md {
    /// the fence that is open, such as three backticks
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<String>,
    /// the open fence's language
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lang: Option<String>,
}

/// `text` of role `assistant`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssistantText {
    /// Markdown
    pub text: String,
    /// which block of the step, from 0
    pub block: u32,
    /// which part of the block
    #[serde(default, skip_serializing_if = "is_zero")]
    pub part: u32,
    /// what the part starts inside of
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub md: Option<Md>,
}

/// `thinking` of role `assistant`. Its signature or redacted data is the row's `opaque`, on the block's last
/// part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thinking {
    /// what the model thought, as far as the provider tells
    pub text: String,
    /// which block of the step, from 0
    pub block: u32,
    /// which part of the block
    #[serde(default, skip_serializing_if = "is_zero")]
    pub part: u32,
    /// the provider hides it; `opaque` is the redacted data
    #[serde(default, skip_serializing_if = "is_false")]
    pub redacted: bool,
    /// how long the whole block took, on its last part
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ms: Option<u64>,
}

/// `tool_call` of role `assistant`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolCall {
    /// unique in the tab, `[A-Za-z0-9_-]{1,64}`
    pub call_id: String,
    /// `[A-Za-z0-9_-]{1,64}`
    pub name: String,
    /// JSON text; a part of it if there are several parts
    pub arguments: String,
    /// which block of the step, from 0
    pub block: u32,
    /// which part of the block
    #[serde(default, skip_serializing_if = "is_zero")]
    pub part: u32,
    /// on the last part: the connection ended inside it; never run, no result, left out of the wire
    #[serde(default, skip_serializing_if = "is_false")]
    pub cut: bool,
}

/// How much a shortened result was.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Truncated {
    /// bytes of the whole output
    pub bytes: u64,
}

/// `tool_result` of role `tool`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolResult {
    /// the call that it answers
    pub call_id: String,
    /// the tool
    pub name: String,
    /// text; a part of it if there are several parts
    pub result: String,
    /// which part of the result
    #[serde(default, skip_serializing_if = "is_zero")]
    pub part: u32,
    /// on the last part, always
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_error: Option<bool>,
    /// on the last part, of a command
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// on the last part, if it ran
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ms: Option<u64>,
    /// on the last part, if something was left out
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub truncated: Option<Truncated>,
}

/// `error` of role `assistant`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorData {
    /// what happened and what to do, at most 4 KiB as JSON
    pub message: String,
    /// the provider's HTTP status
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// trying again may help
    #[serde(default, skip_serializing_if = "is_false")]
    pub retryable: bool,
}

/// `system` of role `system`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SystemData {
    /// `notice`, `model-changed`, `cancelled`, `interrupted`, `refused`, `limit` …
    pub kind: String,
    /// one sentence for the owner
    pub text: String,
    /// with `refused`: whose assistant rows never go on the wire
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u32>,
    /// with `compacted` and `thinking-dropped`: the last seq that it covers
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upto: Option<Seq>,
}

/// Tokens of a request, a turn or a tab. `input` is without what was read from or written to the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// fresh input tokens
    pub input: u64,
    /// tokens read from the provider's cache
    pub cache_read: u64,
    /// tokens written to the provider's cache
    pub cache_write: u64,
    /// tokens that the model wrote
    pub output: u64,
}

/// No request has more tokens of a kind; sums of any length stay within what the store can add.
const TOKENS_MAX: u64 = 1 << 40;

impl Usage {
    /// As a provider told it, without numbers that cannot be.
    pub fn bounded(self) -> Usage {
        let bound = |tokens: u64| tokens.min(TOKENS_MAX);
        Usage {
            input: bound(self.input),
            cache_read: bound(self.cache_read),
            cache_write: bound(self.cache_write),
            output: bound(self.output),
        }
    }

    /// Adds another request's tokens.
    pub fn add(&mut self, other: &Usage) {
        self.input = self.input.saturating_add(other.input);
        self.cache_read = self.cache_read.saturating_add(other.cache_read);
        self.cache_write = self.cache_write.saturating_add(other.cache_write);
        self.output = self.output.saturating_add(other.output);
    }

    /// Share of the input that came from the cache, 0 to 1; `None` before any input.
    pub fn hit_rate(&self) -> Option<f64> {
        let all = self.input + self.cache_read + self.cache_write;
        (all > 0).then(|| self.cache_read as f64 / all as f64)
    }
}

/// Bytes that `text` takes inside a JSON string, quotes not counted, as serde_json writes it.
pub fn escaped_len(text: &str) -> usize {
    text.bytes().map(escaped_byte_len).sum()
}

fn escaped_byte_len(byte: u8) -> usize {
    match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 2,
        0..=0x1f => 6,
        _ => 1,
    }
}

/// The longest start of `text` whose [`escaped_len`] is at most `room`, in bytes, ending at a character.
pub fn escaped_fit(text: &str, room: usize) -> usize {
    let mut used = 0;
    let mut end = text.len();
    for (at, byte) in text.bytes().enumerate() {
        used += escaped_byte_len(byte);
        if used > room {
            end = at;
            break;
        }
    }
    floor_boundary(text, end)
}

/// The largest character boundary of `text` that is at most `at`.
pub fn floor_boundary(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// The start of `text`, at most `bytes` long, cut at a character.
pub fn shorten(text: &str, bytes: usize) -> &str {
    text.split_at(floor_boundary(text, bytes)).0
}

/// `value` as compact JSON, non-ASCII unescaped.
pub fn json<T: Serialize + ?Sized>(value: &T) -> String {
    serde_json::to_string(value).expect("the shared shapes have string keys and finite numbers")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_cut_never_falls_inside_a_character() {
        let text = "a".repeat(29_999) + "👍";
        assert_eq!(shorten(&text, 30_000).len(), 29_999);
        assert_eq!(shorten(&text, 30_003), text);
        let wide = "字".repeat(200);
        for bytes in 0..=wide.len() {
            assert_eq!(shorten(&wide, bytes).len(), bytes / 3 * 3);
        }
    }

    #[test]
    fn ids_read_back_and_refuse_everything_else() {
        assert_eq!("t7".parse(), Ok(TabNo(7)));
        assert_eq!(TurnNo(41).to_string(), "u41");
        for bad in ["", "t", "7", "t-1", "t+1", "t99999999999", "u7", "t7 ", "t4294967296"] {
            assert_eq!(bad.parse::<TabNo>(), Err(BadId), "{bad}");
        }
    }

    #[test]
    fn a_call_without_part_or_cut_has_neither_field() {
        let call = ToolCall {
            call_id: "c1".into(),
            name: "search".into(),
            arguments: "{}".into(),
            ..Default::default()
        };
        assert_eq!(json(&call), r#"{"callId":"c1","name":"search","arguments":"{}","block":0}"#);
    }

    proptest! {
        #[test]
        fn escaped_len_is_what_serde_writes(text in any::<String>()) {
            prop_assert_eq!(escaped_len(&text) + 2, json(&text).len());
        }

        #[test]
        fn escaped_fit_is_the_longest_that_fits(text in any::<String>(), room in 0usize..64) {
            let end = escaped_fit(&text, room);
            prop_assert!(escaped_len(text.split_at(end).0) <= room);
            if let Some(next) = text.split_at(end).1.chars().next() {
                prop_assert!(escaped_len(text.split_at(end).0) + escaped_len(&next.to_string()) > room);
            }
        }
    }
}
