//! The accept loop: one thread that no error ends.
//!
//! Out of descriptors or memory it displaces a connection that does nothing for its owner; where there is
//! none it answers 503 with a spare descriptor, rests and goes on. What one connection does, a panic
//! included, ends that connection only.

use super::access::Peer;
use super::registry::{Leave, Ticket};
use super::sock::{Sock, wait};
use super::{Shared, conn};
use crate::agent::stop::Stop;
use crate::budget::{ACCEPT_STACK_BYTES, METERS};
use rustix::event::{PollFd, PollFlags};
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// What the kernel may hold of what a peer has not taken: small, so that a window moves when a client takes
/// its rows.
const SEND_BUFFER: usize = 64 * 1024;
/// Connections that may wait to be accepted. With the usual 128 a flood has the kernel drop the owner's first
/// packet, which costs the owner a second.
const BACKLOG: i32 = 1024;
/// How long to rest when there is no descriptor or memory.
const REST: Duration = Duration::from_millis(75);

const BUSY: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n\
Content-Length: 87\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n\
{\"error\":{\"code\":\"busy\",\"message\":\"all connections are in use; try again in a second\"}}";

/// A running server.
pub struct Server {
    shared: Arc<Shared>,
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

/// Begins to serve. Fails when there is no descriptor or thread left for the accept loop.
pub fn serve(listeners: Vec<TcpListener>, shared: Arc<Shared>) -> io::Result<Server> {
    crate::sys::tune_allocator();
    for listener in &listeners {
        listener.set_nonblocking(true)?;
        // A listener that listens already only has its backlog changed.
        rustix::net::listen(listener, BACKLOG)?;
    }
    let stop = Arc::new(Stop::new()?);
    let acceptor = Acceptor { listeners, shared: shared.clone(), stop: stop.clone(), spare: spare() };
    let stack = if cfg!(debug_assertions) { 4 * ACCEPT_STACK_BYTES } else { ACCEPT_STACK_BYTES };
    let thread = Builder::new().name("accept".into()).stack_size(stack).spawn(move || acceptor.run())?;
    Ok(Server { shared, stop, thread: Some(thread) })
}

impl Server {
    /// Accepts no more, closes WebSockets with 1001, lets answers end; within 2 s.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        self.stop.raise();
        if thread.join().is_err() {
            log::error!("the accept thread had ended by a panic");
        }
        self.shared.registry.close_all(Duration::from_millis(1500));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

struct Acceptor {
    listeners: Vec<TcpListener>,
    shared: Arc<Shared>,
    stop: Arc<Stop>,
    spare: Option<File>,
}

impl Acceptor {
    fn run(mut self) {
        while !self.stop.is_raised() {
            let ready: Vec<usize> = {
                let mut fds: Vec<PollFd<'_>> =
                    self.listeners.iter().map(|listener| PollFd::new(listener, PollFlags::IN)).collect();
                fds.push(PollFd::new(&*self.stop, PollFlags::IN));
                if let Err(e) = wait(&mut fds, None) {
                    log::warn!("waiting for connections failed: {e}");
                    std::thread::sleep(REST);
                }
                let ready = fds.iter().enumerate().filter(|(_, fd)| !fd.revents().is_empty());
                ready.map(|(at, _)| at).filter(|at| *at < self.listeners.len()).collect()
            };
            for at in ready {
                self.accept(at);
            }
        }
    }

    fn accept(&mut self, at: usize) {
        match self.listeners[at].accept() {
            Ok((stream, address)) => self.welcome(stream, address.ip()),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(e) if e.kind() == ErrorKind::ConnectionAborted => {}
            Err(e) => self.rest(at, &e),
        }
    }

    /// Out of descriptors or memory, or another fault that will not go away at once.
    fn rest(&mut self, at: usize, e: &io::Error) {
        log::warn!("a connection could not be accepted: {e}");
        if self.shared.registry.make_room() {
            return;
        }
        self.spare = None;
        if let Ok((stream, _)) = self.listeners[at].accept() {
            refuse(&stream);
        }
        self.spare = spare();
        std::thread::sleep(REST);
    }

    fn welcome(&self, stream: TcpStream, address: IpAddr) {
        let stream = Arc::new(stream);
        let peer = Peer::from(address);
        let Some(ticket) = self.shared.registry.admit(peer, &stream) else {
            log::debug!("a connection was refused: all {} are in use", self.shared.config.budget.connections);
            return refuse(&stream);
        };
        let shared = self.shared.clone();
        let kept = stream.clone();
        let budget = shared.config.budget;
        let stack = budget.connection_stack_bytes * if cfg!(debug_assertions) { 4 } else { 1 };
        let thread = Builder::new().name("connection".into()).stack_size(stack);
        let spawned = thread.spawn(move || {
            let leave = Leave(shared.registry.clone());
            guard(&shared, ticket, stream, address);
            drop(leave);
        });
        if let Err(e) = spawned {
            log::warn!("no thread for a connection: {e}");
            refuse(&kept);
        }
    }
}

/// Runs a connection; a panic in it is counted and logged, and ends it alone.
fn guard(shared: &Arc<Shared>, ticket: Ticket, stream: Arc<TcpStream>, address: IpAddr) {
    let stall = Duration::from_millis(shared.config.budget.write_stall_ms as u64);
    let begun = Instant::now();
    let run = || -> io::Result<()> {
        // Without it, every small frame may wait for a delayed acknowledgement.
        stream.set_nodelay(true)?;
        rustix::net::sockopt::set_socket_send_buffer_size(&*stream, SEND_BUFFER)?;
        let sock = Sock::new(stream.clone(), stall)?;
        conn::run(shared, ticket, sock, address, begun);
        Ok(())
    };
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) => {}
        Ok(Err(e)) => log::debug!("a connection could not be set up: {e}"),
        Err(_) => {
            METERS.panics.count();
            log::error!("a connection ended by a panic; the others go on");
        }
    }
}

fn refuse(stream: &TcpStream) {
    // What the peer has sent is taken first: closing with unread input would reset the answer away.
    if stream.set_nonblocking(true).is_ok() {
        let _ = io::Read::read(&mut &*stream, &mut [0; 4096]);
        let _ = (&*stream).write_all(BUSY);
    }
    let _ = stream.shutdown(Shutdown::Write);
}

fn spare() -> Option<File> {
    File::open("/dev/null").ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refusal_has_its_length() {
        let text = std::str::from_utf8(BUSY).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{}", body.len());
        assert!(serde_json::from_str::<serde_json::Value>(body).is_ok());
    }
}
