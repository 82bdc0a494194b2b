//! What the standard library and rustix do not give: a count of the heap, and the allocator's settings.
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
pub fn heap() -> (usize, usize) {
    (USED.load(Relaxed), PEAK.load(Relaxed))
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
}
