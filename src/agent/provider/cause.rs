//! Refusals that have a cure of their own, recognised by every provider's wording.

use super::Fault;

/// The conversation is longer than the model's context: to make the same request again changes nothing.
pub fn is_too_long(message: &str) -> bool {
    const WORDINGS: [&str; 11] = [
        "prompt is too long",
        "input is too long",
        "context_length_exceeded",
        "maximum context length",
        "exceed_context_size",
        "exceeds the available context size",
        "exceeds the context window",
        "exceed context limit",
        "context window of",
        "reduce the length of the messages",
        "maximum number of tokens allowed",
    ];
    let text = message.to_ascii_lowercase();
    WORDINGS.iter().any(|wording| text.contains(wording))
}

/// Whether a fault says that the conversation is too long, and if so, the model's limit where it is named.
pub fn overflow(fault: &Fault) -> Option<Option<u64>> {
    match fault {
        Fault::Refusal { message, .. } if is_too_long(message) => Some(None),
        _ => None,
    }
}

/// Thinking that is sent back is not accepted: it belongs to another model or another beginning. The cure is
/// to drop all thinking, once (a stored `thinking-dropped` row).
pub fn thinking_is_refused(fault: &Fault) -> bool {
    let Fault::Refusal { status: Some(400), message, .. } = fault else { return false };
    let text = message.to_ascii_lowercase();
    text.contains("thinking")
        && ["signature", "bound to a different", "cannot be modified", "expected `thinking`"]
            .iter()
            .any(|wording| text.contains(wording))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wording_of_too_long_is_known_and_nothing_else() {
        for text in [
            "prompt is too long: 210000 tokens > 200000 maximum",
            "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens",
            "the request exceeds the available context size, try increasing it",
            "400 exceed_context_size_error",
            "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000",
        ] {
            assert!(is_too_long(text), "{text}");
        }
        for text in ["messages: text content blocks must be non-empty", "max_tokens is too large", ""] {
            assert!(!is_too_long(text), "{text}");
        }
    }

    #[test]
    fn refused_thinking_is_known_by_its_wordings() {
        let refused = |status, message: &str| {
            thinking_is_refused(&super::super::http::refusal(Some(status), message.to_owned(), false, None))
        };
        for text in [
            "messages.1.content.0: Invalid `signature` in `thinking` block",
            "`thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified",
            "thinking: ... The block is bound to a different conversation",
            "Expected `thinking` or `redacted_thinking`, but found `tool_use`",
        ] {
            assert!(refused(400, text), "{text}");
            assert!(!refused(500, text));
        }
        assert!(!refused(400, "thinking: Extra inputs are not permitted"));
    }
}
