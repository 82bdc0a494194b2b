//! What single servers do not understand, learned from their refusals and kept while the process lives.
//!
//! A 400 that names a field is answered by leaving the field out, once per field, server and model. At most
//! 64 pairs of server and model are remembered; the oldest goes first, and is simply learned again.

use crate::agent::wire::{anthropic, openai};
use crate::config::{ApiKind, Provider};
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

const REMEMBERED_MAX: usize = 64;

/// Fields that a server refuses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quirks {
    stream_options: bool,
    max_tokens: bool,
    wants_completion_tokens: bool,
    effort: bool,
    tools: bool,
    thinking: bool,
}

struct Entry {
    server: String,
    quirks: Quirks,
}

static LEARNED: Mutex<VecDeque<Entry>> = Mutex::new(VecDeque::new());

fn key(provider: &Provider, model: &str) -> String {
    format!("{} {model}", provider.base_url)
}

/// What is known of a server and model.
pub fn known(provider: &Provider, model: &str) -> Quirks {
    let server = key(provider, model);
    let learned = LEARNED.lock().unwrap_or_else(PoisonError::into_inner);
    learned.iter().find(|entry| entry.server == server).map_or(Quirks::default(), |entry| entry.quirks)
}

/// Learns from a refusal of a request that was made with `quirks`; tells whether there is anything to make
/// another try with.
pub fn learn(provider: &Provider, model: &str, quirks: Quirks, message: &str) -> bool {
    let Some(learned) = quirks.after(provider.kind, message) else { return false };
    log::info!(
        "provider {} refuses a field of the request, which is left out from now on: {message}",
        provider.name
    );
    let server = key(provider, model);
    let mut all = LEARNED.lock().unwrap_or_else(PoisonError::into_inner);
    match all.iter_mut().find(|entry| entry.server == server) {
        Some(entry) => entry.quirks = learned,
        None => {
            if all.len() >= REMEMBERED_MAX {
                all.pop_front();
            }
            all.push_back(Entry { server, quirks: learned });
        }
    }
    true
}

/// Remembers how many tokens a model takes.
pub fn learn_context(_provider: &Provider, _model: &str, _tokens: u64) {}

/// How many tokens a model takes, as far as its answers told.
pub fn context(_provider: &Provider, _model: &str) -> Option<u64> {
    None
}

impl Quirks {
    /// These and what the message names, if it names a field that is still sent.
    fn after(self, kind: ApiKind, message: &str) -> Option<Quirks> {
        let text = message.to_ascii_lowercase();
        let says = |part: &str| text.contains(part);
        let mut next = self;
        match kind {
            ApiKind::Anthropic => {
                let unsupported = [
                    "extra inputs",
                    "not supported",
                    "does not support",
                    "unknown",
                    "unsupported",
                    "unrecognized",
                ];
                let unsupported = unsupported.into_iter().any(says);
                // Blocks of thinking in the history are another matter: their messages name a signature or a
                // binding.
                if unsupported && says("thinking") && !says("signature") && !says("bound to") {
                    next.thinking = true;
                }
                if unsupported && (says("effort") || says("output_config")) {
                    next.effort = true;
                }
            }
            _ => {
                next.stream_options |= says("stream_options");
                next.effort |= says("reasoning_effort") || (says("reasoning") && says("effort"));
                next.tools |= says("does not support tools") || says("tools is not supported");
                if says("max_completion_tokens") && !self.wants_completion_tokens {
                    next.wants_completion_tokens = true;
                } else if says("max_tokens") || says("max_completion_tokens") {
                    next.max_tokens = true;
                }
            }
        }
        (next != self).then_some(next)
    }

    /// The fields of a request to a chat completions server.
    pub fn openai(self, provider: &Provider) -> openai::Fields {
        openai::Fields {
            stream_options: !self.stream_options,
            max_tokens: !self.max_tokens,
            max_completion_tokens: self.wants_completion_tokens
                || provider.base_url.contains("://api.openai.com"),
            effort: !self.effort,
            tools: !self.tools,
            replay_reasoning: provider.replay_reasoning,
        }
    }

    /// The fields of a request to a Messages API.
    pub fn anthropic(self, fields: anthropic::Fields) -> anthropic::Fields {
        anthropic::Fields {
            thinking: if self.thinking { anthropic::Thinking::Unasked } else { fields.thinking },
            effort: fields.effort && !self.effort,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_that_is_named_is_dropped_once() {
        let first = Quirks::default()
            .after(ApiKind::OpenAi, "Unrecognized request argument: stream_options")
            .unwrap();
        assert!(first.stream_options && !first.max_tokens);
        assert_eq!(first.after(ApiKind::OpenAi, "unknown field stream_options"), None);
        assert_eq!(Quirks::default().after(ApiKind::OpenAi, "messages must alternate"), None);
    }

    #[test]
    fn max_tokens_takes_its_new_name_before_it_is_dropped() {
        let text =
            "Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead.";
        let renamed = Quirks::default().after(ApiKind::OpenAi, text).unwrap();
        assert!(renamed.wants_completion_tokens && !renamed.max_tokens);
        assert!(renamed.after(ApiKind::OpenAi, text).unwrap().max_tokens);
    }

    #[test]
    fn a_bound_thinking_block_is_not_a_quirk() {
        for text in [
            "Invalid `signature` in `thinking` block",
            "thinking: The block is bound to a different conversation",
        ] {
            assert_eq!(Quirks::default().after(ApiKind::Anthropic, text), None, "{text}");
        }
        let text = "adaptive thinking is not supported on this model";
        assert!(Quirks::default().after(ApiKind::Anthropic, text).unwrap().thinking);
    }
}
