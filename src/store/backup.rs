//! Copies of the database: made while it is in use, and put back while it is not.
//!
//! In WAL mode nothing but a checkpoint writes to the database file, and here only this process
//! checkpoints. So a backup makes one, then holds the lock that the next one needs, and copies the file:
//! turns go on meanwhile, in the write-ahead log. The copy is checked as a whole before it gets its name.
//! Memory: one buffer.

use super::fault::Fault;
use super::*;
use rusqlite::OpenFlags;
use std::fs::File;
use std::io::{self, Read, Write};
use std::time::Duration;

const BUFFER_BYTES: usize = 64 * 1024;
/// A checkpoint that meets a reader is tried again so often.
const CHECKPOINTS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(100);

impl Store {
    /// Copies the database to `to`, which is replaced in one step at the end; tells how many bytes it has.
    /// The error is one line with cause and mend.
    pub fn backup(&self, to: &Path) -> Result<u64, String> {
        let _one = lock_of(&self.checkpointing);
        if self.writer().is_none() {
            return Err(fault::closed().to_string());
        }
        if self.rung == Rung::Truncate {
            // Every commit writes to the file itself.
            let _writer = self.writer();
            return copy(&self.path, to);
        }
        for _ in 0..CHECKPOINTS {
            match self.checkpoint_alone() {
                Ok(true) => return copy(&self.path, to),
                Ok(false) => std::thread::sleep(PAUSE),
                Err(error) => return Err(self.note(Fault::Sql(error)).to_string()),
            }
        }
        Err("the database is read without a pause, so it was not copied; try again".to_owned())
    }
}

/// Copies the database of a data directory that no server uses.
pub fn backup_at_rest(dir: &Path, to: &Path) -> Result<u64, String> {
    let path = dir.join(FILE);
    if !path.is_file() {
        return Err(format!("there is no database {}", path.display()));
    }
    let _lock = lock::Lock::take(dir)?;
    // What a killed server left in the log goes into the file first.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(&path, flags).map_err(|e| sql_text(e, &path))?;
    checked(&conn).map_err(|fault| open_text(fault, &path))?;
    conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).map_err(|e| sql_text(e, &path))?;
    drop(conn);
    copy(&path, to)
}

/// Puts a copy in the place of the database of a data directory that no server uses; tells where the old
/// database was moved to, if there was one.
pub fn restore(dir: &Path, from: &Path) -> Result<Option<PathBuf>, String> {
    make_dir(dir)?;
    let _lock = lock::Lock::take(dir)?;
    let path = dir.join(FILE);
    let staged = with_suffix(&path, ".restored");
    copy(from, &staged)?;
    let old = match fs::symlink_metadata(&path) {
        Ok(_) => Some(set_aside(&path, &format!(".before-restore-{}", now()))?),
        Err(_) => None,
    };
    fs::rename(&staged, &path).map_err(|e| format!("cannot rename {}: {e}", staged.display()))?;
    sync_dir(dir).map_err(|e| format!("cannot sync {}: {e}", dir.display()))?;
    Ok(old)
}

/// Copies and checks a database file; `to` appears whole or not at all.
fn copy(from: &Path, to: &Path) -> Result<u64, String> {
    // A link, a device or a folder is not what the owner meant to lose.
    if fs::symlink_metadata(to).is_ok_and(|meta| !meta.is_file()) {
        return Err(format!("{} is there and is not a regular file; give another name", to.display()));
    }
    let part = with_suffix(to, ".part");
    let done = copy_to_part(from, &part).and_then(|bytes| {
        fs::rename(&part, to).map_err(|e| format!("cannot rename {}: {e}", part.display()))?;
        let dir = to.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        sync_dir(dir).map_err(|e| format!("cannot sync {}: {e}", dir.display()))?;
        Ok(bytes)
    });
    if done.is_err() {
        // What is left of it is of no use; that it cannot be removed adds nothing.
        for suffix in ["", "-wal", "-shm", "-journal"] {
            let _ = fs::remove_file(with_suffix(&part, suffix));
        }
    }
    done
}

fn copy_to_part(from: &Path, part: &Path) -> Result<u64, String> {
    let read = |e: io::Error| format!("cannot read {}: {e}", from.display());
    let write = |e: io::Error| format!("cannot write {}: {e}", part.display());
    let mut source = File::open(from).map_err(read)?;
    if !source.metadata().map_err(read)?.is_file() {
        return Err(format!("{} is not a regular file", from.display()));
    }
    // Left by a copy that was killed; a new file, so that nobody else may read it.
    let _ = fs::remove_file(part);
    let mut target = OpenOptions::new().write(true).create_new(true).mode(0o600).open(part).map_err(write)?;
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut bytes = 0;
    loop {
        let amount = source.read(&mut buffer).map_err(read)?;
        if amount == 0 {
            break;
        }
        target.write_all(buffer.split_at(amount).0).map_err(write)?;
        bytes += amount as u64;
    }
    target.sync_all().map_err(write)?;
    let conn = Connection::open_with_flags(part, OpenFlags::SQLITE_OPEN_READ_WRITE)
        .map_err(|e| sql_text(e, from))?;
    checked(&conn).map_err(|fault| no_copy(fault, from))?;
    let whole: String = conn
        .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
        .map_err(|e| no_copy(OpenFault::Sql(e), from))?;
    match whole.as_str() {
        "ok" => Ok(bytes),
        fault => Err(format!("{} is damaged: {fault}; nothing was replaced", from.display())),
    }
}

/// Why a file is not copied. It need not be the one that the server opens, so no start mends it.
fn no_copy(fault: OpenFault, from: &Path) -> String {
    use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
    match fault {
        OpenFault::Foreign => {
            format!("{} is a database of another program; nothing was replaced", from.display())
        }
        OpenFault::Damaged(e) | OpenFault::Sql(e)
            if matches!(e.sqlite_error_code(), Some(DatabaseCorrupt | NotADatabase)) =>
        {
            format!("{} is damaged, or no database ({e}); nothing was replaced", from.display())
        }
        other => open_text(other, from),
    }
}

/// A database of Siskin, and not a newer one's.
fn checked(conn: &Connection) -> Result<(), OpenFault> {
    conn.execute_batch("PRAGMA cache_size=-192; PRAGMA mmap_size=0; PRAGMA trusted_schema=OFF")?;
    match schema::check(conn)? {
        0 => Err(OpenFault::Foreign),
        _ => Ok(()),
    }
}

fn sql_text(error: rusqlite::Error, path: &Path) -> String {
    fault::explain(&error, path).to_string()
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;

    #[test]
    fn a_copy_of_a_database_in_use_opens_and_holds_what_was_sealed() {
        for rung in [Rung::Wal, Rung::WalExclusive, Rung::Truncate] {
            let dir = Dir::new();
            let store = Store::open_from(dir.path(), &Budget::ROUTER, rung).unwrap();
            let tab = store.create_tab(&NewTab::default()).unwrap().no;
            let turn = begin(&store, tab, 1);
            seal(&store, tab, turn);
            let other = Dir::new();
            let to = other.path().join("copy.db");
            let bytes = store.backup(&to).unwrap();
            assert_eq!(bytes, fs::metadata(&to).unwrap().len());
            assert_eq!(fs::read_dir(other.path()).unwrap().count(), 1, "nothing else is left there");
            // The store goes on, and the copy does not.
            begin(&store, tab, 2);
            assert_eq!(restore(other.path(), &to).unwrap(), None);
            let copy = Store::open(other.path(), &Budget::ROUTER).unwrap();
            assert_eq!(copy.tab(tab).unwrap().unwrap().total, 1, "{rung:?}");
        }
    }

    #[test]
    fn turns_go_on_while_the_database_is_copied() {
        let (_dir, store, tab) = store();
        let other = Dir::new();
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writing = scope.spawn(|| {
                let mut turns = 0;
                while !done.load(Relaxed) {
                    turns += 1;
                    let turn = begin(&store, tab, turns);
                    seal(&store, tab, turn);
                }
                turns
            });
            for at in 0..5 {
                store.backup(&other.path().join(format!("{at}.db"))).unwrap();
            }
            done.store(true, Relaxed);
            assert!(writing.join().unwrap() > 0);
        });
        assert_eq!(restore(other.path(), &other.path().join("4.db")).unwrap(), None);
        let copy = Store::open(other.path(), &Budget::ROUTER).unwrap();
        let turns = copy.turns(tab, None, 1).unwrap();
        assert_eq!(turns.first().map(|turn| turn.last_seq), Some(copy.tab(tab).unwrap().unwrap().total));
    }

    #[test]
    fn a_database_at_rest_is_copied_with_what_a_killed_server_left_in_its_log() {
        let (dir, store, tab) = store();
        begin(&store, tab, 1);
        let killed = Dir::new();
        for suffix in ["", "-wal"] {
            let from = with_suffix(&dir.path().join(FILE), suffix);
            fs::copy(&from, with_suffix(&killed.path().join(FILE), suffix)).unwrap();
        }
        assert!(backup_at_rest(dir.path(), &dir.path().join("x")).unwrap_err().contains("in use by"));
        let to = killed.path().join("copy");
        backup_at_rest(killed.path(), &to).unwrap();
        let old = restore(killed.path(), &to).unwrap().expect("there was one");
        assert!(old.exists());
        let copy = Store::open(killed.path(), &Budget::ROUTER).unwrap();
        assert_eq!(copy.tab(tab).unwrap().unwrap().total, 2, "the row, and that the turn was interrupted");
    }

    #[test]
    fn what_is_no_whole_database_of_siskin_is_refused_and_the_present_one_stays() {
        let (dir, store, _) = store();
        store.close();
        let before = fs::read(dir.path().join(FILE)).unwrap();
        let bad = |name: &str, bytes: &[u8]| {
            let path = dir.path().join(name);
            fs::write(&path, bytes).unwrap();
            let refused = restore(dir.path(), &path).unwrap_err();
            assert_eq!(fs::read(dir.path().join(FILE)).unwrap(), before, "{refused}");
            refused
        };
        // Bug: a file that was no copy was said to be the server's own, which a restart would move aside.
        let refused = bad("text", &b"hello ".repeat(1000));
        assert!(refused.contains("text is damaged, or no database"), "{refused}");
        assert!(refused.ends_with("nothing was replaced"), "{refused}");
        assert!(bad("short", b"hello").contains("short"));
        assert!(bad("empty", b"").contains("another program"));
        let mut cut = before.clone();
        cut.truncate(before.len() - 4096);
        assert!(bad("cut", &cut).contains("damaged"));
        assert!(restore(dir.path(), &dir.path().join("none")).unwrap_err().contains("none"));
        let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert!(left.iter().all(|name| !name.to_string_lossy().contains(".part")), "{left:?}");
    }

    #[test]
    fn a_copy_to_no_place_or_onto_something_else_is_an_error_that_names_it() {
        let (dir, store, _) = store();
        let refused = store.backup(Path::new("/nowhere/at/all")).unwrap_err();
        assert!(refused.contains("/nowhere/at/all.part"), "{refused}");
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("elsewhere", &link).unwrap();
        for other in [link, dir.path().to_owned()] {
            let refused = store.backup(&other).unwrap_err();
            assert!(refused.contains("not a regular file"), "{refused}");
        }
    }
}
