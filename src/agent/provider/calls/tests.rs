//! Pieces of calls as real servers send them.

use super::super::tests::{Seen, Taken};
use super::*;
use proptest::prelude::*;

fn text(index: Option<i64>, id: &'static str, name: &'static str, arguments: &'static str) -> Piece<'static> {
    Piece { index, id, name, arguments: Arguments::Text(arguments) }
}

fn run(pieces: &[Piece<'_>]) -> Vec<Seen> {
    let mut taken = Taken::default();
    let mut calls = Calls::new(1 << 16, 16);
    for piece in pieces {
        calls.piece(*piece, &mut taken).unwrap();
    }
    calls.finish(&mut taken).unwrap();
    taken.blocks()
}

fn check(pieces: &[Piece<'_>], expected: &[(&str, &str, &str)]) {
    let expected: Vec<_> = expected
        .iter()
        .map(|(id, name, arguments)| Seen::Call(id.to_string(), name.to_string(), arguments.to_string()))
        .collect();
    assert_eq!(run(pieces), expected, "{pieces:?}");
}

#[test]
fn a_normal_call_is_put_together() {
    check(
        &[
            text(Some(0), "a", "f", ""),
            text(Some(0), "", "", "{\"x\""),
            text(Some(0), "", "", ":1}"),
            text(Some(1), "b", "g", "{}"),
        ],
        &[("a", "f", "{\"x\":1}"), ("b", "g", "{}")],
    );
}

#[test]
fn parallel_calls_may_come_interleaved() {
    check(
        &[
            text(Some(0), "a", "f", ""),
            text(Some(1), "b", "g", "{\"y\":"),
            text(Some(0), "", "", "{\"x\":1}"),
            text(Some(1), "", "", "2}"),
        ],
        &[("a", "f", "{\"x\":1}"), ("b", "g", "{\"y\":2}")],
    );
}

#[test]
fn the_front_call_streams_and_others_wait() {
    let mut taken = Taken::default();
    let mut calls = Calls::new(1 << 16, 16);
    calls.piece(text(Some(0), "a", "f", "{\"x\":"), &mut taken).unwrap();
    calls.piece(text(Some(1), "b", "g", "{}"), &mut taken).unwrap();
    assert_eq!(taken.blocks(), [Seen::Call("a".into(), "f".into(), "{\"x\":".into())]);
    calls.piece(text(Some(0), "", "", "1}"), &mut taken).unwrap();
    assert_eq!(taken.blocks().len(), 2);
    assert!(!calls.busy());
}

#[test]
fn a_missing_or_lying_index_does_no_harm() {
    // no index, ids
    check(
        &[text(None, "a", "f", "{"), text(None, "a", "", "}"), text(None, "b", "g", "{}")],
        &[("a", "f", "{}"), ("b", "g", "{}")],
    );
    // always 0, different ids
    check(
        &[text(Some(0), "a", "f", "{}"), text(Some(0), "b", "g", "{}")],
        &[("a", "f", "{}"), ("b", "g", "{}")],
    );
    // always 0, no ids
    check(
        &[text(Some(0), "", "f", "{\"a\":1}"), text(Some(0), "", "g", "{}")],
        &[("", "f", "{\"a\":1}"), ("", "g", "{}")],
    );
    // starts at 1
    check(&[text(Some(1), "a", "f", "{"), text(Some(1), "", "", "}")], &[("a", "f", "{}")]);
    // lies on the second call's pieces, whose id is right
    check(
        &[text(Some(0), "a", "f", "{}"), text(Some(1), "b", "g", "{"), text(Some(0), "b", "", "}")],
        &[("a", "f", "{}"), ("b", "g", "{}")],
    );
}

#[test]
fn a_missing_id_is_left_to_whoever_stores_the_call() {
    check(&[text(None, "", "f", "{}"), text(None, "", "g", "{}")], &[("", "f", "{}"), ("", "g", "{}")]);
    check(&[text(Some(0), "", "f", "{"), text(Some(0), "", "", "}")], &[("", "f", "{}")]);
}

#[test]
fn id_and_name_may_be_repeated_late_or_split() {
    check(&[text(Some(0), "a", "f", "{"), text(Some(0), "a", "f", "}")], &[("a", "f", "{}")]);
    check(&[text(None, "", "f", "{"), text(None, "", "f", "}")], &[("", "f", "{}")]);
    check(
        &[text(Some(0), "a", "get_", ""), text(Some(0), "", "time", ""), text(Some(0), "", "", "{}")],
        &[("a", "get_time", "{}")],
    );
    check(&[text(Some(0), "", "", "{\"x\":"), text(Some(0), "a", "f", "1}")], &[("a", "f", "{\"x\":1}")]);
    check(&[text(Some(0), "a", "", "{\"x\":"), text(Some(0), "", "f", "1}")], &[("a", "f", "{\"x\":1}")]);
}

#[test]
fn a_call_that_is_sent_twice_is_one_call() {
    check(
        &[text(Some(0), "a", "f", "{\"x\":1}"), text(Some(0), "a", "f", "{\"x\":1}")],
        &[("a", "f", "{\"x\":1}")],
    );
}

#[test]
fn one_id_for_two_calls_makes_two_calls() {
    check(
        &[text(Some(0), "call_0", "f", "{\"x\":1}"), text(Some(1), "call_0", "f", "{\"x\":22}")],
        &[("call_0", "f", "{\"x\":1}"), ("call_0", "f", "{\"x\":22}")],
    );
}

#[test]
fn no_arguments_are_an_empty_object() {
    check(&[text(Some(0), "a", "f", "")], &[("a", "f", "{}")]);
    check(&[Piece { id: "a", name: "f", ..Piece::default() }], &[("a", "f", "{}")]);
    for value in ["null", "{}", "\"\"", "\"{}\""] {
        let piece = Piece { id: "a", name: "f", arguments: Arguments::Value(value), index: None };
        check(&[piece], &[("a", "f", "{}")]);
    }
}

#[test]
fn arguments_may_be_an_object_or_doubly_encoded() {
    let object = Piece { id: "a", name: "f", arguments: Arguments::Value("{\"x\":[1]}"), index: None };
    check(&[object], &[("a", "f", "{\"x\":[1]}")]);
    check(&[text(None, "a", "f", "\"{\\\"x\\\""), text(None, "a", "", ":1}\"")], &[("a", "f", "{\"x\":1}")]);
}

#[test]
fn half_a_call_stays_half() {
    check(
        &[text(None, "a", "f", "{\"path\":\"a\",\"content\":\"hel")],
        &[("a", "f", "{\"path\":\"a\",\"content\":\"hel")],
    );
}

#[test]
fn over_the_budget_is_an_error_that_names_it() {
    let mut taken = Taken::default();
    let mut calls = Calls::new(8, 2);
    calls.piece(text(Some(0), "a", "f", "{\"x\":"), &mut taken).unwrap();
    let result = calls.piece(text(Some(0), "", "", "12345678}"), &mut taken);
    assert!(matches!(result, Err(Fault::TooBig(text)) if text.contains("arguments_bytes (8 bytes)")));
    let mut calls = Calls::new(8, 2);
    calls.piece(text(Some(0), "a", "f", "{"), &mut taken).unwrap();
    calls.piece(text(Some(1), "b", "f", "{}"), &mut taken).unwrap();
    assert!(matches!(calls.piece(text(Some(2), "c", "f", "{}"), &mut taken), Err(Fault::TooBig(_))));
}

#[test]
fn the_work_grows_no_faster_than_the_arguments() {
    // As an object, which streams, and as a string with the object in it, which waits for its end.
    fn object(times: usize) -> String {
        format!("{{\"x\":\"{}\"}}", "y".repeat(300_000 * times))
    }
    fn string(times: usize) -> String {
        serde_json::to_string(&object(times)).unwrap()
    }
    for whole in [object, string] {
        crate::testing::grows_linearly(|times| {
            let arguments = whole(times);
            let mut taken = Taken::default();
            let mut calls = Calls::new(4 << 20, 2);
            calls.piece(text(Some(0), "a", "f", ""), &mut taken).unwrap();
            for part in arguments.as_bytes().chunks(30) {
                let part = std::str::from_utf8(part).unwrap();
                let piece = Piece { index: Some(0), arguments: Arguments::Text(part), ..Piece::default() };
                calls.piece(piece, &mut taken).unwrap();
            }
            calls.finish(&mut taken).unwrap();
            assert_eq!(taken.blocks(), [Seen::Call("a".into(), "f".into(), object(times))]);
        });
    }
}

proptest! {
    #[test]
    fn any_cut_and_any_interleaving_give_the_same_calls(
        objects in proptest::collection::vec("[{}\\\\\":a1 é]{0,12}", 1..4),
        order in proptest::collection::vec(0usize..4, 0..40),
        size in 1usize..6,
    ) {
        // Any text as a JSON string inside an object: braces and quotes in strings must not end it.
        let wanted: Vec<String> =
            objects.iter().map(|text| serde_json::json!({ "x": text }).to_string()).collect();
        let ids: Vec<String> = (0..wanted.len()).map(|at| format!("id{at}")).collect();
        let mut left: Vec<Vec<String>> = wanted.iter().map(|text| {
            let chars: Vec<char> = text.chars().collect();
            let mut pieces: Vec<String> = chars.chunks(size).map(|piece| piece.iter().collect()).collect();
            pieces.reverse();
            pieces
        }).collect();
        let mut taken = Taken::default();
        let mut calls = Calls::new(1 << 16, 16);
        for (at, id) in ids.iter().enumerate() {
            let piece = Piece { index: Some(at as i64), id, name: "f", arguments: Arguments::Text("") };
            calls.piece(piece, &mut taken).unwrap();
        }
        let turns = order.into_iter().chain((0..wanted.len()).flat_map(|at| std::iter::repeat_n(at, 64)));
        for at in turns {
            if let Some(text) = left.get_mut(at).and_then(Vec::pop) {
                let arguments = Arguments::Text(&text);
                let piece = Piece { index: Some(at as i64), arguments, ..Piece::default() };
                calls.piece(piece, &mut taken).unwrap();
            }
        }
        calls.finish(&mut taken).unwrap();
        let expected: Vec<Seen> = ids.iter().zip(&wanted)
            .map(|(id, text)| Seen::Call(id.clone(), "f".into(), text.clone())).collect();
        prop_assert_eq!(taken.blocks(), expected);
    }
}
