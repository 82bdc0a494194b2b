//! The log: append, and read a row, some rows, or the sizes of a page.
//!
//! Every read is one walk along a tab's stretch of the `chunks` tree, so its cost does not depend on the
//! log's length.

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

    /// Rows after `after` up to and with `upto`, ascending: as many as fit `bytes_max` of data and opaque, at
    /// most `page_rows` of the budget, at least one if any.
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

    /// The sizes of a page's rows, ascending: at most `rows_max`, at most `bytes_max`, at least one if any.
    /// Reads no data: SQLite tells the length from the row's header.
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
            "SELECT id & 4294967295, octet_length(data) FROM chunks
             WHERE id > ?1 AND id <= ?2 ORDER BY id {order} LIMIT ?3"
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
    let first = newest(conn, tab)? + 1;
    let mut statement = conn.prepare_cached(
        "INSERT INTO chunks (id, turn, step, role, type, created_at, data, opaque)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
    )?;
    for (next, row) in (first..).zip(rows) {
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

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;
    use proptest::prelude::*;

    /// A log of rows with texts of these lengths.
    fn log_of(lengths: &[usize]) -> (Dir, Store, TabNo, Vec<Row>) {
        let (dir, store, tab) = store();
        // Neighbours, whose rows must never show.
        let other = store.create_tab(&NewTab::default()).unwrap().no;
        let turn = TurnNo(1);
        let rows: Vec<Row> = lengths
            .iter()
            .enumerate()
            .map(|(at, length)| text_row(turn, at as Seq + 1, 1, &"é".repeat(*length)))
            .collect();
        for row in &rows {
            store.append(tab, std::slice::from_ref(row)).unwrap();
            store.append(other, &[text_row(turn, row.seq, 1, "other")]).unwrap();
        }
        (dir, store, tab, rows)
    }

    /// What protocol.md says of a page, computed the simple way.
    fn expected(rows: &[Row], edge: Edge, rows_max: usize, bytes_max: usize) -> Vec<RowSize> {
        let fits = |row: &&Row| match edge {
            Edge::Tail => true,
            Edge::Before(seq) => row.seq < seq,
            Edge::After(seq) => row.seq > seq,
        };
        let mut found: Vec<&Row> = rows.iter().filter(fits).collect();
        let newest_first = !matches!(edge, Edge::After(_));
        if newest_first {
            found.reverse();
        }
        let mut sum = 0;
        let mut page = Vec::new();
        for row in found.into_iter().take(rows_max) {
            sum += row.data.len();
            if sum > bytes_max && !page.is_empty() {
                break;
            }
            page.push(RowSize { seq: row.seq, bytes: row.data.len() as u32 });
        }
        if newest_first {
            page.reverse();
        }
        page
    }

    fn any_edge() -> impl Strategy<Value = Edge> {
        let seq = prop_oneof![0u64..40, Just(u32::MAX as u64), Just(u32::MAX as u64 + 1), Just(u64::MAX)];
        prop_oneof![Just(Edge::Tail), seq.clone().prop_map(Edge::Before), seq.prop_map(Edge::After),]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

        #[test]
        fn a_page_is_what_the_protocol_says(
            lengths in prop::collection::vec(prop_oneof![0usize..100, 1000usize..6000], 0..30),
            asked in prop::collection::vec((any_edge(), 1usize..40, 0usize..20_000), 1..20),
        ) {
            let (_dir, store, tab, rows) = log_of(&lengths);
            for (edge, rows_max, bytes_max) in asked {
                let page = store.page(tab, edge, rows_max, bytes_max).unwrap();
                prop_assert_eq!(page, expected(&rows, edge, rows_max, bytes_max), "{:?}", edge);
            }
        }

        #[test]
        fn pages_and_rows_walk_the_whole_log_within_their_bounds(
            lengths in prop::collection::vec(0usize..3000, 1..40),
            bytes_max in 0usize..20_000,
        ) {
            let (_dir, store, tab, rows) = log_of(&lengths);
            let mut read: Vec<Row> = Vec::new();
            while (read.len()) < rows.len() {
                let more = store.rows(tab, read.len() as Seq, rows.len() as Seq, bytes_max).unwrap();
                let bytes: usize = more.iter().map(|row| row.data.len()).sum();
                prop_assert!(more.len() == 1 || (bytes <= bytes_max && !more.is_empty()));
                read.extend(more);
            }
            prop_assert_eq!(&read, &rows);
            let mut up = Seq::MAX;
            let mut seqs: Vec<Seq> = Vec::new();
            loop {
                let page = store.page(tab, Edge::Before(up), 7, bytes_max).unwrap();
                let Some(first) = page.first() else { break };
                up = first.seq;
                seqs.splice(0..0, page.iter().map(|size| size.seq));
            }
            prop_assert_eq!(seqs, (1..=rows.len() as Seq).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_row_comes_back_as_it_went_with_its_opaque_bytes() {
        let (_dir, store, tab) = store();
        let data = r#"{"text":"nul \u0000, é, 👍","block":0,"ms":7}"#.to_owned();
        let row = Row {
            opaque: Some((0..=255).collect()),
            created_at: 1_796_000_000_123,
            ..row_of(TurnNo(9), 1, 3, Kind::Thinking, data)
        };
        store.append(tab, std::slice::from_ref(&row)).unwrap();
        assert_eq!(store.row(tab, 1).unwrap(), Some(row.clone()));
        assert_eq!(store.rows(tab, 0, 1, 0).unwrap(), vec![row.clone()]);
        assert_eq!(store.page(tab, Edge::Tail, 1, 0).unwrap()[0].bytes as usize, row.data.len());
        for none in [0, 2, u32::MAX as Seq + 2, Seq::MAX] {
            assert_eq!(store.row(tab, none).unwrap(), None);
        }
        assert_eq!(store.page(TabNo(u32::MAX), Edge::Tail, 10, 1000).unwrap(), []);
    }

    #[test]
    fn a_tabs_total_and_time_are_those_of_its_last_row() {
        let (_dir, store, tab, rows) = log_of(&[1, 2, 3]);
        let late = Row { created_at: i64::MAX, ..text_row(TurnNo(1), 4, 1, "late") };
        assert_eq!(store.tab(tab).unwrap().unwrap().total, rows.len() as Seq);
        store.append(tab, &[late]).unwrap();
        let view = store.tab(tab).unwrap().unwrap();
        assert_eq!((view.total, view.updated_at), (4, i64::MAX));
    }

    #[test]
    fn a_row_that_does_not_follow_or_is_too_big_is_refused_and_the_store_goes_on() {
        let (_dir, store, tab, _) = log_of(&[1]);
        let big = text_row(TurnNo(1), 2, 1, &"x".repeat(Budget::ROUTER.chunk_bytes));
        for bad in [text_row(TurnNo(1), 4, 1, "a hole"), text_row(TurnNo(1), 1, 1, "again"), big] {
            let rows = [text_row(TurnNo(1), 2, 1, "good"), bad.clone()];
            let rows = if bad.seq == 2 { &rows[1..] } else { &rows[..] };
            // A bug of the caller: loud where assertions are on, an error where they are not.
            let append = std::panic::AssertUnwindSafe(|| store.append(tab, rows));
            if let Ok(done) = std::panic::catch_unwind(append) {
                assert!(matches!(done, Err(StoreError::Broken(_))), "{done:?}");
            }
            assert_eq!(store.tab(tab).unwrap().unwrap().total, 1);
        }
        store.append(tab, &[text_row(TurnNo(1), 2, 1, "good")]).unwrap();
    }

    #[test]
    fn rows_of_no_tab_are_refused() {
        let (_dir, store, _) = store();
        let refused = store.append(TabNo(99), &[text_row(TurnNo(1), 1, 1, "a")]);
        assert!(matches!(refused, Err(StoreError::Broken(text)) if text.contains("t99")));
    }

    #[test]
    fn a_pages_sizes_are_read_without_the_pages_that_data_overflows_into() {
        let (dir, store, tab) = store();
        let text = "x".repeat(15_000);
        let rows: Vec<Row> = (1..=200).map(|seq| text_row(TurnNo(1), seq, 1, &text)).collect();
        store.append(tab, &rows).unwrap();
        store.close();
        // Overflow pages are filled with junk; a page of sizes does not notice, a row does.
        let path = dir.path().join(FILE);
        let mut bytes = std::fs::read(&path).unwrap();
        for page in bytes.chunks_mut(4096) {
            if page[4..].iter().all(|byte| *byte == b'x') {
                page[..4].fill(0xff);
            }
        }
        std::fs::write(&path, bytes).unwrap();
        let store = Store::open(dir.path(), &Budget::ROUTER).unwrap();
        assert_eq!(store.page(tab, Edge::Tail, 200, usize::MAX).unwrap().len(), 200);
        assert!(store.row(tab, 100).is_err());
    }
}
