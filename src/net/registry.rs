//! All open connections: who they are from, what they do, and which of them may be displaced.
//!
//! A newcomer beyond a limit displaces the oldest connection that does nothing for its owner: idle between
//! requests, its head unfinished, without a valid `hello`, or with a request that showed no token and waits
//! for its peer or takes long.
//! So neither a page's burst of requests nor an owner under attack is turned away, and whoever shows no token
//! cannot hold a place for long.

use super::access::Peer;
use super::mailbox::Mailbox;
use crate::budget::{Budget, METERS, Permit};
use crate::chunk::DeviceNo;
use rustix::process::{Resource, getrlimit};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a request without a token is left alone.
const PUBLIC_GRACE: Duration = Duration::from_secs(2);
/// How long a plain connection is left alone while there are others to displace: a page's burst of requests
/// opens several at once, and each needs a moment to send its head or its next one.
const GRACE: Duration = Duration::from_secs(1);
/// How long a newcomer waits for the one that it displaced.
const LEAVE_TIME: Duration = Duration::from_millis(250);
/// Descriptors that connections leave to the rest of the program.
const FILES_KEPT: usize = 32;
/// Connections however few descriptors there are.
const CONNECTIONS_MIN: usize = 4;

/// What a connection does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// its request's head is not whole
    Head,
    /// between two requests
    Idle,
    /// serving a request that showed no token
    Public,
    /// the same, but it waits for the peer: for the rest of its body, or for room for the answer
    Waiting,
    /// serving a device
    Busy,
    /// a WebSocket that has not said a valid `hello`
    PreHello,
    /// a WebSocket
    Socket,
    /// told to go
    Displaced,
}

struct Entry {
    id: u64,
    peer: Peer,
    state: State,
    since: Instant,
    stream: Arc<TcpStream>,
    device: Option<DeviceNo>,
    mailbox: Option<Arc<Mailbox>>,
}

impl Entry {
    fn is_socket(&self) -> bool {
        matches!(self.state, State::PreHello | State::Socket)
    }

    fn displaceable(&self, now: Instant) -> bool {
        match self.state {
            State::Head | State::Idle | State::PreHello | State::Waiting => true,
            State::Public => now.duration_since(self.since) > PUBLIC_GRACE,
            State::Busy | State::Socket | State::Displaced => false,
        }
    }

    /// Who goes first. A browser asks again when a connection that it had used before is gone, and not when a
    /// new one is; so a new one gets a moment for its request.
    fn rank(&self, now: Instant) -> u8 {
        match self.state {
            State::Head | State::Waiting if now.duration_since(self.since) < GRACE => 1,
            State::Public => 2,
            _ => 0,
        }
    }

    fn displace(&mut self) {
        self.state = State::Displaced;
        // Its thread wakes from whatever it waits for and ends.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

#[derive(Default)]
struct Entries {
    all: Vec<Entry>,
    next: u64,
}

/// The table; see the module's text.
pub struct Registry {
    budget: &'static Budget,
    /// connections at once: the budget's, or fewer where descriptors are few
    connections: usize,
    entries: Mutex<Entries>,
    left: Condvar,
}

/// A connection's place, given back when dropped.
pub struct Ticket {
    registry: Arc<Registry>,
    id: u64,
    _permit: Permit,
}

impl Registry {
    /// An empty table under a budget's limits.
    pub fn new(budget: &'static Budget) -> Arc<Registry> {
        let connections = connections_of(budget.connections, getrlimit(Resource::Nofile).current);
        if connections < budget.connections {
            log::warn!(
                "this process may open few files, so only {connections} of {} connections are served at \
                 once: raise its limit (ulimit -n, LimitNOFILE)",
                budget.connections
            );
        }
        Arc::new(Registry { budget, connections, entries: Mutex::default(), left: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        // A panic under this lock leaves the table whole: each change is one assignment, push or removal.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a new connection, if need be another's; `None` if all are in use for someone.
    pub fn admit(self: &Arc<Self>, peer: Peer, stream: &Arc<TcpStream>) -> Option<Ticket> {
        let mut entries = self.lock();
        let plain =
            |entry: &Entry| entry.peer == peer && !entry.is_socket() && entry.state != State::Displaced;
        let now = Instant::now();
        let rested = |entry: &Entry| {
            let grace = if entry.state == State::Waiting { PUBLIC_GRACE } else { GRACE };
            plain(entry) && now.duration_since(entry.since) > grace
        };
        if entries.all.iter().filter(|entry| plain(entry)).count() >= self.budget.requests_per_address
            && let Some(at) = oldest(&entries.all, rested)
        {
            entries.all[at].displace();
        }
        let permit = match METERS.connections.take(1, self.connections) {
            Some(permit) => permit,
            None => {
                if !entries.all.iter().any(|entry| entry.state == State::Displaced) {
                    let at = victim(&entries.all)?;
                    entries.all[at].displace();
                }
                entries = self.wait_for_place(entries);
                METERS.connections.take(1, self.connections)?
            }
        };
        entries.next += 1;
        let id = entries.next;
        let stream = stream.clone();
        let since = Instant::now();
        entries.all.push(Entry { id, peer, state: State::Head, since, stream, device: None, mailbox: None });
        Some(Ticket { registry: self.clone(), id, _permit: permit })
    }

    /// Has one go that does nothing for its owner, because there is no descriptor for a newcomer; whether one
    /// went.
    pub fn make_room(&self) -> bool {
        let mut entries = self.lock();
        let Some(at) = victim(&entries.all) else { return false };
        entries.all[at].displace();
        let stays = |entries: &mut Entries| entries.all.iter().any(|entry| entry.state == State::Displaced);
        let waited = self.left.wait_timeout_while(entries, LEAVE_TIME, stays);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    fn wait_for_place<'a>(&self, entries: MutexGuard<'a, Entries>) -> MutexGuard<'a, Entries> {
        let full = |_: &mut Entries| METERS.connections.used() >= self.connections;
        let waited = self.left.wait_timeout_while(entries, LEAVE_TIME, full);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Whether a connection of this address may become a WebSocket; displaces one that has not said `hello`
    /// if need be.
    pub fn admit_socket(&self, peer: Peer) -> Option<Permit> {
        let mut entries = self.lock();
        let own = |entry: &Entry| entry.peer == peer && entry.is_socket();
        let crowded =
            entries.all.iter().filter(|entry| own(entry)).count() >= self.budget.sockets_per_address;
        if crowded {
            let at = oldest(&entries.all, |entry| own(entry))?;
            entries.all[at].displace();
        }
        if let Some(permit) = METERS.sockets.take(1, self.budget.sockets) {
            return Some(permit);
        }
        if !crowded {
            let at = oldest(&entries.all, Entry::is_socket)?;
            entries.all[at].displace();
        }
        let full = |_: &mut Entries| METERS.sockets.used() >= self.budget.sockets;
        let waited = self.left.wait_timeout_while(entries, LEAVE_TIME, full);
        drop(waited);
        METERS.sockets.take(1, self.budget.sockets)
    }

    /// Closes every WebSocket of a device at once.
    pub fn revoke(&self, device: DeviceNo) {
        for entry in self.lock().all.iter().filter(|entry| entry.device == Some(device)) {
            if let Some(mailbox) = &entry.mailbox {
                mailbox.order_close(4401);
            }
        }
    }

    /// Has every WebSocket work out its limits again.
    pub fn limits_changed(&self) {
        for mailbox in self.lock().all.iter().filter_map(|entry| entry.mailbox.as_ref()) {
            mailbox.order_limits();
        }
    }

    /// Ends every connection: WebSockets with 1001, the others when their answer is written. Waits at most
    /// `time`.
    pub fn close_all(&self, time: Duration) {
        let mut entries = self.lock();
        for entry in &mut entries.all {
            match (&entry.mailbox, entry.state) {
                (Some(mailbox), _) => mailbox.order_close(1001),
                (None, State::Busy | State::Public | State::Waiting) => {}
                (None, _) => entry.displace(),
            }
        }
        let waited = self.left.wait_timeout_while(entries, time, |entries| !entries.all.is_empty());
        let mut entries = waited.unwrap_or_else(PoisonError::into_inner).0;
        for entry in &mut entries.all {
            entry.displace();
        }
    }
}

/// How many connections `files` descriptors allow: two each, since a WebSocket's mailbox has one, beside
/// those of the store, the turns and their tools.
fn connections_of(budget: usize, files: Option<u64>) -> usize {
    let files = files.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX));
    budget.min((files.saturating_sub(FILES_KEPT) / 2).max(CONNECTIONS_MIN))
}

/// The oldest that may be displaced among those that `of` picks.
fn oldest(all: &[Entry], of: impl Fn(&Entry) -> bool) -> Option<usize> {
    let now = Instant::now();
    let candidates = all.iter().enumerate().filter(|(_, entry)| of(entry) && entry.displaceable(now));
    candidates.min_by_key(|(_, entry)| (entry.rank(now), entry.since)).map(|(at, _)| at)
}

/// The oldest that may be displaced, of the address that holds most connections among those that have one.
fn victim(all: &[Entry]) -> Option<usize> {
    let now = Instant::now();
    let held = |peer: Peer| all.iter().filter(|entry| entry.peer == peer).count();
    let most = all
        .iter()
        .filter(|entry| entry.displaceable(now))
        .map(|entry| entry.peer)
        .max_by_key(|peer| held(*peer))?;
    oldest(all, |entry| entry.peer == most)
}

impl Ticket {
    /// Notes what the connection does now; `false` if it was displaced meanwhile.
    pub fn set_state(&self, state: State) -> bool {
        self.with(|entry| {
            if entry.state == State::Displaced {
                return false;
            }
            if entry.state != state {
                entry.state = state;
                entry.since = Instant::now();
            }
            true
        })
    }

    /// A request that showed no token waits for its peer from now on, or no longer; `false` if it was
    /// displaced meanwhile.
    pub fn set_waiting(&self, waits: bool) -> bool {
        self.with(|entry| {
            entry.state = match entry.state {
                State::Public if waits => State::Waiting,
                State::Waiting if !waits => State::Public,
                state => state,
            };
            entry.state != State::Displaced
        })
    }

    /// Notes whose WebSocket this is, after a valid `hello`.
    pub fn set_socket(&self, device: DeviceNo, mailbox: Arc<Mailbox>) {
        self.with(|entry| {
            entry.device = Some(device);
            entry.mailbox = Some(mailbox);
            true
        });
        self.set_state(State::Socket);
    }

    fn with(&self, change: impl FnOnce(&mut Entry) -> bool) -> bool {
        let mut entries = self.registry.lock();
        entries.all.iter_mut().find(|entry| entry.id == self.id).is_some_and(change)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.registry.lock().all.retain(|entry| entry.id != self.id);
    }
}

/// Gives a connection's permits back before it tells those who wait for a place: declared last, dropped last.
pub struct Leave(pub Arc<Registry>);

impl Drop for Leave {
    fn drop(&mut self) {
        // Taking the lock orders this after a waiter's look at the meters.
        drop(self.0.lock());
        self.0.left.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{IpAddr, TcpListener};

    fn stream() -> Arc<TcpStream> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Arc::new(TcpStream::connect(listener.local_addr().unwrap()).unwrap())
    }

    fn entry(id: u64, peer: u8, state: State, age: u64) -> Entry {
        Entry {
            id,
            peer: IpAddr::from([127, 0, 0, peer]).into(),
            state,
            since: Instant::now() - Duration::from_secs(age),
            stream: stream(),
            device: None,
            mailbox: None,
        }
    }

    fn check(all: &[(u8, State, u64)], expected: Option<usize>) {
        let entries: Vec<Entry> = all
            .iter()
            .enumerate()
            .map(|(at, (peer, state, age))| entry(at as u64, *peer, *state, *age))
            .collect();
        assert_eq!(victim(&entries), expected, "{all:?}");
    }

    #[test]
    fn the_oldest_useless_connection_of_the_address_that_holds_most_goes() {
        use State::*;
        check(&[(1, Idle, 9), (2, Idle, 1), (2, Head, 5), (2, Busy, 50)], Some(2));
        check(&[(1, Busy, 9), (1, Socket, 99), (2, Idle, 1)], Some(2));
        check(&[(1, Busy, 9), (2, Socket, 9), (2, Displaced, 9)], None);
        check(&[(1, PreHello, 1), (1, Public, 9)], Some(0));
        check(&[(1, Public, 9), (1, Public, 1)], Some(0));
        check(&[(1, Public, 1)], None);
        check(&[(1, Head, 0), (1, Idle, 0)], Some(1));
        check(&[(1, Public, 1), (1, Waiting, 0)], Some(1));
        check(&[(1, Waiting, 0), (1, Waiting, 2), (1, Idle, 1)], Some(1));
        check(&[(1, Waiting, 0), (1, Idle, 0)], Some(1));
    }

    #[test]
    fn few_descriptors_mean_few_connections_and_never_none() {
        for (files, expected) in [(None, 24), (Some(1024), 24), (Some(64), 16), (Some(40), 4), (Some(0), 4)] {
            assert_eq!(connections_of(24, files), expected, "{files:?}");
        }
    }

    #[test]
    fn a_displaced_connection_is_shut_down() {
        let mut entry = entry(1, 1, State::Idle, 1);
        entry.displace();
        assert!(
            entry.stream.peer_addr().is_err()
                || std::io::Read::read(&mut &*entry.stream, &mut [0]).unwrap_or(0) == 0
        );
        assert!(!entry.displaceable(Instant::now()));
    }
}
