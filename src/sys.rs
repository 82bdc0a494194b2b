//! What the standard library and rustix do not give: a count of the heap, the allocator's settings, and
//! giving back pages of the program.
//!
//! The one module with `unsafe`. Counting costs two atomic additions per allocation and no memory;
//! `/api/status` shows the figures beside the resident memory, so that a growth of one without the other can
//! be told apart.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

static USED: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

struct Counting;

#[global_allocator]
static HEAP: Counting = Counting;

fn grown(bytes: usize) {
    let used = USED.fetch_add(bytes, Relaxed) + bytes;
    // A plain load first: the peak is rarely passed, and a read does not fight over the cache line.
    if used > PEAK.load(Relaxed) {
        PEAK.fetch_max(used, Relaxed);
    }
}

// SAFETY: every call is handed to `System` unchanged, which upholds the contract; the counting neither
// allocates nor panics.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise about `layout` is handed on.
        let at = unsafe { System.alloc(layout) };
        if !at.is_null() {
            grown(layout.size());
        }
        at
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        let at = unsafe { System.alloc_zeroed(layout) };
        if !at.is_null() {
            grown(layout.size());
        }
        at
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: `at` came from `System` with this layout.
        unsafe { System.dealloc(at, layout) };
        USED.fetch_sub(layout.size(), Relaxed);
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: `at` came from `System` with this layout.
        let moved = unsafe { System.realloc(at, layout, size) };
        if !moved.is_null() {
            grown(size);
            USED.fetch_sub(layout.size(), Relaxed);
        }
        moved
    }
}

/// Bytes that Rust code holds on the heap now, and the most that it ever held. SQLite's are not among them.
pub fn rust_heap() -> (usize, usize) {
    (USED.load(Relaxed), PEAK.load(Relaxed))
}

/// Bytes on the heap now, and at most: Rust's and SQLite's. The peaks need not have come together.
pub fn heap() -> (usize, usize) {
    let ((rust, rust_peak), (sqlite, sqlite_peak)) = (rust_heap(), sqlite_heap());
    (rust + sqlite, rust_peak + sqlite_peak)
}

/// Makes glibc keep one arena and give freed memory back early. To be called before the first thread;
/// harmless later.
pub fn tune_allocator() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `mallopt` only sets parameters of the allocator, under its own lock.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 128 * 1024);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 64 * 1024);
    }
}

/// Bytes of SQLite's heap now, and the most that it ever was.
pub fn sqlite_heap() -> (usize, usize) {
    // SAFETY: both only read SQLite's own counters, under its lock.
    let (used, peak) =
        unsafe { (rusqlite::ffi::sqlite3_memory_used(), rusqlite::ffi::sqlite3_memory_highwater(0)) };
    (used.max(0) as usize, peak.max(0) as usize)
}

/// Gives back free memory between what is in use; by itself glibc gives back only the heap's end.
pub fn give_back_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `malloc_trim` only releases free memory of the allocator, under its own lock.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Unmaps the pages of the program's code that are resident now. Those that are needed come back from the
/// file, one fault for sixteen pages; those that only the start or a turn needed stay away. Returns how many
/// bytes were let go of.
pub fn give_back_code() -> usize {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return 0 };
    maps.lines().filter_map(code_range).map(|range| give_back(&range)).sum()
}

/// The addresses of a line of `maps` that is code from a file: read-only, private, and never written to.
fn code_range(line: &str) -> Option<std::ops::Range<usize>> {
    let mut fields = line.split_whitespace();
    let (low, high) = fields.next()?.split_once('-')?;
    let is_code = fields.next()? == "r-xp" && fields.nth(3).is_some_and(|file| file.starts_with('/'));
    let parse = |text| usize::from_str_radix(text, 16).ok();
    is_code.then_some(())?;
    Some(parse(low)?..parse(high)?)
}

fn give_back(range: &std::ops::Range<usize>) -> usize {
    let at = std::ptr::with_exposed_provenance_mut::<libc::c_void>(range.start);
    // SAFETY: the range is a private mapping of a file that is executable and not writable, so none of its
    // pages differ from the file and each comes back from there when it is touched.
    let done = unsafe { libc::madvise(at, range.len(), libc::MADV_DONTNEED) };
    if done == 0 { range.len() } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heap_is_counted() {
        let big = vec![1u8; 8 << 20];
        let (used, peak) = heap();
        assert!(used >= 8 << 20 && peak >= used.min(peak));
        drop(big);
        assert!(heap().1 >= 8 << 20);
    }

    #[test]
    fn only_code_from_a_file_is_given_back() {
        let check = |line: &str, expected| assert_eq!(code_range(line), expected, "{line}");
        check("1000-3000 r-xp 00001000 fd:00 12 /usr/bin/siskin", Some(0x1000..0x3000));
        check("1000-3000 r--p 00001000 fd:00 12 /usr/bin/siskin", None);
        check("1000-3000 r-xp 00000000 00:00 0 [vdso]", None);
        check("1000-3000 rwxp 00001000 fd:00 12 /usr/bin/siskin", None);
        check("1000-3000 r-xp 00000000 00:00 0", None);
        assert!(give_back_code() > 0);
        assert_eq!(code_range("x"), None);
    }
}
