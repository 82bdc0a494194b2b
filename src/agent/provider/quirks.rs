//! What single servers do not understand, learned from their refusals and kept while the process lives.
//!
//! A 400 that names a field is answered by leaving the field out, once per field, server and model. One that
//! names the size of the context, or the most tokens of an answer, is believed too. At most 64 pairs of
//! server and model are remembered; the oldest goes first, and is simply learned again.

use super::cause;
use super::facts::Facts;
use crate::agent::wire::{Spec, anthropic, openai};
use crate::config::{ApiKind, Provider};
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

const REMEMBERED_MAX: usize = 64;
/// No model that can use tools has a smaller context.
const CONTEXT_TOKENS_MIN: u64 = 1024;

/// Fields that a server refuses, and limits that it named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quirks {
    stream_options: bool,
    max_tokens: bool,
    wants_completion_tokens: bool,
    effort: bool,
    tools: bool,
    thinking: bool,
    context_tokens: Option<u64>,
    output_tokens: Option<u64>,
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

/// Learns from a refusal of the request `spec`, which was made with `quirks`; tells whether there is anything
/// to make another try with.
pub fn learn(provider: &Provider, model: &str, quirks: Quirks, message: &str, spec: &Spec<'_>) -> bool {
    let Some(learned) = quirks.after(provider.kind, message, spec.max_tokens) else { return false };
    log::info!(
        "provider {} refuses a part of the request, which is left out or made smaller from now on: {message}",
        provider.name
    );
    change(provider, model, |known| *known = learned);
    true
}

/// Remembers the size of the context that a refusal named, or that a server's count showed. One that is
/// smaller than any model's is a miscount.
pub fn learn_context(provider: &Provider, model: &str, tokens: u64) {
    if tokens < CONTEXT_TOKENS_MIN {
        return;
    }
    log::info!("provider {}: the context of {model} is {tokens} tokens, as it told", provider.name);
    change(provider, model, |known| known.context_tokens = Some(tokens));
}

/// The size of the context that a refusal of this server and model named.
#[cfg(test)]
pub fn context(provider: &Provider, model: &str) -> Option<u64> {
    known(provider, model).context_tokens
}

fn change(provider: &Provider, model: &str, change: impl FnOnce(&mut Quirks)) {
    let server = key(provider, model);
    let mut all = LEARNED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(entry) = all.iter_mut().find(|entry| entry.server == server) {
        return change(&mut entry.quirks);
    }
    if all.len() >= REMEMBERED_MAX {
        all.pop_front();
    }
    let mut quirks = Quirks::default();
    change(&mut quirks);
    all.push_back(Entry { server, quirks });
}

impl Quirks {
    /// These and what the message names, if it names a field that is still sent, or a limit that makes the
    /// most tokens of the answer (`max_tokens` were asked for) smaller.
    fn after(self, kind: ApiKind, message: &str, max_tokens: u64) -> Option<Quirks> {
        let limits = Quirks {
            context_tokens: cause::context_told(message).or(self.context_tokens),
            output_tokens: cause::output_told(message).or(self.output_tokens),
            ..self
        };
        let answer = limits.facts(Facts::default()).answer_tokens(max_tokens);
        let helps = limits.output_tokens != self.output_tokens || cause::fits_with(message, answer);
        if answer < max_tokens && helps {
            return Some(limits);
        }
        // The names of fields in such a message are no complaint about the fields.
        if cause::is_too_long(message) {
            return None;
        }
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
                let effort = says("output_config") || says("effort");
                if unsupported && says("thinking") && !says("signature") && !says("bound to") {
                    // Such a message may recommend an effort.
                    next.thinking = true;
                } else if effort && (unsupported || says("input should be")) {
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

    /// What a model takes, within the limits that refusals named.
    pub fn facts(self, facts: Facts) -> Facts {
        let output = facts.output_tokens.into_iter().chain(self.output_tokens).min();
        Facts { output_tokens: output, ..facts.within(self.context_tokens) }
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

    fn after(quirks: Quirks, kind: ApiKind, message: &str) -> Option<Quirks> {
        quirks.after(kind, message, 16_000)
    }

    #[test]
    fn a_field_that_is_named_is_dropped_once() {
        let text = "Unrecognized request argument: stream_options";
        let first = after(Quirks::default(), ApiKind::OpenAi, text).unwrap();
        assert!(first.stream_options && !first.max_tokens);
        assert_eq!(after(first, ApiKind::OpenAi, "unknown field stream_options"), None);
        assert_eq!(after(Quirks::default(), ApiKind::OpenAi, "messages must alternate"), None);
    }

    #[test]
    fn max_tokens_takes_its_new_name_before_it_is_dropped() {
        let text =
            "Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead.";
        let renamed = after(Quirks::default(), ApiKind::OpenAi, text).unwrap();
        assert!(renamed.wants_completion_tokens && !renamed.max_tokens);
        assert!(after(renamed, ApiKind::OpenAi, text).unwrap().max_tokens);
    }

    #[test]
    fn a_bound_thinking_block_is_not_a_quirk() {
        for text in [
            "Invalid `signature` in `thinking` block",
            "thinking: The block is bound to a different conversation",
        ] {
            assert_eq!(after(Quirks::default(), ApiKind::Anthropic, text), None, "{text}");
        }
        let text = "adaptive thinking is not supported on this model";
        assert!(after(Quirks::default(), ApiKind::Anthropic, text).unwrap().thinking);
    }

    #[test]
    fn thinking_and_effort_are_dropped_apart() {
        let text = "\"thinking.type.enabled\" is not supported. Use \"thinking.type.adaptive\" \
                    and \"output_config.effort\" to control thinking behavior.";
        let quirks = after(Quirks::default(), ApiKind::Anthropic, text).unwrap();
        assert!(quirks.thinking && !quirks.effort);
        for text in [
            "This model does not support the effort parameter.",
            "output_config.effort: Input should be 'low', 'medium' or 'high'",
            "output_config: Extra inputs are not permitted",
        ] {
            let quirks = after(Quirks::default(), ApiKind::Anthropic, text).unwrap();
            assert!(quirks.effort && !quirks.thinking, "{text}");
        }
    }

    /// Bug: a refusal for length that named `max_tokens` cost that field. Effect: an answer without limit,
    /// for as long as the process lived. Mend: the limit that it names is learned instead, and a smaller
    /// answer asked for.
    #[test]
    fn a_limit_that_is_named_makes_the_answer_smaller_and_drops_nothing() {
        let text = "'max_tokens' or 'max_completion_tokens' is too large: 16000. This model's maximum \
                    context length is 8192 tokens and your request has 30 input tokens";
        let quirks = after(Quirks::default(), ApiKind::OpenAi, text).unwrap();
        assert_eq!(quirks, Quirks { context_tokens: Some(8192), ..Quirks::default() });
        assert_eq!(quirks.facts(Facts::default()).answer_tokens(16_000), 4096);
        assert_eq!(quirks.after(ApiKind::OpenAi, text, 4096), None, "then only a shorter conversation helps");
        let text = "max_tokens: 16000 > 8192, which is the maximum allowed number of output tokens for x";
        let quirks = after(Quirks::default(), ApiKind::Anthropic, text).unwrap();
        assert_eq!(quirks, Quirks { output_tokens: Some(8192), ..Quirks::default() });
    }

    #[test]
    fn a_context_is_learned_for_one_server_and_model() {
        let one = Provider { base_url: "http://one.invalid".into(), ..Provider::new("p", ApiKind::OpenAi) };
        let two = Provider { base_url: "http://two.invalid".into(), ..one.clone() };
        learn_context(&one, "m", 4096);
        assert_eq!(context(&one, "m"), Some(4096));
        assert_eq!((context(&one, "n"), context(&two, "m")), (None, None));
        learn_context(&one, "m", 118);
        assert_eq!(context(&one, "m"), Some(4096), "some servers do not count what they had cached");
    }
}
