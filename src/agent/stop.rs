//! A stop signal that every wait of a turn listens to: a flag, and a descriptor to poll beside a socket.

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Raised once, never lowered; one per turn. A clone is the same signal.
#[derive(Clone, Debug)]
pub struct Stop(Arc<Signal>);

#[derive(Debug)]
struct Signal {
    raised: AtomicBool,
    event: OwnedFd,
}

impl Stop {
    /// A signal that is not raised. Fails when there is no descriptor left.
    pub fn new() -> io::Result<Stop> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Stop(Arc::new(Signal { raised: AtomicBool::new(false), event })))
    }

    /// Raises it and wakes whoever waits.
    pub fn raise(&self) {
        self.0.raised.store(true, Ordering::SeqCst);
        // The counter cannot overflow: each stop adds one.
        let _ = rustix::io::write(&self.0.event, &1u64.to_ne_bytes());
    }

    /// Whether it was raised.
    pub fn is_raised(&self) -> bool {
        self.0.raised.load(Ordering::SeqCst)
    }

    /// Waits for the signal, at most `time`; tells whether it was raised.
    pub fn wait(&self, time: Duration) -> bool {
        let end = Instant::now() + time;
        while !self.is_raised() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let mut fds = [PollFd::new(&self.0.event, PollFlags::IN)];
            // An interrupted or failed poll is tried again until the time is over.
            let _ = poll(&mut fds, Timespec::try_from(left).ok().as_ref());
        }
        true
    }
}

impl AsFd for Stop {
    /// Readable once the signal is raised.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.event.as_fd()
    }
}
