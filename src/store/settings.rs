//! Settings, and the frozen prefixes.

use super::fault::Fault;
use super::log::append_in;
use super::*;
use crate::chunk::{Row, TabNo};
use rusqlite::{OptionalExtension, params};
use sha2::{Digest, Sha256};

impl Store {
    /// A tab's frozen prefix and its number, once it has one.
    pub fn prefix(&self, tab: TabNo) -> Stored<Option<(PrefixNo, Prefix)>> {
        self.read(|conn| {
            let mut statement = conn.prepare_cached(
                "SELECT p.no, p.system, p.tools FROM tabs t JOIN prefixes p ON p.no = t.prefix
                 WHERE t.no = ?1",
            )?;
            Ok(statement.query_row([tab.0], |row| Ok((row.get(0)?, prefix_from(row, 1)?))).optional()?)
        })
    }

    /// A frozen prefix by its number.
    pub fn prefix_of(&self, no: PrefixNo) -> Stored<Option<Prefix>> {
        self.read(|conn| {
            let mut statement = conn.prepare_cached("SELECT system, tools FROM prefixes WHERE no = ?1")?;
            Ok(statement.query_row([no], |row| prefix_from(row, 0)).optional()?)
        })
    }

    /// Freezes a tab's prefix, stored once per content, together with the rows that tell of it.
    pub fn freeze(&self, tab: TabNo, prefix: &Prefix, rows: &[Row]) -> Stored<PrefixNo> {
        let hash = hash_of(prefix);
        self.write(Durable::Later, |tx| {
            append_in(tx, self.budget, tab, rows)?;
            let values = params![hash, prefix.system, prefix.tools];
            tx.prepare_cached("INSERT OR IGNORE INTO prefixes (hash, system, tools) VALUES (?1, ?2, ?3)")?
                .execute(values)?;
            let mut statement = tx.prepare_cached(
                "UPDATE tabs SET prefix = (SELECT no FROM prefixes WHERE hash = ?2) WHERE no = ?1
                 RETURNING prefix",
            )?;
            let no = statement.query_row(params![tab.0, hash], |row| row.get(0)).optional()?;
            no.ok_or_else(|| Fault::broken(format!("tab {tab} does not exist; its prefix is not kept")))
        })
    }

    /// A setting's value.
    pub fn setting(&self, key: &str) -> Stored<Option<String>> {
        self.read(|conn| {
            let mut statement = conn.prepare_cached("SELECT value FROM settings WHERE key = ?1")?;
            Ok(statement.query_row([key], |row| row.get(0)).optional()?)
        })
    }

    /// Sets (or with `None` removes) settings in one synced commit.
    pub fn set_settings(&self, changes: &[(&str, Option<&str>)]) -> Stored<()> {
        if changes.is_empty() {
            return Ok(());
        }
        self.write(Durable::Other, |tx| {
            for (key, value) in changes {
                match value {
                    Some(value) => tx
                        .prepare_cached("INSERT OR REPLACE INTO settings (key, value) VALUES (?1, ?2)")?
                        .execute([key, value])?,
                    None => tx.prepare_cached("DELETE FROM settings WHERE key = ?1")?.execute([key])?,
                };
            }
            Ok(())
        })
    }
}

fn prefix_from(row: &rusqlite::Row<'_>, column: usize) -> rusqlite::Result<Prefix> {
    Ok(Prefix { system: row.get(column)?, tools: row.get(column + 1)? })
}

/// The length stands between the two texts, so that no two prefixes are the same bytes.
fn hash_of(prefix: &Prefix) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update((prefix.system.len() as u64).to_be_bytes());
    hash.update(prefix.system.as_bytes());
    hash.update(prefix.tools.as_bytes());
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;

    #[test]
    fn settings_are_set_and_removed_in_one_synced_commit() {
        let (dir, store, _) = store();
        let before = store.status().other_syncs;
        store.set_settings(&[("a", Some("1")), ("b", Some("2"))]).unwrap();
        store.set_settings(&[("a", None), ("b", Some("3")), ("c", None)]).unwrap();
        store.set_settings(&[]).unwrap();
        assert_eq!(store.status().other_syncs - before, 2);
        store.close();
        let store = Store::open(dir.path(), &Budget::ROUTER).unwrap();
        assert_eq!(store.setting("a").unwrap(), None);
        assert_eq!(store.setting("b").unwrap().as_deref(), Some("3"));
    }

    #[test]
    fn a_prefix_is_stored_once_per_content() {
        let (_dir, store, tab) = store();
        let other = store.create_tab(&NewTab::default()).unwrap().no;
        assert_eq!(store.prefix(tab).unwrap(), None);
        let prefix = Prefix { system: "you are …".into(), tools: "[]".into() };
        let shifted = Prefix { system: "you are …[".into(), tools: "]".into() };
        let first = store.freeze(tab, &prefix, &[]).unwrap();
        assert_eq!(store.freeze(other, &prefix, &[]).unwrap(), first);
        assert_eq!(store.prefix(other).unwrap(), Some((first, prefix.clone())));
        let count = || {
            let sql = "SELECT count(*) FROM prefixes";
            store.read(|conn| Ok(conn.query_row(sql, [], |row| row.get::<_, u32>(0))?)).unwrap()
        };
        assert_eq!(count(), 1);
        let row = text_row(crate::chunk::TurnNo(1), 1, 1, "the prompt changed");
        let second = store.freeze(other, &shifted, std::slice::from_ref(&row)).unwrap();
        assert_eq!(store.row(other, 1).unwrap(), Some(row), "the row that tells of it is kept with it");
        assert_eq!(store.prefix(tab).unwrap(), Some((first, prefix.clone())));
        assert_eq!(store.prefix(other).unwrap(), Some((second, shifted)));
        assert_eq!((count(), store.prefix_of(first).unwrap()), (2, Some(prefix.clone())));
        assert!(store.freeze(TabNo(99), &prefix, &[]).is_err());
    }
}
