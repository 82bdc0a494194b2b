//! What is done beside the turns: sizes, checkpoints, the sync of what waits long, the rest of a purge.
//!
//! A checkpoint copies the write-ahead log into the database and syncs both. On rung 1 it does so on a connection of
//! its own, so that nobody waits; the writer is held only to begin the log anew. The first commit after that syncs the
//! new log's header, so one is made at once, for a turn not to meet it.

use super::conn::Rung;
use super::fault::{Fault, at_limit};
use super::*;
use crate::budget::METERS;
use std::time::Duration;

/// No write for this long, and the log is emptied.
const IDLE: Duration = Duration::from_secs(5);
/// No commit waits longer than this for a sync.
const UNSYNCED: Duration = Duration::from_secs(60);

/// What the housekeeper remembers.
#[derive(Default)]
pub(super) struct House {
    warned: bool,
}

impl Store {
    /// One round of the housekeeper, called every second by its thread: sizes, checkpoints when idle or when the
    /// write-ahead log passes `wal_bytes`, sync of turns that run longer than a minute.
    pub fn housekeep(&self) {
        let (bytes, _) = self.measure();
        self.warn_of_size(bytes);
        if self.is_idle() {
            self.checkpoint();
        } else {
            self.checkpoint_if_long();
        }
        self.sync_what_waits();
        self.go_on_purging();
    }

    /// Bytes of the database file and of its write-ahead log.
    pub(super) fn measure(&self) -> (u64, u64) {
        let len = |path: &Path| fs::metadata(path).map_or(0, |file| file.len());
        let (bytes, wal) = (len(&self.path), len(&with_suffix(&self.path, "-wal")));
        METERS.store_bytes.set(bytes as usize);
        METERS.wal_bytes.set(wal as usize);
        (bytes, wal)
    }

    /// Refuses what begins something new when the database is at its limit. Pages that a purge freed count as room.
    pub(super) fn room(&self, conn: &Connection) -> Result<(), Fault> {
        let number = |sql| -> rusqlite::Result<u64> {
            let n: i64 = conn.prepare_cached(sql)?.query_row([], |row| row.get(0))?;
            Ok(u64::try_from(n).unwrap_or(0))
        };
        let pages = number("PRAGMA page_count")?.saturating_sub(number("PRAGMA freelist_count")?);
        let (bytes, limit) = (pages * number("PRAGMA page_size")?, self.budget.store_bytes as u64);
        if bytes >= limit { Err(at_limit(bytes, limit).into()) } else { Ok(()) }
    }

    /// Checkpoints if the write-ahead log is over its budget.
    pub(super) fn checkpoint_if_long(&self) {
        if self.measure().1 > self.budget.wal_bytes as u64 {
            self.checkpoint();
        }
    }

    /// Copies the log into the database and empties it, on a connection that must not be in a transaction.
    pub(super) fn checkpoint_on(&self, conn: &Connection) {
        if self.rung != Rung::Truncate
            && let Err(error) = self.run_checkpoint(conn, "TRUNCATE")
        {
            self.note(Fault::Sql(error));
        }
    }

    fn is_idle(&self) -> bool {
        self.writer().as_ref().and_then(|writer| writer.written).is_some_and(|at| at.elapsed() >= IDLE)
    }

    fn checkpoint(&self) {
        if let Err(error) = self.try_checkpoint() {
            self.note(Fault::Sql(error));
        }
    }

    pub(super) fn try_checkpoint(&self) -> rusqlite::Result<()> {
        if self.rung == Rung::Truncate {
            if let Some(writer) = self.writer().as_mut() {
                writer.written = None;
            }
            return Ok(());
        }
        if self.rung == Rung::Wal {
            let side = conn::another(&self.path, self.budget)?;
            self.run_checkpoint(&side, "PASSIVE")?;
        }
        let mut guard = self.writer();
        let Some(writer) = guard.as_mut() else { return Ok(()) };
        if self.run_checkpoint(&writer.conn, "TRUNCATE")? {
            let note = |tx: &Transaction<'_>| Ok(schema::note(tx, "checkpoint_at")?);
            if let Err(Fault::Sql(error)) = writer.commit(self.rung, Durable::Later, note) {
                return Err(error);
            }
            self.counts.checkpoint_syncs.fetch_add(1, Relaxed);
            writer.written = None;
            writer.unsynced = None;
        }
        Ok(())
    }

    /// `false` if someone else was reading or writing, so that not all could be done.
    fn run_checkpoint(&self, conn: &Connection, how: &str) -> rusqlite::Result<bool> {
        let run = |how: &str| {
            let sql = format!("PRAGMA wal_checkpoint({how})");
            conn.query_row(&sql, [], |row| {
                Ok((row.get::<_, bool>(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?))
            })
        };
        let (_, frames, copied) = run("NOOP")?;
        let (busy, ..) = run(how)?;
        if frames > copied {
            // The log before the copy, the database after it.
            self.counts.checkpoint_syncs.fetch_add(2, Relaxed);
        }
        Ok(!busy)
    }

    /// A turn that runs long, or waits for its owner, is not lost to a power cut as a whole.
    fn sync_what_waits(&self) {
        let waits = self.writer().as_ref().and_then(|writer| writer.unsynced);
        if waits.is_some_and(|at| at.elapsed() >= UNSYNCED)
            && let Err(error) = self.write(Durable::Other, |tx| Ok(schema::note(tx, "synced_at")?))
        {
            ::log::warn!("cannot sync the database: {error}");
        }
    }

    fn go_on_purging(&self) {
        let half = self.read(|conn| Ok(tabs::half_purged(conn)?));
        if let Ok(Some(tab)) = half
            && let Err(error) = self.erase(tab)
        {
            ::log::warn!("cannot go on purging tab {tab}: {error}");
        }
    }

    fn warn_of_size(&self, bytes: u64) {
        let mut house = lock_of(&self.house);
        let much = bytes as u128 * 100 >= self.budget.store_bytes as u128 * 80;
        if much && !house.warned {
            ::log::warn!("{}", at_limit(bytes, self.budget.store_bytes as u64));
        }
        house.warned = much;
    }
}
