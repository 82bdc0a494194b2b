//! A connection's socket: never blocking, every wait with an end.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes per second that a peer has to take at least, beyond the time that it may stall.
const SLOWEST_PEER: u64 = 2048;

/// What a peer may go on sending after its answer: a body that was refused, and its client is the owner's
/// browser.
const END_BYTES: usize = 512 * 1024;
/// How long it may do so.
const END_TIME: Duration = Duration::from_secs(1);

/// A non-blocking socket, shared with the registry that may shut it down.
#[derive(Clone, Debug)]
pub struct Sock {
    stream: Arc<TcpStream>,
    stall: Duration,
}

impl Sock {
    /// Takes a stream over; `stall` is how long the peer may take nothing of what is written.
    pub fn new(stream: Arc<TcpStream>, stall: Duration) -> io::Result<Sock> {
        stream.set_nonblocking(true)?;
        Ok(Sock { stream, stall })
    }

    /// The stream itself.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// How long the peer may take nothing.
    pub fn stall(&self) -> Duration {
        self.stall
    }

    /// Reads what there is, waiting until `deadline`; 0 at the end. `TimedOut` when nothing came.
    pub fn read_by(&self, buf: &mut [u8], deadline: Instant) -> io::Result<usize> {
        loop {
            match (&*self.stream).read(buf) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.wait(PollFlags::IN, deadline)?,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                done => return done,
            }
        }
    }

    /// Writes all of `data`. `TimedOut` when the peer takes nothing for too long, or `by` is over.
    pub fn write_by(&self, mut data: &[u8], by: Instant) -> io::Result<()> {
        let mut stalled = Instant::now() + self.stall;
        while !data.is_empty() {
            match (&*self.stream).write(data) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => {
                    data = data.split_at(n).1;
                    stalled = Instant::now() + self.stall;
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.wait(PollFlags::OUT, by.min(stalled))?,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// The time by which an answer of `bytes` has to be taken.
    pub fn answer_by(&self, begun: Instant, bytes: u64) -> Instant {
        begun + self.stall + Duration::from_secs(bytes / SLOWEST_PEER)
    }

    /// Ends the answer so that the peer can still read it: no more is written, and what the peer is still
    /// sending is thrown away, up to a whole body and for a little while. Closing with unread input would
    /// reset the connection.
    pub fn end(&self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
        let deadline = Instant::now() + END_TIME;
        let mut scrap = [0; 4096];
        for _ in 0..END_BYTES / scrap.len() {
            match self.read_by(&mut scrap, deadline) {
                Ok(n) if n > 0 => {}
                _ => break,
            }
        }
    }

    fn wait(&self, flags: PollFlags, deadline: Instant) -> io::Result<()> {
        wait(&mut [PollFd::new(&*self.stream, flags)], Some(deadline))
    }
}

/// Waits for one of `fds`. `TimedOut` at the deadline.
pub fn wait(fds: &mut [PollFd<'_>], deadline: Option<Instant>) -> io::Result<()> {
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let left =
            left.map(|left| Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ });
        match poll(fds, left.as_ref()) {
            Ok(0) => return Err(ErrorKind::TimedOut.into()),
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

impl Read for Sock {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        (&*self.stream).read(buf)
    }
}

impl Write for Sock {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        (&*self.stream).write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Sock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
