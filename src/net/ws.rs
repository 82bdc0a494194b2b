//! WebSockets (RFC 6455): the upgrade, one socket's frames, and the waits of its thread.
//!
//! tungstenite does the framing over the non-blocking socket. One thread serves a socket: it waits for
//! "readable" or "mailbox signaled", and while it writes it waits for nothing but room, with an end. A frame
//! out that is larger than a frame in may be goes out in fragments as it is made, so no page is ever held.
//! Cost: tungstenite's two buffers and one fragment, each `frame_bytes`.

use super::Shared;
use super::conn::Request;
use super::mailbox::Mailbox;
use super::registry::{State, Ticket};
use super::respond::Fault;
use super::session;
use super::sock::{Sock, wait};
use crate::budget::Permit;
use rustix::event::{PollFd, PollFlags};
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tungstenite::error::CapacityError;
use tungstenite::protocol::frame::coding::{CloseCode, Data, OpCode};
use tungstenite::protocol::frame::{CloseFrame, Frame};
use tungstenite::protocol::{Role, WebSocketConfig};
use tungstenite::{Bytes, Error, Message, Utf8Bytes, WebSocket};

/// How often the peer is asked for a sign of life.
const PING: Duration = Duration::from_secs(20);
/// How long a peer may be silent.
const SILENCE: Duration = Duration::from_secs(45);
/// How often a writer that waits for room looks whether it was told to close.
const LOOK: Duration = Duration::from_millis(250);
/// How long the peer has to answer a close.
const GOODBYE: Duration = Duration::from_millis(500);

/// A request that becomes a WebSocket.
pub struct Upgrade {
    permit: Permit,
    accept: String,
    ahead: Vec<u8>,
}

impl Upgrade {
    /// With what the client sent ahead.
    pub fn with_ahead(self, ahead: Vec<u8>) -> Upgrade {
        Upgrade { ahead, ..self }
    }
}

/// Checks an upgrade; `Host` and `Origin` were checked before.
pub fn upgrade(shared: &Shared, request: &Request<'_>) -> Result<Upgrade, Fault> {
    let head = request.head;
    super::routes::only(request.method, "GET")?;
    let asks =
        head.minor == 1 && head.has_word("upgrade", "websocket") && head.has_word("connection", "upgrade");
    if !asks || head.method != "GET" {
        return Err(Fault::new(426, "upgrade", "this path speaks WebSocket").closing());
    }
    if head.field("sec-websocket-version").map(str::trim) != Some("13") {
        return Err(Fault::new(426, "upgrade", "only version 13 of WebSocket is spoken").closing());
    }
    let key = head.field("sec-websocket-key").map(str::trim).filter(|key| is_key(key));
    let key = key.ok_or_else(|| Fault::bad("sec-websocket-key is missing or wrong").closing())?;
    if head.all("sec-websocket-key").count() != 1 {
        return Err(Fault::bad("sec-websocket-key stands in the head twice").closing());
    }
    let permit = shared.registry.admit_socket(request.socket_peer).ok_or_else(|| {
        let most = shared.config.budget.sockets;
        Fault::new(503, "busy", format!("all {most} WebSockets are in use; close another page"))
            .retry_after(5)
            .closing()
    })?;
    let accept = tungstenite::handshake::derive_accept_key(key.as_bytes());
    Ok(Upgrade { permit, accept, ahead: Vec::new() })
}

/// 16 bytes in base64.
fn is_key(key: &str) -> bool {
    let letters = key.strip_suffix("==").unwrap_or("");
    letters.len() == 22 && letters.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'+' || b == b'/')
}

/// Serves a WebSocket to its end.
pub fn run(shared: &Arc<Shared>, ticket: Ticket, sock: Sock, upgrade: Upgrade) {
    if !ticket.set_state(State::PreHello) {
        return;
    }
    let head = format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {}\r\n\r\n",
        upgrade.accept
    );
    let by = Instant::now() + sock.stall();
    let mailbox = Mailbox::new(shared.config.budget.mailbox_bytes);
    let mailbox = match sock.write_by(head.as_bytes(), by).and(mailbox) {
        Ok(mailbox) => Arc::new(mailbox),
        Err(e) => return log::debug!("a WebSocket could not begin: {e}"),
    };
    let mut wire = Wire::new(sock, upgrade.ahead, mailbox, shared.config.budget.frame_bytes);
    let end = session::run(shared, &ticket, &mut wire);
    log::debug!("a WebSocket ended: {end:?}");
    if let Gone::Close(code, reason) = end {
        wire.close(code, reason);
    }
    drop(upgrade.permit);
}

/// Why a socket ends.
#[derive(Debug)]
pub enum Gone {
    /// the peer went, or cannot be reached
    Peer(String),
    /// it is closed from here, with this code and reason
    Close(u16, &'static str),
}

impl From<Error> for Gone {
    fn from(e: Error) -> Gone {
        match e {
            Error::Capacity(CapacityError::MessageTooLong { .. }) => Gone::Close(1009, "frame too large"),
            Error::Protocol(tungstenite::error::ProtocolError::ResetWithoutClosingHandshake) => {
                Gone::Peer("reset".into())
            }
            Error::Protocol(_) => Gone::Close(1002, "protocol error"),
            Error::Utf8(_) => Gone::Close(1007, "not UTF-8"),
            e => Gone::Peer(e.to_string()),
        }
    }
}

/// One socket's frames.
pub struct Wire {
    ws: WebSocket<Sock>,
    sock: Sock,
    /// small notes for this client
    pub mailbox: Arc<Mailbox>,
    heard: Instant,
    pinged: Instant,
    piece: usize,
    out: Vec<u8>,
}

impl Wire {
    fn new(sock: Sock, ahead: Vec<u8>, mailbox: Arc<Mailbox>, piece: usize) -> Wire {
        let config = WebSocketConfig::default()
            .read_buffer_size(piece)
            .write_buffer_size(0)
            .max_write_buffer_size(4 * piece)
            .max_message_size(Some(piece))
            .max_frame_size(Some(piece))
            .accept_unmasked_frames(false);
        let ws = WebSocket::from_partially_read(sock.clone(), ahead, Role::Server, Some(config));
        let now = Instant::now();
        Wire { ws, sock, mailbox, heard: now, pinged: now, piece, out: Vec::with_capacity(piece) }
    }

    /// The next frame of the client, if one is here.
    pub fn read(&mut self) -> Result<Option<Utf8Bytes>, Gone> {
        loop {
            match self.ws.read() {
                Ok(message) => {
                    self.heard = Instant::now();
                    match message {
                        Message::Text(text) => return Ok(Some(text)),
                        Message::Binary(_) => return Err(Gone::Close(1008, "text frames only")),
                        Message::Close(_) => {
                            // Flushing sends the answer, which tungstenite has made.
                            let _ = self.ws.flush();
                            return Err(Gone::Peer("closed by the client".into()));
                        }
                        _ => {}
                    }
                }
                Err(Error::Io(e)) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(Error::Io(e)) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// A whole frame.
    pub fn send(&mut self, text: &str) -> Result<(), Gone> {
        let mut frame = self.frame();
        frame.push(text)?;
        frame.end()
    }

    /// A frame that is made piece by piece. One that is not ended leaves the socket unusable: close it.
    pub fn frame(&mut self) -> FrameOut<'_> {
        self.out.clear();
        FrameOut { wire: self, first: true }
    }

    /// Takes the mailbox's signal back, and then looks for an order to close: in the other order the signal
    /// of an order that came between the two would be lost, and the socket stay open until its next ping.
    pub fn quiet(&mut self) -> Result<(), Gone> {
        self.mailbox.quiet();
        self.check()
    }

    /// Ends with an error if that was ordered.
    fn check(&self) -> Result<(), Gone> {
        match self.mailbox.close_ordered() {
            Some(1001) => Err(Gone::Close(1001, "server going down")),
            Some(4401) => Err(Gone::Close(4401, "token revoked")),
            Some(code) => Err(Gone::Close(code, "")),
            None => Ok(()),
        }
    }

    /// Waits for the client or the mailbox, at most until `by`. Asks for signs of life meanwhile.
    pub fn wait(&mut self, by: Option<Instant>) -> Result<(), Gone> {
        let now = Instant::now();
        if now.duration_since(self.heard) >= SILENCE {
            return Err(Gone::Peer("silent for 45 s".into()));
        }
        if now.duration_since(self.pinged.max(self.heard)) >= PING {
            self.pinged = now;
            self.write(Message::Ping(Bytes::new()))?;
        }
        let alive = (self.heard + SILENCE).min(self.pinged.max(self.heard) + PING);
        let by = by.map_or(alive, |by| by.min(alive));
        let mut fds = [PollFd::new(&self.sock, PollFlags::IN), PollFd::new(&*self.mailbox, PollFlags::IN)];
        match wait(&mut fds, Some(by)) {
            Err(e) if e.kind() != ErrorKind::TimedOut => Err(Gone::Peer(e.to_string())),
            _ => Ok(()),
        }
    }

    fn write(&mut self, message: Message) -> Result<(), Gone> {
        match self.ws.write(message) {
            // The frame lies in tungstenite's buffer; flushing goes on with it.
            Err(Error::Io(e)) if e.kind() == ErrorKind::WouldBlock => {}
            done => done?,
        }
        let by = Instant::now() + self.sock.stall();
        loop {
            match self.ws.flush() {
                Err(Error::Io(e)) if e.kind() == ErrorKind::WouldBlock => self.wait_for_room(by)?,
                Err(Error::Io(e)) if e.kind() == ErrorKind::Interrupted => {}
                done => return Ok(done?),
            }
        }
    }

    fn wait_for_room(&self, by: Instant) -> Result<(), Gone> {
        self.check()?;
        let now = Instant::now();
        if now >= by {
            return Err(Gone::Peer("it takes nothing".into()));
        }
        match wait(&mut [PollFd::new(&self.sock, PollFlags::OUT)], Some(by.min(now + LOOK))) {
            Err(e) if e.kind() != ErrorKind::TimedOut => Err(Gone::Peer(e.to_string())),
            _ => Ok(()),
        }
    }

    /// Says goodbye and waits a moment for the answer, so that the reason arrives.
    fn close(&mut self, code: u16, reason: &'static str) {
        let frame = CloseFrame { code: CloseCode::from(code), reason: Utf8Bytes::from_static(reason) };
        let by = Instant::now() + GOODBYE;
        let mut done = self.ws.close(Some(frame));
        while let Err(Error::Io(e)) = &done
            && e.kind() == ErrorKind::WouldBlock
            && wait(&mut [PollFd::new(&self.sock, PollFlags::OUT)], Some(by)).is_ok()
        {
            done = self.ws.flush();
        }
        let _ = self.sock.stream().shutdown(std::net::Shutdown::Write);
        let mut scrap = [0; 1024];
        for _ in 0..64 {
            match self.sock.read_by(&mut scrap, by) {
                Ok(n) if n > 0 => {}
                _ => break,
            }
        }
    }
}

/// A frame on its way out; see [`Wire::frame`].
pub struct FrameOut<'a> {
    wire: &'a mut Wire,
    first: bool,
}

impl FrameOut<'_> {
    /// More of it.
    pub fn push(&mut self, text: &str) -> Result<(), Gone> {
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            if self.wire.out.len() == self.wire.piece {
                self.fragment(false)?;
            }
            let (now, later) = rest.split_at(rest.len().min(self.wire.piece - self.wire.out.len()));
            self.wire.out.extend_from_slice(now);
            rest = later;
        }
        Ok(())
    }

    /// The end of it.
    pub fn end(mut self) -> Result<(), Gone> {
        self.fragment(true)
    }

    fn fragment(&mut self, last: bool) -> Result<(), Gone> {
        let kind = if std::mem::replace(&mut self.first, false) { Data::Text } else { Data::Continue };
        let payload = Bytes::copy_from_slice(&self.wire.out);
        self.wire.out.clear();
        self.wire.write(Message::Frame(Frame::message(payload, OpCode::Data(kind), last)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    fn pair() -> (Wire, WebSocket<TcpStream>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        let sock = Sock::new(Arc::new(server), Duration::from_millis(300)).unwrap();
        let mailbox = Arc::new(Mailbox::new(1024).unwrap());
        let wire = Wire::new(sock, Vec::new(), mailbox, 4096);
        (wire, WebSocket::from_raw_socket(client, Role::Client, None))
    }

    fn read(wire: &mut Wire) -> Result<Option<Utf8Bytes>, Gone> {
        wire.wait(Some(Instant::now() + Duration::from_secs(5)))?;
        wire.read()
    }

    #[test]
    fn a_frame_of_any_size_arrives_whole() {
        let (mut wire, mut client) = pair();
        for size in [0, 1, 4095, 4096, 4097, 8192, 8193, 20_001] {
            let text: String = "a\u{e9}\u{1f44d}z".chars().cycle().take(size).collect();
            let mut frame = wire.frame();
            frame.push(&text).unwrap();
            frame.push("!").unwrap();
            frame.end().unwrap();
            assert_eq!(client.read().unwrap().into_text().unwrap().as_str(), format!("{text}!"));
        }
    }

    #[test]
    fn a_frame_larger_than_the_limit_closes_with_1009() {
        let (mut wire, mut client) = pair();
        client.send(Message::text("x".repeat(4096))).unwrap();
        assert_eq!(read(&mut wire).unwrap().unwrap().len(), 4096);
        client.send(Message::text("x".repeat(4097))).unwrap();
        assert!(matches!(read(&mut wire), Err(Gone::Close(1009, _))));
    }

    #[test]
    fn a_peer_that_takes_nothing_is_given_up() {
        let (mut wire, _client) = pair();
        let begun = Instant::now();
        let text = "x".repeat(100_000);
        let end = loop {
            if let Err(gone) = wire.send(&text) {
                break gone;
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "the kernel's buffers have an end");
        };
        assert!(matches!(end, Gone::Peer(_)));
    }

    #[test]
    fn an_order_to_close_reaches_a_writer_that_waits() {
        let (mut wire, _client) = pair();
        wire.mailbox.order_close(4401);
        let text = "x".repeat(100_000);
        let end = loop {
            if let Err(gone) = wire.send(&text) {
                break gone;
            }
        };
        assert!(matches!(end, Gone::Close(4401, _)));
    }

    /// Bug: an order that came between the look for one and the taking back of its signal was seen at the
    /// next ping only. Effect: a revoked device was served for up to 20 s more. Mend: the signal is taken
    /// back first.
    #[test]
    fn an_order_to_close_is_seen_by_whoever_takes_its_signal_back() {
        let (mut wire, _client) = pair();
        assert!(wire.quiet().is_ok());
        wire.mailbox.order_close(4401);
        assert!(matches!(wire.quiet(), Err(Gone::Close(4401, _))));
    }

    #[test]
    fn a_close_tells_code_and_reason() {
        let (mut wire, mut client) = pair();
        wire.close(4401, "token revoked");
        let Message::Close(Some(frame)) = client.read().unwrap() else { panic!("a close was expected") };
        assert_eq!((u16::from(frame.code), frame.reason.as_str()), (4401, "token revoked"));
    }

    #[test]
    fn only_sixteen_bytes_are_a_key() {
        assert!(is_key("dGhlIHNhbXBsZSBub25jZQ=="));
        for wrong in [
            "",
            "==",
            "dGhlIHNhbXBsZSBub25jZQ",
            "dGhlIHNhbXBsZSBub25jZ\u{e9}==",
            "dGhlIHNhbXBsZSBub25jZQQQ==",
        ] {
            assert!(!is_key(wrong), "{wrong}");
        }
    }
}
