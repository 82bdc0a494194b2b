//! What a client lacks, as a table. The rest of a session needs an agent and is tested with the whole server.

use super::*;
use crate::agent::live::OpenData;
use crate::chunk::{AssistantText, TabStatus, TurnNo};

const ROW_MAX: usize = 16 * 1024;

fn open(seq: Seq, version: u32, text: &str) -> Option<Open> {
    let data = OpenData::Text(AssistantText { text: text.into(), ..Default::default() });
    Some(Open { seq, turn: TurnNo(1), step: 1, version, created_at: 0, data })
}

fn live(newest: Seq, open: Option<Open>) -> Live {
    Live { newest, turn: Some(TurnNo(1)), open, status: TabStatus::Running }
}

fn view(newest: Seq, following: bool, cursor: Option<(Seq, u32, usize)>) -> View {
    let limits = Limits { rows: 20, bytes: 256 * 1024 };
    let mut window = Window::new(limits, 0, following);
    for seq in 1..=newest {
        window.push_newer(seq, 10);
    }
    let open = cursor.map(|(seq, version, sent)| Cursor { seq, version, sent });
    View { tab: TabNo(1), window, open, fill: None, told: newest, tail_at: None }
}

fn check(view: &View, live: Live, expected: &str) {
    let lack = match view.lacks(&live, ROW_MAX) {
        Lack::Notes => "notes".to_owned(),
        Lack::Rows(upto) => format!("rows to {upto}"),
        Lack::Tail(newest) => format!("tail {newest}"),
        Lack::Chunk(open) => format!("chunk {} {}", open.seq, open.text()),
        Lack::Delta(cursor, text) => format!("delta {} {text} then {}", cursor.seq, cursor.sent),
        Lack::NoChunk => "no chunk".to_owned(),
        Lack::Nothing => "nothing".to_owned(),
    };
    assert_eq!(lack, expected);
}

#[test]
fn rows_come_before_the_open_chunk_and_deltas_are_what_is_new() {
    check(&view(3, true, None), live(5, open(6, 0, "a")), "rows to 5");
    check(&view(5, true, None), live(5, open(6, 0, "ab")), "chunk 6 ab");
    check(&view(5, true, Some((6, 0, 2))), live(5, open(6, 0, "ab")), "nothing");
    check(&view(5, true, Some((6, 0, 2))), live(5, open(6, 0, "ab\u{e9}c")), "delta 6 \u{e9}c then 5");
    check(&view(5, true, Some((6, 0, 2))), live(6, open(7, 0, "x")), "rows to 6");
}

#[test]
fn a_replaced_chunk_is_sent_anew_and_a_lost_one_is_taken_back() {
    check(&view(5, true, Some((6, 0, 2))), live(5, open(6, 1, "other")), "chunk 6 other");
    check(&view(5, true, Some((6, 0, 9))), live(5, open(6, 0, "short")), "chunk 6 short");
    check(&view(5, true, Some((6, 0, 2))), live(5, None), "no chunk");
    check(&view(5, true, None), live(5, None), "nothing");
}

#[test]
fn a_reader_with_room_gets_deltas_and_a_full_one_only_the_tail() {
    check(&view(5, false, Some((6, 0, 1))), live(5, open(6, 0, "ab")), "delta 6 b then 2");
    let mut full = view(20, false, None);
    check(&full, live(20, open(21, 0, "ab")), "nothing");
    full.window.set_detached(true);
    check(&full, live(20, open(21, 0, "ab")), "nothing");
    check(&full, live(25, open(26, 0, "ab")), "tail 25");
    full.told = 25;
    check(&full, live(25, open(26, 0, "ab")), "nothing");
}

#[test]
fn a_full_window_that_follows_still_gets_the_open_chunk() {
    check(&view(20, true, None), live(20, open(21, 0, "ab")), "chunk 21 ab");
}
