//! Providers: from a tab's rows to a stream of deltas.
//!
//! One call of [`ask`] is one HTTP request. The request's body is streamed out of the store ([`crate::agent::wire`]),
//! the answer is parsed line by line from a bounded buffer ([`sse`]) and handed on as [`Delta`]s, whichever API it came
//! from. Retry lies above ([`retry`]).

use crate::chunk::Usage;

/// What a provider's stream says, one piece at a time. Blocks come one after the other: a new block, or `BlockEnd`,
/// ends the one before.
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
