//! One connection: requests one after the other, until it ends or becomes a WebSocket.
//!
//! One request is in flight; what a client sends ahead waits in the buffer or in the kernel. A body that
//! nobody read is not drained: the answer is written and the connection ends. Cost: the head's buffer and the
//! thread's stack.

use super::access::Peer;
use super::head::{Framing, Head, Scan, parse, percent_decode, too_large};
use super::registry::{State, Ticket};
use super::respond::{self, Fault, Manner, Reply};
use super::sock::Sock;
use super::{Shared, json, routes, ws};
use crate::budget::METERS;
use crate::chunk::DeviceNo;
use serde::de::DeserializeOwned;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Serves a connection to its end.
pub fn run(shared: &Arc<Shared>, ticket: Ticket, sock: Sock, address: IpAddr, begun: Instant) {
    let buf = vec![0; shared.config.budget.head_bytes].into_boxed_slice();
    let mut conn = Conn { shared, ticket, sock, address, buf, filled: 0 };
    let mut begun = Some(begun);
    loop {
        match conn.request(begun.take()) {
            Ok(After::Next) => {}
            Ok(After::Socket(upgrade)) => {
                let Conn { shared, ticket, sock, .. } = conn;
                return ws::run(shared, ticket, sock, upgrade);
            }
            Ok(After::End) => {
                // What is left does nothing for its owner.
                conn.ticket.set_state(State::Idle);
                return conn.sock.end();
            }
            Err(e) => return log::debug!("a connection broke off: {e}"),
        }
    }
}

struct Conn<'a> {
    shared: &'a Arc<Shared>,
    ticket: Ticket,
    sock: Sock,
    address: IpAddr,
    buf: Box<[u8]>,
    filled: usize,
}

enum After {
    Next,
    End,
    Socket(ws::Upgrade),
}

/// A request as the routes see it.
pub struct Request<'a> {
    /// its head
    pub head: &'a Head<'a>,
    /// `Host`, checked
    pub host: &'a str,
    /// the method; HEAD is served as GET
    pub method: &'a str,
    /// who asks, as guesses are counted
    pub peer: Peer,
    /// the socket's address, as connections are counted
    pub socket_peer: Peer,
    /// what comes after the head
    pub upload: Upload<'a>,
    ticket: &'a Ticket,
}

impl Request<'_> {
    /// The device that asks, or 401. From here on the connection is not displaced.
    pub fn device(&self, shared: &Shared) -> Result<DeviceNo, Fault> {
        let device = shared.access.device(self.head, &shared.store)?;
        self.ticket.set_state(State::Busy);
        Ok(device)
    }
}

impl Conn<'_> {
    fn request(&mut self, begun: Option<Instant>) -> io::Result<After> {
        let length = match self.read_head(begun)? {
            Ok(Some(length)) => length,
            Ok(None) => return Ok(After::End),
            Err(fault) => return self.refuse(fault),
        };
        if !self.ticket.set_state(State::Public) {
            return Ok(After::End);
        }
        let (head, ahead) = self.buf.split_at(length);
        let ahead = ahead.split_at(self.filled - length).0;
        let head = match parse(head) {
            Ok(head) => head,
            Err(fault) => return self.refuse(fault),
        };
        let head_only = head.method == "HEAD";
        let mut request = Request {
            head: &head,
            host: "",
            method: if head_only { "GET" } else { head.method },
            peer: self.shared.access.peer(self.address, &head),
            socket_peer: self.address.into(),
            upload: Upload {
                shared: self.shared,
                sock: &self.sock,
                ticket: &self.ticket,
                head: &head,
                ahead,
                taken: 0,
                read: false,
            },
            ticket: &self.ticket,
        };
        let answered = self.answer(&mut request);
        let unread = request.upload.is_unread();
        let taken = request.upload.taken;
        let (reply, close) = match answered {
            Ok(Answer::Reply(reply)) => (reply, false),
            Ok(Answer::Socket(upgrade)) => {
                let ahead = ahead.to_vec();
                return Ok(After::Socket(upgrade.with_ahead(ahead)));
            }
            Err(fault) => {
                log::debug!("{} {}: {} {}", head.method, head.path, fault.status, fault.message);
                let close = fault.close;
                (fault.into(), close)
            }
        };
        let keep_alive = head.keep_alive && !unread && !close;
        self.ticket.set_waiting(true);
        respond::write(&self.sock, reply, Manner { minor: head.minor, head_only, keep_alive })?;
        let used = length + taken;
        self.buf.copy_within(used..self.filled, 0);
        self.filled -= used;
        Ok(if keep_alive { After::Next } else { After::End })
    }

    fn answer<'r>(&self, request: &mut Request<'r>) -> Result<Answer, Fault> {
        request.host = self.shared.access.check(request.head)?;
        let path = percent_decode(request.head.path, false)?;
        if path == "/ws" {
            return ws::upgrade(self.shared, request).map(Answer::Socket);
        }
        if path == "/healthz" || path == "/api" || path.starts_with("/api/") || path.starts_with("/d/") {
            return routes::answer(self.shared, request).map(Answer::Reply);
        }
        let Some(reply) = self.shared.assets.get(&path, request.head, request.host)? else {
            return Err(Fault::not_found("there is nothing at this path"));
        };
        routes::only(request.method, "GET, HEAD")?;
        Ok(Answer::Reply(reply))
    }

    /// The head's length; `None` when the peer is gone or was silent between requests.
    fn read_head(&mut self, begun: Option<Instant>) -> io::Result<Result<Option<usize>, Fault>> {
        let budget = self.shared.config.budget;
        let head_time = Duration::from_millis(budget.head_ms as u64);
        let mut scan = Scan::default();
        let mut head_by = begun.map(|begun| begun + head_time);
        if self.filled > 0 {
            head_by = Some(Instant::now() + head_time);
        }
        loop {
            match scan.end(self.buf.split_at(self.filled).0) {
                Err(fault) => return Ok(Err(fault)),
                Ok(Some(length)) => return Ok(Ok(Some(length))),
                Ok(None) if self.filled == self.buf.len() => {
                    return Ok(Err(too_large(&format!(
                        "the head is larger than head_bytes ({})",
                        self.buf.len()
                    ))));
                }
                Ok(None) => {}
            }
            if !self.ticket.set_state(if head_by.is_some() { State::Head } else { State::Idle }) {
                return Ok(Ok(None));
            }
            let idle = || Instant::now() + Duration::from_millis(budget.keep_alive_ms as u64);
            let deadline = head_by.unwrap_or_else(idle);
            match self.sock.read_by(self.buf.split_at_mut(self.filled).1, deadline) {
                Ok(0) => return Ok(Ok(None)),
                Ok(n) => self.filled += n,
                Err(e) if e.kind() == ErrorKind::TimedOut && self.filled > 0 => {
                    return Ok(Err(late("head", budget.head_ms)));
                }
                Err(e) if e.kind() == ErrorKind::TimedOut => return Ok(Ok(None)),
                Err(e) => return Err(e),
            }
            if head_by.is_none() {
                head_by = Some(Instant::now() + head_time);
            }
        }
    }

    fn refuse(&self, fault: Fault) -> io::Result<After> {
        log::debug!("a head was refused: {} {}", fault.status, fault.message);
        respond::write(&self.sock, fault.into(), Manner { minor: 1, head_only: false, keep_alive: false })?;
        Ok(After::End)
    }
}

enum Answer {
    Reply(Reply),
    Socket(ws::Upgrade),
}

fn late(what: &str, ms: usize) -> Fault {
    Fault::new(408, "timeout", format!("the {what} did not arrive within {ms} ms")).closing()
}

/// A request's body, read at most once and only when it is wanted.
pub struct Upload<'a> {
    shared: &'a Shared,
    sock: &'a Sock,
    ticket: &'a Ticket,
    head: &'a Head<'a>,
    ahead: &'a [u8],
    taken: usize,
    read: bool,
}

impl Upload<'_> {
    /// The body as JSON, at most `max` bytes. Its buffer is given back before the request is served.
    pub fn json<T: DeserializeOwned>(&mut self, max: usize) -> Result<T, Fault> {
        let length = match self.head.framing {
            Framing::Length(length) => length,
            Framing::None | Framing::Coded => {
                return Err(Fault::new(411, "length_required", "this needs a JSON body with Content-Length")
                    .closing());
            }
        };
        let max = max.min(self.shared.config.budget.body_bytes);
        let Some(length) = usize::try_from(length).ok().filter(|length| *length <= max) else {
            let message = format!("the body of {length} bytes is larger than {max}");
            return Err(Fault::new(413, "too_large", message).closing());
        };
        if length == 0 {
            return Err(Fault::bad("this needs a JSON body"));
        }
        if !self.is_json() {
            return Err(
                Fault::new(415, "media_type", "the body must be Content-Type: application/json").closing()
            );
        }
        // A small body takes the place of the rows that this connection may hold when it answers; a large one
        // needs a permit, so that a few slow senders of large bodies do not keep the rest out.
        let large = length > self.shared.config.budget.row_buffer_bytes;
        let permit = if large { Some(self.permit()?) } else { None };
        let body = self.take(length)?;
        let parsed = json::parse(&body);
        drop(permit);
        parsed
    }

    /// The same, where no body means one without fields.
    pub fn json_or_empty<T: DeserializeOwned>(&mut self, max: usize) -> Result<T, Fault> {
        match self.head.framing {
            Framing::None | Framing::Length(0) => json::parse(b"{}"),
            _ => self.json(max),
        }
    }

    fn is_json(&self) -> bool {
        let value = self.head.field("content-type").unwrap_or("");
        value.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
    }

    fn permit(&self) -> Result<crate::budget::Permit, Fault> {
        METERS.bodies.take(1, self.shared.config.budget.bodies).ok_or_else(|| {
            Fault::new(503, "busy", "all buffers for large bodies are in use; try again in a second")
                .retry_after(1)
                .closing()
        })
    }

    fn take(&mut self, length: usize) -> Result<Vec<u8>, Fault> {
        let ms = self.shared.config.budget.body_ms;
        let deadline = Instant::now() + Duration::from_millis(ms as u64);
        let mut body = vec![0; length];
        self.taken = self.ahead.len().min(length);
        let (early, mut rest) = body.split_at_mut(self.taken);
        early.copy_from_slice(self.ahead.split_at(self.taken).0);
        let gone = |e: io::Error| Fault::bad(format!("the body broke off: {e}")).closing();
        if self.head.expects_continue && !rest.is_empty() {
            self.sock.write_by(b"HTTP/1.1 100 Continue\r\n\r\n", deadline).map_err(gone)?;
        }
        self.ticket.set_waiting(true);
        while !rest.is_empty() {
            match self.sock.read_by(rest, deadline) {
                Ok(0) => return Err(gone(ErrorKind::UnexpectedEof.into())),
                Ok(n) => rest = rest.split_at_mut(n).1,
                Err(e) if e.kind() == ErrorKind::TimedOut => return Err(late("body", ms)),
                Err(e) => return Err(gone(e)),
            }
        }
        self.read = true;
        if !self.ticket.set_waiting(false) {
            return Err(gone(ErrorKind::ConnectionAborted.into()));
        }
        Ok(body)
    }

    fn is_unread(&self) -> bool {
        match self.head.framing {
            Framing::None | Framing::Length(0) => false,
            Framing::Length(_) => !self.read,
            Framing::Coded => true,
        }
    }
}
