//! One server per data directory: an exclusive `flock` on `DATA/lock`, with the holder's pid inside.
//!
//! The lock ends with the process, however it ends; the file stays and means nothing without the lock.

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::Path;

/// The lock's file name.
pub const FILE: &str = "lock";

/// Holds the data directory until dropped.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the directory, or says in one line who holds it.
    pub fn take(dir: &Path) -> Result<Lock, String> {
        let path = dir.join(FILE);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = open(&path, flags, Mode::RUSR | Mode::WUSR).map_err(|e| {
            format!(
                "cannot write to the data directory {}: {e}; change its owner, or give another --data",
                dir.display()
            )
        })?;
        let mut file = File::from(file);
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(held(dir, &mut file)),
            Err(e) => return Err(format!("cannot lock {}: {e}; give another --data", path.display())),
        }
        // The pid only helps whoever is refused; a disk too full to hold it does not keep the server from
        // starting.
        if let Err(e) = write_pid(&mut file) {
            ::log::warn!("cannot write the pid to {}: {e}", path.display());
        }
        Ok(Lock { _file: file })
    }
}

/// The pid of the process that holds the directory, if one does and says so.
pub fn holder(dir: &Path) -> Option<u32> {
    let mut file = File::open(dir.join(FILE)).ok()?;
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Err(rustix::io::Errno::WOULDBLOCK) => read_pid(&mut file),
        _ => None,
    }
}

fn held(dir: &Path, file: &mut File) -> String {
    let who = read_pid(file).map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"));
    format!("the data directory {} is in use by {who}; stop it, or give another --data", dir.display())
}

fn read_pid(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

fn write_pid(file: &mut File) -> std::io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::testing::Dir;

    #[test]
    fn a_held_directory_is_refused_by_the_name_of_its_holder_and_free_after() {
        let dir = Dir::new();
        assert_eq!(holder(dir.path()), None);
        let held = Lock::take(dir.path()).unwrap();
        let refused = Lock::take(dir.path()).unwrap_err();
        assert!(refused.contains(&format!("in use by process {}", std::process::id())), "{refused}");
        assert_eq!(holder(dir.path()), Some(std::process::id()));
        drop(held);
        assert_eq!(holder(dir.path()), None);
        Lock::take(dir.path()).unwrap();
    }
}
