//! Long logs, written through the store's own interface as turns would write them.

use crate::{Oops, Scratch};
use siskin::budget::Budget;
use siskin::chunk::*;
use siskin::store::{BeginTurn, NewTab, SealTurn, Step, Store};

/// Rows of one turn of a filled log: the owner's message and the parts of one long answer.
const TURN_ROWS: u64 = 100;

/// Makes a tab of `rows` rows (a multiple of 100), each with `bytes` of text, in a store whose server is not
/// running; gives its id.
pub fn tab(scratch: &Scratch, data: &str, rows: u64, bytes: usize) -> Result<String, Oops> {
    let dir = scratch.path.join(data);
    let work = dir.join("work");
    std::fs::create_dir_all(&work)?;
    let store = Store::open(&dir, &Budget::ROUTER)?;
    let new = NewTab {
        title: format!("{rows} rows"),
        model: "openai/scripted".into(),
        effort: None,
        workdir: work.to_str().ok_or("the temporary folder's name is not UTF-8")?.into(),
    };
    let tab = store.create_tab(&new).map_err(broken)?.no;
    for turn in 0..rows / TURN_ROWS {
        fill_turn(&store, tab, turn * TURN_ROWS, bytes)?;
        store.housekeep();
    }
    store.close();
    Ok(tab.to_string())
}

fn broken(error: siskin::store::StoreError) -> Oops {
    format!("the store: {error:?}").into()
}

fn fill_turn(store: &Store, tab: TabNo, below: Seq, bytes: usize) -> Result<(), Oops> {
    let client_id = format!("fill-{below}");
    let asked = UserText { text: "go on".into(), client_id: client_id.clone(), ..UserText::default() };
    let mut first = [row(below + 1, Role::User, json(&asked))];
    let begin = BeginTurn {
        tab,
        rows: &mut first,
        consumed: &[],
        sent: Some((&client_id, "go on")),
        status: TurnStatus::Running,
    };
    let turn = store.begin_turn(begin).map_err(broken)?;
    let step = Step { outcome: StepOutcome::Whole, ..Step::new(1, 0, "openai/scripted".into()) };
    store.begin_step(turn, &step).map_err(broken)?;
    let parts: Vec<Row> = (2..=TURN_ROWS).map(|at| part(turn, below + at, at as u32 - 2, bytes)).collect();
    store.append(tab, &parts).map_err(broken)?;
    store.end_step(turn, &step).map_err(broken)?;
    let seal = SealTurn { tab, turn, rows: &[], status: TurnStatus::Done, stop: StopReason::End };
    store.seal_turn(seal).map_err(broken)?;
    Ok(())
}

fn part(turn: TurnNo, seq: Seq, part: u32, bytes: usize) -> Row {
    let words = format!("part {seq} says much the same as the part before it, at some length; ");
    let text = words.chars().cycle().take(bytes).collect();
    let data = AssistantText { text, block: 0, part, md: None };
    Row { turn, ..row(seq, Role::Assistant, json(&data)) }
}

fn row(seq: Seq, role: Role, data: String) -> Row {
    Row { seq, turn: TurnNo(0), step: 1, role, kind: Kind::Text, data, opaque: None, created_at: 1 }
}
