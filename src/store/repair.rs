//! After a crash: what was running is brought to an end that the provider will accept and that never changes
//! again.
//!
//! For each turn that was waiting for a slot or running, in one synced transaction: each call without a
//! result gets one that says what is known of it; a call whose last part never came is marked as cut; a
//! result that broke off gets a last part; then a `system` row `interrupted`, and the turn is sealed. A turn
//! that waits for its owner goes on waiting. What is read are the rows of those turns only, one at a time.
//!
//! A database that SQLite found damaged while the server ran is marked as suspect. It is checked as a whole
//! at the next start, and moved aside if it is damaged indeed; a start without the mark checks nothing.

use super::conn::{OpenFault, Rung};
use super::fault::Fault;
use super::log::{append_in, id, newest, word_of};
use super::turns::{call_in, insert_call, seal_in};
use super::*;
use crate::chunk::{
    Kind, Role, Row, Seq, StepOutcome, StopReason, SystemData, TabNo, ToolCall, ToolResult, TurnNo,
    TurnStatus, json,
};
use rusqlite::{OptionalExtension, ffi, params};

const NEVER_STARTED: &str = "the turn ended before this call was started";
const STARTED: &str = "this call was started, then the turn ended; its effect is not known";
const BROKE_OFF: &str = "\n[the turn ended while this call ran; what it did after this is not known]";
const INTERRUPTED: &str = "The server stopped while this turn ran.";

/// A turn that was left.
struct Left {
    turn: TurnNo,
    tab: TabNo,
    first: Seq,
}

/// A call that has no whole result.
struct Unanswered {
    call_id: String,
    name: String,
    step: u32,
    block: u32,
    /// how many parts of it there are
    parts: u32,
    /// the next part of its result, once one came
    part: u32,
}

/// Ends what a crash left running.
pub(super) fn repair(conn: &mut Connection, budget: &Budget, rung: Rung) -> Result<(), OpenFault> {
    let left = left_running(conn)?;
    if left.is_empty() {
        return Ok(());
    }
    conn.execute_batch("PRAGMA synchronous=FULL")?;
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for turn in &left {
        mend(&tx, budget, turn)?;
    }
    tx.commit()?;
    for Left { turn, tab, .. } in &left {
        ::log::warn!("turn {turn} of tab {tab} was running when the server stopped; it was ended");
    }
    if rung != Rung::Truncate {
        conn.execute_batch("PRAGMA synchronous=NORMAL")?;
    }
    Ok(())
}

fn left_running(conn: &Connection) -> rusqlite::Result<Vec<Left>> {
    let mut statement = conn.prepare(
        "SELECT u.no, u.tab, u.first_seq FROM turns u JOIN tabs t ON t.no = u.tab
         WHERE u.sealed_at IS NULL AND u.status IN ('waiting', 'running') AND NOT t.purging",
    )?;
    let found = statement.query_map([], |row| {
        Ok(Left { turn: TurnNo(row.get(0)?), tab: TabNo(row.get(1)?), first: row.get::<_, u32>(2)?.into() })
    })?;
    found.collect()
}

impl Store {
    /// Gives each call of a running turn that has no whole result one that says what is known, as the repair
    /// at start does. For a turn that a fault ended; gives the tab's newest seq.
    pub fn answer_calls(&self, tab: TabNo, turn: TurnNo) -> Stored<Seq> {
        self.write(Durable::Later, |tx| {
            let sql = "SELECT first_seq FROM turns WHERE no = ?1 AND tab = ?2";
            let first = tx.query_row(sql, [turn.0, tab.0], |row| row.get::<_, u32>(0))?.into();
            answer(tx, self.budget, &Left { turn, tab, first })?;
            Ok(newest(tx, tab)?)
        })
    }
}

/// Gives calls their results; gives the turn's last step.
fn answer(conn: &Connection, budget: &Budget, left: &Left) -> Result<u32, Fault> {
    let Left { turn, tab, .. } = *left;
    let (calls, step) = unanswered(conn, left)?;
    for call in &calls {
        if call_in(conn, tab, &call.call_id)?.is_none() {
            cut_off(conn, budget, left, call)?;
            continue;
        }
        if let Some(result) = result_of(conn, tab, turn, call)? {
            let data = json(&result);
            append_in(conn, budget, tab, &[row(conn, left, call.step, Role::Tool, Kind::ToolResult, data)?])?;
        }
    }
    Ok(step)
}

fn mend(conn: &Connection, budget: &Budget, left: &Left) -> Result<(), Fault> {
    let Left { turn, tab, .. } = *left;
    let step = answer(conn, budget, left)?;
    let data =
        json(&SystemData { kind: "interrupted".into(), text: INTERRUPTED.into(), ..SystemData::default() });
    let last = row(conn, left, step, Role::System, Kind::System, data)?;
    let (status, stop) = (TurnStatus::Interrupted, StopReason::Interrupted);
    seal_in(conn, budget, &SealTurn { tab, turn, rows: &[last], status, stop })?;
    Ok(())
}

/// The turn's calls without a whole result, in their order, and its last step.
fn unanswered(conn: &Connection, left: &Left) -> rusqlite::Result<(Vec<Unanswered>, u32)> {
    let sql = "SELECT id & 4294967295, step, type, iif(type IN ('tool_call', 'tool_result'), data, NULL)
        FROM chunks WHERE id BETWEEN ?1 AND ?2 AND turn = ?3 ORDER BY id";
    let mut statement = conn.prepare(sql)?;
    let (low, high) = (id(left.tab, left.first), id(left.tab, Seq::MAX));
    let mut found = statement.query(params![low, high, left.turn.0])?;
    let mut calls: Vec<Unanswered> = Vec::new();
    let mut last_step = 1;
    while let Some(row) = found.next()? {
        let (seq, step): (u32, u32) = (row.get(0)?, row.get(1)?);
        last_step = last_step.max(step);
        let text = || row.get_ref(3)?.as_str().map_err(rusqlite::Error::from);
        match word_of(row, 2, Kind::from_word)? {
            Kind::ToolCall => note_call(&mut calls, text()?, seq.into(), step),
            Kind::ToolResult => note_result(&mut calls, text()?),
            _ => {}
        }
    }
    Ok((calls, last_step))
}

fn note_call(calls: &mut Vec<Unanswered>, data: &str, seq: Seq, step: u32) {
    let Ok(call) = serde_json::from_str::<ToolCall>(data) else {
        ::log::error!("row {seq} is not a call that this version knows; it is left as it is");
        return;
    };
    match calls.iter_mut().find(|known| known.call_id == call.call_id) {
        Some(known) => known.parts = call.part + 1,
        None => calls.push(Unanswered {
            call_id: call.call_id,
            name: call.name,
            step,
            block: call.block,
            parts: call.part + 1,
            part: 0,
        }),
    }
}

fn note_result(calls: &mut Vec<Unanswered>, data: &str) {
    let Ok(result) = serde_json::from_str::<ToolResult>(data) else { return };
    let Some(at) = calls.iter().position(|call| call.call_id == result.call_id) else { return };
    match result.is_error {
        // Only the last part says whether it is an error.
        Some(_) => drop(calls.remove(at)),
        None => calls[at].part = result.part + 1,
    }
}

/// Gives a call whose last part never came one that says so: it is cut, and never goes on the wire.
fn cut_off(conn: &Connection, budget: &Budget, left: &Left, call: &Unanswered) -> Result<(), Fault> {
    let part = ToolCall {
        call_id: call.call_id.clone(),
        name: call.name.clone(),
        arguments: String::new(),
        block: call.block,
        part: call.parts,
        cut: true,
    };
    let last = row(conn, left, call.step, Role::Assistant, Kind::ToolCall, json(&part))?;
    append_in(conn, budget, left.tab, std::slice::from_ref(&last))?;
    insert_call(conn, left.tab, &call.call_id, left.turn, last.seq, CallState::Cut)?;
    Ok(())
}

/// The result that a call is owed, if it is owed one.
fn result_of(
    conn: &Connection,
    tab: TabNo,
    turn: TurnNo,
    call: &Unanswered,
) -> Result<Option<ToolResult>, Fault> {
    let started = match call_in(conn, tab, &call.call_id)? {
        None | Some((CallState::Cut, _)) => return Ok(None),
        Some((_, started)) => started,
    };
    if is_refused(conn, turn, call.step)? {
        return Ok(None);
    }
    let text = match (call.part, started) {
        (1.., _) => BROKE_OFF,
        (0, true) => STARTED,
        (0, false) => NEVER_STARTED,
    };
    Ok(Some(ToolResult {
        call_id: call.call_id.clone(),
        name: call.name.clone(),
        result: text.to_owned(),
        part: call.part,
        is_error: Some(true),
        ..ToolResult::default()
    }))
}

/// None of a refused step's assistant rows go on the wire, so a result would stand there alone.
fn is_refused(conn: &Connection, turn: TurnNo, step: u32) -> rusqlite::Result<bool> {
    let outcome = conn
        .prepare_cached("SELECT outcome FROM steps WHERE turn = ?1 AND step = ?2 AND attempt = 0")?
        .query_row([turn.0, step], |row| word_of(row, 0, StepOutcome::from_word))
        .optional()?;
    Ok(outcome == Some(StepOutcome::Refused))
}

fn row(
    conn: &Connection,
    left: &Left,
    step: u32,
    role: Role,
    kind: Kind,
    data: String,
) -> rusqlite::Result<Row> {
    let seq = newest(conn, left.tab)? + 1;
    Ok(Row { seq, turn: left.turn, step, role, kind, data, opaque: None, created_at: now() })
}

fn mark_of(path: &Path) -> PathBuf {
    with_suffix(path, ".suspect")
}

/// Remembers for the next start that SQLite found the database damaged.
pub(super) fn mark_suspect(path: &Path) {
    if let Err(error) = fs::write(mark_of(path), b"") {
        ::log::warn!("cannot mark {} as suspect: {error}", path.display());
    }
}

/// Opens, and checks the whole database if it is marked as suspect. The mark goes once it is clear what to
/// do.
pub(super) fn still_suspect(
    path: &Path,
    open: impl FnOnce() -> Result<(Connection, Rung), OpenFault>,
) -> Result<(Connection, Rung), OpenFault> {
    let mark = mark_of(path);
    let suspect = mark.exists();
    let done = open().and_then(|(conn, rung)| {
        if suspect {
            check_whole(&conn)?;
        }
        Ok((conn, rung))
    });
    if suspect && matches!(done, Ok(_) | Err(OpenFault::Damaged(_))) {
        let _ = fs::remove_file(mark);
    }
    done
}

/// Reads the whole database; the error tells in one line what is wrong with it first.
pub(super) fn check_whole(conn: &Connection) -> rusqlite::Result<()> {
    let said: String = conn.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if said == "ok" {
        return Ok(());
    }
    // The first line of several names the database, which is always the same.
    let told = said.lines().last().unwrap_or_default().to_owned();
    Err(rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_CORRUPT), Some(told)))
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;
    use crate::chunk::Usage;

    fn call_row(turn: TurnNo, seq: Seq, id: &str, part: u32) -> Row {
        let call = ToolCall {
            call_id: id.into(),
            name: "search".into(),
            arguments: "{}".into(),
            part,
            ..Default::default()
        };
        row_of(turn, seq, 1, Kind::ToolCall, json(&call))
    }

    fn result_row(turn: TurnNo, seq: Seq, id: &str, part: u32, is_error: Option<bool>) -> Row {
        let result = ToolResult {
            call_id: id.into(),
            name: "search".into(),
            result: "found".into(),
            part,
            is_error,
            ..Default::default()
        };
        row_of(turn, seq, 1, Kind::ToolResult, json(&result))
    }

    fn begin_step(store: &Store, turn: TurnNo) {
        let step = Step { prefix_hash: "00".into(), ..Step::new(1, 0, "demo/demo".into()) };
        store.begin_step(turn, &step).unwrap();
    }

    /// Kills the server and starts another; gives the rows that it added.
    fn restart(dir: &Dir, tab: TabNo) -> (Dir, Store, Vec<Row>) {
        let before = {
            let conn = Connection::open(dir.path().join(FILE)).unwrap();
            newest(&conn, tab).unwrap()
        };
        let copy = killed(dir);
        let store = Store::open(copy.path(), &Budget::ROUTER).unwrap();
        let rows = store.rows(tab, before, Seq::MAX, usize::MAX).unwrap();
        (copy, store, rows)
    }

    fn results(rows: &[Row]) -> Vec<ToolResult> {
        let of_tools = rows.iter().filter(|row| row.kind == Kind::ToolResult);
        of_tools.map(|row| serde_json::from_str(&row.data).unwrap()).collect()
    }

    fn assert_interrupted(store: &Store, tab: TabNo, turn: TurnNo, rows: &[Row]) {
        let last = rows.last().unwrap();
        assert_eq!((last.kind, last.role, last.turn), (Kind::System, Role::System, turn));
        assert!(last.data.contains(r#""kind":"interrupted""#));
        let seen = store.turns(tab, None, 1).unwrap().remove(0);
        assert_eq!((seen.status, seen.stop), (TurnStatus::Interrupted, Some(StopReason::Interrupted)));
        assert_eq!(seen.last_seq, last.seq);
        assert!(seen.sealed_at.is_some());
        assert!(seen.steps.iter().all(|step| step.outcome != StepOutcome::Open));
        assert_eq!(store.tab(tab).unwrap().unwrap().last_stop, Some(StopReason::Interrupted));
    }

    #[test]
    fn a_turn_without_calls_gets_one_row_and_ends() {
        for status in [TurnStatus::Waiting, TurnStatus::Running] {
            let (dir, store, tab) = store();
            let turn = begin(&store, tab, 1);
            store.set_turn_status(turn, status).unwrap();
            begin_step(&store, turn);
            store.append(tab, &[text_row(turn, 2, 1, "half an ans")]).unwrap();
            let (_copy, store, rows) = restart(&dir, tab);
            assert_eq!(rows.len(), 1);
            assert_interrupted(&store, tab, turn, &rows);
            // The log goes on.
            let next = begin(&store, tab, 4);
            seal(&store, tab, next);
        }
    }

    #[test]
    fn calls_get_what_is_known_of_them() {
        let (dir, store, tab) = store();
        let turn = begin(&store, tab, 1);
        begin_step(&store, turn);
        let states = [CallState::Good, CallState::Good, CallState::Bad, CallState::Cut, CallState::Good];
        for (at, state) in states.into_iter().enumerate() {
            let id = format!("c{at}");
            store.append_call(tab, &call_row(turn, at as Seq + 2, &id, 0), &id, state).unwrap();
        }
        store.start_call(tab, "c0").unwrap();
        store.append(tab, &[result_row(turn, 7, "c0", 0, Some(false))]).unwrap();
        store.start_call(tab, "c1").unwrap();
        let (_copy, store, rows) = restart(&dir, tab);
        let found: Vec<(String, String, Option<bool>)> = results(&rows)
            .into_iter()
            .map(|result| (result.call_id, result.result, result.is_error))
            .collect();
        let expected = [("c1", STARTED), ("c2", NEVER_STARTED), ("c4", NEVER_STARTED)];
        let expected: Vec<_> =
            expected.map(|(id, text)| (id.to_owned(), text.to_owned(), Some(true))).into_iter().collect();
        assert_eq!(found, expected);
        assert_interrupted(&store, tab, turn, &rows);
    }

    #[test]
    fn a_call_whose_last_part_never_came_is_cut() {
        let (dir, store, tab) = store();
        let turn = begin(&store, tab, 1);
        store.append(tab, &[call_row(turn, 2, "long", 0), call_row(turn, 3, "long", 1)]).unwrap();
        let (_copy, store, rows) = restart(&dir, tab);
        assert_eq!(store.call_state(tab, "long").unwrap(), Some(CallState::Cut));
        assert_eq!(rows.len(), 2);
        let last: ToolCall = serde_json::from_str(&rows[0].data).unwrap();
        assert_eq!((last.call_id.as_str(), last.part, last.cut), ("long", 2, true));
        assert_interrupted(&store, tab, turn, &rows);
    }

    #[test]
    fn a_result_that_broke_off_gets_a_last_part() {
        let (dir, store, tab) = store();
        let turn = begin(&store, tab, 1);
        store.append_call(tab, &call_row(turn, 2, "c", 0), "c", CallState::Good).unwrap();
        store.start_call(tab, "c").unwrap();
        let parts = [result_row(turn, 3, "c", 0, None), result_row(turn, 4, "c", 1, None)];
        store.append(tab, &parts).unwrap();
        let (_copy, store, rows) = restart(&dir, tab);
        let found = results(&rows);
        assert_eq!((found.len(), found[0].part, found[0].is_error), (1, 2, Some(true)));
        assert_eq!(found[0].result, BROKE_OFF);
        assert_interrupted(&store, tab, turn, &rows);
    }

    #[test]
    fn a_refused_steps_calls_get_no_result() {
        let (dir, store, tab) = store();
        let turn = begin(&store, tab, 1);
        begin_step(&store, turn);
        store.append_call(tab, &call_row(turn, 2, "c", 0), "c", CallState::Good).unwrap();
        let refused = Step { outcome: StepOutcome::Refused, ..Step::new(1, 0, String::new()) };
        store.end_step(turn, &refused).unwrap();
        let (_copy, store, rows) = restart(&dir, tab);
        assert!(results(&rows).is_empty());
        assert_interrupted(&store, tab, turn, &rows);
    }

    #[test]
    fn a_turn_that_waits_for_its_owner_goes_on_waiting() {
        let (dir, store, tab) = store();
        let turn = begin(&store, tab, 1);
        store.append_call(tab, &call_row(turn, 2, "c", 0), "c", CallState::Good).unwrap();
        store.set_turn_status(turn, TurnStatus::WaitingApproval).unwrap();
        let (_copy, store, rows) = restart(&dir, tab);
        assert_eq!(rows, []);
        assert_eq!(store.turns(tab, None, 1).unwrap()[0].status, TurnStatus::WaitingApproval);
    }

    #[test]
    fn repair_is_done_once_and_its_bytes_stay() {
        let (dir, store, tab) = store();
        let turn = begin(&store, tab, 1);
        store.append_call(tab, &call_row(turn, 2, "c", 0), "c", CallState::Good).unwrap();
        let (copy, store, rows) = restart(&dir, tab);
        assert_eq!(rows.len(), 2);
        let all = store.rows(tab, 0, Seq::MAX, usize::MAX).unwrap();
        let (_again, store, rows) = restart(&copy, tab);
        assert_eq!(rows, []);
        assert_eq!(store.rows(tab, 0, Seq::MAX, usize::MAX).unwrap(), all);
    }

    #[test]
    fn the_tokens_of_the_interrupted_turn_are_counted() {
        let (dir, store, tab) = store();
        let turn = begin(&store, tab, 1);
        begin_step(&store, turn);
        let usage = Usage { input: 5, cache_read: 3, cache_write: 2, output: 1 };
        let whole = Step { outcome: StepOutcome::Whole, usage, ..Step::new(1, 0, String::new()) };
        store.end_step(turn, &whole).unwrap();
        let (_copy, store, _) = restart(&dir, tab);
        assert_eq!(store.tab(tab).unwrap().unwrap().usage, usage);
        assert_eq!(store.step(turn, 1).unwrap().unwrap().outcome, StepOutcome::Whole);
    }
}
