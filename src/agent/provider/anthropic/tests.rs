//! Streams of the Messages API, at every split point.

use super::super::tests::{Seen, decode, decode_error};
use super::*;

fn decoder() -> Anthropic {
    Anthropic::new(&Budget::ROUTER)
}

/// Events as the API sends them, from their data alone.
fn stream(events: &[&str]) -> String {
    let event = |data: &&str| {
        let kind = data.split('"').nth(3).unwrap();
        format!("event: {kind}\ndata: {data}\n\n")
    };
    events.iter().map(event).collect()
}

const START: &str = concat!(
    r#"{"type":"message_start","message":{"id":"m","usage":{"input_tokens":3,"#,
    r#""cache_read_input_tokens":5,"cache_creation_input_tokens":null,"output_tokens":1}}}"#
);
const STOP: &str = r#"{"type":"message_stop"}"#;

fn start(index: u32, block: &str) -> String {
    format!(r#"{{"type":"content_block_start","index":{index},"content_block":{block}}}"#)
}

fn delta(index: u32, delta: &str) -> String {
    format!(r#"{{"type":"content_block_delta","index":{index},"delta":{delta}}}"#)
}

fn check(events: &[&str], blocks: &[Seen], finish: Finish) -> Usage {
    let (seen, answer) = decode(decoder, &stream(events));
    assert_eq!(seen, blocks, "{events:?}");
    let answer = answer.unwrap();
    assert_eq!(answer.finish, finish);
    answer.usage
}

#[test]
fn thinking_text_and_a_call_with_cumulative_usage() {
    let usage = check(
        &[
            r#"{"type":"ping"}"#,
            START,
            &start(0, r#"{"type":"thinking","thinking":"","signature":""}"#),
            &delta(0, r#"{"type":"thinking_delta","thinking":"hm"}"#),
            &delta(0, r#"{"type":"signature_delta","signature":"S=="}"#),
            r#"{"type":"content_block_stop","index":0}"#,
            &start(1, r#"{"type":"text","text":""}"#),
            &delta(1, r#"{"type":"text_delta","text":"Grüße 👍"}"#),
            r#"{"type":"content_block_stop","index":1}"#,
            &start(2, r#"{"type":"tool_use","id":"toolu_1","name":"f","input":{}}"#),
            &delta(2, r#"{"type":"input_json_delta","partial_json":""}"#),
            &delta(2, r#"{"type":"input_json_delta","partial_json":"{\"x\":"}"#),
            &delta(2, r#"{"type":"input_json_delta","partial_json":"1}"}"#),
            r#"{"type":"content_block_stop","index":2}"#,
            concat!(
                r#"{"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"#,
                r#""usage":{"output_tokens":9,"input_tokens":null}}"#
            ),
            STOP,
        ],
        &[
            Seen::Thinking("hm".into(), "S==".into()),
            Seen::Text("Grüße 👍".into()),
            Seen::Call("toolu_1".into(), "f".into(), "{\"x\":1}".into()),
        ],
        Finish::Calls,
    );
    assert_eq!(usage, Usage { input: 3, cache_read: 5, cache_write: 0, output: 9 });
}

#[test]
fn hidden_and_redacted_thinking_are_handed_on() {
    check(
        &[
            START,
            &start(0, r#"{"type":"thinking","thinking":"","signature":""}"#),
            &delta(0, r#"{"type":"signature_delta","signature":"S"}"#),
            r#"{"type":"content_block_stop","index":0}"#,
            &start(1, r#"{"type":"redacted_thinking","data":"D"}"#),
            r#"{"type":"content_block_stop","index":1}"#,
            STOP,
        ],
        &[Seen::Thinking("".into(), "S".into()), Seen::Redacted("D".into())],
        Finish::End,
    );
}

#[test]
fn a_call_without_arguments_is_an_empty_object_and_a_full_start_is_kept() {
    for (input, part, wanted) in [
        (r#","input":{}"#, Some(""), "{}"),
        (r#","input":{}"#, None, "{}"),
        ("", None, "{}"),
        (r#","input":{"a":1}"#, None, r#"{"a":1}"#),
        (r#","input":{"a":1}"#, Some(r#"{\"b\":2}"#), r#"{"b":2}"#),
    ] {
        let start = start(0, &format!(r#"{{"type":"tool_use","id":"t","name":"f"{input}}}"#));
        let part =
            part.map(|part| delta(0, &format!(r#"{{"type":"input_json_delta","partial_json":"{part}"}}"#)));
        let mut events = vec![START, &start];
        events.extend(part.as_deref());
        events.push(STOP);
        check(&events, &[Seen::Call("t".into(), "f".into(), wanted.into())], Finish::Calls);
    }
}

#[test]
fn blocks_that_are_closed_together_at_the_end_do_not_mix() {
    check(
        &[
            &start(0, r#"{"type":"thinking","thinking":""}"#),
            &delta(0, r#"{"type":"thinking_delta","thinking":"a"}"#),
            &start(1, r#"{"type":"text","text":"b"}"#),
            &delta(1, r#"{"type":"text_delta","text":"c"}"#),
            &delta(0, r#"{"type":"signature_delta","signature":""}"#),
            r#"{"type":"content_block_stop","index":0}"#,
            r#"{"type":"content_block_stop","index":1}"#,
            r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"}}"#,
            STOP,
        ],
        &[Seen::Thinking("a".into(), "".into()), Seen::Text("bc".into())],
        Finish::End,
    );
}

#[test]
fn unknown_kinds_and_null_fields_are_ignored() {
    check(
        &[
            r#"{"type":"brand_new","x":1}"#,
            r#"{"type":"message_start","message":null}"#,
            &start(0, r#"{"type":"server_thing","text":null}"#),
            r#"{"type":"content_block_stop","index":0}"#,
            &start(1, r#"{"type":"text","text":null}"#),
            &delta(1, r#"{"type":"citations_delta","citation":{}}"#),
            &delta(1, r#"{"type":"text_delta","text":"x"}"#),
            r#"{"type":"content_block_delta","index":1,"delta":null}"#,
            r#"{"type":"message_delta","delta":{"stop_reason":"compacted"},"usage":null}"#,
            STOP,
        ],
        &[Seen::Text("x".into())],
        Finish::Other("compacted".into()),
    );
}

/// Each odd event alone in the middle of a good answer: none breaks it, and none adds anything.
#[test]
fn each_odd_event_is_tolerated_by_itself() {
    let (start, one, two) = (
        start(0, r#"{"type":"text","text":""}"#),
        delta(0, r#"{"type":"text_delta","text":"a"}"#),
        delta(0, r#"{"type":"text_delta","text":"b"}"#),
    );
    for odd in [
        r#"{"type":"ping"}"#,
        r#"{"type":null}"#,
        r#"{"type":7}"#,
        r#"{"type":"brand_new","delta":{"text":"x"}}"#,
        r#"{"type":"content_block_delta","index":0}"#,
        r#"{"type":"content_block_delta","index":0,"delta":{}}"#,
        r#"{"type":"content_block_delta","index":0,"delta":"x"}"#,
        r#"{"type":"content_block_delta","index":7,"delta":{"type":"text_delta","text":"x"}}"#,
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":null}}"#,
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"odd","partial_json":"{"}}"#,
        r#"{"type":"content_block_stop","index":7}"#,
        r#"{"type":"message_delta","delta":null,"usage":null}"#,
        r#"{"type":"message_delta","usage":{"output_tokens":null}}"#,
        r#"{"type":"message_start"}"#,
        r#"{"type":"x","error":null}"#,
        "[]",
        "null",
        "hello",
    ] {
        let text = [stream(&[START, &start, &one]), format!("data: {odd}\n\n"), stream(&[&two, STOP])];
        let (seen, answer) = decode(decoder, &text.concat());
        assert_eq!(seen, [Seen::Text("ab".into())], "{odd}");
        assert_eq!(answer.unwrap().finish, Finish::End, "{odd}");
    }
}

#[test]
fn limits_and_refusals_are_told() {
    for (delta, finish) in [
        (r#"{"stop_reason":"max_tokens"}"#, Finish::MaxTokens),
        (r#"{"stop_reason":"model_context_window_exceeded"}"#, Finish::ContextFull),
        (
            r#"{"stop_reason":"refusal","stop_details":{"category":"c","explanation":"no"}}"#,
            Finish::Refused("no".into()),
        ),
        (
            r#"{"stop_reason":"refusal","stop_details":null}"#,
            Finish::Refused("the provider refused to answer this".into()),
        ),
    ] {
        let event = format!(r#"{{"type":"message_delta","delta":{delta}}}"#);
        check(&[START, &event, STOP], &[], finish);
    }
}

#[test]
fn everything_without_message_stop_is_a_cut() {
    let events = [
        START,
        &start(0, r#"{"type":"text","text":""}"#),
        &delta(0, r#"{"type":"text_delta","text":"a"}"#),
        r#"{"type":"content_block_stop","index":0}"#,
        r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"}}"#,
    ];
    for upto in 3..=events.len() {
        let (seen, answer) = decode(decoder, &stream(&events[..upto]));
        assert_eq!(seen, [Seen::Text("a".into())]);
        assert!(matches!(answer, Err(Fault::Cut { .. })), "{upto} {answer:?}");
    }
}

#[test]
fn an_error_event_is_a_cut_once_something_was_shown_and_a_refusal_before() {
    let error = r#"{"type":"error","error":{"type":"overloaded_error","message":"boom"}}"#;
    let fault = decode_error(decoder, &stream(&[START, error]));
    assert!(matches!(&fault, Fault::Refusal { retryable: true, message, .. } if message.contains("boom")));
    let start = r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":"a"}}"#;
    let fault = decode_error(decoder, &stream(&[START, start, error]));
    assert!(
        matches!(&fault, Fault::Cut { message, usage } if message.contains("boom") && usage.input == 3),
        "{fault:?}"
    );
}

/// Bug: any count of tokens was believed. Effect: two of them added up to more than the store's integers
/// hold, after which the tab could not be read and the server did not start. Mend: no count is larger than
/// any request is.
#[test]
fn an_absurd_count_of_tokens_is_cut() {
    let much = r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{
        "input_tokens":18446744073709551615,"output_tokens":9223372036854775807}}"#;
    let usage = check(&[START, &much.replace('\n', " "), STOP], &[], Finish::End);
    assert_eq!((usage.input, usage.output, usage.cache_read), (TOKENS_MAX, TOKENS_MAX, 5));
}
