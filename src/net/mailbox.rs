//! Where small events wait for one client's thread. It holds no rows and no text: see [`crate::event`].
//!
//! Whoever posts never waits. Notes are counted in bytes; when one does not fit, the mailbox is emptied and
//! remembers that it was, and the client's thread then sends everything anew. Movements of the visible tab
//! and orders (close, read the limits again) are flags, so they merge. Cost: at most `mailbox_bytes`, and one
//! descriptor.

use crate::budget::METERS;
use crate::chunk::TabNo;
use crate::event::{Listener, Note};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a note costs beside its text.
const NOTE_OVERHEAD: usize = 64;

#[derive(Default)]
struct Queue {
    notes: VecDeque<Note>,
    bytes: usize,
    overflowed: bool,
}

/// One client's mailbox.
pub struct Mailbox {
    queue: Mutex<Queue>,
    limit: usize,
    /// The visible tab's number, 0 for none: numbers start at 1.
    visible: AtomicU32,
    moved: AtomicBool,
    limits_changed: AtomicBool,
    close: AtomicU16,
    signaled: AtomicBool,
    event: OwnedFd,
}

impl Mailbox {
    /// An empty one for `limit` bytes of notes. Fails when there is no descriptor left.
    pub fn new(limit: usize) -> io::Result<Mailbox> {
        Ok(Mailbox {
            queue: Mutex::default(),
            limit,
            visible: AtomicU32::new(0),
            moved: AtomicBool::new(false),
            limits_changed: AtomicBool::new(false),
            close: AtomicU16::new(0),
            signaled: AtomicBool::new(false),
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// The tab whose movements wake the client's thread. To be set inside [`crate::agent::Agent::look`], so
    /// that snapshot and subscription are one moment: what notes told of a visible tab until then stands in the
    /// snapshot, so they are dropped. Told after it, they would begin and end turns a second time.
    pub fn show(&self, tab: Option<TabNo>) {
        self.visible.store(tab.map_or(0, |tab| tab.0), SeqCst);
        let mut queue = self.lock();
        queue.notes.retain(|note| !note.visible_only);
        queue.bytes = queue.notes.iter().map(cost).sum();
    }

    /// Orders the client's thread to close its socket with this code.
    pub fn order_close(&self, code: u16) {
        // The first order stands.
        let _ = self.close.compare_exchange(0, code, SeqCst, SeqCst);
        self.signal();
    }

    /// The code to close with, if that was ordered.
    pub fn close_ordered(&self) -> Option<u16> {
        Some(self.close.load(SeqCst)).filter(|code| *code != 0)
    }

    /// Orders the client's thread to work out its limits again.
    pub fn order_limits(&self) {
        self.limits_changed.store(true, SeqCst);
        self.signal();
    }

    /// Whether the limits are to be worked out again; asked once per order.
    pub fn take_limits_changed(&self) -> bool {
        self.limits_changed.swap(false, SeqCst)
    }

    /// Takes the signal back. What came before is seen by the reads that follow; what comes after signals
    /// anew.
    pub fn quiet(&self) {
        if self.signaled.load(SeqCst) {
            let mut count = [0; 8];
            // Read first, lower the flag then: in the other order a signal between the two would be read away
            // while its flag stays up, and nothing would ever wake this client again.
            let _ = rustix::io::read(&self.event, &mut count);
            self.signaled.store(false, SeqCst);
        }
    }

    /// Whether the visible tab moved; asked once per movement.
    pub fn take_moved(&self) -> bool {
        self.moved.swap(false, SeqCst)
    }

    /// The oldest note.
    pub fn take_note(&self) -> Option<Note> {
        let mut queue = self.lock();
        let note = queue.notes.pop_front()?;
        queue.bytes -= cost(&note);
        METERS.mailbox_bytes.set(queue.bytes);
        Some(note)
    }

    /// Whether no note waits.
    pub fn is_empty(&self) -> bool {
        self.lock().notes.is_empty()
    }

    /// Whether notes were lost; asked once per loss.
    pub fn take_overflowed(&self) -> bool {
        std::mem::take(&mut self.lock().overflowed)
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // A panic under this lock leaves the queue whole: each change is one push, pop or clear.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn signal(&self) {
        if !self.signaled.swap(true, SeqCst) {
            // The counter cannot overflow: it is read back before the next write.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    fn is_visible(&self, tab: Option<TabNo>) -> bool {
        tab.is_some_and(|tab| tab.0 == self.visible.load(SeqCst))
    }
}

fn cost(note: &Note) -> usize {
    note.json.len() + NOTE_OVERHEAD
}

impl Listener for Mailbox {
    fn post(&self, note: &Note) {
        if note.visible_only && !self.is_visible(note.tab) {
            return;
        }
        let mut queue = self.lock();
        if queue.bytes + cost(note) > self.limit {
            queue.notes = VecDeque::new();
            queue.bytes = 0;
            queue.overflowed = true;
        } else if !queue.overflowed {
            // After a loss the client gets a snapshot; notes before that would only be sent twice.
            queue.bytes += cost(note);
            queue.notes.push_back(note.clone());
            METERS.mailbox_bytes.set(queue.bytes);
        }
        drop(queue);
        // A note may come with a movement of the log (a turn that ended takes its open chunk with it).
        if self.is_visible(note.tab) {
            self.moved.store(true, SeqCst);
        }
        self.signal();
    }

    fn wake(&self, tab: TabNo) {
        if self.is_visible(Some(tab)) {
            self.moved.store(true, SeqCst);
            self.signal();
        }
    }
}

impl AsFd for Mailbox {
    /// Readable while there is something to see.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn note(tab: u32, visible_only: bool, bytes: usize) -> Note {
        Note { tab: Some(TabNo(tab)), visible_only, after: 0, json: "x".repeat(bytes).into() }
    }

    fn readable(mailbox: &Mailbox) -> bool {
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(mailbox, PollFlags::IN)], Some(&zero)).unwrap() == 1
    }

    #[test]
    fn notes_come_out_in_order_and_wake() {
        let mailbox = Mailbox::new(1024).unwrap();
        assert!(!readable(&mailbox));
        mailbox.post(&note(1, false, 1));
        mailbox.post(&note(2, false, 2));
        assert!(readable(&mailbox));
        mailbox.quiet();
        assert!(!readable(&mailbox));
        assert_eq!(mailbox.take_note().unwrap().json.len(), 1);
        assert_eq!(mailbox.take_note().unwrap().json.len(), 2);
        assert!(mailbox.take_note().is_none() && mailbox.is_empty());
    }

    #[test]
    fn an_overflow_empties_and_is_told_once_and_then_notes_flow_again() {
        let mailbox = Mailbox::new(1000).unwrap();
        for _ in 0..20 {
            mailbox.post(&note(1, false, 100));
            assert!(mailbox.lock().bytes <= 1000);
        }
        assert!(mailbox.is_empty());
        assert!(mailbox.take_overflowed());
        assert!(!mailbox.take_overflowed());
        mailbox.post(&note(1, false, 100));
        assert!(mailbox.take_note().is_some());
    }

    #[test]
    fn a_snapshot_stands_for_what_notes_told_of_a_visible_tab() {
        let mailbox = Mailbox::new(1000).unwrap();
        mailbox.show(Some(TabNo(1)));
        mailbox.post(&note(1, true, 100));
        mailbox.post(&note(1, false, 100));
        mailbox.show(Some(TabNo(2)));
        assert!(!mailbox.take_note().unwrap().visible_only);
        assert!(mailbox.is_empty() && mailbox.lock().bytes == 0);
    }

    #[test]
    fn only_the_visible_tab_wakes() {
        let mailbox = Mailbox::new(1000).unwrap();
        mailbox.show(Some(TabNo(2)));
        mailbox.wake(TabNo(1));
        mailbox.post(&note(1, true, 1));
        assert!(!readable(&mailbox) && !mailbox.take_moved() && mailbox.is_empty());
        mailbox.wake(TabNo(2));
        assert!(readable(&mailbox) && mailbox.take_moved() && !mailbox.take_moved());
    }

    #[test]
    fn the_first_order_to_close_stands() {
        let mailbox = Mailbox::new(1000).unwrap();
        mailbox.order_close(4401);
        mailbox.order_close(1001);
        assert_eq!(mailbox.close_ordered(), Some(4401));
        assert!(readable(&mailbox));
    }
}
