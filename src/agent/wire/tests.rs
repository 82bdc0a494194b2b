//! The wire against any log: a log as a list, a strict checker of what the real API refuses, and random logs.

use super::*;
use crate::agent::provider::facts::Facts;
use crate::config::ApiKind;
use crate::store::Summary;
use proptest::prelude::*;
use serde_json::Value;
use std::collections::{HashMap, HashSet};

/// A log that is a list.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    pub(crate) rows: Vec<Row>,
    pub(crate) steps: HashMap<(TurnNo, u32), Step>,
    pub(crate) calls: HashMap<String, CallState>,
}

impl Log {
    /// Rows as given, with their seqs put right.
    pub(crate) fn of(rows: Vec<Row>) -> Log {
        let mut log = Log::default();
        rows.into_iter().for_each(|row| log.push(row));
        log
    }

    fn push(&mut self, mut row: Row) {
        row.seq = self.rows.len() as Seq + 1;
        self.rows.push(row);
    }

    fn note_step(&mut self, turn: u32, step: u32, model: &str, outcome: StepOutcome) {
        let told = Step { outcome, ..Step::new(step, 0, model.to_owned()) };
        self.steps.insert((TurnNo(turn), step), told);
    }

    /// As the store finds it.
    fn generation(&self) -> Generation {
        let mut generation = Generation::default();
        for row in self.rows.iter().filter(|row| row.kind == Kind::System) {
            let data: SystemData = serde_json::from_str(&row.data).unwrap();
            match (data.kind.as_str(), data.upto) {
                ("compacted", Some(upto)) => {
                    generation = Generation { since: row.seq, summary: Some(Summary { seq: row.seq, upto }) };
                }
                ("thinking-dropped" | "model-changed", _) => generation.since = row.seq,
                _ => {}
            }
        }
        generation
    }
}

impl Rows for Log {
    fn rows(&self, _: TabNo, after: Seq, upto: Seq, bytes_max: usize) -> Stored<Vec<Row>> {
        let mut bytes = 0;
        let rows = self.rows.iter().filter(|row| row.seq > after && row.seq <= upto);
        let fit = rows.enumerate().take_while(|(at, row)| {
            bytes += row.data.len();
            *at == 0 || bytes <= bytes_max
        });
        Ok(fit.map(|(_, row)| row.clone()).collect())
    }

    fn step(&self, turn: TurnNo, step: u32) -> Stored<Option<Step>> {
        Ok(self.steps.get(&(turn, step)).cloned())
    }

    fn call_state(&self, _: TabNo, call_id: &str) -> Stored<Option<CallState>> {
        Ok(self.calls.get(call_id).copied())
    }
}

fn row(turn: u32, step: u32, role: Role, kind: Kind, data: String) -> Row {
    Row { seq: 0, turn: TurnNo(turn), step, role, kind, data, opaque: None, created_at: 0 }
}

/// A message of the owner.
pub(crate) fn user(text: &str) -> Row {
    // Each message has an id of its own.
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let client_id = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed).to_string();
    row(
        1,
        1,
        Role::User,
        Kind::Text,
        json(&UserText { text: text.to_owned(), client_id, ..Default::default() }),
    )
}

fn text(turn: u32, step: u32, block: u32, part: u32, text: &str) -> Row {
    let data = AssistantText { text: text.to_owned(), block, part, md: None };
    row(turn, step, Role::Assistant, Kind::Text, json(&data))
}

fn thinking(turn: u32, step: u32, block: u32, text: &str, signature: Option<&str>) -> Row {
    let data = Thinking { text: text.to_owned(), block, ..Default::default() };
    let mut row = row(turn, step, Role::Assistant, Kind::Thinking, json(&data));
    row.opaque = signature.map(|signature| signature.as_bytes().to_vec());
    row
}

fn call(turn: u32, step: u32, id: &str, arguments: &str, part: u32) -> Row {
    let data = ToolCall {
        call_id: id.to_owned(),
        name: "f".to_owned(),
        arguments: arguments.to_owned(),
        block: 7,
        part,
        cut: false,
    };
    row(turn, step, Role::Assistant, Kind::ToolCall, json(&data))
}

fn result(turn: u32, step: u32, id: &str, text: &str, part: u32, is_error: Option<bool>) -> Row {
    let data = ToolResult {
        call_id: id.to_owned(),
        name: "f".to_owned(),
        result: text.to_owned(),
        part,
        is_error,
        ..Default::default()
    };
    row(turn, step, Role::Tool, Kind::ToolResult, json(&data))
}

const MODEL: &str = "p/claude-sonnet-5-5";

fn prefix() -> Prefix {
    Prefix {
        system: "Be \"brief\".\n".to_owned(),
        tools: concat!(
            r#"[{"name":"f","description":"F.","parameters":{"type":"object"}},"#,
            r#"{"name":"g","description":"G.","parameters":{"type":"object"}}]"#
        )
        .to_owned(),
    }
}

fn spec<'a>(prefix: &'a Prefix, kind: ApiKind, log: &Log, upto: Seq) -> Spec<'a> {
    let form = match kind {
        ApiKind::Anthropic => {
            let facts = Facts::by_name("claude-sonnet-5-5", "https://api.anthropic.com");
            Form::Anthropic(anthropic::Fields::of(&facts, 16_000))
        }
        _ => Form::OpenAi(openai::Fields {
            stream_options: true,
            max_tokens: true,
            max_completion_tokens: false,
            effort: true,
            tools: true,
            replay_reasoning: true,
        }),
    };
    Spec {
        part: Part { tab: TabNo(1), upto, generation: log.generation(), closing: None },
        prefix,
        model_id: MODEL.to_owned(),
        model: "claude-sonnet-5-5",
        effort: None,
        max_tokens: 16_000,
        form,
    }
}

/// The body up to a row, read in odd pieces, with its plan; checks that both passes agree.
fn body(log: &Log, kind: ApiKind, upto: Seq) -> (String, Plan) {
    let prefix = prefix();
    let spec = spec(&prefix, kind, log, upto);
    let plan = plan(log, &spec, &Budget::ROUTER).unwrap();
    let mut body = Body::new(log, &spec, &Budget::ROUTER, &plan);
    let mut bytes = Vec::new();
    let mut piece = [0; 61];
    loop {
        let amount = body.read(&mut piece).unwrap();
        if amount == 0 {
            break;
        }
        bytes.extend_from_slice(&piece[..amount]);
    }
    assert_eq!(bytes.len() as u64, plan.bytes);
    (String::from_utf8(bytes).unwrap(), plan)
}

fn messages(body: &str) -> Vec<Value> {
    let value: Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {body}"));
    value["messages"].as_array().unwrap().clone()
}

fn all(log: &Log, kind: ApiKind) -> Vec<Value> {
    messages(&body(log, kind, log.rows.len() as Seq).0)
}

/// What the real API refuses, as far as it is known.
fn check_anthropic(body: &str) {
    let value: Value = serde_json::from_str(body).unwrap();
    let marks = body.matches("cache_control").count();
    assert!(marks <= 4, "{marks} marks");
    let mut last_role = "";
    let mut due: Vec<String> = Vec::new();
    let mut ids = HashSet::new();
    for message in value["messages"].as_array().unwrap() {
        let role = message["role"].as_str().unwrap();
        assert_ne!(role, last_role, "roles must alternate");
        assert!(!last_role.is_empty() || role == "user", "the first message must be the user's");
        last_role = role;
        let blocks = message["content"].as_array().unwrap();
        assert!(!blocks.is_empty(), "empty content");
        let mut texts = false;
        let mut answered = Vec::new();
        for block in blocks {
            let kind = block["type"].as_str().unwrap();
            match kind {
                "text" => {
                    texts = true;
                    assert!(!block["text"].as_str().unwrap().trim().is_empty(), "blank text");
                }
                "thinking" => {
                    assert!(!block["signature"].as_str().unwrap().is_empty(), "unsigned thinking");
                    assert!(block.get("cache_control").is_none(), "a mark on thinking");
                }
                "redacted_thinking" => assert!(!block["data"].as_str().unwrap().is_empty()),
                "tool_use" => {
                    let id = block["id"].as_str().unwrap().to_owned();
                    assert!(block["input"].is_object(), "input must be an object");
                    assert!(ids.insert(id.clone()), "ids must be unique");
                    answered.push(id);
                }
                "tool_result" => {
                    assert!(!texts, "results come first");
                    let id = block["tool_use_id"].as_str().unwrap();
                    let at = due.iter().position(|due| due == id).expect("unexpected tool_use_id");
                    due.remove(at);
                }
                other => panic!("{other}"),
            }
            assert_eq!(role == "user", kind == "tool_result" || (kind == "text" && role == "user"));
        }
        assert!(due.is_empty(), "tool_use without tool_result: {due:?}");
        due = answered;
    }
    assert!(due.is_empty(), "tool_use without tool_result: {due:?}");
}

/// What strict templates and Ollama refuse.
fn check_openai(body: &str) {
    let value: Value = serde_json::from_str(body).unwrap();
    let mut due: Vec<String> = Vec::new();
    let mut ids = HashSet::new();
    let mut last_role = "";
    for (at, message) in value["messages"].as_array().unwrap().iter().enumerate() {
        let role = message["role"].as_str().unwrap();
        assert!(message["content"].is_string(), "content is never left out");
        assert_eq!(role == "system", at == 0, "one system message, and that first");
        assert!(role != "user" || last_role != "tool", "a user right after a tool");
        assert!(role != "assistant" || last_role != "system", "the first after the system is the user");
        if role == "tool" {
            assert_eq!(
                due.remove(0),
                message["tool_call_id"].as_str().unwrap(),
                "results in the calls' order"
            );
        } else {
            assert!(due.is_empty(), "calls without results");
            assert!(role != last_role, "two {role} in a row");
        }
        for call in message["tool_calls"].as_array().unwrap_or(&Vec::new()) {
            let arguments = call["function"]["arguments"].as_str().unwrap();
            assert!(serde_json::from_str::<Value>(arguments).unwrap().is_object());
            let id = call["id"].as_str().unwrap();
            assert!(id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
            assert!(ids.insert(id.to_owned()), "ids must be unique");
            due.push(id.to_owned());
        }
        last_role = role;
    }
    assert!(due.is_empty());
}

fn without_marks(body: &str) -> String {
    body.replace(anthropic::MARK, "")
}

/// A turn with everything in it.
fn rich() -> Log {
    let mut log = Log::of(vec![user("how \"are\" you\n"), thinking(1, 1, 0, "hm", Some("S1"))]);
    log.push(text(1, 1, 1, 0, "let me "));
    log.push(text(1, 1, 1, 1, "look"));
    log.push(call(1, 1, "a", "{\"x\":", 0));
    log.push(call(1, 1, "a", "1}", 1));
    log.push(call(1, 1, "b", "", 0));
    log.push(result(1, 1, "a", "out", 0, None));
    log.push(result(1, 1, "a", "put", 1, Some(false)));
    log.push(result(1, 1, "b", "", 0, Some(true)));
    log.push(user("and be quick"));
    log.push(text(1, 2, 0, 0, "fine"));
    log.push(row(1, 2, Role::Assistant, Kind::Error, json(&ErrorData::default())));
    log.push(user("good"));
    log.note_step(1, 1, MODEL, StepOutcome::Whole);
    log.note_step(1, 2, MODEL, StepOutcome::Whole);
    log.calls.insert("a".into(), CallState::Good);
    log.calls.insert("b".into(), CallState::Good);
    log
}

#[test]
fn a_turn_for_the_messages_api_byte_for_byte() {
    let (body, plan) = body(&rich(), ApiKind::Anthropic, 14);
    let mark = anthropic::MARK;
    assert_eq!(
        body,
        [
            r#"{"model":"claude-sonnet-5-5","max_tokens":16000,"stream":true,"#,
            r#""thinking":{"type":"adaptive","display":"summarized"},"#,
            r#""system":[{"type":"text","text":"Be \"brief\".\n""#,
            mark,
            r#"}],"tools":[{"name":"f","description":"F.","input_schema":{"type":"object"}},"#,
            r#"{"name":"g","description":"G.","input_schema":{"type":"object"}"#,
            mark,
            r#"}],"messages":[{"role":"user","content":[{"type":"text","text":"how \"are\" you\n"}]},"#,
            r#"{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"S1"},"#,
            r#"{"type":"text","text":"let me look"},"#,
            r#"{"type":"tool_use","id":"a","name":"f","input":{"x":1}},"#,
            r#"{"type":"tool_use","id":"b","name":"f","input":{}}]},"#,
            r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"output"},"#,
            r#"{"type":"tool_result","tool_use_id":"b","is_error":true},"#,
            r#"{"type":"text","text":"and be quick""#,
            mark,
            r#"}]},{"role":"assistant","content":[{"type":"text","text":"fine"}]},"#,
            r#"{"role":"user","content":[{"type":"text","text":"good""#,
            mark,
            r#"}]}]}"#,
        ]
        .concat()
    );
    assert_eq!(plan.blocks, 10);
    check_anthropic(&body);
}

#[test]
fn a_turn_for_chat_completions_byte_for_byte() {
    let (body, _) = body(&rich(), ApiKind::OpenAi, 14);
    assert_eq!(
        body.split_once(r#","messages":"#).unwrap().1,
        [
            r#"[{"role":"system","content":"Be \"brief\".\n"},"#,
            r#"{"role":"user","content":"how \"are\" you\n"},"#,
            r#"{"role":"assistant","content":"let me look","reasoning_content":"hm","tool_calls":["#,
            r#"{"id":"ObhidonGO","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}},"#,
            r#"{"id":"CTkmCmHol","type":"function","function":{"name":"f","arguments":"{}"}}]},"#,
            r#"{"role":"tool","tool_call_id":"ObhidonGO","content":"output"},"#,
            r#"{"role":"tool","tool_call_id":"CTkmCmHol","content":""},"#,
            r#"{"role":"assistant","content":"Noted."},"#,
            r#"{"role":"user","content":"and be quick"},{"role":"assistant","content":"fine"},"#,
            r#"{"role":"user","content":"good"}]}"#,
        ]
        .concat()
    );
    check_openai(&body);
}

#[test]
fn blank_text_of_the_model_is_left_out() {
    let mut log = Log::of(vec![user("a"), text(1, 1, 0, 0, "\n"), text(1, 1, 0, 1, " "), user("b")]);
    log.note_step(1, 1, MODEL, StepOutcome::Whole);
    let anthropic = all(&log, ApiKind::Anthropic);
    assert_eq!(anthropic.len(), 1);
    assert_eq!(anthropic[0]["content"].as_array().unwrap().len(), 2);
    assert_eq!(all(&log, ApiKind::OpenAi)[1]["content"], "a\n\nb");
    // A block that only starts blank is whole.
    log.push(text(2, 1, 0, 0, "\n"));
    log.push(text(2, 1, 0, 1, "x"));
    log.push(user("c"));
    assert_eq!(all(&log, ApiKind::Anthropic)[1]["content"][0]["text"], "\nx");
}

#[test]
fn the_time_comes_before_the_first_part_of_its_message() {
    let data = |part, time: Option<&str>| {
        let text = UserText {
            text: format!("part {part} "),
            client_id: "c".into(),
            part,
            time: time.map(str::to_owned),
            steered: false,
        };
        row(1, 1, Role::User, Kind::Text, json(&text))
    };
    let log = Log::of(vec![data(0, Some("2026-11-30T20:15+01:00")), data(1, None)]);
    let wanted = "[2026-11-30T20:15+01:00]\npart 0 part 1 ";
    assert_eq!(all(&log, ApiKind::Anthropic)[0]["content"][0]["text"], wanted);
    assert_eq!(all(&log, ApiKind::OpenAi)[1]["content"], wanted);
}

#[test]
fn cut_calls_unanswered_calls_and_lone_results_are_left_out_and_bad_arguments_are_an_object() {
    let mut log = Log::of(vec![user("a")]);
    for id in ["cut", "bad", "open", "unknown"] {
        log.push(call(1, 1, id, "{\"x", 0));
    }
    for id in ["cut", "bad", "unknown", "lone"] {
        log.push(result(1, 1, id, "r", 0, Some(true)));
    }
    log.push(text(1, 2, 0, 0, "so"));
    log.push(result(1, 2, "bad", "late", 0, Some(false)));
    log.push(user("b"));
    log.calls = [("cut", CallState::Cut), ("bad", CallState::Bad), ("open", CallState::Good)]
        .map(|(id, state)| (id.to_owned(), state))
        .into();
    let (body, _) = body(&log, ApiKind::Anthropic, log.rows.len() as Seq);
    check_anthropic(&body);
    assert!(body.contains(r#"{"type":"tool_use","id":"bad","name":"f","input":{}}"#));
    assert_eq!(body.matches("tool_use_id").count(), 1);
    let (body, _) = super::tests::body(&log, ApiKind::OpenAi, log.rows.len() as Seq);
    check_openai(&body);
    assert_eq!(body.matches("tool_call_id").count(), 1);
}

#[test]
fn a_call_has_one_result_and_an_id_one_call_whatever_the_log_says() {
    let mut log = Log::of(vec![user("a"), call(1, 1, "x", "{}", 0), call(1, 1, "x", "{}", 0)]);
    log.push(result(1, 1, "x", "first", 0, Some(false)));
    log.push(result(1, 1, "x", "second", 0, Some(false)));
    log.calls.insert("x".into(), CallState::Good);
    for kind in [ApiKind::Anthropic, ApiKind::OpenAi] {
        let (body, _) = body(&log, kind, 5);
        assert!(body.contains("first") && !body.contains("second"), "{body}");
        assert_eq!(body.matches(r#""name":"f","#).count(), 2, "the tool and its one call: {body}");
    }
}

#[test]
fn a_refused_step_leaves_nothing_on_the_wire() {
    let mut log = Log::of(vec![user("a"), text(1, 1, 0, 0, "half"), call(1, 1, "x", "{}", 0)]);
    log.push(result(1, 1, "x", "r", 0, Some(false)));
    log.push(user("b"));
    log.calls.insert("x".into(), CallState::Good);
    log.note_step(1, 1, MODEL, StepOutcome::Refused);
    assert_eq!(all(&log, ApiKind::Anthropic).len(), 1);
    log.note_step(1, 1, MODEL, StepOutcome::Cut);
    assert_eq!(all(&log, ApiKind::Anthropic).len(), 3);
}

#[test]
fn thinking_goes_back_only_signed_and_to_the_same_model() {
    let mut redacted = thinking(1, 1, 2, "", Some("DATA"));
    redacted.data = json(&Thinking { block: 2, redacted: true, ..Default::default() });
    let mut log =
        Log::of(vec![user("a"), thinking(1, 1, 0, "", Some("SIG")), thinking(1, 1, 1, "cut", None)]);
    log.push(redacted);
    log.push(text(1, 1, 3, 0, "x"));
    log.push(user("b"));
    log.note_step(1, 1, MODEL, StepOutcome::Whole);
    let kinds = |log: &Log| -> Vec<String> {
        let messages = all(log, ApiKind::Anthropic);
        let blocks = messages[1]["content"].as_array().unwrap().iter();
        blocks.map(|block| block["type"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(kinds(&log), ["thinking", "redacted_thinking", "text"]);
    log.note_step(1, 1, "p/other", StepOutcome::Whole);
    assert_eq!(kinds(&log), ["text"]);
    log.note_step(1, 1, MODEL, StepOutcome::Whole);
    let dropped = SystemData { kind: "thinking-dropped".into(), upto: Some(6), ..Default::default() };
    log.push(row(2, 1, Role::System, Kind::System, json(&dropped)));
    assert_eq!(kinds(&log), ["text"]);
}

/// A text of the owner that came while the tools ran made the answer before it seem to have no calls, so
/// thinking with a budget was asked for, and the provider refused every request of this turn.
#[test]
fn whether_the_last_answer_begins_with_thinking_holds_until_the_next_answer() {
    let bare = |log: &Log| body(log, ApiKind::Anthropic, log.rows.len() as Seq).1.bare_calls;
    let mut log = Log::of(vec![user("a"), text(1, 1, 0, 0, "one"), call(1, 1, "x", "{}", 0)]);
    log.push(result(1, 1, "x", "r", 0, Some(false)));
    log.calls.insert("x".into(), CallState::Good);
    log.note_step(1, 1, MODEL, StepOutcome::Whole);
    assert!(bare(&log));
    log.push(user("meanwhile"));
    assert!(bare(&log), "the owner's text is in the same message as the results");
    log.push(text(1, 2, 0, 0, "refused"));
    log.note_step(1, 2, MODEL, StepOutcome::Refused);
    log.push(user("more"));
    assert!(bare(&log), "a refused answer is not there");
    log.push(text(1, 3, 0, 0, "two"));
    log.note_step(1, 3, MODEL, StepOutcome::Whole);
    log.push(user("b"));
    assert!(!bare(&log));
    log.push(thinking(1, 4, 0, "hm", Some("SIG")));
    log.push(call(1, 4, "y", "{}", 0));
    log.push(result(1, 4, "y", "r", 0, Some(false)));
    log.calls.insert("y".into(), CallState::Good);
    log.note_step(1, 4, MODEL, StepOutcome::Whole);
    assert!(!bare(&log));
}

fn system(kind: &str, text: &str, upto: Option<Seq>) -> Row {
    let data = SystemData { kind: kind.into(), text: text.into(), upto, ..Default::default() };
    row(9, 1, Role::System, Kind::System, json(&data))
}

#[test]
fn after_a_summary_the_wire_begins_with_it_and_bears_no_earlier_thinking() {
    let mut log = rich();
    // Rows 1 to 6 are a message, and an answer with thinking and calls; their results come after.
    log.push(system("compacted", "It is about f.", Some(11)));
    log.push(user("go on"));
    for kind in [ApiKind::Anthropic, ApiKind::OpenAi] {
        let (body, _) = body(&log, kind, log.rows.len() as Seq);
        if kind == ApiKind::Anthropic {
            check_anthropic(&body)
        } else {
            check_openai(&body)
        }
        let text = "The conversation before this was replaced by this summary of it:\\n\\nIt is about f.";
        assert!(body.contains(text), "{body}");
        assert!(!body.contains("how \\\"are\\\" you") && !body.contains("output"), "{body}");
        assert!(body.contains("fine") && body.contains("go on"), "{body}");
    }
    let mut log = Log::of(vec![user("a"), text(1, 1, 0, 0, "x"), user("b"), text(2, 1, 0, 0, "y")]);
    log.push(thinking(2, 1, 1, "hm", Some("S")));
    log.push(user("c"));
    log.note_step(1, 1, MODEL, StepOutcome::Whole);
    log.note_step(2, 1, MODEL, StepOutcome::Whole);
    assert!(body(&log, ApiKind::Anthropic, 6).0.contains(r#""thinking":"hm""#));
    log.push(system("compacted", "s", Some(2)));
    assert!(!body(&log, ApiKind::Anthropic, 7).0.contains(r#""thinking":"hm""#));
}

#[test]
fn a_summary_that_cannot_be_read_is_an_error_and_not_a_request_without_it() {
    let mut log = Log::of(vec![user("a"), text(1, 1, 0, 0, "x"), user("b")]);
    let prefix = prefix();
    let mut spec = spec(&prefix, ApiKind::Anthropic, &log, 3);
    spec.part.generation = Generation { since: 3, summary: Some(Summary { seq: 3, upto: 1 }) };
    log.rows[2].data = "broken".into();
    assert!(
        matches!(plan(&log, &spec, &Budget::ROUTER), Err(StoreError::Broken(text)) if text.contains("row 3"))
    );
}

#[test]
fn the_text_that_asks_for_a_summary_comes_last_whatever_stands_before_it() {
    let log = rich();
    for kind in [ApiKind::Anthropic, ApiKind::OpenAi] {
        for upto in [9, 10, 11, 14] {
            let prefix = prefix();
            let mut spec = spec(&prefix, kind, &log, upto);
            spec.part.closing = Some("Sum up.");
            let plan = plan(&log, &spec, &Budget::ROUTER).unwrap();
            let mut text = String::new();
            Body::new(&log, &spec, &Budget::ROUTER, &plan).read_to_string(&mut text).unwrap();
            if kind == ApiKind::Anthropic {
                check_anthropic(&text)
            } else {
                check_openai(&text)
            }
            let last = messages(&text).pop().unwrap();
            assert_eq!(last["role"], "user");
            assert!(text.trim_end_matches(['"', ']', '}']).contains("Sum up."), "{text}");
        }
    }
}

/// A log whose steps tell what their requests were.
fn noted(log: &mut Log, kind: ApiKind, step: u32, upto: Seq) {
    let plan = body(log, kind, upto).1;
    let told = log.steps.get_mut(&(TurnNo(1), step)).unwrap();
    (told.prefix_blocks, told.prefix_hash) = (plan.blocks, plan.hash);
}

#[test]
fn blocks_that_are_no_longer_what_they_were_are_found_with_their_row() {
    for kind in [ApiKind::Anthropic, ApiKind::OpenAi] {
        let mut log = rich();
        noted(&mut log, kind, 1, 1);
        noted(&mut log, kind, 2, 10);
        let changed = |log: &Log| body(log, kind, log.rows.len() as Seq).1.changed;
        assert_eq!(changed(&log), None);
        let mut first = log.clone();
        first.rows[0] = Row { seq: 1, ..user("another") };
        assert_eq!(changed(&first), Some(Changed { block: 1, row: 1 }));
        let mut later = log.clone();
        later.rows[2].data = later.rows[2].data.replace("let me", "let us");
        let Some(Changed { block: 2, row: 2 }) = changed(&later) else {
            panic!("{kind:?}: {:?}", changed(&later));
        };
        let mut longer = log.clone();
        longer.rows[9] = Row { seq: 10, ..system("notice", "", None) };
        assert!(changed(&longer).is_some(), "a block fewer");
        // A change at the end is none: it was not sent yet.
        let mut fresh = log.clone();
        fresh.rows[12] = Row { seq: 13, ..user("other") };
        assert_eq!(changed(&fresh), None);
        // A new generation has no earlier requests.
        later.push(system("model-changed", "", None));
        assert_eq!(changed(&later), None);
    }
}

#[test]
fn text_after_a_call_stands_before_it_in_chat_completions() {
    let mut log =
        Log::of(vec![user("a"), text(1, 1, 0, 0, "one"), call(1, 1, "x", "{}", 0), text(1, 1, 2, 0, "two")]);
    log.push(result(1, 1, "x", "r", 0, Some(false)));
    log.push(user("b"));
    log.calls.insert("x".into(), CallState::Good);
    let messages = all(&log, ApiKind::OpenAi);
    assert_eq!(messages[2]["content"], "one\n\ntwo");
    assert_eq!(messages[2]["tool_calls"].as_array().unwrap().len(), 1);
}

#[test]
fn thinking_takes_the_form_that_the_model_takes() {
    use anthropic::{Fields, Thinking};
    let of = |model: &str, max_tokens| {
        Fields::of(&Facts::by_name(model, "https://api.anthropic.com/v1"), max_tokens)
    };
    for (model, thinking, effort) in [
        ("claude-sonnet-5-5", Thinking::Adaptive, true),
        ("claude-opus-4-6", Thinking::Adaptive, true),
        ("claude-opus-4-5-20251101", Thinking::Budget(8000), true),
        ("claude-sonnet-4-5", Thinking::Budget(8000), false),
        ("claude-haiku-4.5", Thinking::Budget(8000), false),
        ("claude-sonnet-4-20250514", Thinking::Unasked, false),
    ] {
        assert_eq!(of(model, 16_000), Fields { thinking, effort }, "{model}");
    }
    assert_eq!(of("claude-haiku-4-5", 1000).thinking, Thinking::Unasked);
    assert_eq!(of("claude-haiku-4-5", 64_000).thinking, Thinking::Budget(8192));
    let unknown = Fields::of(&Facts::by_name("gemma3", "http://127.0.0.1:8080"), 16_000);
    assert_eq!(unknown, Fields { thinking: Thinking::Unasked, effort: false });
}

#[test]
fn ids_in_chat_completions_are_nine_letters_and_digits() {
    use openai::wire_id;
    for id in ["call_0", "", "chatcmpl-tool-0123456789abcdef", "ABCDEFGH-", "é1234567", "0123456789"] {
        let made = wire_id(id);
        assert!(made.len() == 9 && made.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{made}");
        assert_eq!(wire_id(&made), made, "an id that is right stays");
    }
    assert_eq!(wire_id("c00000042"), "c00000042");
    // Written down, since an id that changed with a version would move the prefix of every tab.
    assert_eq!(wire_id("call_0"), "45JoVn4qR");
    let all: HashSet<String> = (0..20_000).map(|at| wire_id(&format!("call_{at}")).into_owned()).collect();
    assert_eq!(all.len(), 20_000);
}

#[test]
fn the_assistant_speaks_between_a_result_and_the_owner_and_nowhere_else() {
    let log = rich();
    let (body, _) = body(&log, ApiKind::OpenAi, 14);
    assert_eq!(body.matches(openai::NOTE).count(), 1);
    // Nobody answered the result yet: there is no note before there is something to note.
    let (before, _) = super::tests::body(&log, ApiKind::OpenAi, 10);
    assert!(!before.contains(openai::NOTE));
    assert!(body.starts_with(before.strip_suffix("]}").unwrap()));
}

#[test]
fn a_broken_store_ends_the_body_with_its_error() {
    struct Broken(Log, std::cell::Cell<u32>);
    impl Rows for Broken {
        fn rows(&self, tab: TabNo, after: Seq, upto: Seq, bytes_max: usize) -> Stored<Vec<Row>> {
            self.1.set(self.1.get() + 1);
            if self.1.get() > 2 {
                Err(StoreError::Broken("x".into()))
            } else {
                self.0.rows(tab, after, upto, bytes_max)
            }
        }
        fn step(&self, turn: TurnNo, step: u32) -> Stored<Option<Step>> {
            Rows::step(&self.0, turn, step)
        }
        fn call_state(&self, tab: TabNo, id: &str) -> Stored<Option<CallState>> {
            self.0.call_state(tab, id)
        }
    }
    let broken = Broken(Log::of(vec![user(&"x".repeat(30_000)), user(&"y".repeat(30_000))]), 0.into());
    let prefix = prefix();
    let spec = spec(&prefix, ApiKind::OpenAi, &broken.0, 2);
    let plan = plan(&broken, &spec, &Budget::ROUTER).unwrap();
    let mut body = Body::new(&broken, &spec, &Budget::ROUTER, &plan);
    assert!(body.read_to_end(&mut Vec::new()).is_err());
    assert_eq!(body.fault(), Some(StoreError::Broken("x".into())));
}

#[derive(Clone, Debug)]
enum Act {
    User(String),
    /// texts, thinking (signed?), calls (state, answered, parts of the arguments), in an order, and the
    /// outcome
    Step {
        blocks: Vec<Block>,
        outcome: u8,
        other_model: bool,
    },
    Other,
}

#[derive(Clone, Debug)]
enum Block {
    Text(Vec<String>),
    Thinking(String, bool),
    Call { state: u8, answered: bool, result: Vec<String> },
}

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        Just(" \n".to_owned()),
        "[ -~]{1,12}",
        any::<String>(),
        Just("é".repeat(9000))
    ]
}

fn any_block() -> impl Strategy<Value = Block> {
    prop_oneof![
        proptest::collection::vec(any_text(), 1..4).prop_map(Block::Text),
        (any_text(), any::<bool>()).prop_map(|(text, signed)| Block::Thinking(text, signed)),
        (0u8..6, any::<bool>(), proptest::collection::vec(any_text(), 1..3))
            .prop_map(|(state, answered, result)| Block::Call { state, answered, result }),
    ]
}

fn any_act() -> impl Strategy<Value = Act> {
    prop_oneof![
        2 => any_text().prop_map(Act::User),
        3 => (proptest::collection::vec(any_block(), 0..5), 0u8..6, any::<bool>())
            .prop_map(|(blocks, outcome, other_model)| Act::Step { blocks, outcome, other_model }),
        1 => Just(Act::Other),
    ]
}

/// A log of acts, and the texts that must be on the wire.
fn build(acts: &[Act]) -> (Log, Vec<String>) {
    let mut log = Log::default();
    let mut texts = Vec::new();
    let mut any_user = false;
    for (step, act) in acts.iter().enumerate() {
        let step = step as u32 + 1;
        match act {
            Act::User(text) => {
                any_user |= !text.trim().is_empty();
                texts.extend((!text.trim().is_empty()).then(|| text.clone()));
                log.push(user(text));
            }
            Act::Other => log.push(row(1, step, Role::System, Kind::System, json(&SystemData::default()))),
            Act::Step { blocks, outcome, other_model } => {
                let refused = *outcome == 0;
                let outcome = if refused { StepOutcome::Refused } else { StepOutcome::Whole };
                log.note_step(1, step, if *other_model { "p/other" } else { MODEL }, outcome);
                let mut results = Vec::new();
                for (at, block) in blocks.iter().enumerate() {
                    let no = at as u32;
                    match block {
                        Block::Text(parts) => {
                            for (part, piece) in parts.iter().enumerate() {
                                log.push(text(1, step, no, part as u32, piece));
                            }
                            let whole = parts.concat();
                            texts.extend((!refused && any_user && !whole.trim().is_empty()).then_some(whole));
                        }
                        Block::Thinking(text, signed) => {
                            log.push(thinking(1, step, no, text, signed.then_some("S")));
                        }
                        Block::Call { state, answered, result: parts } => {
                            let id = format!("c{step}_{at}");
                            let state =
                                [CallState::Cut, CallState::Bad, CallState::Good][usize::from(*state).min(2)];
                            log.calls.insert(id.clone(), state);
                            log.push(call(1, step, &id, "{\"a\"", 0));
                            log.push(call(1, step, &id, ":1}", 1));
                            let last = parts.len() - 1;
                            if *answered {
                                results.extend(parts.iter().enumerate().map(|(part, text)| {
                                    result(
                                        1,
                                        step,
                                        &id,
                                        text,
                                        part as u32,
                                        (part == last).then_some(at % 2 == 0),
                                    )
                                }));
                            }
                        }
                    }
                }
                results.into_iter().for_each(|row| log.push(row));
            }
        }
    }
    (log, texts)
}

fn texts_of(messages: &[Value]) -> Vec<String> {
    let blocks = messages.iter().flat_map(|message| message["content"].as_array().unwrap());
    blocks.filter_map(|block| block["text"].as_str().map(str::to_owned)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_log_is_accepted_by_a_strict_api_and_keeps_every_byte_of_text(
        acts in proptest::collection::vec(any_act(), 0..12)
    ) {
        let (log, texts) = build(&acts);
        let upto = log.rows.len() as Seq;
        let (anthropic, _) = body(&log, ApiKind::Anthropic, upto);
        check_anthropic(&anthropic);
        prop_assert_eq!(texts_of(&messages(&anthropic)), texts.clone());
        let (openai, _) = body(&log, ApiKind::OpenAi, upto);
        check_openai(&openai);
        let all = messages(&openai);
        let said = all.iter().filter(|m| m["role"] != "tool" && m["content"] != "Noted.").skip(1);
        let said = said.map(|m| m["content"].as_str().unwrap());
        let said: Vec<&str> = said.filter(|text| !text.is_empty()).collect();
        prop_assert_eq!(said.join("\n\n"), texts.join("\n\n"));
    }

    #[test]
    fn each_request_begins_with_the_blocks_of_the_one_before(
        acts in proptest::collection::vec(any_act(), 1..12)
    ) {
        let (log, _) = build(&acts);
        // Requests are made after a user's row or after all results: wherever a step does not go on.
        let ends: Vec<Seq> = log.rows.iter().zip(log.rows.iter().skip(1))
            .filter(|(row, next)| row.step != next.step || next.role == Role::User || row.role == Role::User)
            .map(|(row, _)| row.seq)
            .chain([log.rows.len() as Seq])
            .collect();
        for kind in [ApiKind::Anthropic, ApiKind::OpenAi] {
            let mut before: Option<(String, u32)> = None;
            for upto in &ends {
                let (text, plan) = body(&log, kind, *upto);
                let text = without_marks(&text);
                let text = text.strip_suffix("]}").unwrap();
                if let Some((old, blocks)) = &before {
                    // The last message may go on with further blocks or text: all but its end is the same.
                    let end = if kind == ApiKind::Anthropic { "]}" } else { "\"}" };
                    let old = old.strip_suffix(end).unwrap_or(old);
                    prop_assert!(text.starts_with(old), "{}\n---\n{}", old, text);
                    prop_assert!(plan.blocks >= *blocks);
                }
                before = Some((text.to_owned(), plan.blocks));
            }
        }
    }
}
