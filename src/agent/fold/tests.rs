use super::*;
use crate::agent::live::Live;
use crate::store::{BeginTurn, NewTab};
use proptest::prelude::*;

static SMALL: Budget = Budget { chunk_bytes: 4096, arguments_bytes: 64 * 1024, ..Budget::ROUTER };

struct Desk {
    pen: Pen,
    _dir: crate::testing::Dir,
}

fn desk() -> Desk {
    let dir = crate::testing::Dir::new();
    let store = Arc::new(Store::open(dir.path(), &SMALL).unwrap());
    let tab = store.create_tab(&NewTab { workdir: "/".into(), ..Default::default() }).unwrap().no;
    let data = json(&UserText { text: "hello".into(), client_id: "a".into(), ..Default::default() });
    let mut rows = [Row {
        seq: 1,
        turn: TurnNo(0),
        step: 1,
        role: Role::User,
        kind: Kind::Text,
        data,
        opaque: None,
        created_at: now(),
    }];
    let begin = BeginTurn { tab, rows: &mut rows, consumed: &[], sent: None, status: TurnStatus::Running };
    let turn = store.begin_turn(begin).unwrap();
    let lives = Arc::new(Lives::new());
    lives.set(tab, Some(Live { newest: 1, turn: Some(turn), open: None, status: TabStatus::Running }));
    Desk { pen: Pen { store, lives, budget: &SMALL, tab, turn, step: 1 }, _dir: dir }
}

fn rows(pen: &Pen) -> Vec<Row> {
    (2..pen.next_seq()).map(|seq| pen.store.row(pen.tab, seq).unwrap().unwrap()).collect()
}

/// The text of each block in order: its kind and its parts joined.
fn blocks(rows: &[Row]) -> Vec<(Kind, String)> {
    let mut blocks: Vec<(Kind, String)> = Vec::new();
    for row in rows {
        let data: serde_json::Value = serde_json::from_str(&row.data).unwrap();
        let field = if row.kind == Kind::ToolCall { "arguments" } else { "text" };
        let text = data[field].as_str().unwrap().to_owned();
        if data.get("part").is_some() {
            blocks.last_mut().unwrap().1.push_str(&text);
        } else {
            blocks.push((row.kind, text));
        }
    }
    blocks
}

#[derive(Clone, Debug)]
enum Said {
    Text(String),
    Thinking(String),
    Call(String),
    Arguments(String),
    Signature,
    Redacted,
    End,
}

fn said() -> impl Strategy<Value = Said> {
    let text = "([a-z`é👍\u{1}\" ]{0,60}\n{0,2}){0,40}";
    prop_oneof![
        4 => text.prop_map(Said::Text),
        2 => text.prop_map(Said::Thinking),
        1 => "[a-z.]{0,3}".prop_map(Said::Call),
        2 => text.prop_map(Said::Arguments),
        1 => Just(Said::Signature),
        1 => Just(Said::Redacted),
        1 => Just(Said::End),
    ]
}

fn tell(fold: &mut Fold, said: &Said) -> Result<(), Fault> {
    fold.delta(match said {
        Said::Text(text) => Delta::Text(text),
        Said::Thinking(text) => Delta::Thinking(text),
        Said::Call(id) => Delta::Call { id, name: "list_files" },
        Said::Arguments(text) => Delta::Arguments(text),
        Said::Signature => Delta::Signature("c2ln"),
        Said::Redacted => Delta::Redacted("cmVk"),
        Said::End => Delta::BlockEnd,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_deltas_fold_to_contiguous_bounded_rows_that_keep_every_byte(
        stream in prop::collection::vec(said(), 0..24), cut in any::<bool>()
    ) {
        let desk = desk();
        let mut fold = Fold::new(desk.pen.clone());
        for said in &stream {
            tell(&mut fold, said).unwrap();
        }
        let folded = if cut { fold.cut() } else { fold.finish() }.unwrap();
        let rows = rows(&desk.pen);
        prop_assert_eq!(desk.pen.lives.look(desk.pen.tab, |live| live.open.clone()).flatten(), None);
        prop_assert_eq!(folded.shown, !rows.is_empty());
        let mut heard = String::new();
        let mut in_call = false;
        for said in &stream {
            match said {
                Said::Text(text) | Said::Thinking(text) => {
                    heard.push_str(text);
                    in_call &= text.is_empty();
                }
                Said::Arguments(text) if in_call => heard.push_str(text),
                Said::Arguments(_) => {}
                Said::Call(_) => in_call = true,
                _ => in_call = false,
            }
        }
        let texts = blocks(&rows).into_iter().map(|(_, text)| text);
        let written: String = texts.filter(|text| text != "{}").collect();
        prop_assert_eq!(written.replace(char::is_whitespace, ""), heard.replace(char::is_whitespace, ""));
        for (row, seq) in rows.iter().zip(2..) {
            prop_assert_eq!(row.seq, seq);
            prop_assert!(row.data.len() <= SMALL.chunk_bytes);
        }
        let mut ids: Vec<&str> = folded.calls.iter().map(|call| call.id.as_str()).collect();
        ids.sort_unstable();
        ids.dedup();
        prop_assert_eq!(ids.len(), folded.calls.len());
    }
}

#[test]
fn a_call_without_arguments_has_an_empty_object() {
    let desk = desk();
    let mut fold = Fold::new(desk.pen.clone());
    fold.delta(Delta::Call { id: "x.1", name: "system.info" }).unwrap();
    fold.delta(Delta::Arguments("")).unwrap();
    let folded = fold.finish().unwrap();
    let call = &folded.calls[0];
    assert_eq!((call.arguments.as_str(), call.good), ("{}", true));
    assert_eq!((call.id.as_str(), call.name.as_str()), ("c00000002", "system_info"));
    assert!(rows(&desk.pen)[0].data.contains(r#""arguments":"{}""#));
}

#[test]
fn the_same_id_twice_is_made_unique() {
    let desk = desk();
    for _ in 0..2 {
        let mut fold = Fold::new(desk.pen.clone());
        fold.delta(Delta::Call { id: "call_0", name: "a" }).unwrap();
        fold.finish().unwrap();
    }
    let rows = rows(&desk.pen);
    assert!(rows[0].data.contains("call_0"));
    assert!(!rows[1].data.contains("call_0"));
}

#[test]
fn a_cut_call_is_marked_and_not_among_the_calls() {
    let desk = desk();
    let mut fold = Fold::new(desk.pen.clone());
    fold.delta(Delta::Call { id: "a", name: "read_file" }).unwrap();
    fold.delta(Delta::Arguments(r#"{"path":"#)).unwrap();
    let folded = fold.cut().unwrap();
    assert!(folded.calls.is_empty());
    assert!(rows(&desk.pen)[0].data.ends_with(r#""cut":true}"#));
    assert_eq!(desk.pen.store.call_state(desk.pen.tab, "a").unwrap(), Some(CallState::Cut));
}

#[test]
fn an_empty_signed_thinking_is_one_whole_row() {
    let desk = desk();
    let mut fold = Fold::new(desk.pen.clone());
    fold.delta(Delta::Signature("c2ln")).unwrap();
    fold.delta(Delta::Text("hi")).unwrap();
    fold.finish().unwrap();
    let rows = rows(&desk.pen);
    assert_eq!(rows[0].opaque.as_deref(), Some(&b"c2ln"[..]));
    assert_eq!(blocks(&rows), [(Kind::Thinking, String::new()), (Kind::Text, "hi".to_owned())]);
}

#[test]
fn arguments_beyond_their_budget_end_the_stream() {
    let desk = desk();
    let mut fold = Fold::new(desk.pen.clone());
    fold.delta(Delta::Call { id: "a", name: "b" }).unwrap();
    let long = "x".repeat(SMALL.arguments_bytes + 1);
    assert!(matches!(fold.delta(Delta::Arguments(&long)), Err(Fault::TooBig(_))));
}

#[test]
fn arguments_that_a_provider_would_refuse_are_no_object() {
    let deep = |levels: usize| format!("{}1{}", "{\"a\":".repeat(levels), "}".repeat(levels));
    for good in ["{}", " {\"a\":[1,-2,0.5,null,true,\"\\\\u0000\"]} ", "{\"\\ud83d\\udc4d\":{}}", &deep(100)]
    {
        assert!(is_object(good), "{good}");
    }
    for bad in [
        "",
        "[]",
        "null",
        "{",
        "{} {}",
        "{\"a\":\"\\u0000\"}",
        "{\"\\u0000\":1}",
        "{\"a\":[\"\\ud800\"]}",
        "{\"a\":1e999}",
        &deep(10_000),
        &format!("{{\"a\":{}", "[".repeat(50_000)),
    ] {
        assert!(!is_object(bad), "{bad}");
    }
}
