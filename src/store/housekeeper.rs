//! What is done beside the turns: sizes, checkpoints, the sync of what waits long, the rest of a purge.
//!
//! A checkpoint copies the write-ahead log into the database and syncs both. On rung 1 it does so on a
//! connection of its own, so that nobody waits; the writer is held only to begin the log anew. The first
//! commit after that syncs the new log's header, so one is made at once, for a turn not to meet it.

use super::conn::Rung;
use super::fault::{Fault, at_limit};
use super::*;
use std::sync::TryLockError;
use std::time::Duration;

/// How many times its budget the write-ahead log may have before a writer waits for its checkpoint.
const LOG_TIMES_MAX: u64 = 4;
/// No write for this long, and the log is emptied.
const IDLE: Duration = Duration::from_secs(5);
/// No commit waits longer than this for a sync.
const UNSYNCED: Duration = Duration::from_secs(60);

/// What the housekeeper remembers.
#[derive(Default)]
pub(super) struct House {
    /// the size was warned of
    warned: bool,
    /// no purge is left over, from before the start or from one that failed
    pub(super) swept: bool,
}

impl Store {
    /// One round of the housekeeper, called every second by its thread: sizes, checkpoints when idle or when
    /// the write-ahead log passes `wal_bytes`, sync of turns that run longer than a minute.
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

    /// Refuses what begins something new when the database is at its limit. Pages that a purge freed count as
    /// room.
    pub(super) fn room(&self, conn: &Connection) -> Result<(), Fault> {
        let number = |sql| -> rusqlite::Result<u64> {
            let n: i64 = conn.prepare_cached(sql)?.query_row([], |row| row.get(0))?;
            Ok(u64::try_from(n).unwrap_or(0))
        };
        let pages = number("PRAGMA page_count")?.saturating_sub(number("PRAGMA freelist_count")?);
        let (bytes, limit) = (pages * number("PRAGMA page_size")?, self.budget.store_bytes as u64);
        if bytes >= limit { Err(at_limit(bytes, limit).into()) } else { Ok(()) }
    }

    /// Checkpoints in the path of a writer that has outrun the housekeeper, so that it waits for the disk:
    /// the log of a flood of rows would else be as long as the flood.
    pub(super) fn bound_log(&self) {
        let most = LOG_TIMES_MAX * self.budget.wal_bytes as u64;
        let long = || self.rung != Rung::Truncate && self.measure().1 > most;
        if !long() {
            return;
        }
        let _one = lock_of(&self.checkpointing);
        // Whoever held the lock may have done it.
        if long()
            && let Err(error) = self.checkpoint_alone()
        {
            self.note(Fault::Sql(error));
        }
    }

    /// Lets `work` have the room that is kept for the end of turns that ran when the database became full.
    pub fn with_last_room<T>(&self, work: impl FnOnce() -> T) -> T {
        self.set_most_pages(conn::LAST_ROOM_BYTES);
        let done = work();
        self.set_most_pages(0);
        done
    }

    fn set_most_pages(&self, more: usize) {
        let pages = conn::most_pages(self.budget) + more / conn::PAGE_BYTES;
        let set = |writer: &Writer| {
            writer.conn.query_row(&format!("PRAGMA max_page_count={pages}"), [], |_| Ok(()))
        };
        if let Some(Err(error)) = self.writer().as_ref().map(set) {
            ::log::warn!("cannot change the database's limit: {error}");
        }
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
        // A backup holds it for as long as it copies; the housekeeper has more to do than to wait for that.
        let _one = match self.checkpointing.try_lock() {
            Ok(one) => one,
            Err(TryLockError::Poisoned(one)) => one.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        if let Err(error) = self.checkpoint_alone() {
            self.note(Fault::Sql(error));
        }
    }

    /// Under the lock of those who checkpoint; `false` if someone read meanwhile, so that not all was copied.
    pub(super) fn checkpoint_alone(&self) -> rusqlite::Result<bool> {
        if self.rung == Rung::Truncate {
            if let Some(writer) = self.writer().as_mut() {
                writer.written = None;
            }
            return Ok(true);
        }
        let side = match self.rung {
            Rung::Wal => Some(conn::another(&self.path, self.budget)?),
            _ => None,
        };
        if let Some(side) = &side {
            self.run_checkpoint(side, "PASSIVE")?;
        }
        // At once: a commit that came between would begin the log anew, and sync its header in the path of a
        // turn.
        let mut guard = self.writer();
        let Some(writer) = guard.as_mut() else { return Ok(false) };
        let whole = self.run_checkpoint(&writer.conn, "TRUNCATE")?;
        if whole {
            let note = |tx: &Transaction<'_>| Ok(schema::note(tx, "checkpoint_at")?);
            if let Err(Fault::Sql(error)) = writer.commit(self.rung, Durable::Later, note) {
                return Err(error);
            }
            self.counts.checkpoint_syncs.fetch_add(1, Relaxed);
            writer.written = None;
            writer.unsynced = None;
        }
        Ok(whole)
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
            // The log before the copy, the database after it; a new connection's first sync is one of the
            // folder, too.
            let syncs = if how == "PASSIVE" { 3 } else { 2 };
            self.counts.checkpoint_syncs.fetch_add(syncs, Relaxed);
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
        if lock_of(&self.house).swept {
            return;
        }
        match self.read(|conn| Ok(tabs::half_purged(conn)?)) {
            Ok(None) => lock_of(&self.house).swept = true,
            Ok(Some(tab)) => {
                if let Err(error) = self.erase(tab) {
                    ::log::warn!("cannot go on purging tab {tab}: {error}");
                }
            }
            Err(_) => {}
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

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;

    /// As if the last commits had come `ago` earlier.
    fn age(store: &Store, ago: Duration) {
        let mut guard = store.writer();
        let writer = guard.as_mut().unwrap();
        writer.written = writer.written.and_then(|at| at.checked_sub(ago));
        writer.unsynced = writer.unsynced.and_then(|at| at.checked_sub(ago));
    }

    #[test]
    fn an_idle_store_is_checkpointed_once() {
        let (_dir, store, tab) = store();
        let turn = begin(&store, tab, 1);
        let long = "x".repeat(8000);
        (2..20).for_each(|seq| store.append(tab, &[text_row(turn, seq, 1, &long)]).unwrap());
        let before = store.status();
        store.housekeep();
        assert_eq!(store.status(), before, "nothing is due");
        age(&store, IDLE);
        store.housekeep();
        let after = store.status();
        assert!(after.wal_bytes < 16 * 1024 && before.wal_bytes > 100 * 1024);
        assert!(after.checkpoint_syncs > before.checkpoint_syncs);
        age(&store, UNSYNCED);
        store.housekeep();
        assert_eq!(store.status(), after, "nothing was written since");
    }

    #[test]
    fn a_turn_that_runs_long_is_synced_once_a_minute_and_counted_apart() {
        let (_dir, store, tab) = store();
        let turn = begin(&store, tab, 1);
        age(&store, UNSYNCED - IDLE);
        store.append(tab, &[text_row(turn, 2, 1, "still at it")]).unwrap();
        let before = store.status();
        store.sync_what_waits();
        assert_eq!(store.status().other_syncs, before.other_syncs);
        store.writer().as_mut().unwrap().unsynced = Instant::now().checked_sub(UNSYNCED);
        store.sync_what_waits();
        store.sync_what_waits();
        let after = store.status();
        assert_eq!((after.other_syncs, after.turn_syncs), (before.other_syncs + 1, before.turn_syncs));
    }

    #[test]
    fn a_seal_leaves_nothing_to_sync() {
        let (_dir, store, tab) = store();
        let turn = begin(&store, tab, 1);
        assert!(store.writer().as_ref().unwrap().unsynced.is_some());
        seal(&store, tab, turn);
        assert!(store.writer().as_ref().unwrap().unsynced.is_none());
    }

    #[test]
    fn a_database_near_its_limit_is_warned_of_once() {
        let (_dir, store, _) = store();
        let limit = Budget::ROUTER.store_bytes as u64;
        let warned = |bytes| {
            store.warn_of_size(bytes);
            lock_of(&store.house).warned
        };
        assert!(!warned(limit / 100 * 79));
        assert!(warned(limit / 100 * 81));
        assert!(!warned(limit / 2));
    }
}
