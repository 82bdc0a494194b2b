//! Refusals that have a cure of their own, recognised by every provider's wording.
//!
//! Pure functions of the message. What the vendors' servers say was collected from their documentation, their
//! sources and public reports of errors.

use super::Fault;

/// The conversation is longer than the model's context: to make the same request again changes nothing.
pub fn is_too_long(message: &str) -> bool {
    const WORDINGS: [&str; 40] = [
        // as it is told here
        "the conversation is longer than the context",
        // Anthropic, Bedrock
        "prompt is too long",
        "input is too long",
        "exceed context limit",
        // OpenAI and what imitates it
        "context_length_exceeded",
        "context length exceeded",
        "maximum context length",
        "exceeds the context window",
        "exceeds the model's context window",
        "exceeds model context window",
        "exceed the configured limit",
        "string_above_max_length",
        // llama.cpp
        "exceed_context_size",
        "exceeds the available context size",
        "larger than the max context size",
        "larger than the context size",
        "context shift is disabled",
        // vLLM, SGLang, TGI
        "longer than the maximum model length",
        "longer than the model's context length",
        "maximum model length",
        "`inputs` tokens + `max_new_tokens` must be",
        "`inputs` must have less than",
        // Ollama, LM Studio
        "exceeds the context length",
        "exceeds maximum context",
        "exceeded max context length",
        "greater than the context length",
        "context the overflows",
        "context overflow",
        "context length of only",
        // OpenRouter, Groq, Cerebras, Mistral, xAI, Moonshot, MiniMax, Cohere, Z.ai, Copilot
        "context window of",
        "context window exceeds",
        "reduce the length of the messages",
        "too large for model with",
        "maximum prompt length",
        "exceeded model token limit",
        "too many tokens: total number of tokens",
        "prompt exceeds max length",
        "prompt token count of",
        // Gemini
        "maximum number of tokens allowed",
        "input token limit",
    ];
    let text = message.to_ascii_lowercase();
    WORDINGS.iter().any(|wording| text.contains(wording))
}

/// Whether a fault says that the request must become smaller before it is made again: it is longer than the
/// model's context, whose size is given where it is named, or more bytes than the server takes (413).
pub fn overflow(fault: &Fault) -> Option<Option<u64>> {
    match fault {
        Fault::Refusal { status: Some(401..=404 | 429), .. } => None,
        Fault::Refusal { message, .. } if is_too_long(message) => Some(context_told(message)),
        Fault::Refusal { status: Some(413), .. } => Some(None),
        _ => None,
    }
}

/// The tokens of the model's context, as a refusal of a conversation that is too long names them.
pub fn context_told(message: &str) -> Option<u64> {
    /// Words, and on which side of them the number stands.
    const BEFORE: [&str; 3] = [" maximum context length", " maximum", " token limit"];
    const AFTER: [&str; 22] = [
        "n_ctx",
        "maximum context length",
        "max context length",
        "maximum model length",
        "maximum prompt length",
        "available context size",
        "max context size",
        "context size",
        "model's context length",
        "context length of only",
        "context length",
        "context window",
        "number of tokens allowed",
        "model token limit",
        "exceeds the limit of",
        "while limit is",
        "context limit:",
        "cannot exceed",
        "must be <=",
        "must have less than",
        "configured limit of",
        "longer than the maximum",
    ];
    if !is_too_long(message) {
        return None;
    }
    let text = message.to_ascii_lowercase();
    // "190000 + 20000 > 200000" and "210000 tokens > 200000 maximum": the limit stands last.
    let compared = text.rsplit_once("> ").and_then(|(_, rest)| leading(rest));
    let after = AFTER.iter().find_map(|words| text.split(words).skip(1).find_map(following));
    let before = || BEFORE.iter().find_map(|words| text.split(words).next().and_then(trailing));
    compared.or(after).or_else(before).filter(|tokens| (256..1 << 40).contains(tokens))
}

/// Whether a refusal for length complains of the answer that was asked for, and the conversation may fit with
/// one of at most `answer` tokens.
pub fn fits_with(message: &str, answer: u64) -> bool {
    const ANSWER: [&str; 5] =
        ["max_tokens", "max_completion_tokens", "max_new_tokens", "in the completion", "in the output"];
    const INPUT: [&str; 5] =
        [" input tokens", " in the messages", " of text input", " `inputs` tokens", " in your prompt"];
    let Some(context) = context_told(message) else { return false };
    let text = message.to_ascii_lowercase();
    let before = INPUT.iter().find_map(|words| text.split_once(words).and_then(|(text, _)| trailing(text)));
    let input = before.or_else(|| text.split_once("context limit: ").and_then(|(_, rest)| leading(rest)));
    ANSWER.iter().any(|words| text.contains(words))
        && input.is_none_or(|input| input.saturating_add(answer) <= context)
}

/// The most tokens of one answer, as a refusal of a larger `max_tokens` names them.
pub fn output_told(message: &str) -> Option<u64> {
    let text = message.to_ascii_lowercase();
    let before = |words: &str| text.split_once(words).and_then(|(text, _)| trailing(text));
    before(", which is the maximum allowed number of output tokens")
        .or_else(|| before(" completion tokens, whereas you provided"))
        .filter(|tokens| *tokens > 0)
}

/// The first number of a text, if nothing but small words and signs stands before it.
fn following(text: &str) -> Option<u64> {
    let at = text.find(|c: char| c.is_ascii_digit())?;
    let (between, rest) = text.split_at(at);
    let small = ["", "is", "of", "was", "limit", "the", "size", "length", "for", "this", "model", "tokens"];
    let words = between.split(|c: char| !c.is_ascii_alphabetic());
    // A sentence's end ends what the words are about.
    let near = !between.contains(". ") && words.into_iter().all(|word| small.contains(&word));
    if near { leading(rest) } else { None }
}

/// The number that a text begins with.
fn leading(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != ',' && c != '_').unwrap_or(text.len());
    text.split_at(end).0.replace([',', '_'], "").parse().ok()
}

/// The number that a text ends with.
fn trailing(text: &str) -> Option<u64> {
    let rest = text.trim_end_matches(|c: char| c.is_ascii_digit());
    text.strip_prefix(rest).and_then(|digits| digits.parse().ok())
}

/// Thinking that is sent back is not accepted: it belongs to another model or another beginning. The cure is
/// to drop all thinking, once (a stored `thinking-dropped` row).
pub fn thinking_is_refused(fault: &Fault) -> bool {
    let Fault::Refusal { status: Some(400), message, .. } = fault else { return false };
    let text = message.to_ascii_lowercase();
    let says = |part: &str| text.contains(part);
    says("bound to a different conversation")
        || (says("thinking")
            && [
                "signature",
                "cannot be modified",
                "must remain",
                "expected `thinking`",
                "must start with a thinking",
            ]
            .into_iter()
            .any(says))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: Option<u16>, message: &str) -> Fault {
        super::super::http::refusal(status, message.to_owned(), false, None)
    }

    /// What providers say, and the context that they name with it.
    const TOO_LONG: [(&str, Option<u64>); 40] = [
        ("prompt is too long: 210000 tokens > 200000 maximum", Some(200_000)),
        ("input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000", Some(200_000)),
        ("Input is too long for requested model.", None),
        (
            "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens (8000 in \
             the messages, 1000 in the completion). Please reduce the length of the messages or completion.",
            Some(8192),
        ),
        (
            "This model's maximum context length is 8192 tokens. However, your messages \
             resulted in 8545 tokens.",
            Some(8192),
        ),
        (
            "Your input exceeds the context window of this model. Please adjust your input and try again.",
            None,
        ),
        ("context_length_exceeded", None),
        (
            "Input tokens exceed the configured limit of 272000 tokens. Your messages \
             resulted in 300000 tokens.",
            Some(272_000),
        ),
        ("400 exceed_context_size_error", None),
        (
            "the request exceeds the available context size. try increasing the context size \
             or enable context shift",
            None,
        ),
        (
            "request (9000 tokens) exceeds the available context size (4096 tokens), try increasing it",
            Some(4096),
        ),
        ("the request exceeds the available context size, try increasing it (n_ctx: 4096)", Some(4096)),
        (r#"{"type":"exceed_context_size_error","n_prompt_tokens":9000,"n_ctx":4096}"#, Some(4096)),
        ("input (5000 tokens) is larger than the max context size (4096 tokens). skipping", Some(4096)),
        (
            "'max_tokens' or 'max_completion_tokens' is too large: 16000. This model's maximum context \
             length is 8192 tokens and your request has 30 input tokens (16000 > 8192 - 30).",
            Some(8192),
        ),
        ("The decoder prompt (length 9000) is longer than the maximum model length of 8192.", Some(8192)),
        (
            "This model's maximum context length is 4,096 tokens. However, your prompt contains 5,000.",
            Some(4096),
        ),
        ("Input length (9000) exceeds model's maximum context length (8192).", Some(8192)),
        ("The input (9000 tokens) is longer than the model's context length (8192 tokens).", Some(8192)),
        (
            "Requested token count exceeds the model's maximum context length of 8192 \
             tokens. You requested a total of 9000",
            Some(8192),
        ),
        (
            "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4097. \
             Given: 4000 `inputs` tokens",
            Some(4097),
        ),
        ("Input validation error: `inputs` must have less than 4096 tokens. Given: 5000", Some(4096)),
        ("the input length exceeds the context length", None),
        ("prompt too long; exceeded max context length by 123 tokens", None),
        (
            "The number of tokens to keep from the initial prompt is greater than the \
             context length (n_keep: 5000>= n_ctx: 4096)",
            Some(4096),
        ),
        (
            "Trying to keep the first 4200 tokens when context the overflows. However, the model is loaded \
             with context length of only 4096 tokens, which is not enough.",
            Some(4096),
        ),
        (
            "This endpoint's maximum context length is 131072 tokens. However, you requested \
             about 150000 tokens",
            Some(131_072),
        ),
        (
            "Please reduce the length of the messages or completion. Current length is 8209 \
             while limit is 8192",
            Some(8192),
        ),
        ("Please reduce the length of the messages or completion.", None),
        (
            "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 \
             maximum context length",
            Some(32_768),
        ),
        (
            "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
            Some(131_072),
        ),
        ("Invalid request: Your request exceeded model token limit: 262144", Some(262_144)),
        ("invalid params, context window exceeds limit (2013)", None),
        (
            "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 4292",
            Some(4081),
        ),
        ("Prompt exceeds max length", None),
        ("prompt token count of 128100 exceeds the limit of 128000", Some(128_000)),
        ("The prompt is too long: 137500, model maximum context length: 131071", Some(131_071)),
        (
            "The input token count (1196265) exceeds the maximum number of tokens allowed (1048576).",
            Some(1_048_576),
        ),
        ("The input token count exceeds the maximum number of tokens allowed 1048576.", Some(1_048_576)),
        (
            "the conversation is longer than the context of provider p's model (400): too big; go on in a \
             new tab",
            None,
        ),
    ];

    #[test]
    fn every_wording_of_too_long_is_known_with_the_limit_that_it_names() {
        for (text, tokens) in TOO_LONG {
            assert!(is_too_long(text), "{text}");
            assert_eq!(context_told(text), tokens, "{text}");
            for status in [Some(400), Some(413), Some(500), None] {
                assert_eq!(overflow(&refused(status, text)), Some(tokens), "{text}");
            }
        }
    }

    #[test]
    fn a_smaller_answer_is_a_cure_only_if_the_conversation_fits_beside_it() {
        for (text, fits) in [
            (
                "'max_tokens' or 'max_completion_tokens' is too large: 16000. This model's maximum context \
                 length is 8192 tokens and your request has 30 input tokens (16000 > 8192 - 30).",
                true,
            ),
            (
                "This model's maximum context length is 8192 tokens. However, you requested 16020 tokens \
                 (20 in the messages, 16000 in the completion).",
                true,
            ),
            (
                "This model's maximum context length is 8192 tokens. However, you requested 24000 tokens \
                 (8000 in the messages, 16000 in the completion).",
                false,
            ),
            ("input length and `max_tokens` exceed context limit: 90000 + 20000 > 100000", true),
            ("input length and `max_tokens` exceed context limit: 98000 + 20000 > 100000", false),
            ("prompt is too long: 210000 tokens > 200000 maximum", false),
            ("maximum context length is 8192 tokens. However, your messages resulted in 8545 tokens", false),
            ("max_tokens is too large", false),
        ] {
            assert_eq!(fits_with(text, 4096), fits, "{text}");
        }
    }

    #[test]
    fn what_is_refused_for_another_reason_is_not_too_long() {
        for text in [
            "messages: text content blocks must be non-empty",
            "max_tokens is too large",
            "max_tokens is too large: 16000. This model supports at most 4096 completion tokens",
            "max_tokens: 16000 > 8192, which is the maximum allowed number of output tokens for claude-x",
            "Rate limit reached for x: Limit 200000, Used 190000, Requested 20000 tokens per min",
            "request_too_large: Request exceeds the maximum size",
            "`max_tokens` must be greater than `thinking.budget_tokens`",
            "tools.0.name: String should match pattern '^[a-zA-Z0-9_-]{1,64}$'",
            "",
        ] {
            assert!(!is_too_long(text), "{text}");
            assert_eq!(context_told(text), None, "{text}");
            assert_eq!(overflow(&refused(Some(400), text)), None, "{text}");
        }
        let slow_down = refused(Some(429), "reduce the length of the messages: tokens per minute");
        assert_eq!(overflow(&slow_down), None);
        assert_eq!(overflow(&Fault::TooBig("prompt is too long".into())), None);
    }

    #[test]
    fn a_body_that_is_too_large_for_the_server_must_shrink_too() {
        assert_eq!(overflow(&refused(Some(413), "request_too_large")), Some(None));
    }

    #[test]
    fn the_most_tokens_of_an_answer_are_read_from_the_refusal_of_more() {
        for (text, tokens) in [
            (
                "max_tokens: 16000 > 8192, which is the maximum allowed number of output tokens for x",
                Some(8192),
            ),
            (
                "max_tokens is too large: 16000. This model supports at most 4096 completion tokens, whereas \
                 you provided 16000.",
                Some(4096),
            ),
            ("prompt is too long: 210000 tokens > 200000 maximum", None),
            ("é completion tokens, whereas you provided", None),
        ] {
            assert_eq!(output_told(text), tokens, "{text}");
        }
    }

    #[test]
    fn refused_thinking_is_known_by_its_wordings() {
        for text in [
            "messages.1.content.0: Invalid `signature` in `thinking` block",
            "messages.1.content.0.thinking.signature: Field required",
            "`thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified. \
             These blocks must remain as they were in the original response.",
            "thinking: ... The block is bound to a different conversation",
            "messages.5.content.0: The block is bound to a different conversation",
            "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`. \
             When `thinking` is enabled, a final `assistant` message must start with a thinking block",
        ] {
            assert!(thinking_is_refused(&refused(Some(400), text)), "{text}");
            assert!(!thinking_is_refused(&refused(Some(500), text)));
        }
        for text in [
            "thinking: Extra inputs are not permitted",
            "adaptive thinking is not supported on this model",
            "thinking.cache_control: Extra inputs are not permitted",
            "The `reasoning_content` in the thinking mode must be passed back to the API.",
            "`max_tokens` must be greater than `thinking.budget_tokens`",
        ] {
            assert!(!thinking_is_refused(&refused(Some(400), text)), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_message_breaks_the_reading(text in ".*", more in ".*") {
            let output = ", which is the maximum allowed number of output tokens";
            for words in ["maximum context length", " maximum context length", "n_ctx", "> ", output] {
                let text = format!("{text}{words}{more} prompt is too long");
                context_told(&text);
                output_told(&text);
                fits_with(&text, u64::MAX);
            }
        }
    }
}
