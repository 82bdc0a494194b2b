//! From what SQLite says to what the owner reads: the cause, and the mend.

use super::StoreError;
use rusqlite::ErrorCode;
use rusqlite::types::Type;
use std::path::Path;

/// Why a piece of work on a connection failed: SQLite, or the store's own rules.
#[derive(Debug)]
pub(super) enum Fault {
    Sql(rusqlite::Error),
    Rule(StoreError),
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Fault {
        Fault::Sql(error)
    }
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Fault {
        Fault::Rule(error)
    }
}

impl Fault {
    /// A rule of the log that the caller broke.
    pub fn broken(text: String) -> Fault {
        Fault::Rule(StoreError::Broken(text))
    }

    /// What the caller gets.
    pub fn into_error(self, path: &Path) -> StoreError {
        match self {
            Fault::Sql(error) => explain(&error, path),
            Fault::Rule(error) => error,
        }
    }
}

/// The error of a store that was closed.
pub(super) fn closed() -> StoreError {
    StoreError::Broken("the store is closed; the server is stopping".to_owned())
}

/// The error of a database at its limit.
pub(super) fn at_limit(bytes: u64, limit: u64) -> StoreError {
    const MIB: u64 = 1024 * 1024;
    StoreError::NoSpace(format!(
        "the database holds {} MiB of {} MiB (store_bytes); export tabs and purge them, or raise store_bytes",
        bytes / MIB,
        limit / MIB
    ))
}

/// Whether the file itself is damaged.
pub(super) fn is_damage(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
}

/// Whether it tells of the database's health, and not of one statement.
pub(super) fn is_trouble(error: &rusqlite::Error) -> bool {
    use ErrorCode::*;
    matches!(
        error.sqlite_error_code(),
        Some(
            DiskFull
                | SystemIoFailure
                | ReadOnly
                | DatabaseCorrupt
                | NotADatabase
                | CannotOpen
                | DatabaseBusy
        )
    )
}

/// Cause and mend of what SQLite says of the file at `path`.
pub(super) fn explain(error: &rusqlite::Error, path: &Path) -> StoreError {
    let path = path.display();
    let text = match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => {
            return StoreError::NoSpace(format!(
                "no space for {path}: the disk is full, or store_bytes passed; free it, or purge tabs"
            ));
        }
        Some(ErrorCode::OutOfMemory) => return StoreError::Full("sqlite_bytes"),
        Some(ErrorCode::SystemIoFailure) => {
            format!("{path} cannot be read or written ({error}); check the disk and the kernel's log")
        }
        Some(ErrorCode::ReadOnly) => {
            format!("{path} is read-only ({error}); remount its disk for writing, or change its owner")
        }
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            format!(
                "{path} is damaged ({error}); export what can be read, then restart: it will be moved aside"
            )
        }
        Some(ErrorCode::CannotOpen) => {
            format!("{path} cannot be opened ({error}); check that it and its folder belong to this user")
        }
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            format!("{path} is locked by another process; end whatever else has the database open")
        }
        _ => format!("{path}: {error}"),
    };
    StoreError::Broken(text)
}

/// A stored word that this version does not know.
pub(super) fn unknown_word(column: usize, word: &str) -> rusqlite::Error {
    let text = format!("unknown word {word:?}");
    rusqlite::Error::FromSqlConversionFailure(column, Type::Text, text.into())
}
