//! A scripted provider on raw sockets: it counts what it is sent, says what the script tells, and notes the
//! moment of every delta that it writes. It speaks chat completions and the Messages API, by the request's
//! path.

use crate::Oops;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of a delta in the runs that measure delay: so the length of a text tells how many deltas it holds.
pub const DELTA_BYTES: usize = 8;

/// What the provider says to each request.
#[derive(Clone, Copy)]
pub struct Speech {
    /// how many deltas
    pub deltas: usize,
    /// bytes of each
    pub bytes: usize,
    /// pause before each
    pub gap: Duration,
}

/// One request, as it came in.
#[derive(Clone, Copy)]
pub struct Seen {
    /// bytes of its body
    pub bytes: u64,
    /// when its first byte of body was there
    pub first: Instant,
    /// when its last one was
    pub last: Instant,
}

struct State {
    speech: Speech,
    seen: Vec<Seen>,
    wrote: Vec<Instant>,
}

/// The provider; it runs until the process ends.
#[derive(Clone)]
pub struct Provider {
    /// where it listens
    pub addr: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl Provider {
    /// Starts one on a port of its own.
    pub fn start() -> Result<Provider, Oops> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let speech = Speech { deltas: 4, bytes: DELTA_BYTES, gap: Duration::ZERO };
        let state = Arc::new(Mutex::new(State { speech, seen: Vec::new(), wrote: Vec::new() }));
        let provider = Provider { addr: listener.local_addr()?, state };
        let accepting = provider.clone();
        crate::spawn("provider", move || {
            for stream in listener.incoming().flatten() {
                let provider = accepting.clone();
                // A peer that goes away ends its own exchange and nothing else.
                let exchange = move || drop(provider.exchange(stream));
                crate::spawn("exchange", exchange).expect("the bench may start threads");
            }
        })?;
        Ok(provider)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is said from now on.
    pub fn say(&self, deltas: usize, bytes: usize, gap: Duration) {
        self.lock().speech = Speech { deltas, bytes, gap };
    }

    /// From now on: one delta, in an event whose line of data is `bytes` long.
    pub fn say_line(&self, wire: &str, bytes: usize) {
        let dialect = if wire == "anthropic" { &ANTHROPIC } else { &OPENAI };
        let start = dialect.before.find("data: ").expect("an event has data");
        let around = dialect.before.len() - start + dialect.after.trim_end().len();
        self.say(1, bytes - around, Duration::ZERO);
    }

    /// The requests since the last call.
    pub fn take_seen(&self) -> Vec<Seen> {
        std::mem::take(&mut self.lock().seen)
    }

    /// The moments of the deltas since the last call; of use while there is one exchange at a time.
    pub fn take_wrote(&self) -> Vec<Instant> {
        std::mem::take(&mut self.lock().wrote)
    }

    fn exchange(&self, stream: TcpStream) -> Result<(), Oops> {
        stream.set_nodelay(true)?;
        let mut from = BufReader::with_capacity(256 * 1024, stream.try_clone()?);
        let (path, length) = read_head(&mut from)?;
        let seen = read_body(&mut from, length)?;
        if path.contains("/models") {
            // Asked for once before the first answer; nothing that is measured.
            let list = b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\nConnection: close\r\n\r\n{\"data\":[]}";
            return Ok((&stream).write_all(list)?);
        }
        let speech = {
            let mut state = self.lock();
            state.seen.push(seen);
            state.speech
        };
        let mut to = stream;
        to.write_all(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\
              Transfer-Encoding: chunked\r\n\r\n",
        )?;
        if path.contains("/messages") {
            self.speak(&mut to, speech, &ANTHROPIC)?;
        } else {
            self.speak(&mut to, speech, &OPENAI)?;
        }
        to.write_all(b"0\r\n\r\n")?;
        Ok(())
    }

    fn speak(&self, to: &mut TcpStream, speech: Speech, dialect: &Dialect) -> Result<(), Oops> {
        send(to, dialect.open)?;
        for number in 0..speech.deltas {
            if !speech.gap.is_zero() {
                std::thread::sleep(speech.gap);
            }
            let word = delta_text(number, speech.bytes);
            let event = format!("{}{word}{}", dialect.before, dialect.after);
            self.lock().wrote.push(Instant::now());
            send(to, &event)?;
        }
        send(to, dialect.close)
    }
}

/// A delta's text: numbered words, exactly `bytes` long.
fn delta_text(number: usize, bytes: usize) -> String {
    let word = format!("{:<DELTA_BYTES$}", format!("w{}", number % 1_000_000));
    word.chars().cycle().take(bytes).collect()
}

struct Dialect {
    open: &'static str,
    before: &'static str,
    after: &'static str,
    close: &'static str,
}

const OPENAI: Dialect = Dialect {
    open: "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\"}}]}\n\n",
    before: "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"",
    after: "\"}}]}\n\n",
    close: "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}],\
            \"usage\":{\"prompt_tokens\":9,\"completion_tokens\":9}}\n\ndata: [DONE]\n\n",
};

const ANTHROPIC: Dialect = Dialect {
    open: "event: message_start\n\
           data: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"type\":\"message\",\
           \"role\":\"assistant\",\"content\":[],\"model\":\"scripted\",\"stop_reason\":null,\
           \"usage\":{\"input_tokens\":9,\"output_tokens\":1}}}\n\n\
           event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\
           \"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n",
    before: "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\
             \"delta\":{\"type\":\"text_delta\",\"text\":\"",
    after: "\"}}\n\n",
    close: "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n\
            event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\
            \"usage\":{\"output_tokens\":9}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
};

/// One HTTP chunk in one write, so that a delta is one segment.
fn send(to: &mut TcpStream, text: &str) -> Result<(), Oops> {
    to.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes())?;
    Ok(())
}

fn read_head(from: &mut impl BufRead) -> Result<(String, u64), Oops> {
    let mut path = String::new();
    let mut length = 0;
    loop {
        let mut line = String::new();
        if from.read_line(&mut line)? == 0 {
            return Err("the request ended inside its head".into());
        }
        let line = line.trim_end();
        if line.is_empty() {
            return Ok((path, length));
        }
        if path.is_empty() {
            path = line.split(' ').nth(1).unwrap_or("/").to_string();
        } else if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse()?;
        }
    }
}

fn read_body(from: &mut impl BufRead, length: u64) -> Result<Seen, Oops> {
    let mut body = from.take(length);
    let mut bytes = 0;
    body.fill_buf()?;
    let first = Instant::now();
    loop {
        let got = body.fill_buf()?.len();
        if got == 0 {
            break;
        }
        bytes += got as u64;
        body.consume(got);
    }
    if bytes < length {
        return Err("the request ended inside its body".into());
    }
    Ok(Seen { bytes, first, last: Instant::now() })
}
