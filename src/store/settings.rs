//! Settings, and the frozen prefixes.

use super::fault::Fault;
use super::*;
use crate::chunk::TabNo;
use rusqlite::{OptionalExtension, params};
use sha2::{Digest, Sha256};

impl Store {
    /// A tab's frozen prefix, once it has one.
    pub fn prefix(&self, tab: TabNo) -> Stored<Option<Prefix>> {
        self.read(|conn| {
            let mut statement = conn.prepare_cached(
                "SELECT p.system, p.tools FROM tabs t JOIN prefixes p ON p.no = t.prefix WHERE t.no = ?1",
            )?;
            let found =
                statement.query_row([tab.0], |row| Ok(Prefix { system: row.get(0)?, tools: row.get(1)? }));
            Ok(found.optional()?)
        })
    }

    /// Freezes a tab's prefix, stored once per content.
    pub fn freeze(&self, tab: TabNo, prefix: &Prefix) -> Stored<()> {
        let hash = hash_of(prefix);
        self.write(Durable::Later, |tx| {
            let values = params![hash, prefix.system, prefix.tools];
            tx.prepare_cached("INSERT OR IGNORE INTO prefixes (hash, system, tools) VALUES (?1, ?2, ?3)")?
                .execute(values)?;
            let changed = tx
                .prepare_cached(
                    "UPDATE tabs SET prefix = (SELECT no FROM prefixes WHERE hash = ?2) WHERE no = ?1",
                )?
                .execute(params![tab.0, hash])?;
            match changed {
                1 => Ok(()),
                _ => Err(Fault::broken(format!("tab {tab} does not exist; its prefix is not kept"))),
            }
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
        store.freeze(tab, &prefix).unwrap();
        store.freeze(other, &prefix).unwrap();
        assert_eq!(store.prefix(other).unwrap().as_ref(), Some(&prefix));
        let count = || {
            let sql = "SELECT count(*) FROM prefixes";
            store.read(|conn| Ok(conn.query_row(sql, [], |row| row.get::<_, u32>(0))?)).unwrap()
        };
        assert_eq!(count(), 1);
        store.freeze(other, &shifted).unwrap();
        assert_eq!((store.prefix(tab).unwrap(), store.prefix(other).unwrap()), (Some(prefix), Some(shifted)));
        assert_eq!(count(), 2);
        assert!(store.freeze(TabNo(99), &Prefix { system: String::new(), tools: String::new() }).is_err());
    }
}
