//! The store: every tab's append-only log and all else that must outlive the process, in one SQLite file.
//!
//! It knows nothing of agents or sockets, and only here SQL is spoken. What it guarantees:
//!
//! - Rows are never changed, and follow each other from seq 1 without gaps ([`Store::append`] refuses
//!   anything else).
//! - What an operation wrote is committed when it returns, so a killed process loses nothing of it.
//! - [`Store::seal_turn`] syncs once, and that sync covers every commit before it; nothing else in a turn's
//!   path waits for the disk. Devices and settings are synced, too. All other commits wait for the next sync,
//!   at most a minute.
//! - After a crash no turn is left running: see `repair.rs`.
//!
//! What it costs: one connection that writes and, where the disk allows it, one that reads, so that reading
//! does not wait for a sync. SQLite's heap has a hard limit (`sqlite_bytes`); no operation reads more than a
//! page of rows, and none keeps a statement or a transaction open after it.
//!
//! Read first: `conn.rs` (journals), `schema.rs`, then sqlite.org/wal.html.

mod backup;
mod conn;
mod devices;
mod fault;
mod housekeeper;
pub mod lock;
mod log;
mod queue;
mod repair;
mod schema;
mod settings;
mod tabs;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod turns;
mod types;

pub use backup::{backup_at_rest, restore};
pub use types::*;

use crate::budget::{Budget, METERS};
use crate::chunk::Millis;
use conn::{OpenFault, Rung};
use fault::Fault;
use rusqlite::{Connection, Transaction, TransactionBehavior};
use std::fs::{self, DirBuilder, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The database's file name in the data directory.
pub const FILE: &str = "siskin.db";

/// Syncs of one commit with a rollback journal, as strace counts them.
const ROLLBACK_SYNCS: u64 = 4;

/// The database and its connections. Shared by reference; every operation is short and holds no statement
/// after it.
pub struct Store {
    path: PathBuf,
    budget: &'static Budget,
    rung: Rung,
    reader: Option<Mutex<Option<Connection>>>,
    writer: Mutex<Option<Writer>>,
    counts: Counts,
    trouble: Mutex<Option<String>>,
    house: Mutex<housekeeper::House>,
    /// held by the one thread that checkpoints; taken before any other lock
    checkpointing: Mutex<()>,
    /// the database, for backups: closing any descriptor of it would give up the locks that SQLite holds, so
    /// this one stays until the connections are gone
    file: fs::File,
}

/// Whether a commit is synced, and as what that sync counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Durable {
    /// by the next sync
    Later,
    /// now: it ends a turn
    Turn,
    /// now: it is something else that must not be lost
    Other,
}

#[derive(Default)]
struct Counts {
    turn_syncs: AtomicU64,
    checkpoint_syncs: AtomicU64,
    other_syncs: AtomicU64,
    sealed_turns: AtomicU64,
}

/// The connection that writes. The lock on the data directory goes last.
struct Writer {
    conn: Connection,
    /// commits sync
    full: bool,
    /// when the oldest commit came that no sync covers
    unsynced: Option<Instant>,
    /// when the last commit came that no checkpoint covers
    written: Option<Instant>,
    _lock: lock::Lock,
}

impl Store {
    /// Opens (or makes) the store in `dir`, for `serve`: takes `dir/lock`, migrates, repairs what was
    /// running. The error is one line with cause and mend (not writable, in use by pid N, newer schema,
    /// damaged …).
    pub fn open(dir: &Path, budget: &'static Budget) -> Result<Store, String> {
        Store::open_from(dir, budget, Rung::Wal)
    }

    /// The same, on the journal of `first` or a simpler one.
    fn open_from(dir: &Path, budget: &'static Budget, first: Rung) -> Result<Store, String> {
        make_dir(dir)?;
        let lock = lock::Lock::take(dir)?;
        let path = dir.join(FILE);
        let (conn, rung) = prepare_or_replace(&path, budget, first)?;
        let reader = match rung {
            Rung::Wal => Some(Mutex::new(Some(
                conn::another(&path, budget).map_err(|error| open_text(OpenFault::Sql(error), &path))?,
            ))),
            _ => None,
        };
        let writer = Writer {
            conn,
            full: rung == Rung::Truncate,
            unsynced: None,
            // What the start wrote, or a killed process left in the log, wants a checkpoint.
            written: Some(Instant::now()),
            _lock: lock,
        };
        let file = fs::File::open(&path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
        let store = Store {
            file,
            path,
            budget,
            rung,
            writer: Mutex::new(Some(writer)),
            reader,
            counts: Counts::default(),
            trouble: Mutex::new(None),
            house: Mutex::default(),
            checkpointing: Mutex::default(),
        };
        store.measure();
        let counts = store.read(|conn| Ok((tabs::count_in(conn)?, devices::count_in(conn)?)));
        let (tabs, devices) = counts.map_err(|error| error.to_string())?;
        METERS.tabs.set(tabs);
        METERS.devices.set(devices);
        Ok(store)
    }

    /// How the store is doing.
    pub fn status(&self) -> StoreStatus {
        let (bytes, wal_bytes) = self.measure();
        StoreStatus {
            bytes,
            limit_bytes: self.budget.store_bytes as u64,
            wal_bytes,
            journal: self.rung.word(),
            turn_syncs: self.counts.turn_syncs.load(Relaxed),
            checkpoint_syncs: self.counts.checkpoint_syncs.load(Relaxed),
            other_syncs: self.counts.other_syncs.load(Relaxed),
            sealed_turns: self.counts.sealed_turns.load(Relaxed),
            promise: self.rung.promise(),
            error: self.trouble().clone(),
        }
    }

    /// Checkpoint and close; no writes after it. Gives the data directory free.
    pub fn close(&self) {
        if let Some(reader) = &self.reader {
            drop(lock_of(reader).take());
        }
        let Some(writer) = self.writer().take() else { return };
        self.checkpoint_on(&writer.conn);
        // The last connection empties and removes the write-ahead log by itself.
        if let Err((_, error)) = writer.conn.close() {
            ::log::warn!("the database did not close cleanly: {error}");
        }
    }

    /// Local wall time with offset, as `2026-11-30T20:15+01:00` (SQLite knows the zone).
    pub fn local_time(&self) -> Stored<String> {
        let at = now() / 1000;
        self.read(|conn| {
            let sql = "SELECT strftime('%Y-%m-%dT%H:%M', ?1, 'unixepoch', 'localtime'),
                CAST(strftime('%s', ?1, 'unixepoch', 'localtime') AS INTEGER) - ?1";
            let (time, offset): (String, i64) =
                conn.prepare_cached(sql)?.query_row([at], |row| Ok((row.get(0)?, row.get(1)?)))?;
            let sign = if offset < 0 { '-' } else { '+' };
            let minutes = offset.abs() / 60;
            Ok(format!("{time}{sign}{:02}:{:02}", minutes / 60, minutes % 60))
        })
    }

    fn writer(&self) -> MutexGuard<'_, Option<Writer>> {
        lock_of(&self.writer)
    }

    fn trouble(&self) -> MutexGuard<'_, Option<String>> {
        lock_of(&self.trouble)
    }

    /// One transaction that writes.
    fn write<T>(
        &self,
        durable: Durable,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, Fault>,
    ) -> Stored<T> {
        let done = match self.writer().as_mut() {
            Some(writer) => writer.commit(self.rung, durable, work),
            None => return Err(fault::closed()),
        };
        match done {
            Ok(done) => {
                self.count(durable);
                *self.trouble() = None;
                self.bound_log();
                Ok(done)
            }
            Err(fault) => Err(self.note(fault)),
        }
    }

    /// One or several reads, while nothing else reads.
    fn read<T>(&self, work: impl FnOnce(&Connection) -> Result<T, Fault>) -> Stored<T> {
        let done = match &self.reader {
            Some(reader) => match lock_of(reader).as_ref() {
                Some(conn) => work(conn),
                None => return Err(fault::closed()),
            },
            None => match self.writer().as_ref() {
                Some(writer) => work(&writer.conn),
                None => return Err(fault::closed()),
            },
        };
        done.map_err(|fault| self.note(fault))
    }

    /// Remembers what is wrong with the database, for the owner to see, until a write succeeds.
    fn note(&self, fault: Fault) -> StoreError {
        let trouble = matches!(&fault, Fault::Sql(error) if fault::is_trouble(error));
        let damage = matches!(&fault, Fault::Sql(error) if fault::is_damage(error));
        let error = fault.into_error(&self.path);
        if trouble {
            let text = error.to_string();
            let mut known = self.trouble();
            if known.as_ref() != Some(&text) {
                ::log::error!("{text}");
                *known = Some(text);
            }
        }
        if damage {
            repair::mark_suspect(&self.path);
        }
        error
    }

    fn count(&self, durable: Durable) {
        let (count, syncs) = match (self.rung, durable) {
            (Rung::Truncate, Durable::Other) => (&self.counts.other_syncs, ROLLBACK_SYNCS),
            (Rung::Truncate, _) => (&self.counts.turn_syncs, ROLLBACK_SYNCS),
            (_, Durable::Later) => return,
            (_, Durable::Turn) => (&self.counts.turn_syncs, 1),
            (_, Durable::Other) => (&self.counts.other_syncs, 1),
        };
        count.fetch_add(syncs, Relaxed);
    }
}

impl Writer {
    fn commit<T>(
        &mut self,
        rung: Rung,
        durable: Durable,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let full = rung == Rung::Truncate || durable != Durable::Later;
        if full != self.full {
            // Not inside a transaction: there it would do nothing.
            self.conn.execute_batch(if full {
                "PRAGMA synchronous=FULL"
            } else {
                "PRAGMA synchronous=NORMAL"
            })?;
            self.full = full;
        }
        let tx = self.conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let done = work(&tx)?;
        tx.commit()?;
        let now = Instant::now();
        self.written = Some(now);
        self.unsynced = if full { None } else { self.unsynced.or(Some(now)) };
        Ok(done)
    }
}

/// Now, in Unix milliseconds.
pub fn now() -> Millis {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |d| d.as_millis() as Millis)
}

/// SQLite's integers are signed; no count of the store comes near the difference.
fn int(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// The lock's content; a panic under it left a transaction that was rolled back.
fn lock_of<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn make_dir(dir: &Path) -> Result<(), String> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(|e| {
        format!("cannot make the data directory {}: {e}; make it, or give another --data", dir.display())
    })
}

/// Makes the file before SQLite does, so that nobody else may read it.
fn make_file(path: &Path) -> Result<(), String> {
    let made = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
    made.map(drop).map_err(|e| {
        format!(
            "cannot write to the database {}: {e}; change its owner, or give another --data",
            path.display()
        )
    })
}

fn prepare_or_replace(path: &Path, budget: &Budget, first: Rung) -> Result<(Connection, Rung), String> {
    make_file(path)?;
    let damage = match repair::still_suspect(path, || prepare(path, budget, first)) {
        Err(OpenFault::Damaged(error)) => error,
        done => return done.map_err(|fault| open_text(fault, path)),
    };
    let aside = set_aside(path, &format!(".damaged-{}", now()))?;
    ::log::error!(
        "the database {} is damaged ({damage}); it was moved to {} and a new one begun",
        path.display(),
        aside.display()
    );
    make_file(path)?;
    prepare(path, budget, first).map_err(|fault| open_text(fault, path))
}

/// The writing connection, migrated and repaired.
fn prepare(path: &Path, budget: &Budget, first: Rung) -> Result<(Connection, Rung), OpenFault> {
    let (mut conn, rung) = conn::climb(path, budget, first)?;
    schema::migrate(&mut conn)?;
    repair::repair(&mut conn, budget, rung)?;
    Ok((conn, rung))
}

/// Renames a database and what belongs to it; tells its new name.
fn set_aside(path: &Path, suffix: &str) -> Result<PathBuf, String> {
    let aside = with_suffix(path, suffix);
    for suffix in ["-wal", "-shm", "-journal", ""] {
        let (from, to) = (with_suffix(path, suffix), with_suffix(&aside, suffix));
        match fs::rename(&from, &to) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(format!("{} cannot be moved to {}: {e}", from.display(), to.display()));
            }
            _ => {}
        }
    }
    Ok(aside)
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

fn open_text(fault: OpenFault, path: &Path) -> String {
    let path_text = path.display();
    match fault {
        OpenFault::Newer(version) => format!(
            "the database {path_text} has schema {version}, this siskin knows up to {}; \
             install the newer siskin, or give another --data",
            schema::VERSION
        ),
        OpenFault::Foreign => {
            format!("{path_text} is a database of another program; move it away, or give another --data")
        }
        OpenFault::NoJournal => {
            format!("the disk of {path_text} allows no journal of SQLite; give a --data on another disk")
        }
        OpenFault::Rule(text) => {
            format!("the database {path_text} cannot be repaired: {text}; move it away to begin anew")
        }
        OpenFault::Damaged(error) | OpenFault::Sql(error) => fault::explain(&error, path).to_string(),
    }
}
