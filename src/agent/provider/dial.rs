//! Connections to a provider that end within a second of a stop, in whatever state they are.
//!
//! ureq does HTTP and TLS; underneath stand a resolver, a connector and a transport of our own, none of which
//! ever blocks but in one `poll` on the socket *and* the stop signal, up to the deadline that [`Patience`]
//! holds. ureq's own timeouts are not used: one number could not tell a long prefill from a dead line. ureq's
//! interface for this is outside semver, hence the pinned version. Costs one descriptor and, per connection,
//! 24 KiB of buffers (48 with TLS).

use crate::agent::stop::Stop;
use crate::budget::{LOOKUP_STACK_BYTES, LOOKUPS_MAX, PROVIDER_IN_BYTES, PROVIDER_OUT_BYTES};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with, sockopt};
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use ureq::Error;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{
    Buffers, ConnectProxyConnector, ConnectionDetails, Connector, LazyBuffers, NextTimeout, RustlsConnector,
    Transport,
};

static LOOKUPS: AtomicUsize = AtomicUsize::new(0);

/// The times that a request may take.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// lookup, connection and TLS handshake together
    pub connect: Duration,
    /// a peer that takes nothing of what is written to it
    pub send: Duration,
    /// from the end of the request to the first event, and the longest that keep-alives alone are endured
    pub first_event: Duration,
    /// silence between events
    pub idle: Duration,
    /// the end of every wait, whatever else is allowed
    pub until: Option<Instant>,
}

/// Why a wait was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Halt {
    /// the stop signal was raised
    Stopped,
    /// no connection in time
    Connect,
    /// connected, and then no answer in time of the TLS handshake or of the proxy
    Handshake,
    /// the peer took nothing in time
    Send,
    /// no first event in time
    FirstEvent,
    /// silence between events, or nothing but keep-alives
    Idle,
    /// the lookup could not be started
    Lookups,
    /// no answer from the resolver in time
    Lookup,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Connecting,
    Waiting,
    Streaming { last_event: Instant },
}

#[derive(Debug)]
struct State {
    phase: Phase,
    deadline: Instant,
    halt: Option<Halt>,
}

/// How long to wait, shared between the transport that waits and the reader that knows what an event is.
#[derive(Debug)]
pub struct Patience {
    times: Times,
    stop: Stop,
    state: Mutex<State>,
}

impl Patience {
    /// Starts with the time to connect.
    pub fn new(stop: &Stop, times: Times) -> Arc<Patience> {
        let state = State { phase: Phase::Connecting, deadline: Instant::now() + times.connect, halt: None };
        Arc::new(Patience { times, stop: stop.clone(), state: Mutex::new(state) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the last wait was given up, if it was.
    pub fn halt(&self) -> Option<Halt> {
        self.lock().halt
    }

    /// The connection stands, TLS included; or more of the request was sent.
    fn sent(&self) {
        let mut state = self.lock();
        if !matches!(state.phase, Phase::Streaming { .. }) {
            state.phase = Phase::Waiting;
            state.deadline = Instant::now() + self.times.first_event;
        }
    }

    /// An event came.
    pub fn event(&self) {
        let now = Instant::now();
        let mut state = self.lock();
        state.phase = Phase::Streaming { last_event: now };
        state.deadline = now + self.times.idle;
    }

    /// Something came that is no event: a comment, or a part of a line.
    pub fn sign_of_life(&self) {
        let mut state = self.lock();
        if let Phase::Streaming { last_event } = state.phase {
            let endured = last_event + self.times.first_event.max(self.times.idle);
            state.deadline = (Instant::now() + self.times.idle).min(endured);
        }
    }

    fn give_up(&self, halt: Halt) -> Error {
        // The first cause counts: what follows it follows from it.
        self.lock().halt.get_or_insert(halt);
        Error::Io(io::Error::new(io::ErrorKind::TimedOut, "given up"))
    }

    /// Waits until `what` is ready, the stop is raised or the time is over.
    fn wait(&self, what: BorrowedFd<'_>, flags: PollFlags, until: Instant, late: Halt) -> Result<(), Error> {
        let until = self.times.until.map_or(until, |end| end.min(until));
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let mut fds = [PollFd::new(&self.stop, PollFlags::IN), PollFd::from_borrowed_fd(what, flags)];
            match poll(&mut fds, Timespec::try_from(left).ok().as_ref()) {
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(Error::Io(error.into())),
                Ok(_) => {}
            }
            let [stop, ready] = fds;
            if !stop.revents().is_empty() {
                return Err(self.give_up(Halt::Stopped));
            }
            if !ready.revents().is_empty() {
                return Ok(());
            }
            if left.is_zero() {
                return Err(self.give_up(late));
            }
        }
    }

    /// Until when something has to come, and what it means if nothing does.
    fn limit(&self) -> (Instant, Halt) {
        let state = self.lock();
        let late = match state.phase {
            Phase::Connecting => Halt::Handshake,
            Phase::Waiting => Halt::FirstEvent,
            Phase::Streaming { .. } => Halt::Idle,
        };
        (state.deadline, late)
    }

    /// A peer that sends without a pause is never waited for, and yet has to end: with a stop, and when what
    /// it sends (a head without end, say) is not what is due.
    fn check(&self) -> Result<(), Error> {
        if self.stop.is_raised() {
            return Err(self.give_up(Halt::Stopped));
        }
        let (deadline, late) = self.limit();
        if Instant::now() >= deadline { Err(self.give_up(late)) } else { Ok(()) }
    }

    fn wait_to_read(&self, socket: BorrowedFd<'_>) -> Result<(), Error> {
        let (deadline, late) = self.limit();
        self.wait(socket, PollFlags::IN, deadline, late)
    }

    fn wait_to_write(&self, socket: BorrowedFd<'_>) -> Result<(), Error> {
        self.wait(socket, PollFlags::OUT, Instant::now() + self.times.send, Halt::Send)
    }

    fn connect_deadline(&self) -> Instant {
        self.lock().deadline
    }
}

/// An agent for one request. Its connector is: CONNECT proxy if configured, else our own TCP; then TLS if the
/// URL wants it; then a mark that the connection stands.
pub fn agent(config: Config, patience: &Arc<Patience>) -> ureq::Agent {
    let proxied = config.proxy().is_some();
    let connector =
        ().chain(ConnectProxyConnector::default())
            .chain(Dialler(patience.clone()))
            .chain(RustlsConnector::default())
            .chain(Standing { patience: patience.clone(), proxied });
    ureq::Agent::with_parts(config, connector, Lookup(patience.clone()))
}

/// Names to addresses; see [`lookup`].
struct Lookup(Arc<Patience>);

impl fmt::Debug for Lookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lookup")
    }
}

impl Resolver for Lookup {
    fn resolve(&self, uri: &Uri, _: &Config, _: NextTimeout) -> Result<ResolvedSocketAddrs, Error> {
        let host = uri.host().ok_or(Error::HostNotFound)?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let port = uri.port_u16().unwrap_or(if uri.scheme_str() == Some("https") { 443 } else { 80 });
        let mut found = self.empty();
        match host.parse::<IpAddr>() {
            Ok(ip) => found.push(SocketAddr::new(ip, port)),
            Err(_) => lookup(&self.0, host, port)?.into_iter().for_each(|address| found.push(address)),
        }
        if found.is_empty() { Err(Error::HostNotFound) } else { Ok(found) }
    }
}

/// Most addresses of one name that are tried.
const ADDRESSES_MAX: usize = 8;

type Found = Mutex<Option<io::Result<Vec<SocketAddr>>>>;

/// Asks the system's resolver, which cannot be interrupted, in a thread that is left behind when the wait is
/// over.
fn lookup(patience: &Patience, host: &str, port: u16) -> Result<Vec<SocketAddr>, Error> {
    struct Alive;
    impl Drop for Alive {
        fn drop(&mut self) {
            LOOKUPS.fetch_sub(1, SeqCst);
        }
    }
    if LOOKUPS.fetch_add(1, SeqCst) >= LOOKUPS_MAX {
        LOOKUPS.fetch_sub(1, SeqCst);
        return Err(patience.give_up(Halt::Lookups));
    }
    let alive = Alive;
    let event =
        Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(io::Error::from)?);
    let found: Arc<Found> = Arc::new(Mutex::new(None));
    let (told, put, host) = (event.clone(), found.clone(), host.to_owned());
    let work = move || {
        let _alive = alive;
        let result = (host.as_str(), port).to_socket_addrs().map(|all| all.take(ADDRESSES_MAX).collect());
        *put.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        // The counter cannot overflow: it is written once.
        let _ = rustix::io::write(&*told, &1u64.to_ne_bytes());
    };
    let builder = std::thread::Builder::new().name("lookup".to_owned()).stack_size(LOOKUP_STACK_BYTES);
    builder.spawn(work)?;
    patience.wait(event.as_fd(), PollFlags::IN, patience.connect_deadline(), Halt::Lookup)?;
    let result = found.lock().unwrap_or_else(PoisonError::into_inner).take();
    match result {
        Some(Ok(addresses)) => Ok(addresses),
        // getaddrinfo's own errors have no kind of their own
        Some(Err(error)) => {
            log::debug!("name lookup: {error}");
            Err(Error::HostNotFound)
        }
        None => Err(Error::HostNotFound),
    }
}

/// Opens TCP connections.
struct Dialler(Arc<Patience>);

impl fmt::Debug for Dialler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Dialler")
    }
}

impl<In: Transport> Connector<In> for Dialler {
    type Out = Box<dyn Transport>;

    fn connect(&self, details: &ConnectionDetails, chained: Option<In>) -> Result<Option<Self::Out>, Error> {
        if let Some(transport) = chained {
            return Ok(Some(Box::new(transport)));
        }
        let stream = dial(&self.0, &details.addrs)?;
        Ok(Some(Box::new(Line {
            stream,
            buffers: LazyBuffers::new(PROVIDER_IN_BYTES, PROVIDER_OUT_BYTES),
            patience: self.0.clone(),
            unsendable: false,
        })))
    }
}

/// Tries one address after the other, each with its share of the time that is left.
fn dial(patience: &Patience, addresses: &[SocketAddr]) -> Result<TcpStream, Error> {
    let mut last = Error::HostNotFound;
    for (at, address) in addresses.iter().enumerate() {
        let now = Instant::now();
        let left = patience.connect_deadline().saturating_duration_since(now);
        let tries_left = u32::try_from(addresses.len() - at).unwrap_or(u32::MAX);
        match dial_one(patience, *address, now + left / tries_left) {
            Ok(stream) => {
                // An address before this one may have been given up; the dial was not.
                patience.lock().halt = None;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
        if patience.halt() == Some(Halt::Stopped) {
            break;
        }
    }
    Err(last)
}

fn dial_one(patience: &Patience, address: SocketAddr, until: Instant) -> Result<TcpStream, Error> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket =
        socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP)).map_err(io::Error::from)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) => {}
        Err(rustix::io::Errno::INPROGRESS | rustix::io::Errno::INTR) => {
            patience.wait(socket.as_fd(), PollFlags::OUT, until, Halt::Connect)?;
            sockopt::socket_error(&socket).map_err(io::Error::from)?.map_err(io::Error::from)?;
        }
        Err(error) => return Err(Error::Io(error.into())),
    }
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Says that the connection stands; the times for the answer begin.
struct Standing {
    patience: Arc<Patience>,
    proxied: bool,
}

impl fmt::Debug for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Standing")
    }
}

impl<In: Transport> Connector<In> for Standing {
    type Out = In;

    fn connect(&self, details: &ConnectionDetails, chained: Option<In>) -> Result<Option<In>, Error> {
        // With a proxy the chain runs twice: first for the proxy itself, then without a proxy in its config.
        if !self.proxied || details.config.proxy().is_some() {
            self.patience.sent();
        }
        Ok(chained)
    }
}

/// A TCP connection.
struct Line {
    stream: TcpStream,
    buffers: LazyBuffers,
    patience: Arc<Patience>,
    /// the peer takes nothing more; its answer may lie in the socket already
    unsendable: bool,
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line").field("peer", &self.stream.peer_addr().ok()).finish()
    }
}

impl Transport for Line {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    /// A peer that refuses a request often answers and closes before it has read the body. That answer is
    /// worth more than "broken pipe", so a failed write is not an error here: what is read next tells.
    fn transmit_output(&mut self, amount: usize, _: NextTimeout) -> Result<(), Error> {
        self.patience.check()?;
        let mut left = self.buffers.output().split_at(amount).0;
        while !left.is_empty() && !self.unsendable {
            match (&self.stream).write(left) {
                Ok(wrote) => left = left.split_at(wrote).1,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.patience.wait_to_write(self.stream.as_fd())?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    log::debug!("the provider takes no more of the request: {error}");
                    self.unsendable = true;
                }
            }
        }
        let connecting = self.patience.lock().phase == Phase::Connecting;
        if !connecting {
            self.patience.sent();
        }
        Ok(())
    }

    fn await_input(&mut self, _: NextTimeout) -> Result<bool, Error> {
        self.patience.check()?;
        let input = self.buffers.input_append_buf();
        if input.is_empty() {
            return Err(Error::LargeResponseHeader(PROVIDER_IN_BYTES, PROVIDER_IN_BYTES));
        }
        loop {
            match (&self.stream).read(input) {
                Ok(amount) => {
                    self.buffers.input_appended(amount);
                    return Ok(amount > 0);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.patience.wait_to_read(self.stream.as_fd())?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::Io(error)),
            }
        }
    }

    fn is_open(&mut self) -> bool {
        // Connections are never used again.
        false
    }
}
