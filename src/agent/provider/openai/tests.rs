//! Streams of chat completions, at every split point.

use super::super::tests::{Seen, decode, decode_error};
use super::*;

fn decoder() -> OpenAi {
    OpenAi::new(&Budget::ROUTER)
}

fn check(stream: &str, blocks: &[Seen], finish: Finish) -> Usage {
    let (seen, answer) = decode(decoder, stream);
    assert_eq!(seen, blocks, "{stream}");
    let answer = answer.unwrap();
    assert_eq!(answer.finish, finish, "{stream}");
    answer.usage
}

fn text(text: &str) -> Seen {
    Seen::Text(text.to_owned())
}

fn thinking(text: &str) -> Seen {
    Seen::Thinking(text.to_owned(), String::new())
}

fn call(id: &str, name: &str, arguments: &str) -> Seen {
    Seen::Call(id.to_owned(), name.to_owned(), arguments.to_owned())
}

#[test]
fn a_plain_answer_with_usage_after_its_end() {
    let usage = check(
        r#"data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}],"usage":null}

data: {"choices":[{"index":0,"delta":{"content":"Grüße "}}]}

data: {"choices":[{"index":0,"delta":{"content":"👍\n"}}]}

data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}

data: {"usage":{"prompt_tokens":10,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":8}}}

data: [DONE]

"#,
        &[text("Grüße 👍\n")],
        Finish::End,
    );
    assert_eq!(usage, Usage { input: 2, cache_read: 8, cache_write: 0, output: 3 });
}

#[test]
fn usage_on_every_chunk_is_overwritten_not_added() {
    let usage = check(
        r#"data: {"choices":[{"delta":{"content":"a"}}],"usage":{"prompt_tokens":5,"completion_tokens":1}}

data: {"choices":[{"delta":{"content":"b"},"finish_reason":"stop"}],
data: "usage":{"prompt_tokens":5,"completion_tokens":2,"prompt_cache_hit_tokens":4}}

"#,
        &[text("ab")],
        Finish::End,
    );
    assert_eq!(usage, Usage { input: 1, cache_read: 4, cache_write: 0, output: 2 });
}

#[test]
fn null_missing_and_unknown_fields_are_tolerated() {
    check(
        r#"id: 7
data: {"choices":null}

data: {}

data: {"choices":[{}]}

data: {"choices":[{"delta":null,"index":null}],"usage":"x"}

data: {"choices":[{"delta":{"content":null,"tool_calls":null,"zzz":[1]}}]}

data: {"choices":[{"delta":{"content":[{"type":"text","text":"a"},{"type":"odd"}],"tool_calls":[{"id":""}]}}]}

data: not json

data: {"choices":[{"message":{"content":"b"},"finish_reason":"eos"}],"error":null}

"#,
        &[text("ab")],
        Finish::End,
    );
}

/// Each odd chunk alone between two good ones: none breaks the stream, and none adds anything.
#[test]
fn each_odd_field_is_tolerated_by_itself() {
    for odd in [
        "data: {\"choices\":[{\"index\":0}]}",
        "data: {\"choices\":[{\"index\":0,\"delta\":null}]}",
        "data: {\"choices\":[{\"index\":0,\"delta\":{}}]}",
        "data: {\"choices\":[{\"index\":0,\"delta\":\"x\"}]}",
        "data: {\"choices\":[]}",
        "data: {\"choices\":null}",
        "data: {\"choices\":[{\"index\":1,\"delta\":{\"content\":\"of another choice\"}}]}",
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":null}}]}",
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":7}}]}",
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":[{\"type\":\"odd\",\"x\":1}]}}]}",
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":null}}]}",
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"id\":\"\"}]}}]}",
        "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"function\":{\"arguments\":null}}]}}]}",
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"function\":null}]}}]}",
        "data: {\"usage\":null}",
        "data: {\"usage\":{\"prompt_tokens\":null}}",
        "data: {\"error\":null,\"detail\":null,\"object\":null}",
        "data: {\"code\":null,\"message\":null}",
        "data: {\"zzz\":{}}",
        "data: []",
        "data: null",
        "data: 7",
        "data: hello",
        "id: 9",
        "id:",
        "event: odd\ndata: {}",
        "nobody knows this",
    ] {
        let good = |text: &str| {
            format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n")
        };
        let stream = format!("{}{odd}\n\n{}data: [DONE]\n\n", good("a"), good("b"));
        check(&stream, &[text("ab")], Finish::End);
    }
}

#[test]
fn calls_decide_whatever_the_finish_reason_says() {
    check(
        r#"data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a",
data: "function":{"name":"f","arguments":""}}]}}]}

data: {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"x\":"}}]}}]}

data: {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"1}"}}]},
data: "finish_reason":"stop"}]}

"#,
        &[call("a", "f", "{\"x\":1}")],
        Finish::Calls,
    );
    check(
        "data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":\"tool_calls\"}]}\n\n",
        &[text("a")],
        Finish::End,
    );
}

#[test]
fn arguments_as_object_null_or_missing() {
    for (arguments, wanted) in
        [(r#","arguments":{"a": 1}"#, r#"{"a": 1}"#), (r#","arguments":null"#, "{}"), ("", "{}")]
    {
        let stream = format!(
            "data: {{\"choices\":[{{\"delta\":{{\"tool_calls\":[\
             {{\"id\":null,\"function\":{{\"name\":\"f\"{arguments}}}}}]}},\
             \"finish_reason\":\"tool_calls\"}}]}}\n\n"
        );
        check(&stream, &[call("", "f", wanted)], Finish::Calls);
    }
}

#[test]
fn a_legacy_function_call_is_a_call() {
    check(
        r#"data: {"choices":[{"delta":{"function_call":{"name":"f","arguments":"{"}}}]}

data: {"choices":[{"delta":{"function_call":{"arguments":"}"}},"finish_reason":"function_call"}]}

"#,
        &[call("", "f", "{}")],
        Finish::Calls,
    );
}

#[test]
fn thinking_comes_by_any_of_its_names_and_once() {
    for field in [
        r#""reasoning_content":"hm""#,
        r#""reasoning":"hm","reasoning_details":[{"text":"hm"}]"#,
        r#""reasoning_details":[{"text":"hm"}]"#,
        r#""content":"<think>hm</think>""#,
    ] {
        let stream = format!(
            "data: {{\"choices\":[{{\"delta\":{{{field}}}}}]}}\n\n\
             data: {{\"choices\":[{{\"delta\":{{\"content\":\"so\"}},\"finish_reason\":\"stop\"}}]}}\n\n"
        );
        check(&stream, &[thinking("hm"), text("so")], Finish::End);
    }
}

#[test]
fn text_inside_an_open_call_comes_after_it() {
    check(
        r#"data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a",
data: "function":{"name":"f","arguments":"{"}}]}}]}

data: {"choices":[{"delta":{"content":"aside"}}]}

data: {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"}"}}]},
data: "finish_reason":"tool_calls"}]}

"#,
        &[call("a", "f", "{}"), text("aside")],
        Finish::Calls,
    );
}

#[test]
fn an_end_without_reason_or_done_is_a_cut() {
    let stream =
        "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: {\"choices\":[{\"delta\":{}}]}\n\n";
    let (seen, answer) = decode(decoder, stream);
    assert_eq!(seen, [text("a")]);
    assert!(matches!(answer, Err(Fault::Cut { .. })), "{answer:?}");
}

#[test]
fn done_alone_is_an_end_and_what_follows_it_is_ignored() {
    check(
        "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n\
         data:  [DONE] \n\ndata: {\"choices\":[{\"delta\":{\"content\":\"b\"}}]}\n\n",
        &[text("a")],
        Finish::End,
    );
}

#[test]
fn length_and_content_filter_are_told() {
    check(
        "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"id\":\"a\",\
         \"function\":{\"name\":\"w\",\"arguments\":\"{\\\"c\\\":\\\"hel\"}}]},\
         \"finish_reason\":\"length\"}]}\n\n",
        &[call("a", "w", "{\"c\":\"hel")],
        Finish::MaxTokens,
    );
    check(
        "data: {\"choices\":[{\"delta\":{\"refusal\":\"I can\"}}]}\n\n\
         data: {\"choices\":[{\"delta\":{\"refusal\":\"not\"},\"finish_reason\":\"stop\"}]}\n\n",
        &[],
        Finish::Refused("I cannot".to_owned()),
    );
}

#[test]
fn an_error_inside_the_stream_is_told_in_each_of_its_shapes() {
    let shown = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
    for error in [
        "data: {\"error\":{\"message\":\"boom\",\"code\":500}}\n\n",
        "data: {\"object\":\"error\",\"message\":\"boom\",\"code\":503}\n\n",
        "event: error\ndata: {\"error\":\"boom\"}\n\n",
        "error: {\"code\":500,\"message\":\"boom\",\"type\":\"server_error\"}\n\n",
        "data: {\"choices\":[{\"delta\":{\"content\":\"\"},\"finish_reason\":\"error\"}],\
         \"error\":{\"code\":\"502\",\"message\":\"boom\"}}\n\n",
    ] {
        let fault = decode_error(decoder, &format!("{shown}{error}"));
        assert!(matches!(&fault, Fault::Cut { message, .. } if message.contains("boom")), "{fault:?}");
        let fault = decode_error(decoder, error);
        let passing = error.contains("50");
        let Fault::Refusal { message, retryable, .. } = &fault else { panic!("{error} {fault:?}") };
        assert!(message.contains("boom") && *retryable == passing, "{error} {fault:?}");
    }
    let fault =
        decode_error(decoder, &format!("{shown}data: {{\"choices\":[{{\"finish_reason\":\"error\"}}]}}\n\n"));
    assert!(matches!(fault, Fault::Cut { .. }));
}

#[test]
fn an_absurd_count_of_tokens_is_cut() {
    let usage = check(
        r#"data: {"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}],
data: "usage":{"prompt_tokens":18446744073709551615,"completion_tokens":9223372036854775807}}

"#,
        &[text("a")],
        Finish::End,
    );
    assert_eq!((usage.input, usage.output), (TOKENS_MAX, TOKENS_MAX));
}
