//! Turns, their steps and their calls.
//!
//! Tokens stand on `steps`; a turn's sum is taken when it is sealed, and added to its tab's.

use super::fault::Fault;
use super::log::{append_in, id, newest, u32_of, word_of};
use super::queue;
use super::*;
use crate::chunk::{Millis, Row, Seq, StepOutcome, StopReason, TabNo, TurnNo, TurnStatus, Usage};
use rusqlite::{OptionalExtension, params};

/// Most steps that one list of turns holds, so that its size is bounded whatever the turns were like.
const STEPS_MAX: usize = 1000;

const STEP: &str = "SELECT step, attempt, at, model, outcome, input, cache_read, cache_write, output,
    prefix, since, shape, bytes, prefix_blocks, prefix_hash, miss FROM steps";

/// The order in which a turn's requests were made: a step's summaries before its answer.
const AS_MADE: &str = "turn, step, attempt = 0, attempt";

impl CallState {
    fn word(self) -> &'static str {
        match self {
            CallState::Good => "good",
            CallState::Bad => "bad",
            CallState::Cut => "cut",
        }
    }

    fn from_word(word: &str) -> Option<CallState> {
        [CallState::Good, CallState::Bad, CallState::Cut].into_iter().find(|state| state.word() == word)
    }
}

impl Store {
    /// Begins a turn, in one commit without a sync: the turn, its rows, the queued messages that they are,
    /// and the send. Refused with [`StoreError::NoSpace`] when the database is at its limit.
    pub fn begin_turn(&self, begin: BeginTurn<'_>) -> Stored<TurnNo> {
        let BeginTurn { tab, rows, consumed, sent, status } = begin;
        self.write(Durable::Later, |tx| {
            self.room(tx)?;
            let first = newest(tx, tab)? + 1;
            let turn = insert_turn(tx, tab, first, status)?;
            rows.iter_mut().for_each(|row| row.turn = turn);
            append_in(tx, self.budget, tab, rows)?;
            for message in consumed {
                queue::consume(tx, tab, *message)?;
            }
            if let Some((client_id, text)) = sent {
                let waits = status == TurnStatus::Waiting;
                let sent = if waits { Sent::Waiting(turn) } else { Sent::Started(turn) };
                queue::remember(tx, tab, client_id, text, sent)?;
            }
            Ok(turn)
        })
    }

    /// Changes how a turn stands that has not ended.
    pub fn set_turn_status(&self, turn: TurnNo, status: TurnStatus) -> Stored<()> {
        self.write(Durable::Later, |tx| {
            let mut statement =
                tx.prepare_cached("UPDATE turns SET status = ?2 WHERE no = ?1 AND sealed_at IS NULL")?;
            one(statement.execute(params![turn.0, status.word()])?, turn)
        })
    }

    /// Notes a request before it is made. The same step and attempt again replace it: another try.
    pub fn begin_step(&self, turn: TurnNo, step: &Step) -> Stored<()> {
        self.write(Durable::Later, |tx| {
            tx.prepare_cached(
                "INSERT OR REPLACE INTO steps (turn, step, attempt, at, model, outcome, input, cache_read,
                 cache_write, output, prefix, since, shape, bytes, prefix_blocks, prefix_hash, miss)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)",
            )?
            .execute(params![
                turn.0,
                step.step,
                step.attempt,
                step.at,
                step.model,
                step.outcome.word(),
                int(step.usage.input),
                int(step.usage.cache_read),
                int(step.usage.cache_write),
                int(step.usage.output),
                step.prefix,
                int(step.since),
                step.shape,
                int(step.bytes),
                step.prefix_blocks,
                step.prefix_hash,
                step.miss
            ])?;
            Ok(())
        })
    }

    /// Notes what became of a request: its outcome, its tokens, and why a cache was of no use.
    pub fn end_step(&self, turn: TurnNo, ended: &Step) -> Stored<()> {
        self.write(Durable::Later, |tx| {
            let mut statement = tx.prepare_cached(
                "UPDATE steps SET outcome = ?4, input = ?5, cache_read = ?6, cache_write = ?7, output = ?8,
                 miss = ?9 WHERE turn = ?1 AND step = ?2 AND attempt = ?3",
            )?;
            let usage = &ended.usage;
            let changed = statement.execute(params![
                turn.0,
                ended.step,
                ended.attempt,
                ended.outcome.word(),
                int(usage.input),
                int(usage.cache_read),
                int(usage.cache_write),
                int(usage.output),
                ended.miss
            ])?;
            one(changed, turn)
        })
    }

    /// The request for a step's answer.
    pub fn step(&self, turn: TurnNo, step: u32) -> Stored<Option<Step>> {
        self.read(|conn| {
            let sql = format!("{STEP} WHERE turn = ?1 AND step = ?2 AND attempt = 0");
            let mut statement = conn.prepare_cached(&sql)?;
            Ok(statement.query_row([turn.0, step], step_from).optional()?)
        })
    }

    /// The newest of a tab's requests that were answered, at least in part; looks back over a few turns.
    pub fn last_step(&self, tab: TabNo) -> Stored<Option<Step>> {
        const TURNS_BACK: u32 = 8;
        self.read(|conn| {
            let sql = format!(
                "{STEP} WHERE turn IN (SELECT no FROM turns WHERE tab = ?1 ORDER BY ordinal DESC LIMIT ?2)
                 AND input + cache_read + cache_write + output > 0 ORDER BY turn DESC, step DESC,
                 attempt = 0 DESC, attempt DESC LIMIT 1"
            );
            let mut statement = conn.prepare_cached(&sql)?;
            Ok(statement.query_row([tab.0, TURNS_BACK], step_from).optional()?)
        })
    }

    /// The model of a tab's newest request, whatever became of it.
    pub fn last_model(&self, tab: TabNo) -> Stored<Option<String>> {
        self.read(|conn| {
            let mut statement = conn.prepare_cached(
                "SELECT s.model FROM turns u JOIN steps s ON s.turn = u.no WHERE u.tab = ?1
                 ORDER BY u.ordinal DESC, s.step DESC LIMIT 1",
            )?;
            Ok(statement.query_row([tab.0], |row| row.get(0)).optional()?)
        })
    }

    /// All tokens of all requests that were made after a time.
    pub fn tokens_since(&self, after: Millis) -> Stored<u64> {
        self.read(|conn| {
            let mut statement = conn.prepare_cached(
                "SELECT coalesce(sum(input + cache_read + cache_write + output), 0) FROM steps WHERE at > ?1",
            )?;
            let sum: i64 = statement.query_row([after], |row| row.get(0))?;
            Ok(u64::try_from(sum).unwrap_or(0))
        })
    }

    /// Where a tab's generation began, and its newest summary. Reads the few rows that begin one, newest
    /// first, up to that summary.
    pub fn generation(&self, tab: TabNo) -> Stored<Generation> {
        self.read(|conn| {
            let mut statement = conn.prepare_cached(
                "SELECT id & 4294967295, json_extract(data, '$.kind') = 'compacted',
                 json_extract(data, '$.upto')
                 FROM chunks INDEXED BY generations WHERE id BETWEEN ?1 AND ?2 AND type = 'system'
                 AND json_extract(data, '$.kind') IN
                 ('model-changed', 'prompt-changed', 'tools-changed', 'compacted', 'thinking-dropped')
                 ORDER BY id DESC",
            )?;
            let mut found = statement.query(params![id(tab, 0), id(tab, Seq::MAX)])?;
            let mut generation = Generation::default();
            while let Some(row) = found.next()? {
                let seq = u32_of(row, 0)?.into();
                generation.since = generation.since.max(seq);
                if row.get(1)? {
                    let upto = row.get::<_, Option<u32>>(2)?.unwrap_or(0).into();
                    generation.summary = Some(Summary { seq, upto });
                    break;
                }
            }
            Ok(generation)
        })
    }

    /// Ends a turn: its last rows, its sums and its status, in the one synced commit of the turn.
    pub fn seal_turn(&self, seal: SealTurn<'_>) -> Stored<Sealed> {
        let sealed = self.write(Durable::Turn, |tx| seal_in(tx, self.budget, &seal))?;
        self.counts.sealed_turns.fetch_add(1, Relaxed);
        Ok(sealed)
    }

    /// Ascending: the newest `limit` turns with an ordinal below `before`; fewer when their steps are many.
    pub fn turns(&self, tab: TabNo, before: Option<u64>, limit: usize) -> Stored<Vec<Turn>> {
        let limit = limit.min(self.budget.page_rows);
        self.read(|conn| {
            // One moment for all of the reads.
            let tx = conn.unchecked_transaction()?;
            let newest = newest(&tx, tab)?;
            let mut statement = tx.prepare_cached(
                "SELECT no, ordinal, first_seq, last_seq, status, stop, started_at, sealed_at FROM turns
                 WHERE tab = ?1 AND ordinal < ?2 ORDER BY ordinal DESC LIMIT ?3",
            )?;
            let before = before.map_or(i64::MAX, int);
            let mut found = statement.query(params![tab.0, before, int(limit as u64)])?;
            let mut turns: Vec<Turn> = Vec::new();
            let mut steps = 0;
            while let Some(row) = found.next()? {
                let mut turn = turn_from(row, newest)?;
                turn.steps = steps_of(&tx, turn.turn)?;
                steps += turn.steps.len();
                if steps > STEPS_MAX && !turns.is_empty() {
                    break;
                }
                turns.push(turn);
            }
            turns.reverse();
            Ok(turns)
        })
    }

    /// Appends the last row of a call together with the call's state.
    pub fn append_call(&self, tab: TabNo, row: &Row, call_id: &str, state: CallState) -> Stored<()> {
        self.write(Durable::Later, |tx| {
            append_in(tx, self.budget, tab, std::slice::from_ref(row))?;
            Ok(insert_call(tx, tab, call_id, row.turn, row.seq, state)?)
        })
    }

    /// Whether the tab already has a call of this id, and its state.
    pub fn call_state(&self, tab: TabNo, call_id: &str) -> Stored<Option<CallState>> {
        self.read(|conn| {
            let mut statement =
                conn.prepare_cached("SELECT state FROM calls WHERE tab = ?1 AND call_id = ?2")?;
            let state =
                statement.query_row(params![tab.0, call_id], |row| word_of(row, 0, CallState::from_word));
            Ok(state.optional()?)
        })
    }

    /// Notes that a call is about to run, before it does.
    pub fn start_call(&self, tab: TabNo, call_id: &str) -> Stored<()> {
        self.write(Durable::Later, |tx| {
            let mut statement =
                tx.prepare_cached("UPDATE calls SET started = 1 WHERE tab = ?1 AND call_id = ?2")?;
            match statement.execute(params![tab.0, call_id])? {
                1 => Ok(()),
                _ => Err(Fault::broken(format!("tab {tab} has no call {call_id:?}; it is not run"))),
            }
        })
    }
}

fn one(changed: usize, turn: TurnNo) -> Result<(), Fault> {
    match changed {
        1 => Ok(()),
        _ => Err(Fault::broken(format!("turn {turn} or its step does not exist, or has ended"))),
    }
}

fn insert_turn(conn: &Connection, tab: TabNo, first: u64, status: TurnStatus) -> Result<TurnNo, Fault> {
    let running = conn
        .prepare_cached("SELECT no FROM turns WHERE tab = ?1 AND sealed_at IS NULL")?
        .query_row([tab.0], |row| u32_of(row, 0))
        .optional()?;
    if let Some(running) = running {
        let running = TurnNo(running);
        return Err(Fault::broken(format!("turn {running} of tab {tab} has not ended; no other begins")));
    }
    let mut statement = conn.prepare_cached(
        "INSERT INTO turns (tab, ordinal, first_seq, status, started_at)
         VALUES (?1, 1 + coalesce((SELECT max(ordinal) FROM turns WHERE tab = ?1), 0), ?2, ?3, ?4)
         RETURNING no",
    )?;
    let no = statement.query_row(params![tab.0, int(first), status.word(), now()], |row| u32_of(row, 0))?;
    Ok(TurnNo(no))
}

pub(super) fn insert_call(
    conn: &Connection,
    tab: TabNo,
    call_id: &str,
    turn: TurnNo,
    seq: u64,
    state: CallState,
) -> rusqlite::Result<()> {
    conn.prepare_cached("INSERT INTO calls (tab, call_id, turn, seq, state) VALUES (?1, ?2, ?3, ?4, ?5)")?
        .execute(params![tab.0, call_id, turn.0, int(seq), state.word()])?;
    Ok(())
}

/// A call's state and whether it was started.
pub(super) fn call_in(
    conn: &Connection,
    tab: TabNo,
    id: &str,
) -> rusqlite::Result<Option<(CallState, bool)>> {
    conn.prepare_cached("SELECT state, started FROM calls WHERE tab = ?1 AND call_id = ?2")?
        .query_row(params![tab.0, id], |row| Ok((word_of(row, 0, CallState::from_word)?, row.get(1)?)))
        .optional()
}

/// Seals within a transaction.
pub(super) fn seal_in(conn: &Connection, budget: &Budget, seal: &SealTurn<'_>) -> Result<Sealed, Fault> {
    let SealTurn { tab, turn, rows, status, stop } = *seal;
    debug_assert!(rows.iter().all(|row| row.turn == turn), "the last rows belong to the turn");
    append_in(conn, budget, tab, rows)?;
    conn.prepare_cached("UPDATE steps SET outcome = ?2 WHERE turn = ?1 AND outcome = ?3")?
        .execute(params![turn.0, StepOutcome::Cut.word(), StepOutcome::Open.word()])?;
    let usage = usage_of(conn, turn)?;
    let last = newest(conn, tab)?;
    let mut statement = conn.prepare_cached(
        "UPDATE turns SET status = ?3, stop = ?4, last_seq = ?5, sealed_at = ?6
         WHERE no = ?1 AND tab = ?2 AND sealed_at IS NULL RETURNING first_seq",
    )?;
    let first = statement
        .query_row(params![turn.0, tab.0, status.word(), stop.word(), int(last), now()], |row| u32_of(row, 0))
        .optional()?
        .ok_or_else(|| Fault::broken(format!("turn {turn} of tab {tab} does not exist, or has ended")))?;
    add_to_tab(conn, tab, stop, &usage)?;
    Ok(Sealed { first_seq: first.into(), last_seq: last, usage })
}

fn usage_of(conn: &Connection, turn: TurnNo) -> rusqlite::Result<Usage> {
    let sql = "SELECT input, cache_read, cache_write, output FROM steps WHERE turn = ?1";
    let mut statement = conn.prepare_cached(sql)?;
    let mut found = statement.query([turn.0])?;
    let mut sum = Usage::default();
    while let Some(row) = found.next()? {
        sum.add(&usage_from(row, 0)?);
    }
    Ok(sum)
}

fn add_to_tab(conn: &Connection, tab: TabNo, stop: StopReason, usage: &Usage) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "UPDATE tabs SET last_stop = ?2, input = input + ?3, cache_read = cache_read + ?4,
             cache_write = cache_write + ?5, output = output + ?6 WHERE no = ?1",
    )?
    .execute(params![
        tab.0,
        stop.word(),
        int(usage.input),
        int(usage.cache_read),
        int(usage.cache_write),
        int(usage.output)
    ])?;
    Ok(())
}

fn steps_of(conn: &Connection, turn: TurnNo) -> rusqlite::Result<Vec<Step>> {
    let sql = format!("{STEP} WHERE turn = ?1 ORDER BY {AS_MADE} LIMIT ?2");
    let mut statement = conn.prepare_cached(&sql)?;
    statement.query_map(params![turn.0, STEPS_MAX as i64], step_from)?.collect()
}

fn step_from(row: &rusqlite::Row<'_>) -> rusqlite::Result<Step> {
    let count = |column| row.get::<_, i64>(column).map(|n| u64::try_from(n).unwrap_or(0));
    Ok(Step {
        step: row.get(0)?,
        attempt: row.get(1)?,
        at: row.get(2)?,
        model: row.get(3)?,
        outcome: word_of(row, 4, StepOutcome::from_word)?,
        usage: usage_from(row, 5)?,
        prefix: row.get(9)?,
        since: count(10)?,
        shape: row.get(11)?,
        bytes: count(12)?,
        prefix_blocks: row.get(13)?,
        prefix_hash: row.get(14)?,
        miss: row.get(15)?,
    })
}

/// Four columns from `column` on.
pub(super) fn usage_from(row: &rusqlite::Row<'_>, column: usize) -> rusqlite::Result<Usage> {
    let tokens = |at: usize| row.get::<_, i64>(column + at).map(|n| u64::try_from(n).unwrap_or(0));
    Ok(Usage { input: tokens(0)?, cache_read: tokens(1)?, cache_write: tokens(2)?, output: tokens(3)? })
}

fn turn_from(row: &rusqlite::Row<'_>, newest: u64) -> rusqlite::Result<Turn> {
    let stop: Option<String> = row.get(5)?;
    Ok(Turn {
        turn: TurnNo(row.get(0)?),
        ordinal: u32_of(row, 1)?.into(),
        first_seq: u32_of(row, 2)?.into(),
        last_seq: row.get::<_, Option<u32>>(3)?.map_or(newest, u64::from),
        status: word_of(row, 4, TurnStatus::from_word)?,
        stop: stop.as_deref().and_then(StopReason::from_word),
        started_at: row.get(6)?,
        sealed_at: row.get(7)?,
        steps: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;

    fn step(step: u32) -> Step {
        let made = Step::new(step, 0, "demo/demo".into());
        Step { at: 7, prefix_blocks: step * 2, prefix_hash: format!("{step:02x}"), ..made }
    }

    #[test]
    fn a_turn_fills_its_rows_and_sums_its_steps() {
        let (_dir, store, tab) = store();
        let rows = &mut [user_row(1, "a"), user_row(2, "b")];
        let begin = BeginTurn { tab, rows, consumed: &[], sent: None, status: TurnStatus::Waiting };
        let turn = store.begin_turn(begin).unwrap();
        assert!(rows.iter().all(|row| row.turn == turn));
        assert_eq!(store.row(tab, 2).unwrap().unwrap(), rows[1]);
        store.set_turn_status(turn, TurnStatus::Running).unwrap();
        let usage = Usage { input: 10, cache_read: 20, cache_write: 30, output: 40 };
        for at in 1..=2 {
            store.begin_step(turn, &step(at)).unwrap();
            store.begin_step(turn, &step(at)).unwrap();
            let miss = (at == 2).then(|| "ttl: 301 s".to_owned());
            store.end_step(turn, &Step { outcome: StepOutcome::Whole, usage, miss, ..step(at) }).unwrap();
        }
        store.begin_step(turn, &step(3)).unwrap();
        let data =
            crate::chunk::json(&crate::chunk::ErrorData { message: "no".into(), ..Default::default() });
        let last = row_of(turn, 3, 3, crate::chunk::Kind::Error, data);
        let rows = &[last];
        let seal = SealTurn { tab, turn, rows, status: TurnStatus::Error, stop: StopReason::Error };
        let sealed = store.seal_turn(seal).unwrap();
        let sum = Usage { input: 20, cache_read: 40, cache_write: 60, output: 80 };
        assert_eq!(sealed, Sealed { first_seq: 1, last_seq: 3, usage: sum });
        let view = store.tab(tab).unwrap().unwrap();
        assert_eq!((view.usage, view.last_stop), (sum, Some(StopReason::Error)));
        let seen = store.turns(tab, None, 9).unwrap().remove(0);
        assert_eq!((seen.ordinal, seen.first_seq, seen.last_seq), (1, 1, 3));
        assert_eq!(seen.steps[0], Step { outcome: StepOutcome::Whole, usage, ..step(1) });
        assert_eq!(seen.steps[2].outcome, StepOutcome::Cut, "a sealed turn has no open step");
        assert_eq!(store.step(turn, 2).unwrap(), Some(seen.steps[1].clone()));
        assert_eq!(store.step(turn, 4).unwrap(), None);
    }

    #[test]
    fn one_turn_runs_in_a_tab_and_ends_once() {
        let (_dir, store, tab) = store();
        let turn = begin(&store, tab, 1);
        let rows = &mut [user_row(2, "b")];
        let second = BeginTurn { tab, rows, consumed: &[], sent: None, status: TurnStatus::Running };
        assert!(matches!(store.begin_turn(second), Err(StoreError::Broken(_))));
        assert_eq!(store.tab(tab).unwrap().unwrap().total, 1, "nothing of it was kept");
        let other = store.create_tab(&NewTab::default()).unwrap().no;
        begin(&store, other, 1);
        seal(&store, tab, turn);
        let again = SealTurn { tab, turn, rows: &[], status: TurnStatus::Done, stop: StopReason::End };
        assert!(store.seal_turn(again).is_err());
        assert!(store.set_turn_status(turn, TurnStatus::Running).is_err());
        begin(&store, tab, 2);
    }

    #[test]
    fn turns_are_the_newest_below_an_ordinal_ascending() {
        let (_dir, store, tab) = store();
        for seq in 1..=9 {
            let turn = begin(&store, tab, seq);
            store.begin_step(turn, &step(1)).unwrap();
            seal(&store, tab, turn);
        }
        let ordinals = |before, limit| -> Vec<u64> {
            store.turns(tab, before, limit).unwrap().iter().map(|turn| turn.ordinal).collect()
        };
        assert_eq!(ordinals(None, 3), [7, 8, 9]);
        assert_eq!(ordinals(Some(7), 3), [4, 5, 6]);
        assert_eq!(ordinals(Some(2), 3), [1]);
        assert_eq!(ordinals(Some(1), 3), [] as [u64; 0]);
        assert_eq!(ordinals(Some(u64::MAX), 100).len(), 9);
    }

    #[test]
    fn a_list_of_turns_with_very_many_steps_is_cut() {
        let (_dir, store, tab) = store();
        for seq in 1..=12 {
            let turn = begin(&store, tab, seq);
            (1..=200).for_each(|at| store.begin_step(turn, &step(at)).unwrap());
            seal(&store, tab, turn);
        }
        let turns = store.turns(tab, None, 100).unwrap();
        assert_eq!((turns.len(), turns[4].ordinal), (5, 12));
    }

    #[test]
    fn a_call_is_known_from_its_last_part_on() {
        let (_dir, store, tab) = store();
        let turn = begin(&store, tab, 1);
        assert_eq!(store.call_state(tab, "c").unwrap(), None);
        assert!(store.start_call(tab, "c").is_err());
        for (seq, id, state) in
            [(2, "c", CallState::Good), (3, "d", CallState::Bad), (4, "e", CallState::Cut)]
        {
            let row = row_of(turn, seq, 1, crate::chunk::Kind::ToolCall, "{}".into());
            store.append_call(tab, &row, id, state).unwrap();
            assert_eq!(store.call_state(tab, id).unwrap(), Some(state));
        }
        store.start_call(tab, "c").unwrap();
        let row = row_of(turn, 5, 1, crate::chunk::Kind::ToolCall, "{}".into());
        assert!(store.append_call(tab, &row, "c", CallState::Good).is_err(), "the id is taken");
        assert_eq!(store.tab(tab).unwrap().unwrap().total, 4);
        let other = store.create_tab(&NewTab::default()).unwrap().no;
        assert_eq!(store.call_state(other, "c").unwrap(), None);
    }

    #[test]
    fn the_last_step_is_the_newest_that_was_answered() {
        let (_dir, store, tab) = store();
        assert_eq!((store.last_step(tab).unwrap(), store.last_model(tab).unwrap()), (None, None));
        let turn = begin(&store, tab, 1);
        let usage = Usage { input: 1, ..Usage::default() };
        let (answer, summary) = (step(1), Step { attempt: 1, ..Step::new(2, 1, "a/b".into()) });
        for made in [&answer, &summary, &step(2), &step(3)] {
            store.begin_step(turn, made).unwrap();
        }
        store.end_step(turn, &Step { usage, ..answer.clone() }).unwrap();
        assert_eq!(store.last_step(tab).unwrap().map(|last| (last.step, last.attempt)), Some((1, 0)));
        store.end_step(turn, &Step { usage, ..summary }).unwrap();
        assert_eq!(store.last_step(tab).unwrap().map(|last| (last.step, last.attempt)), Some((2, 1)));
        store.end_step(turn, &Step { usage, ..step(2) }).unwrap();
        assert_eq!(store.last_step(tab).unwrap().map(|last| (last.step, last.attempt)), Some((2, 0)));
        assert_eq!(store.last_model(tab).unwrap().as_deref(), Some("demo/demo"));
        let made: Vec<_> = store.turns(tab, None, 1).unwrap()[0].steps.iter().map(|s| s.attempt).collect();
        assert_eq!(made, [0, 1, 0, 0], "summaries stand before the answer of their step");
        assert_eq!((store.tokens_since(6).unwrap(), store.tokens_since(i64::MAX).unwrap()), (3, 0));
    }

    #[test]
    fn a_generation_begins_at_its_newest_row_and_reaches_back_to_the_summary() {
        let (_dir, store, tab) = store();
        let turn = begin(&store, tab, 1);
        assert_eq!(store.generation(tab).unwrap(), Generation::default());
        let other = store.create_tab(&NewTab::default()).unwrap().no;
        let system = |seq, kind: &str, upto| {
            let data =
                crate::chunk::SystemData { kind: kind.into(), upto, ..crate::chunk::SystemData::default() };
            row_of(turn, seq, 1, crate::chunk::Kind::System, crate::chunk::json(&data))
        };
        let summary = Some(Summary { seq: 4, upto: 2 });
        for (row, since, summary) in [
            (system(2, "notice", None), 0, None),
            (system(3, "model-changed", None), 3, None),
            (system(4, "compacted", Some(2)), 4, summary),
            (system(5, "cancelled", None), 4, summary),
            (system(6, "thinking-dropped", Some(5)), 6, summary),
            (system(7, "compacted", Some(5)), 7, Some(Summary { seq: 7, upto: 5 })),
        ] {
            store.append(tab, &[row]).unwrap();
            assert_eq!(store.generation(tab).unwrap(), Generation { since, summary });
        }
        assert_eq!(store.generation(other).unwrap(), Generation::default());
    }
}
