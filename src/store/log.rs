//! The log: append, and read a row, some rows, or the sizes of a page.
//!
//! Every read is one walk along a tab's stretch of the `chunks` tree, so its cost does not depend on the log's length.

use super::fault::{Fault, unknown_word};
use super::*;
use crate::chunk::{Kind, Role, Row, Seq, TabNo, TurnNo};
use rusqlite::{OptionalExtension, params};

/// Seqs are 32 bits of a row's id.
const SEQ_MAX: Seq = u32::MAX as Seq;

const ROW: &str = "SELECT id & 4294967295, turn, step, role, type, created_at, data, opaque FROM chunks";

impl Store {
    /// Appends rows, whose seqs must go on from the tab's newest (asserted), in one commit without a sync.
    pub fn append(&self, tab: TabNo, rows: &[Row]) -> Stored<()> {
        self.write(Durable::Later, |tx| append_in(tx, self.budget, tab, rows))
    }

    /// One row.
    pub fn row(&self, tab: TabNo, seq: Seq) -> Stored<Option<Row>> {
        if seq > SEQ_MAX {
            return Ok(None);
        }
        self.read(|conn| {
            let mut statement = conn.prepare_cached(&format!("{ROW} WHERE id = ?1"))?;
            Ok(statement.query_row([id(tab, seq)], row_from).optional()?)
        })
    }

    /// Rows after `after` up to and with `upto`, ascending: as many as fit `bytes_max` of data and opaque, at most
    /// `page_rows` of the budget, at least one if any.
    pub fn rows(&self, tab: TabNo, after: Seq, upto: Seq, bytes_max: usize) -> Stored<Vec<Row>> {
        if after >= upto || after >= SEQ_MAX {
            return Ok(Vec::new());
        }
        self.read(|conn| {
            let mut statement =
                conn.prepare_cached(&format!("{ROW} WHERE id > ?1 AND id <= ?2 ORDER BY id LIMIT ?3"))?;
            let most = int(self.budget.page_rows as u64);
            let mut found = statement.query(params![id(tab, after), id(tab, upto), most])?;
            let mut rows = Vec::new();
            let mut bytes = 0;
            while let Some(row) = found.next()? {
                let row = row_from(row)?;
                bytes += row.data.len() + row.opaque.as_ref().map_or(0, Vec::len);
                if bytes > bytes_max && !rows.is_empty() {
                    break;
                }
                rows.push(row);
            }
            Ok(rows)
        })
    }

    /// The sizes of a page's rows, ascending: at most `rows_max`, at most `bytes_max`, at least one if any. Reads no
    /// data: SQLite tells the length from the row's header.
    pub fn page(&self, tab: TabNo, edge: Edge, rows_max: usize, bytes_max: usize) -> Stored<Vec<RowSize>> {
        let (low, high) = (id(tab, 0), id(tab, SEQ_MAX));
        let (low, high, order) = match edge {
            Edge::Tail => (low, high, "DESC"),
            Edge::Before(seq) if seq <= SEQ_MAX => (low, id(tab, seq) - 1, "DESC"),
            Edge::Before(_) => (low, high, "DESC"),
            Edge::After(seq) => (id(tab, seq), high, "ASC"),
        };
        let most = int(rows_max.clamp(1, self.budget.page_rows) as u64);
        let sql = format!(
            "SELECT id & 4294967295, octet_length(data) FROM chunks WHERE id > ?1 AND id <= ?2 ORDER BY id {order} LIMIT ?3"
        );
        let mut sizes = self.read(|conn| {
            let mut statement = conn.prepare_cached(&sql)?;
            let mut found = statement.query(params![low, high, most])?;
            let mut sizes: Vec<RowSize> = Vec::new();
            let mut sum = 0;
            while let Some(row) = found.next()? {
                let size = RowSize { seq: u32_of(row, 0)?.into(), bytes: row.get(1)? };
                sum += size.bytes as usize;
                if sum > bytes_max && !sizes.is_empty() {
                    break;
                }
                sizes.push(size);
            }
            Ok(sizes)
        })?;
        if order == "DESC" {
            sizes.reverse();
        }
        debug_assert!(sizes.windows(2).all(|pair| pair[1].seq == pair[0].seq + 1), "the log has a hole");
        Ok(sizes)
    }
}

/// A row's key. Tabs of 2³¹ and above do not exist, and find nothing.
pub(super) fn id(tab: TabNo, seq: Seq) -> i64 {
    (i64::from(tab.0) << 32) | int(seq.min(SEQ_MAX))
}

/// The newest seq of a tab's log, 0 if it is empty.
pub(super) fn newest(conn: &Connection, tab: TabNo) -> rusqlite::Result<Seq> {
    let mut statement = conn.prepare_cached(
        "SELECT id & 4294967295 FROM chunks WHERE id BETWEEN ?1 AND ?2 ORDER BY id DESC LIMIT 1",
    )?;
    let found = statement.query_row([id(tab, 0), id(tab, SEQ_MAX)], |row| u32_of(row, 0)).optional()?;
    Ok(found.unwrap_or(0).into())
}

/// Appends within a transaction; refuses rows that do not go on from the newest.
pub(super) fn append_in(conn: &Connection, budget: &Budget, tab: TabNo, rows: &[Row]) -> Result<(), Fault> {
    let exists = conn.prepare_cached("SELECT 1 FROM tabs WHERE no = ?1 AND NOT purging")?.exists([tab.0])?;
    if !exists {
        return Err(Fault::broken(format!("tab {tab} does not exist; its rows are not kept")));
    }
    let mut next = newest(conn, tab)? + 1;
    let mut statement = conn.prepare_cached(
        "INSERT INTO chunks (id, turn, step, role, type, created_at, data, opaque) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
    )?;
    for row in rows {
        check_row(budget, tab, next, row)?;
        statement.execute(params![
            id(tab, row.seq),
            row.turn.0,
            row.step,
            row.role.word(),
            row.kind.word(),
            row.created_at,
            row.data,
            row.opaque
        ])?;
        next += 1;
    }
    Ok(())
}

fn check_row(budget: &Budget, tab: TabNo, next: Seq, row: &Row) -> Result<(), Fault> {
    let fits = row.seq == next && next < SEQ_MAX;
    debug_assert!(fits, "row {} of tab {tab} does not follow row {}", row.seq, next - 1);
    if !fits {
        return Err(Fault::broken(format!("row {} of tab {tab} does not follow row {}", row.seq, next - 1)));
    }
    let small = row.data.len() <= budget.chunk_bytes;
    debug_assert!(small, "row {next} of tab {tab} holds {} bytes", row.data.len());
    if !small {
        let (bytes, limit) = (row.data.len(), budget.chunk_bytes);
        return Err(Fault::broken(format!(
            "row {next} of tab {tab} holds {bytes} bytes, over chunk_bytes ({limit})"
        )));
    }
    Ok(())
}

fn row_from(row: &rusqlite::Row<'_>) -> rusqlite::Result<Row> {
    Ok(Row {
        seq: u32_of(row, 0)?.into(),
        turn: TurnNo(row.get(1)?),
        step: row.get(2)?,
        role: word_of(row, 3, Role::from_word)?,
        kind: word_of(row, 4, Kind::from_word)?,
        created_at: row.get(5)?,
        data: row.get(6)?,
        opaque: row.get(7)?,
    })
}

pub(super) fn u32_of(row: &rusqlite::Row<'_>, column: usize) -> rusqlite::Result<u32> {
    row.get(column)
}

/// A stored word's value.
pub(super) fn word_of<T>(
    row: &rusqlite::Row<'_>,
    column: usize,
    parse: fn(&str) -> Option<T>,
) -> rusqlite::Result<T> {
    let word = row.get_ref(column)?.as_str()?;
    parse(word).ok_or_else(|| unknown_word(column, word))
}
