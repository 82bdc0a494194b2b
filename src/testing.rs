//! For unit tests: a folder that is gone afterwards, and a measure of work.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder of one test; its path has no symbolic link in it.
pub struct Dir(PathBuf);

impl Dir {
    /// A new, empty folder.
    pub fn new() -> Dir {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("siskin-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a temporary folder can be made");
        Dir(path.canonicalize().expect("the folder was just made"))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Asserts that four times the input costs less than six times the work. `work` gets 1 or 4. Counted is this
/// thread's processor time, the least of some runs, so that other programs do not matter.
pub fn grows_linearly(work: impl Fn(usize)) {
    let spent = || {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
    };
    let least = |times: usize| {
        let run = || {
            let before = spent();
            work(times);
            spent() - before
        };
        (0..5).map(|_| run()).fold(f64::INFINITY, f64::min)
    };
    // Below some milliseconds it is caches and page faults that are measured.
    let (one, four) = (least(1).max(0.005), least(4));
    assert!(four < 6.0 * one, "four times the input took {four} s, and one {one} s");
}
