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
