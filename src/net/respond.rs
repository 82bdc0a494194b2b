//! Answers: what is wrong ([`Fault`]), what is said ([`Reply`]), and how it is written.
//!
//! Rendering is tiny_http's `Response::raw_print`, around three of its habits: it drops `Connection`, so
//! [`Printer`] writes that field into the finished head; it would read a body of unknown length into memory
//! for HTTP/1.0, so such bodies are refused there (505); and its chunk encoder ends a body properly even when
//! reading it failed, so the printer swallows everything after a failure and the connection breaks off
//! instead.

use super::sock::Sock;
use std::cell::Cell;
use std::io::{self, Cursor, Read, Write};
use std::rc::Rc;
use std::time::Instant;
use tiny_http::{HTTPVersion, Header, Response, StatusCode};

/// What is gathered before it is written, so that a head or a row is one segment.
const PIECE: usize = 4096;

/// A request that was not done: status and a message that names the thing, the limit and the mend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// HTTP status
    pub status: u16,
    /// for programs
    pub code: &'static str,
    /// for people
    pub message: String,
    /// seconds until another try makes sense
    pub retry_after: Option<u64>,
    /// methods that the path knows, with 405
    pub allow: Option<&'static str>,
    /// whether the connection ends, because it is not known where the next request begins
    pub close: bool,
}

impl Fault {
    /// A fault of any status.
    pub fn new(status: u16, code: &'static str, message: impl Into<String>) -> Fault {
        Fault { status, code, message: message.into(), retry_after: None, allow: None, close: false }
    }

    /// 400.
    pub fn bad(message: impl Into<String>) -> Fault {
        Fault::new(400, "bad_request", message)
    }

    /// 404.
    pub fn not_found(message: impl Into<String>) -> Fault {
        Fault::new(404, "not_found", message)
    }

    /// 409 for a counted thing at its limit.
    pub fn full(name: &str, limit: usize) -> Fault {
        Fault::new(
            409,
            "full",
            format!(
                "{name} is at its limit of {limit}; remove one, or raise {name} in the config's [budget]"
            ),
        )
    }

    /// The same, and the connection ends.
    pub fn closing(mut self) -> Fault {
        self.close = true;
        self
    }

    /// The same, with the time after which another try makes sense.
    pub fn retry_after(mut self, seconds: u64) -> Fault {
        self.retry_after = Some(seconds.max(1));
        self
    }

    /// Its body.
    pub fn json(&self) -> String {
        let message = crate::chunk::json(&self.message);
        format!(r#"{{"error":{{"code":"{}","message":{message}}}}}"#, self.code)
    }
}

/// The bytes of an answer.
pub enum Body {
    /// none
    Empty,
    /// all of it
    Text(String),
    /// embedded in the program
    Static(&'static [u8]),
    /// read from disk
    Bytes(Vec<u8>),
    /// of unknown length, read while it is written
    Stream(Box<dyn Read>),
}

/// An answer.
pub struct Reply {
    /// HTTP status
    pub status: u16,
    /// its fields, beside those that every answer has
    pub fields: Vec<(&'static str, String)>,
    /// its bytes
    pub body: Body,
}

impl Reply {
    /// JSON text.
    pub fn json(status: u16, body: String) -> Reply {
        Reply { status, fields: json_fields(), body: Body::Text(body) }
    }

    /// JSON that is read while it is written.
    pub fn stream(body: impl Read + 'static) -> Reply {
        Reply { status: 200, fields: json_fields(), body: Body::Stream(Box::new(body)) }
    }

    /// 204.
    pub fn empty() -> Reply {
        Reply { status: 204, fields: Vec::new(), body: Body::Empty }
    }
}

fn json_fields() -> Vec<(&'static str, String)> {
    vec![("Content-Type", "application/json".into()), ("Cache-Control", "no-store".into())]
}

impl From<Fault> for Reply {
    fn from(fault: Fault) -> Reply {
        let mut reply = Reply::json(fault.status, fault.json());
        if let Some(seconds) = fault.retry_after {
            reply.fields.push(("Retry-After", seconds.to_string()));
        }
        if let Some(allow) = fault.allow {
            reply.fields.push(("Allow", allow.to_owned()));
        }
        if fault.status == 401 {
            reply.fields.push(("WWW-Authenticate", "Bearer".to_owned()));
        }
        reply
    }
}

/// How an answer is to be written.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    /// 0 or 1: the request's minor version
    pub minor: u8,
    /// the request was HEAD
    pub head_only: bool,
    /// another request may follow
    pub keep_alive: bool,
}

/// Writes an answer; an error means that the connection is broken off.
pub fn write(sock: &Sock, reply: Reply, manner: Manner) -> io::Result<()> {
    let begun = Instant::now();
    print(reply, manner, |data, sent| sock.write_by(data, sock.answer_by(begun, sent)))
}

fn print(reply: Reply, manner: Manner, out: impl FnMut(&[u8], u64) -> io::Result<()>) -> io::Result<()> {
    let (reader, length): (Box<dyn Read>, Option<usize>) = match reply.body {
        Body::Empty => (Box::new(io::empty()), Some(0)),
        Body::Text(text) => sized(text.into_bytes()),
        Body::Bytes(bytes) => sized(bytes),
        Body::Static(bytes) => (Box::new(bytes), Some(bytes.len())),
        Body::Stream(_) if manner.minor == 0 => {
            let fault = Fault::new(505, "version", "this answer has no length beforehand; ask with HTTP/1.1");
            return print(fault.into(), manner, out);
        }
        Body::Stream(reader) => (reader, None),
    };
    let failed = Rc::new(Cell::new(false));
    let reader = Watched { reader, failed: failed.clone() };
    let headers = headers(&reply.fields)?;
    // Every known length is given as such, however large: chunks are for unknown ones.
    let response = Response::new(StatusCode(reply.status), headers, reader, length, None)
        .with_chunked_threshold(usize::MAX);
    let connection: &[u8] = if manner.keep_alive { b"keep-alive" } else { b"close" };
    let mut printer = Printer {
        out,
        buf: Vec::with_capacity(PIECE),
        sent: 0,
        in_head: true,
        connection,
        failed: failed.clone(),
    };
    let no_length = matches!(reply.status, 204 | 304);
    printer.buf.reserve(PIECE);
    // The server's own version, also for HTTP/1.0 (RFC 9110 6.2): what follows is within both.
    response.raw_print(
        Trim { to: &mut printer, no_length },
        HTTPVersion(1, 1),
        &[],
        manner.head_only,
        None,
    )?;
    printer.send()?;
    if failed.get() {
        return Err(io::Error::other("the answer could not be read to its end"));
    }
    Ok(())
}

fn sized(bytes: Vec<u8>) -> (Box<dyn Read>, Option<usize>) {
    let length = bytes.len();
    (Box::new(Cursor::new(bytes)), Some(length))
}

fn headers(fields: &[(&'static str, String)]) -> io::Result<Vec<Header>> {
    const ALWAYS: [(&str, &str); 3] =
        [("Server", "siskin"), ("X-Content-Type-Options", "nosniff"), ("Referrer-Policy", "no-referrer")];
    let own = fields.iter().map(|(name, value)| (*name, value.as_str()));
    ALWAYS.into_iter().chain(own).map(|(name, value)| header(name, value)).collect()
}

/// A field whose value cannot end its line: tiny_http does not look.
fn header(name: &str, value: &str) -> io::Result<Header> {
    let safe = value.bytes().all(|byte| byte == b'\t' || (b' '..=b'~').contains(&byte));
    let header = if safe { Header::from_bytes(name, value).ok() } else { None };
    header.ok_or_else(|| io::Error::other(format!("the value of {name} is not a header's")))
}

/// Remembers that reading failed.
struct Watched {
    reader: Box<dyn Read>,
    failed: Rc<Cell<bool>>,
}

impl Read for Watched {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let done = self.reader.read(buf);
        self.failed.set(self.failed.get() || done.is_err());
        done
    }
}

/// Gathers what tiny_http writes in many small pieces, and completes the head.
struct Printer<F> {
    out: F,
    buf: Vec<u8>,
    sent: u64,
    in_head: bool,
    connection: &'static [u8],
    failed: Rc<Cell<bool>>,
}

impl<F: FnMut(&[u8], u64) -> io::Result<()>> Printer<F> {
    fn send(&mut self) -> io::Result<()> {
        if !self.buf.is_empty() {
            self.sent += self.buf.len() as u64;
            (self.out)(&self.buf, self.sent)?;
            self.buf.clear();
        }
        Ok(())
    }

    fn end_head(&mut self, no_length: bool) {
        self.in_head = false;
        self.buf.truncate(self.buf.len() - 2);
        if no_length {
            // tiny_http gives 204 and 304 a length of 0, which 204 must not have and which is not true for
            // 304.
            self.buf.truncate(self.buf.len() - b"Content-Length: 0\r\n".len());
        }
        self.buf.extend_from_slice(b"Connection: ");
        self.buf.extend_from_slice(self.connection);
        self.buf.extend_from_slice(b"\r\n\r\n");
    }
}

/// What tiny_http writes to.
struct Trim<'a, F> {
    to: &'a mut Printer<F>,
    no_length: bool,
}

impl<F: FnMut(&[u8], u64) -> io::Result<()>> Write for Trim<'_, F> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let printer = &mut *self.to;
        if printer.failed.get() {
            return Err(io::Error::other("the answer breaks off here"));
        }
        if printer.in_head {
            printer.buf.extend_from_slice(data);
            if printer.buf.ends_with(b"\r\n\r\n") {
                printer.end_head(self.no_length);
            }
            return Ok(data.len());
        }
        if printer.buf.len() + data.len() > PIECE {
            printer.send()?;
        }
        if data.len() >= PIECE {
            printer.sent += data.len() as u64;
            (printer.out)(data, printer.sent)?;
        } else {
            printer.buf.extend_from_slice(data);
        }
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANNER: Manner = Manner { minor: 1, head_only: false, keep_alive: true };

    fn printed(reply: Reply, manner: Manner) -> (io::Result<()>, String) {
        let mut out = Vec::new();
        let done = print(reply, manner, |data, _| {
            out.extend_from_slice(data);
            Ok(())
        });
        (done, String::from_utf8(out).unwrap())
    }

    #[test]
    fn an_answer_has_connection_length_and_safety_fields() {
        let (done, text) = printed(Reply::json(200, "{}".into()), MANNER);
        done.unwrap();
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
        for field in [
            "Connection: keep-alive",
            "Content-Length: 2",
            "X-Content-Type-Options: nosniff",
            "Server: siskin",
        ] {
            assert_eq!(text.matches(&format!("{field}\r\n")).count(), 1, "{field} in {text}");
        }
        assert!(text.ends_with("\r\n\r\n{}"));
        let (_, text) =
            printed(Reply::json(200, "{}".into()), Manner { head_only: true, keep_alive: false, ..MANNER });
        assert!(text.contains("Content-Length: 2\r\n") && text.ends_with("Connection: close\r\n\r\n"));
    }

    #[test]
    fn an_empty_answer_has_no_length() {
        let (_, text) = printed(Reply::empty(), MANNER);
        assert!(text.starts_with("HTTP/1.1 204 ") && !text.contains("Content-Length"), "{text}");
    }

    #[test]
    fn a_body_of_unknown_length_is_chunked_and_refused_to_http_1_0() {
        let (_, text) = printed(Reply::stream(&b"hello"[..]), MANNER);
        assert!(
            text.contains("Transfer-Encoding: chunked\r\n") && text.ends_with("\r\n5\r\nhello\r\n0\r\n\r\n"),
            "{text}"
        );
        let (_, text) = printed(Reply::stream(&b"hello"[..]), Manner { minor: 0, ..MANNER });
        assert!(text.starts_with("HTTP/1.1 505 "), "{text}");
    }

    #[test]
    fn a_body_that_fails_does_not_end_as_if_it_were_whole() {
        struct Broken(bool);
        impl Read for Broken {
            fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
                if std::mem::replace(&mut self.0, true) {
                    return Err(io::Error::other("gone"));
                }
                buf[0] = b'x';
                Ok(1)
            }
        }
        let (done, text) = printed(Reply::stream(Broken(false)), MANNER);
        assert!(done.is_err() && !text.contains("0\r\n\r\n"), "{text}");
    }

    #[test]
    fn a_value_cannot_end_its_line() {
        let mut reply = Reply::empty();
        reply.fields.push(("X", "a\r\nSet-Cookie: b".into()));
        assert!(printed(reply, MANNER).0.is_err());
    }
}
