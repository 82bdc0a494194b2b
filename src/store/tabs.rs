//! Tabs: list, make, change, purge.
//!
//! A purge marks its tab first, so that it is gone for everyone at once; then it erases a bounded number of
//! rows a transaction. The housekeeper goes on with a purge that a killed server left.

use super::fault::Fault;
use super::log::{id, word_of};
use super::turns::usage_from;
use super::*;
use crate::chunk::{StopReason, TabNo};
use rusqlite::{OptionalExtension, params};

/// Rows that one transaction of a purge erases at most.
const PURGE_ROWS: i64 = 1000;
/// Pages that one transaction gives back to the disk at most.
const VACUUM_PAGES: u32 = 256;

/// The last row is found by one way down the tree; its time, by what stands before its data.
const TAB: &str = "SELECT t.no, t.title, t.model, t.effort, t.workdir, t.position, t.created_at,
    max(t.changed_at, coalesce(c.created_at, 0)), t.archived, coalesce(c.id & 4294967295, 0), t.last_stop,
    t.input, t.cache_read, t.cache_write, t.output
    FROM tabs t LEFT JOIN chunks c ON c.id =
        (SELECT max(id) FROM chunks WHERE id BETWEEN t.no << 32 AND (t.no << 32) + 4294967295)";

impl Store {
    /// The numbers of all tabs in the list's order, without or with the archived ones. Numbers only: titles
    /// and paths of all tabs at once would have no bound worth the name.
    pub fn tabs(&self, archived: bool) -> Stored<Vec<TabNo>> {
        self.read(|conn| {
            let mut statement = conn.prepare_cached(
                "SELECT no FROM tabs WHERE NOT purging AND (?1 OR NOT archived) ORDER BY position, no",
            )?;
            let numbers = statement.query_map([archived], |row| Ok(TabNo(row.get(0)?)))?;
            Ok(numbers.collect::<rusqlite::Result<_>>()?)
        })
    }

    /// One tab.
    pub fn tab(&self, tab: TabNo) -> Stored<Option<Tab>> {
        self.read(|conn| Ok(tab_in(conn, tab)?))
    }

    /// Makes a tab, last in the list. [`StoreError::Full`] names `tabs` when there are too many.
    pub fn create_tab(&self, new: &NewTab) -> Stored<Tab> {
        self.write(Durable::Later, |tx| {
            self.room(tx)?;
            if count_in(tx)? >= self.budget.tabs {
                return Err(StoreError::Full("tabs").into());
            }
            let mut statement = tx.prepare_cached(
                "INSERT INTO tabs (title, model, effort, workdir, position, created_at, changed_at)
                 VALUES (?1, ?2, ?3, ?4, 1 + coalesce((SELECT max(position) FROM tabs), 0), ?5, ?5)
                 RETURNING no",
            )?;
            let values = params![new.title, new.model, new.effort, new.workdir, now()];
            let no = TabNo(statement.query_row(values, |row| row.get(0))?);
            METERS.tabs.set(count_in(tx)?);
            tab_in(tx, no)?.ok_or_else(|| Fault::broken(format!("tab {no} was not kept")))
        })
    }

    /// Changes a tab; `None` if there is none of this number.
    pub fn change_tab(&self, tab: TabNo, change: &TabChange) -> Stored<Option<Tab>> {
        self.write(Durable::Later, |tx| {
            let mut statement = tx.prepare_cached(
                "UPDATE tabs SET title = coalesce(?2, title), model = coalesce(?3, model),
                     effort = iif(?4, ?5, effort), workdir = coalesce(?6, workdir),
                     position = coalesce(?7, position), archived = coalesce(?8, archived), changed_at = ?9
                 WHERE no = ?1 AND NOT purging",
            )?;
            statement.execute(params![
                tab.0,
                change.title,
                change.model,
                change.effort.is_some(),
                change.effort.as_ref().and_then(Option::as_deref),
                change.workdir,
                change.position,
                change.archived,
                now()
            ])?;
            Ok(tab_in(tx, tab)?)
        })
    }

    /// Marks a tab as gone: from here on nothing finds it, and [`Store::erase_purged`] takes its rows away.
    /// Its turn must have ended. `false` if there is no such tab.
    pub fn purge_tab(&self, tab: TabNo) -> Stored<bool> {
        let marked = self.write(Durable::Other, |tx| {
            Ok(tx.execute(
                "UPDATE tabs SET purging = 1, archived = 1 WHERE no = ?1 AND NOT purging",
                [tab.0],
            )?)
        })?;
        Ok(marked > 0)
    }

    /// Erases the rows of a tab that is marked, a bounded number per transaction, and gives their space back
    /// to the disk. What fails is tried again by the housekeeper.
    pub fn erase_purged(&self, tab: TabNo) -> Stored<()> {
        let erased = self.erase(tab);
        if erased.is_err() {
            lock_of(&self.house).swept = false;
        }
        erased
    }

    /// Erases what is left of a tab that is marked.
    pub(super) fn erase(&self, tab: TabNo) -> Stored<()> {
        while self.write(Durable::Later, |tx| Ok(erase_some(tx, tab)?))? {
            self.checkpoint_if_long();
        }
        self.write(Durable::Other, |tx| {
            tx.execute("DELETE FROM tabs WHERE no = ?1", [tab.0])?;
            tx.execute(
                "DELETE FROM prefixes WHERE no NOT IN (SELECT prefix FROM tabs WHERE prefix > 0)
                 AND no NOT IN (SELECT prefix FROM steps)",
                [],
            )?;
            METERS.tabs.set(count_in(tx)?);
            Ok(())
        })?;
        self.give_back()
    }

    /// Gives free pages back to the disk, some at a time.
    fn give_back(&self) -> Stored<()> {
        let free =
            || self.read(|conn| Ok(conn.query_row("PRAGMA freelist_count", [], |row| row.get::<_, u32>(0))?));
        let mut left = free()?;
        while left > 0 {
            self.write(Durable::Later, |tx| {
                let mut statement = tx.prepare(&format!("PRAGMA incremental_vacuum({VACUUM_PAGES})"))?;
                let mut found = statement.query([])?;
                while found.next()?.is_some() {}
                Ok(())
            })?;
            self.checkpoint_if_long();
            let now = free()?;
            if now >= left {
                break;
            }
            left = now;
        }
        Ok(())
    }
}

/// The tabs that a purge was begun for.
pub(super) fn half_purged(conn: &Connection) -> rusqlite::Result<Option<TabNo>> {
    conn.query_row("SELECT no FROM tabs WHERE purging LIMIT 1", [], |row| row.get(0).map(TabNo)).optional()
}

pub(super) fn count_in(conn: &Connection) -> rusqlite::Result<usize> {
    let count: u32 = conn.prepare_cached("SELECT count(*) FROM tabs")?.query_row([], |row| row.get(0))?;
    Ok(count as usize)
}

fn tab_in(conn: &Connection, tab: TabNo) -> rusqlite::Result<Option<Tab>> {
    let mut statement = conn.prepare_cached(&format!("{TAB} WHERE t.no = ?1 AND NOT t.purging"))?;
    statement.query_row([tab.0], tab_from).optional()
}

fn tab_from(row: &rusqlite::Row<'_>) -> rusqlite::Result<Tab> {
    let stop = match row.get_ref(10)? {
        rusqlite::types::ValueRef::Null => None,
        _ => Some(word_of(row, 10, StopReason::from_word)?),
    };
    Ok(Tab {
        no: TabNo(row.get(0)?),
        title: row.get(1)?,
        model: row.get(2)?,
        effort: row.get(3)?,
        workdir: row.get(4)?,
        position: row.get(5)?,
        created_at: row.get(6)?,
        updated_at: row.get(7)?,
        archived: row.get(8)?,
        total: row.get::<_, u32>(9)?.into(),
        last_stop: stop,
        usage: usage_from(row, 11)?,
    })
}

/// Erases at most [`PURGE_ROWS`] rows of one table; tells whether there was anything left.
fn erase_some(conn: &Connection, tab: TabNo) -> rusqlite::Result<bool> {
    let (low, high) = (id(tab, 0), id(tab, u64::MAX));
    let first: Option<i64> = conn
        .prepare_cached("SELECT min(id) FROM chunks WHERE id BETWEEN ?1 AND ?2")?
        .query_row([low, high], |row| row.get(0))?;
    if let Some(first) = first {
        // Seqs have no gaps, so this is a bounded number of rows.
        let last = high.min(first + PURGE_ROWS - 1);
        conn.prepare_cached("DELETE FROM chunks WHERE id BETWEEN ?1 AND ?2")?.execute([first, last])?;
        return Ok(true);
    }
    // A turn has at most a few hundred steps, so five turns are a bounded number of rows, too.
    let turns = "SELECT no FROM turns WHERE tab = ?1 ORDER BY ordinal LIMIT 5";
    conn.execute(&format!("DELETE FROM steps WHERE turn IN ({turns})"), [tab.0])?;
    if conn.execute(&format!("DELETE FROM turns WHERE no IN ({turns})"), [tab.0])? > 0 {
        return Ok(true);
    }
    for (table, key) in [("calls", "call_id"), ("sends", "client_id"), ("queue", "no"), ("approvals", "no")] {
        let sql = format!(
            "DELETE FROM {table} WHERE tab = ?1
             AND {key} IN (SELECT {key} FROM {table} WHERE tab = ?1 LIMIT ?2)"
        );
        if conn.execute(&sql, [i64::from(tab.0), PURGE_ROWS])? > 0 {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;

    fn names(store: &Store, archived: bool) -> Vec<u32> {
        store.tabs(archived).unwrap().iter().map(|tab| tab.0).collect()
    }

    #[test]
    fn tabs_are_listed_by_position_and_archived_ones_when_asked() {
        let (_dir, store, first) = store();
        let new = NewTab {
            title: "t".into(),
            model: "m/x".into(),
            effort: Some("low".into()),
            workdir: "/w".into(),
        };
        let second = store.create_tab(&new).unwrap();
        assert_eq!(
            (second.title.as_str(), second.model.as_str(), second.workdir.as_str()),
            ("t", "m/x", "/w")
        );
        assert_eq!((second.effort.as_deref(), second.total, second.last_stop), (Some("low"), 0, None));
        assert_eq!(names(&store, false), [1, 2]);
        let change =
            TabChange { position: Some(second.position + 1), archived: Some(true), ..Default::default() };
        store.change_tab(first, &change).unwrap();
        assert_eq!(names(&store, false), [2]);
        assert_eq!(names(&store, true), [2, 1]);
    }

    #[test]
    fn a_change_touches_only_what_it_names() {
        let (_dir, store, tab) = store();
        let effort =
            |to: Option<&str>| TabChange { effort: Some(to.map(str::to_owned)), ..Default::default() };
        let before = store.change_tab(tab, &effort(Some("high"))).unwrap().unwrap();
        assert_eq!(before.effort.as_deref(), Some("high"));
        let title = TabChange { title: Some("new".into()), ..Default::default() };
        let after = store.change_tab(tab, &title).unwrap().unwrap();
        assert_eq!(after, Tab { title: "new".into(), updated_at: after.updated_at, ..before });
        assert_eq!(store.change_tab(tab, &effort(None)).unwrap().unwrap().effort, None);
        assert_eq!(store.change_tab(TabNo(99), &title).unwrap(), None);
        assert_eq!(store.tab(TabNo(99)).unwrap(), None);
    }

    #[test]
    fn too_many_tabs_are_refused_by_the_name_of_the_limit() {
        let dir = Dir::new();
        let store = Store::open(dir.path(), budget(|budget| budget.tabs = 2)).unwrap();
        let tab = store.create_tab(&NewTab::default()).unwrap().no;
        store.create_tab(&NewTab::default()).unwrap();
        assert_eq!(store.create_tab(&NewTab::default()), Err(StoreError::Full("tabs")));
        store.purge_tab(tab).unwrap();
        store.erase_purged(tab).unwrap();
        assert_eq!(
            store.create_tab(&NewTab::default()).unwrap().no,
            TabNo(3),
            "a number is never used again"
        );
    }

    /// Two tabs with 2,500 rows each, and all else that a tab can have.
    fn filled() -> (Dir, Store, TabNo, TabNo) {
        let (dir, store, tab) = store();
        let other = store.create_tab(&NewTab::default()).unwrap().no;
        let prefix = |text: &str| Prefix { system: text.into(), tools: "[]".into() };
        for tab in [tab, other] {
            let turn = begin(&store, tab, 1);
            for start in (2..2500).step_by(500) {
                let rows: Vec<_> =
                    (start..start + 500).map(|seq| text_row(turn, seq, 1, "some text")).collect();
                store.append(tab, &rows).unwrap();
            }
            store.enqueue(tab, "c", "text").unwrap();
            store.freeze(tab, &prefix(&format!("of {tab}")), &[]).unwrap();
            seal(&store, tab, turn);
        }
        (dir, store, tab, other)
    }

    fn assert_gone(store: &Store, tab: TabNo, other: TabNo) {
        assert_eq!(store.tab(tab).unwrap(), None);
        assert_eq!(store.page(tab, Edge::Tail, 10, 1000).unwrap(), []);
        assert_eq!(store.queue(tab).unwrap(), []);
        assert_eq!(store.known(tab, "c", "text").unwrap(), Known::New);
        assert_eq!(store.turns(tab, None, 10).unwrap(), []);
        assert_eq!(store.tab(other).unwrap().unwrap().total, 2501);
        assert_eq!(store.queue(other).unwrap().len(), 1);
        assert_eq!(store.prefix(other).unwrap().unwrap().1.system, format!("of {other}"));
        let count =
            |sql| store.read(|conn| Ok(conn.query_row(sql, [], |row| row.get::<_, u32>(0))?)).unwrap();
        assert_eq!(count("SELECT count(*) FROM prefixes"), 1);
        assert_eq!(count("PRAGMA freelist_count"), 0, "the space is given back");
    }

    #[test]
    fn a_purged_tab_leaves_nothing_and_gives_its_space_back() {
        let (_dir, store, tab, other) = filled();
        assert!(store.purge_tab(tab).unwrap());
        assert_eq!(names(&store, true), [other.0]);
        store.erase_purged(tab).unwrap();
        assert_gone(&store, tab, other);
        assert!(!store.purge_tab(tab).unwrap());
    }

    #[test]
    fn a_purge_that_was_killed_is_ended_by_the_housekeeper() {
        let (dir, store, tab, other) = filled();
        store
            .write(Durable::Other, |tx| Ok(tx.execute("UPDATE tabs SET purging = 1 WHERE no = ?1", [tab.0])?))
            .unwrap();
        store.write(Durable::Later, |tx| Ok(erase_some(tx, tab)?)).unwrap();
        let copy = killed(&dir);
        let store = Store::open(copy.path(), &Budget::ROUTER).unwrap();
        assert_eq!(names(&store, true), [other.0]);
        assert!(store.append(tab, &[text_row(crate::chunk::TurnNo(1), 2502, 1, "late")]).is_err());
        store.housekeep();
        assert_gone(&store, tab, other);
    }
}
