//! Request heads (RFC 9112): from bytes in a fixed buffer to a checked head, or the status that says what is
//! wrong.
//!
//! Stricter than the RFC where leniency lets two programs read one head differently: a bare CR or LF, a NUL,
//! a folded line, two `Host`s, two lengths, or a length beside a transfer coding are all 400. Cost: the
//! buffer, nothing else; the head borrows from it.

use super::respond::Fault;

/// Most fields of a head.
const FIELDS_MAX: usize = 64;

/// What comes after the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// nothing
    None,
    /// this many bytes
    Length(u64),
    /// a transfer coding, which Siskin does not read
    Coded,
}

/// A checked head.
#[derive(Debug)]
pub struct Head<'a> {
    /// such as `GET`
    pub method: &'a str,
    /// the path as sent, without the query
    pub path: &'a str,
    /// the query as sent, without its question mark
    pub query: &'a str,
    /// 0 or 1: the minor version of HTTP/1
    pub minor: u8,
    /// the one `Host`
    pub host: Option<&'a str>,
    /// what comes after it
    pub framing: Framing,
    /// the client wants to hear `100 Continue`
    pub expects_continue: bool,
    /// the connection may serve another request
    pub keep_alive: bool,
    fields: Vec<(&'a str, &'a [u8])>,
}

impl<'a> Head<'a> {
    /// The first field of this name, if it is text.
    pub fn field(&self, name: &str) -> Option<&'a str> {
        self.all(name).next().and_then(|value| std::str::from_utf8(value).ok())
    }

    /// All fields of this name, in order.
    pub fn all(&self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        self.fields.iter().filter(move |(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| *value)
    }

    /// Whether a comma-separated field has this word.
    pub fn has_word(&self, name: &str, word: &str) -> bool {
        self.all(name)
            .filter_map(|value| std::str::from_utf8(value).ok())
            .flat_map(|value| value.split(','))
            .any(|item| item.trim().eq_ignore_ascii_case(word))
    }
}

/// Looks for the end of a head while it arrives; each byte is looked at once.
#[derive(Debug, Default)]
pub struct Scan {
    at: usize,
    line: usize,
}

impl Scan {
    /// The head's length, if all of it is in `bytes`, which have grown since the last call.
    pub fn end(&mut self, bytes: &[u8]) -> Result<Option<usize>, Fault> {
        while let Some(byte) = bytes.get(self.at) {
            match byte {
                0 => return Err(bad("the head holds a NUL")),
                b'\r' => match bytes.get(self.at + 1) {
                    None => return Ok(None),
                    Some(b'\n') => {
                        let empty = self.line == self.at;
                        self.at += 2;
                        // Empty lines before the request line are skipped (RFC 9112 2.2).
                        let leading = empty && bytes.iter().take(self.at).all(|b| matches!(b, b'\r' | b'\n'));
                        self.line = self.at;
                        if empty && !leading {
                            return Ok(Some(self.at));
                        }
                        if leading && self.at > 8 {
                            return Err(bad("too many empty lines before the request"));
                        }
                        continue;
                    }
                    Some(_) => return Err(bad("the head holds a bare CR")),
                },
                b'\n' => return Err(bad("the head holds a bare LF")),
                _ => self.at += 1,
            }
        }
        Ok(None)
    }
}

fn bad(message: &str) -> Fault {
    Fault::bad(message).closing()
}

/// Parses a whole head, as found by [`Scan`].
pub fn parse(bytes: &[u8]) -> Result<Head<'_>, Fault> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut request = httparse::Request::new(&mut fields);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) => return Err(bad("the head is not whole")),
        Err(httparse::Error::TooManyHeaders) => {
            return Err(too_large(&format!("the head has more than {FIELDS_MAX} fields")));
        }
        Err(httparse::Error::Version) => {
            return Err(Fault::new(505, "version", "only HTTP/1.0 and HTTP/1.1 are spoken").closing());
        }
        Err(e) => return Err(bad(&format!("the head cannot be parsed: {}", e.to_string().to_lowercase()))),
    }
    let (Some(method), Some(target), Some(minor)) = (request.method, request.path, request.version) else {
        return Err(bad("the request line is not whole"));
    };
    let fields = request.headers.iter().map(|field| (field.name, field.value)).collect();
    let mut head = Head {
        method,
        path: "",
        query: "",
        minor,
        host: None,
        framing: Framing::None,
        expects_continue: false,
        keep_alive: false,
        fields,
    };
    head.host = one(&head, "host")?;
    // Names are what keeps strangers' pages out, so HTTP/1.0 has to name one as well.
    if head.host.is_none() {
        return Err(bad("Host is missing"));
    }
    head.framing = framing(&head)?;
    take_target(&mut head, target)?;
    head.expects_continue = expectation(&head)?;
    head.keep_alive = minor == 1 && !head.has_word("connection", "close");
    Ok(head)
}

/// The answer to a head that is longer than its buffer.
pub fn too_large(message: &str) -> Fault {
    Fault::new(431, "head_too_large", message).closing()
}

fn one<'a>(head: &Head<'a>, name: &str) -> Result<Option<&'a str>, Fault> {
    let mut all = head.all(name);
    let first = all.next();
    if all.next().is_some() {
        return Err(bad(&format!("{name} stands in the head twice")));
    }
    first
        .map(|value| {
            std::str::from_utf8(value).map(str::trim).map_err(|_| bad(&format!("{name} is not text")))
        })
        .transpose()
}

fn framing(head: &Head<'_>) -> Result<Framing, Fault> {
    let length = one(head, "content-length")?;
    if head.all("transfer-encoding").next().is_some() {
        if length.is_some() {
            return Err(bad("content-length and transfer-encoding exclude each other"));
        }
        if head.minor == 0 {
            return Err(bad("HTTP/1.0 knows no transfer-encoding"));
        }
        return Ok(Framing::Coded);
    }
    let Some(digits) = length else { return Ok(Framing::None) };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(bad("content-length is not a number"));
    }
    // Digits that do not fit are a length that is larger than every budget.
    Ok(Framing::Length(digits.parse().unwrap_or(u64::MAX)))
}

fn take_target<'a>(head: &mut Head<'a>, target: &'a str) -> Result<(), Fault> {
    if !target.bytes().all(|byte| byte.is_ascii_graphic()) || target.contains('#') {
        return Err(bad("the target holds a character that must be percent-encoded"));
    }
    let origin_form = match target.strip_prefix("http://") {
        Some(rest) => {
            let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
            if head.host.is_none_or(|host| !host.eq_ignore_ascii_case(authority)) {
                return Err(bad("the target's host is not Host"));
            }
            if path.is_empty() { "/" } else { path }
        }
        None => target,
    };
    if !origin_form.starts_with('/') {
        return Err(bad("the target must begin with a slash"));
    }
    (head.path, head.query) = origin_form.split_once('?').unwrap_or((origin_form, ""));
    Ok(())
}

fn expectation(head: &Head<'_>) -> Result<bool, Fault> {
    match head.field("expect") {
        None => Ok(false),
        Some(word) if word.trim().eq_ignore_ascii_case("100-continue") => Ok(head.minor == 1),
        Some(_) => Err(Fault::new(417, "expectation", "only 100-continue can be expected").closing()),
    }
}

/// A path segment or query value with its percent-encoding undone; an error names what is wrong with it.
pub fn percent_decode(text: &str, plus_is_space: bool) -> Result<String, Fault> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => {
                let digits = (bytes.next().and_then(hex), bytes.next().and_then(hex));
                let (Some(high), Some(low)) = digits else {
                    return Err(Fault::bad("the target holds a wrong percent-encoding"));
                };
                high << 4 | low
            }
            b'+' if plus_is_space => b' ',
            byte => byte,
        });
    }
    match String::from_utf8(out) {
        Ok(text) if !text.contains('\0') => Ok(text),
        _ => Err(Fault::bad("the target is not UTF-8 text")),
    }
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|value| value as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// 0 stands for a head that is not whole yet.
    fn status(input: &str) -> u16 {
        let bytes = input.as_bytes();
        match Scan::default().end(bytes) {
            Err(fault) => fault.status,
            Ok(None) => 0,
            Ok(Some(end)) => parse(bytes.split_at(end).0).map_or_else(|fault| fault.status, |_| 200),
        }
    }

    #[test]
    fn ambiguous_heads_are_refused() {
        let check = |input: &str, expected: u16| assert_eq!(status(input), expected, "{input:?}");
        check("GET / HTTP/1.1\r\nHost: a\r\n\r\n", 200);
        check("\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", 200);
        check("GET / HTTP/1.0\r\nHost: a\r\n\r\n", 200);
        check("GET / HTTP/1.0\r\n\r\n", 400);
        check("GET / HTTP/1.1\r\nHost: a\r\n", 0);
        check("GET / HTTP/1.1\r\nHost: a\r", 0);
        check("GET / HTTP/1.1\r\n\r\n", 400);
        check("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400);
        check("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n", 400);
        check("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5, 5\r\n\r\n", 400);
        check("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5x\r\n\r\n", 400);
        check("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\n", 400);
        check("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n", 400);
        check("POST / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\n", 400);
        check("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400);
        check("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", 200);
        check("POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", 400);
        check("GET / HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n", 400);
        check("GET / HTTP/1.1\nHost: a\n\n", 400);
        check("GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n", 400);
        check("GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n", 400);
        check("GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400);
        check("GET / HTTP/1.1\r\n: a\r\nHost: a\r\n\r\n", 400);
        check("GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505);
        check("GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400);
        check("GET http://a/x HTTP/1.1\r\nHost: a\r\n\r\n", 200);
        check("GET http://b/x HTTP/1.1\r\nHost: a\r\n\r\n", 400);
        check("GET /\u{e9} HTTP/1.1\r\nHost: a\r\n\r\n", 400);
        check("GET x HTTP/1.1\r\nHost: a\r\n\r\n", 400);
        check("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", 400);
        check("GET / HTTP/1.1\r\nHost: a\r\nExpect: 200-ok\r\n\r\n", 417);
        check(&format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: y\r\n".repeat(70)), 431);
    }

    #[test]
    fn a_head_tells_path_query_length_and_keep_alive() {
        let text =
            "POST /api/tabs?x=1 HTTP/1.1\r\nhost: pi\r\nCONTENT-LENGTH: 12\r\nexpect: 100-continue\r\n\r\n";
        let head = parse(text.as_bytes()).unwrap();
        assert_eq!((head.path, head.query, head.host), ("/api/tabs", "x=1", Some("pi")));
        assert_eq!(head.framing, Framing::Length(12));
        assert!(head.expects_continue && head.keep_alive);
        let huge = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999999\r\n\r\n";
        assert_eq!(parse(huge.as_bytes()).unwrap().framing, Framing::Length(u64::MAX));
        let close = parse(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: x, Close\r\n\r\n").unwrap();
        assert!(!close.keep_alive);
    }

    #[test]
    fn percent_decoding_is_strict() {
        assert_eq!(percent_decode("a%2Fb%C3%A9+", false).unwrap(), "a/b\u{e9}+");
        assert_eq!(percent_decode("a+b", true).unwrap(), "a b");
        for wrong in ["%", "%2", "%zz", "%00", "%ff", "%+1"] {
            assert!(percent_decode(wrong, false).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn however_a_head_is_split_its_end_is_the_same(cut in 0usize..45, more in 0usize..45) {
            let text = b"GET /x HTTP/1.1\r\nHost: a\r\nX: yyyyyyyyy\r\n\r\nrest";
            let mut scan = Scan::default();
            let first = cut.min(more);
            let second = cut.max(more);
            let mut found = None;
            for end in [first, second, text.len()] {
                if found.is_none() {
                    found = scan.end(text.split_at(end).0).unwrap();
                }
            }
            prop_assert_eq!(found, Some(text.len() - 4));
        }

        #[test]
        fn no_bytes_make_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(Some(end)) = Scan::default().end(&bytes) {
                let _ = parse(bytes.split_at(end).0);
            }
        }
    }
}
