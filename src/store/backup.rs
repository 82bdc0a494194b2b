//! Copies of the database: made while it is in use, and put back while it is not.
//!
//! In WAL mode nothing but a checkpoint writes to the database file, and here only this process
//! checkpoints. So a backup makes one, then holds the lock that the next one needs, and copies the file:
//! turns go on meanwhile, in the write-ahead log. The copy is checked as a whole before it gets its name.
//! Memory: one buffer.

use super::fault::Fault;
use super::*;
use rusqlite::{ErrorCode, OpenFlags};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

const BUFFER_BYTES: usize = 64 * 1024;
/// What to do about a damaged database that is in use.
const LIVE: &str = "export what can be read, then restart: it will be moved aside";
/// A checkpoint that meets a reader is tried again so often.
const CHECKPOINTS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(100);

impl Store {
    /// Copies the database to `to`, which is replaced in one step at the end; tells how many bytes it has.
    /// The error is one line with cause and mend.
    pub fn backup(&self, to: &Path) -> Result<u64, String> {
        check_place(&self.path, to)?;
        let one = lock_of(&self.checkpointing);
        if self.writer().is_none() {
            return Err(fault::closed().to_string());
        }
        if self.rung == Rung::Truncate {
            // Every commit writes to the file itself.
            return copy(&self.file, &self.path, to, LIVE, (self.writer(), one));
        }
        for _ in 0..CHECKPOINTS {
            match self.checkpoint_alone() {
                Ok(true) => return copy(&self.file, &self.path, to, LIVE, one),
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
    check_place(&path, to)?;
    let _lock = lock::Lock::take(dir)?;
    // What a killed server left in the log goes into the file first.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(&path, flags).map_err(|e| sql_text(&e, &path, LIVE))?;
    checked(&conn).map_err(|fault| fault_text(fault, &path, LIVE))?;
    conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
        .map_err(|e| sql_text(&e, &path, LIVE))?;
    drop(conn);
    copy(&open_regular(&path)?, &path, to, LIVE, ())
}

/// Puts a copy in the place of the database of a data directory that no server uses; tells where the old
/// database was moved to, if there was one.
pub fn restore(dir: &Path, from: &Path) -> Result<Option<PathBuf>, String> {
    make_dir(dir)?;
    let _lock = lock::Lock::take(dir)?;
    let path = dir.join(FILE);
    let log = with_suffix(from, "-wal");
    if fs::metadata(&log).is_ok_and(|meta| meta.len() > 0) {
        return Err(format!(
            "{} was not closed: a part of it is in {}; copy it by siskin backup --data first",
            from.display(),
            log.display()
        ));
    }
    let staged = with_suffix(&path, ".restored");
    copy(&open_regular(from)?, from, &staged, "nothing was changed; give another copy", ())?;
    give(&staged, dir).map_err(|e| format!("cannot change the owner of {}: {e}", staged.display()))?;
    let old = match fs::symlink_metadata(&path) {
        Ok(_) => Some(set_aside(&path, &format!(".before-restore-{}", now()))?),
        Err(_) => None,
    };
    fs::rename(&staged, &path).map_err(|e| format!("cannot rename {}: {e}", staged.display()))?;
    sync_dir(dir).map_err(|e| format!("cannot sync {}: {e}", dir.display()))?;
    Ok(old)
}

/// Refuses to begin anew where a restore broke off between taking the old database away and putting the copy
/// in its place.
pub(super) fn check_restored(path: &Path) -> Result<(), String> {
    let staged = with_suffix(path, ".restored");
    if path.exists() || !staged.exists() {
        return Ok(());
    }
    Err(format!(
        "a restore into {} broke off; run it again, or rename {} to {FILE}",
        path.display(),
        staged.display()
    ))
}

/// Refuses to put a copy where the database itself lies, or what belongs to it: the server would go on
/// writing to a file that has no name any more.
fn check_place(path: &Path, to: &Path) -> Result<(), String> {
    let dir = |of: &Path| fs::canonicalize(of.parent().filter(|dir| dir.is_dir()).unwrap_or(Path::new(".")));
    let own = ["", "-wal", "-shm", "-journal", ".suspect", ".restored"].map(|end| with_suffix(path, end));
    let own = own.iter().any(|own| own.file_name() == to.file_name())
        || to.file_name() == Some(lock::FILE.as_ref());
    match (dir(path), dir(to)) {
        (Ok(data), Ok(other)) if own && data == other => {
            Err(format!("{} belongs to the database itself; give another name", to.display()))
        }
        _ => Ok(()),
    }
}

fn open_regular(path: &Path) -> Result<File, String> {
    let read = |e: io::Error| format!("cannot read {}: {e}", path.display());
    // Looked at first, since the opening of a pipe would wait for its writer.
    if !fs::metadata(path).map_err(read)?.is_file() {
        return Err(format!("{} is not a regular file", path.display()));
    }
    File::open(path).map_err(read)
}

/// Gives a file to the owner of its folder: who restores is often root, and the server is not.
fn give(file: &Path, dir: &Path) -> io::Result<()> {
    let (made, wanted) = (fs::metadata(file)?, fs::metadata(dir)?);
    if (made.uid(), made.gid()) == (wanted.uid(), wanted.gid()) {
        return Ok(());
    }
    std::os::unix::fs::chown(file, Some(wanted.uid()), Some(wanted.gid()))
}

/// Copies and checks a database file, whose name is `from`; `to` appears whole or not at all. `mend`: what to
/// do if it is damaged. `held` keeps the file as it is, and is let go once its bytes are copied.
fn copy<H>(source: &File, from: &Path, to: &Path, mend: &str, held: H) -> Result<u64, String> {
    // A link, a device or a folder is not what the owner meant to lose.
    if fs::symlink_metadata(to).is_ok_and(|meta| !meta.is_file()) {
        return Err(format!("{} is there and is not a regular file; give another name", to.display()));
    }
    let part = with_suffix(to, ".part");
    // Left by a copy that was killed.
    remove(&part);
    let done = copy_to_part(source, from, &part, mend, held).and_then(|bytes| {
        fs::rename(&part, to).map_err(|e| format!("cannot rename {}: {e}", part.display()))?;
        let dir = to.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        sync_dir(dir).map_err(|e| format!("cannot sync {}: {e}", dir.display()))?;
        Ok(bytes)
    });
    if done.is_err() {
        remove(&part);
    }
    done
}

/// Removes what is of no use; that it cannot be removed adds nothing to what is told.
fn remove(part: &Path) {
    for suffix in ["", "-wal", "-shm", "-journal"] {
        let _ = fs::remove_file(with_suffix(part, suffix));
    }
}

fn copy_to_part<H>(mut source: &File, from: &Path, part: &Path, mend: &str, held: H) -> Result<u64, String> {
    let read = |e: io::Error| format!("cannot read {}: {e}", from.display());
    let write = |e: io::Error| format!("cannot write {}: {e}", part.display());
    source.rewind().map_err(read)?;
    // A new file, so that nobody else may read it.
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
    drop(held);
    target.sync_all().map_err(write)?;
    let conn = Connection::open_with_flags(part, OpenFlags::SQLITE_OPEN_READ_WRITE)
        .map_err(|e| sql_text(&e, from, mend))?;
    checked(&conn).map_err(|fault| fault_text(fault, from, mend))?;
    // A header that only a newer SQLite may write, which a check of the content does not look at.
    if conn.is_readonly(rusqlite::MAIN_DB).map_err(|e| sql_text(&e, from, mend))? {
        return Err(format!("{} is damaged (its header allows no writing); {mend}", from.display()));
    }
    repair::check_whole(&conn).map_err(|e| sql_text(&e, from, mend))?;
    Ok(bytes)
}

/// A database of Siskin, and not a newer one's. Locked for this process alone, so that no shared memory is
/// needed, which some disks refuse.
fn checked(conn: &Connection) -> Result<(), OpenFault> {
    conn.execute_batch("PRAGMA locking_mode=EXCLUSIVE")?;
    conn.execute_batch("PRAGMA cache_size=-192; PRAGMA mmap_size=0; PRAGMA trusted_schema=OFF")?;
    match schema::check(conn)? {
        0 => Err(OpenFault::Foreign),
        _ => Ok(()),
    }
}

fn fault_text(fault: OpenFault, path: &Path, mend: &str) -> String {
    match fault {
        OpenFault::Damaged(error) | OpenFault::Sql(error) => sql_text(&error, path, mend),
        OpenFault::Foreign => format!("{} is a database of another program; {mend}", path.display()),
        other => open_text(other, path),
    }
}

fn sql_text(error: &rusqlite::Error, path: &Path, mend: &str) -> String {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt) => format!("{} is damaged ({error}); {mend}", path.display()),
        Some(ErrorCode::NotADatabase) => {
            format!("{} is damaged, or no database ({error}); {mend}", path.display())
        }
        _ => fault::explain(error, path).to_string(),
    }
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
        assert!(refused.contains("nothing was changed"), "{refused}");
        assert!(bad("short", b"hello").contains("short"));
        assert!(bad("empty", b"").contains("another program"));
        let mut cut = before.clone();
        cut.truncate(before.len() - 4096);
        assert!(bad("cut", &cut).contains("damaged"));
        // Byte 18 of the header says which SQLite may write the file: no start would succeed.
        let mut readable = before.clone();
        readable[18] = 0x42;
        let refused = bad("readable", &readable);
        assert!(refused.contains("allows no writing); nothing was changed"), "{refused}");
        let mut torn = before.clone();
        torn[before.len() - 4096..].fill(0x55);
        let refused = bad("torn", &torn);
        assert!(refused.contains("damaged (") && !refused.contains('\n'), "{refused}");
        assert!(restore(dir.path(), &dir.path().join("none")).unwrap_err().contains("none"));
        let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert!(left.iter().all(|name| !name.to_string_lossy().contains(".part")), "{left:?}");
    }

    #[test]
    fn a_database_that_was_not_closed_is_no_copy() {
        let (dir, _store, _) = store();
        let other = Dir::new();
        let refused = restore(other.path(), &dir.path().join(FILE)).unwrap_err();
        assert!(refused.contains("was not closed") && refused.contains("siskin backup"), "{refused}");
        assert!(!other.path().join(FILE).exists());
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

    /// Bug: the copy could be given the database's own name. Effect: the server went on writing to a file
    /// without a name, and all that was lost at its end. Mend: refused.
    #[test]
    fn a_copy_never_takes_the_place_of_what_it_is_made_of() {
        let (dir, store, tab) = store();
        for name in [FILE, "siskin.db-wal", "siskin.db-shm", "siskin.db.suspect", "lock"] {
            let refused =
                store.backup(&dir.path().join("..").join(dir.path().file_name().unwrap()).join(name));
            assert!(refused.unwrap_err().contains("another name"), "{name}");
        }
        store.backup(&dir.path().join("siskin.db.copy")).unwrap();
        begin(&store, tab, 1);
        store.close();
        assert!(backup_at_rest(dir.path(), &dir.path().join(FILE)).unwrap_err().contains("another name"));
        drop(store);
        let store = Store::open(dir.path(), &Budget::ROUTER).unwrap();
        assert_eq!(store.tab(tab).unwrap().unwrap().total, 2, "the row, and that the turn was interrupted");
    }

    /// Bug: a backup opened and closed the database's file. Effect: with that, all locks of this process on
    /// it were gone, and another program that looked into the database took the write-ahead log away from
    /// under the server. Mend: the file is opened once, for as long as the connections are.
    #[test]
    fn sqlites_locks_outlive_a_backup() {
        for rung in [Rung::Wal, Rung::WalExclusive] {
            let dir = Dir::new();
            let store = Store::open_from(dir.path(), &Budget::ROUTER, rung).unwrap();
            let inode = format!(":{} ", fs::metadata(dir.path().join(FILE)).unwrap().ino());
            let locks = || {
                let all = fs::read_to_string("/proc/locks").unwrap();
                all.lines().filter(|line| line.contains("POSIX") && line.contains(&inode)).count()
            };
            let before = locks();
            assert!(before > 0);
            store.backup(&dir.path().join("copy")).unwrap();
            assert_eq!(locks(), before, "{rung:?}");
        }
    }

    /// Bug: a copy was checked with shared memory. Effect: no backup on the disks that refuse it. Mend: a
    /// database that nobody else has is locked as a whole.
    #[test]
    fn a_copy_is_checked_where_the_disk_refuses_shared_memory() {
        let (dir, store, _) = store();
        let other = Dir::new();
        // As such a disk does: the file for the shared memory cannot be opened.
        fs::create_dir(other.path().join("copy.part-shm")).unwrap();
        store.backup(&other.path().join("copy")).unwrap();
        store.close();
        fs::create_dir(dir.path().join("siskin.db-shm")).unwrap();
        backup_at_rest(dir.path(), &other.path().join("copy")).unwrap();
    }

    /// Bug: a restore that was killed in its middle left no database. Effect: the next start made an empty
    /// one. Mend: it is refused until the restore is run again.
    #[test]
    fn after_a_restore_that_broke_off_no_empty_database_is_begun() {
        let (dir, store, tab) = store();
        let copy = dir.path().join("copy");
        store.backup(&copy).unwrap();
        store.close();
        fs::rename(&copy, dir.path().join("siskin.db.restored")).unwrap();
        fs::rename(dir.path().join(FILE), &copy).unwrap();
        let refused = Store::open(dir.path(), &Budget::ROUTER).map(drop).unwrap_err();
        assert!(refused.contains("broke off; run it again"), "{refused}");
        restore(dir.path(), &copy).unwrap();
        assert!(Store::open(dir.path(), &Budget::ROUTER).unwrap().tab(tab).unwrap().is_some());
    }

    #[test]
    fn the_housekeeper_does_not_wait_for_a_backup() {
        let (_dir, store, _) = store();
        let _copying = lock_of(&store.checkpointing);
        store.writer().as_mut().unwrap().written = Instant::now().checked_sub(Duration::from_secs(9));
        store.housekeep();
    }
}
