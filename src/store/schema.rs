//! The schema, version 2, and the way from older versions to it.
//!
//! The version stands in `meta`. A database is migrated one version a step, all in one transaction; a
//! database that is newer than the program is left alone.
//!
//! `chunks.id` is `tab << 32 | seq`: one b-tree, each tab's rows side by side, no second index. A tab's
//! newest seq and the time of its last row are read from there (one way down the tree), so that an append
//! writes to no other table. `created_at` stands before `data`, so that it is read without the pages that
//! `data` overflows into.

use super::conn::OpenFault;
use super::now;
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};

/// A schema's version.
pub(super) type Version = u32;

/// Each step leads from the version that is its index to the next one.
const STEPS: [&str; 2] = [V1, V2];

/// The version that this program writes.
pub(super) const VERSION: Version = STEPS.len() as Version;

/// "Sisk" in ASCII: `file` and SQLite's tools can tell what the file is.
const APPLICATION_ID: i32 = 0x5369_736b;

const META: &str =
    "CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID";

const V1: &str = "
CREATE TABLE tabs (
    no INTEGER PRIMARY KEY AUTOINCREMENT,
    title TEXT NOT NULL,
    model TEXT NOT NULL,
    effort TEXT,
    workdir TEXT NOT NULL,
    position INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    changed_at INTEGER NOT NULL,
    archived INTEGER NOT NULL DEFAULT 0,
    purging INTEGER NOT NULL DEFAULT 0,
    input INTEGER NOT NULL DEFAULT 0,
    cache_read INTEGER NOT NULL DEFAULT 0,
    cache_write INTEGER NOT NULL DEFAULT 0,
    output INTEGER NOT NULL DEFAULT 0,
    last_stop TEXT,
    prefix INTEGER
);
CREATE TABLE chunks (
    id INTEGER PRIMARY KEY,
    turn INTEGER NOT NULL,
    step INTEGER NOT NULL,
    role TEXT NOT NULL,
    type TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    data TEXT NOT NULL,
    opaque BLOB
);
CREATE TABLE turns (
    no INTEGER PRIMARY KEY AUTOINCREMENT,
    tab INTEGER NOT NULL,
    ordinal INTEGER NOT NULL,
    first_seq INTEGER NOT NULL,
    last_seq INTEGER,
    status TEXT NOT NULL,
    stop TEXT,
    started_at INTEGER NOT NULL,
    sealed_at INTEGER
);
CREATE UNIQUE INDEX turns_of_tab ON turns (tab, ordinal);
-- At most one turn runs in a tab; and what runs is found without a look at what ended.
CREATE UNIQUE INDEX turns_running ON turns (tab) WHERE sealed_at IS NULL;
CREATE TABLE steps (
    turn INTEGER NOT NULL,
    step INTEGER NOT NULL,
    model TEXT NOT NULL,
    outcome TEXT NOT NULL,
    input INTEGER NOT NULL,
    cache_read INTEGER NOT NULL,
    cache_write INTEGER NOT NULL,
    output INTEGER NOT NULL,
    prefix_blocks INTEGER NOT NULL,
    prefix_hash TEXT NOT NULL,
    PRIMARY KEY (turn, step)
) WITHOUT ROWID;
CREATE TABLE calls (
    tab INTEGER NOT NULL,
    call_id TEXT NOT NULL,
    turn INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    state TEXT NOT NULL,
    started INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (tab, call_id)
) WITHOUT ROWID;
CREATE TABLE queue (
    no INTEGER PRIMARY KEY AUTOINCREMENT,
    tab INTEGER NOT NULL,
    client_id TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    text TEXT NOT NULL
);
CREATE INDEX queue_of_tab ON queue (tab, no);
-- What became of each message, by its sender's id: the turn that it started, or its number in the queue.
CREATE TABLE sends (
    tab INTEGER NOT NULL,
    client_id TEXT NOT NULL,
    hash BLOB NOT NULL,
    turn INTEGER,
    waited INTEGER NOT NULL,
    message INTEGER,
    PRIMARY KEY (tab, client_id)
) WITHOUT ROWID;
CREATE TABLE approvals (
    no INTEGER PRIMARY KEY AUTOINCREMENT,
    tab INTEGER NOT NULL,
    turn INTEGER NOT NULL,
    call_id TEXT NOT NULL,
    seq INTEGER NOT NULL,
    tool TEXT NOT NULL,
    reason TEXT NOT NULL,
    rule TEXT,
    created_at INTEGER NOT NULL,
    decision TEXT
);
CREATE INDEX approvals_waiting ON approvals (no) WHERE decision IS NULL;
CREATE TABLE permissions (
    no INTEGER PRIMARY KEY,
    tool TEXT NOT NULL,
    match TEXT NOT NULL,
    do TEXT NOT NULL
);
CREATE TABLE devices (
    no INTEGER PRIMARY KEY AUTOINCREMENT,
    token_hash BLOB NOT NULL UNIQUE,
    name TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    last_seen_at INTEGER NOT NULL
);
CREATE TABLE settings (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE prefixes (
    no INTEGER PRIMARY KEY,
    hash BLOB NOT NULL UNIQUE,
    system TEXT NOT NULL,
    tools TEXT NOT NULL
);
";

/// Requests tell what a cache hit depends on, and those for a summary stand beside the answers. An index
/// finds the rows that begin a generation, which are few, in a log of any length.
const V2: &str = "
CREATE TABLE requests (
    turn INTEGER NOT NULL,
    step INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    at INTEGER NOT NULL,
    model TEXT NOT NULL,
    outcome TEXT NOT NULL,
    input INTEGER NOT NULL,
    cache_read INTEGER NOT NULL,
    cache_write INTEGER NOT NULL,
    output INTEGER NOT NULL,
    prefix INTEGER NOT NULL,
    since INTEGER NOT NULL,
    shape TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    prefix_blocks INTEGER NOT NULL,
    prefix_hash TEXT NOT NULL,
    miss TEXT,
    PRIMARY KEY (turn, step, attempt)
) WITHOUT ROWID;
INSERT INTO requests SELECT s.turn, s.step, 0, coalesce(u.started_at, 0), s.model, s.outcome,
    s.input, s.cache_read, s.cache_write, s.output, coalesce(t.prefix, 0), 0, '', 0,
    s.prefix_blocks, s.prefix_hash, NULL
    FROM steps s LEFT JOIN turns u ON u.no = s.turn LEFT JOIN tabs t ON t.no = u.tab;
DROP TABLE steps;
ALTER TABLE requests RENAME TO steps;
CREATE INDEX steps_by_time ON steps (at);
CREATE INDEX generations ON chunks (id) WHERE type = 'system' AND json_extract(data, '$.kind') IN
    ('model-changed', 'prompt-changed', 'tools-changed', 'compacted', 'thinking-dropped');
";

/// The version of the database, 0 if it is new; refuses what this program cannot use. Writes nothing.
pub(super) fn check(conn: &Connection) -> Result<Version, OpenFault> {
    let (tables, meta): (u32, u32) = conn.query_row(
        "SELECT count(*), count(*) FILTER (WHERE name = 'meta') FROM sqlite_schema WHERE type = 'table'",
        [],
        |row| Ok((row.get(0)?, row.get(1)?)),
    )?;
    let id: i32 = conn.query_row("PRAGMA application_id", [], |row| row.get(0))?;
    if tables > 0 && (meta == 0 || id != APPLICATION_ID) {
        return Err(OpenFault::Foreign);
    }
    if meta == 0 {
        return Ok(0);
    }
    let version: Option<Version> = conn
        .query_row("SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'schema'", [], |row| row.get(0))
        .optional()?;
    match version.unwrap_or(0) {
        version if version > VERSION => Err(OpenFault::Newer(version)),
        version => Ok(version),
    }
}

/// A real write, which tells whether the journal works here; it also writes a new journal's header, whose
/// sync would else stand in the path of the first turn.
pub(super) fn probe(conn: &Connection) -> rusqlite::Result<()> {
    let tx = Transaction::new_unchecked(conn, TransactionBehavior::Immediate)?;
    tx.execute_batch(&format!("PRAGMA application_id={APPLICATION_ID}; {META}"))?;
    note(&tx, "opened_at")?;
    tx.commit()
}

/// Writes the time under a key of `meta`.
pub(super) fn note(conn: &Connection, key: &str) -> rusqlite::Result<()> {
    let sql =
        "INSERT INTO meta (key, value) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET value = excluded.value";
    conn.prepare_cached(sql)?.execute(params![key, now().to_string()])?;
    Ok(())
}

/// Brings the database to [`VERSION`], wholly or not at all.
pub(super) fn migrate(conn: &mut Connection) -> Result<(), OpenFault> {
    let from = check(conn)?;
    walk(conn, from, &STEPS)?;
    if from > 0 && from < VERSION {
        ::log::info!("database migrated from schema {from} to {VERSION}");
    }
    Ok(())
}

fn walk(conn: &mut Connection, from: Version, steps: &[&str]) -> rusqlite::Result<()> {
    if from as usize == steps.len() {
        return Ok(());
    }
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for step in steps.iter().skip(from as usize) {
        tx.execute_batch(step)?;
    }
    tx.execute(
        "INSERT INTO meta (key, value) VALUES ('schema', ?1)
         ON CONFLICT DO UPDATE SET value = excluded.value",
        [steps.len().to_string()],
    )?;
    tx.commit()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(conn: &Connection) -> Version {
        let sql = "SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'schema'";
        conn.query_row(sql, [], |row| row.get(0)).optional().unwrap().unwrap_or(0)
    }

    #[test]
    fn each_version_is_reached_from_each_older_one() {
        let steps = ["CREATE TABLE a (x)", "INSERT INTO a VALUES (1)", "ALTER TABLE a ADD y DEFAULT 2"];
        for first in 0..=steps.len() {
            let mut conn = Connection::open_in_memory().unwrap();
            probe(&conn).unwrap();
            walk(&mut conn, 0, &steps[..first]).unwrap();
            assert_eq!(version(&conn) as usize, first);
            walk(&mut conn, first as Version, &steps).unwrap();
            let sum: i64 = conn.query_row("SELECT sum(x + y) FROM a", [], |row| row.get(0)).unwrap();
            assert_eq!((version(&conn), sum), (3, 3), "from {first}");
        }
    }

    #[test]
    fn a_migration_that_fails_leaves_the_older_version() {
        let mut conn = Connection::open_in_memory().unwrap();
        probe(&conn).unwrap();
        walk(&mut conn, 0, &["CREATE TABLE a (x)"]).unwrap();
        let steps = ["CREATE TABLE a (x)", "CREATE TABLE b (x)", "INSERT INTO nowhere VALUES (1)"];
        assert!(walk(&mut conn, 1, &steps).is_err());
        assert_eq!(version(&conn), 1);
        let b = "SELECT count(*) FROM sqlite_schema WHERE name = 'b'";
        assert_eq!(conn.query_row(b, [], |row| row.get::<_, u32>(0)).unwrap(), 0);
    }

    #[test]
    fn a_new_database_has_the_newest_schema_and_passes_its_own_check() {
        let mut conn = Connection::open_in_memory().unwrap();
        assert_eq!(check(&conn).unwrap(), 0);
        probe(&conn).unwrap();
        migrate(&mut conn).unwrap();
        migrate(&mut conn).unwrap();
        assert_eq!(check(&conn).unwrap(), VERSION);
    }

    #[test]
    fn the_requests_of_version_1_are_kept() {
        let mut conn = Connection::open_in_memory().unwrap();
        probe(&conn).unwrap();
        walk(&mut conn, 0, &STEPS[..1]).unwrap();
        conn.execute_batch(
            "INSERT INTO tabs (no, title, model, workdir, position, created_at, changed_at, prefix)
                 VALUES (1, '', 'a/b', '/', 1, 0, 0, 9);
             INSERT INTO turns (no, tab, ordinal, first_seq, status, started_at)
                 VALUES (3, 1, 1, 1, 'done', 55);
             INSERT INTO steps VALUES (3, 1, 'a/b', 'whole', 1, 2, 3, 4, 5, 'ff');",
        )
        .unwrap();
        migrate(&mut conn).unwrap();
        let sql = "SELECT at, attempt, model, input, output, prefix, prefix_blocks, prefix_hash FROM steps";
        let kept = conn
            .query_row(sql, [], |row| {
                let text = |column| row.get::<_, String>(column);
                let number = |column| row.get::<_, i64>(column);
                Ok((number(0)?, number(1)?, text(2)?, number(3)?, number(4)?, number(5)?, text(7)?))
            })
            .unwrap();
        assert_eq!(kept, (55, 0, "a/b".to_owned(), 1, 4, 9, "ff".to_owned()));
    }
}
