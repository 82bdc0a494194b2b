//! Connections: the ladder of journals, and what is set on each connection.
//!
//! Read first: sqlite.org/wal.html and sqlite.org/pragma.html. Some routers' flash filesystems refuse the
//! shared memory map that WAL needs, and say so only at the first real use. So each rung is tried with a real
//! write:
//!
//! 1. [`Rung::Wal`]: one writer and one reader, which does not wait while the writer syncs;
//! 2. [`Rung::WalExclusive`]: the index of the log in this process's heap, so one connection for all;
//! 3. [`Rung::Truncate`]: a rollback journal, synced at every commit, with one connection.

use super::fault::{Fault, explain, is_damage};
use super::schema::{self, Version};
use crate::budget::Budget;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use std::path::Path;
use std::time::Duration;

/// How the database is kept whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rung {
    Wal,
    WalExclusive,
    Truncate,
}

impl Rung {
    const ALL: [Rung; 3] = [Rung::Wal, Rung::WalExclusive, Rung::Truncate];

    pub fn word(self) -> &'static str {
        match self {
            Rung::Wal => "wal",
            Rung::WalExclusive => "wal-exclusive",
            Rung::Truncate => "truncate",
        }
    }

    pub fn promise(self) -> &'static str {
        match self {
            Rung::Wal | Rung::WalExclusive => {
                "a sealed turn survives a power cut, and what was accepted or shown survives a killed server"
            }
            Rung::Truncate => {
                "every commit survives a power cut, at several syncs each: this disk allows no better"
            }
        }
    }

    fn is_wal(self) -> bool {
        self != Rung::Truncate
    }
}

/// A page of the database.
pub(super) const PAGE_BYTES: usize = 4096;
/// Beyond a full database: for the last rows of the turns that were running.
pub(super) const LAST_ROOM_BYTES: usize = 1024 * 1024;

/// Why the database could not be opened.
#[derive(Debug)]
pub(super) enum OpenFault {
    /// the file is not what SQLite wrote
    Damaged(rusqlite::Error),
    /// made by a newer Siskin
    Newer(Version),
    /// a database of another program
    Foreign,
    /// the disk refuses this journal
    NoJournal,
    /// the log breaks its own rules
    Rule(String),
    Sql(rusqlite::Error),
}

impl From<Fault> for OpenFault {
    fn from(fault: Fault) -> OpenFault {
        match fault {
            Fault::Sql(error) => error.into(),
            Fault::Rule(error) => OpenFault::Rule(error.to_string()),
        }
    }
}

impl From<rusqlite::Error> for OpenFault {
    fn from(error: rusqlite::Error) -> OpenFault {
        if is_damage(&error) { OpenFault::Damaged(error) } else { OpenFault::Sql(error) }
    }
}

/// Memory that SQLite keeps of the file for each connection, in KiB. Small, so that it does not grow with the
/// log: a page needs the way down the tree and its leaves, and the kernel keeps the rest.
const CACHE_KIB: usize = 192;
/// Statements kept ready: about 4 KiB each.
const STATEMENTS: usize = 32;
/// How long a connection waits for a lock that another process holds.
const BUSY: Duration = Duration::from_secs(5);

/// The first connection, on the first rung from `first` on that takes a write.
pub(super) fn climb(path: &Path, budget: &Budget, first: Rung) -> Result<(Connection, Rung), OpenFault> {
    let mut last = OpenFault::NoJournal;
    for rung in Rung::ALL.into_iter().skip_while(|rung| *rung != first) {
        match try_rung(path, budget, rung) {
            Ok(conn) => return Ok((conn, rung)),
            Err(fault) if is_refusal(&fault) => {
                let why = match &fault {
                    OpenFault::Sql(error) => error.to_string(),
                    _ => "it is not offered".to_owned(),
                };
                ::log::warn!("journal {} does not work on this disk: {why}; trying the next", rung.word());
                last = fault;
            }
            Err(fault) => return Err(fault),
        }
    }
    Err(last)
}

/// A further connection on rung 1.
pub(super) fn another(path: &Path, budget: &Budget) -> rusqlite::Result<Connection> {
    let conn = connect(path, budget, Rung::Wal)?;
    conn.execute_batch("PRAGMA synchronous=NORMAL")?;
    Ok(conn)
}

fn try_rung(path: &Path, budget: &Budget, rung: Rung) -> Result<Connection, OpenFault> {
    let is_new = std::fs::metadata(path).is_ok_and(|file| file.len() == 0);
    let conn = connect(path, budget, rung)?;
    if is_new {
        conn.execute_batch("PRAGMA page_size=4096; PRAGMA auto_vacuum=INCREMENTAL")?;
    }
    let wanted = if rung.is_wal() { "wal" } else { "truncate" };
    let mode: String = conn.query_row(&format!("PRAGMA journal_mode={wanted}"), [], |row| row.get(0))?;
    if mode != wanted {
        return Err(OpenFault::NoJournal);
    }
    conn.execute_batch(if rung.is_wal() { "PRAGMA synchronous=NORMAL" } else { "PRAGMA synchronous=FULL" })?;
    let version = schema::check(&conn)?;
    match schema::probe(&conn) {
        // What is there can be read, and the owner can make room; only a new database needs space to begin.
        Err(error) if is_full(&error) && version == schema::VERSION => {
            ::log::error!("{}", explain(&error, path));
            Ok(conn)
        }
        Err(error) => Err(error.into()),
        Ok(()) => Ok(conn),
    }
}

fn is_full(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DiskFull)
}

fn connect(path: &Path, budget: &Budget, rung: Rung) -> rusqlite::Result<Connection> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags)?;
    conn.busy_timeout(BUSY)?;
    if rung != Rung::Wal {
        // Before all else: the first statement that looks at the schema would map the shared memory.
        conn.execute_batch("PRAGMA locking_mode=EXCLUSIVE")?;
    }
    conn.set_prepared_statement_cache_capacity(STATEMENTS);
    // The heap limit is one for the process, and tests hold many stores in one process.
    let heap = if cfg!(test) { 64 * budget.sqlite_bytes } else { budget.sqlite_bytes };
    conn.execute_batch(&format!(
        "PRAGMA hard_heap_limit={heap};
         PRAGMA cache_size=-{CACHE_KIB};
         PRAGMA mmap_size=0;
         PRAGMA temp_store=MEMORY;
         PRAGMA trusted_schema=OFF;
         PRAGMA cell_size_check=ON;
         PRAGMA secure_delete=FAST;
         PRAGMA wal_autocheckpoint=0;
         PRAGMA journal_size_limit={};
         PRAGMA max_page_count={}",
        budget.wal_bytes,
        most_pages(budget)
    ))?;
    Ok(conn)
}

/// Turns that run while `store_bytes` is passed may end; a tenth more is room enough, and then the database
/// is full.
pub(super) fn most_pages(budget: &Budget) -> usize {
    (budget.store_bytes / 10 * 11 + 1024 * 1024) / PAGE_BYTES
}

/// Whether the disk refuses the journal, so that the next rung may work. Shared memory that cannot be opened
/// for writing is told as a read-only database.
fn is_refusal(fault: &OpenFault) -> bool {
    use ErrorCode::*;
    match fault {
        OpenFault::NoJournal => true,
        OpenFault::Sql(error) => matches!(
            error.sqlite_error_code(),
            Some(SystemIoFailure | CannotOpen | ReadOnly | FileLockingProtocolFailed | NoLargeFileSupport)
        ),
        _ => false,
    }
}
