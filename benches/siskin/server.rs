//! The real binary in a temporary folder, and clients of it.

use crate::http::Http;
use crate::provider::{DELTA_BYTES, Provider};
use crate::{Oops, Scratch};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use tungstenite::{Message, WebSocket};

/// A server that runs until this is dropped.
pub struct Server {
    child: Child,
    // Kept open, because a server whose output is closed ends.
    _out: BufReader<ChildStdout>,
    /// the server's own process, also under strace
    pub pid: u32,
    /// where it listens
    pub addr: SocketAddr,
    /// of the paired device
    pub token: String,
    /// from the start of the process to the first answer
    pub first_answer: Duration,
    sent: u32,
}

/// A free port: the kernel's next one, given back at once.
fn free_port() -> Result<u16, Oops> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn config(dir: &Path, data: &Path, port: u16, provider: &Provider) -> Result<PathBuf, Oops> {
    let key = dir.join("key");
    fs::write(&key, "bench\n")?;
    let file = dir.join("siskin.toml");
    let text = format!(
        "listen = \"127.0.0.1:{port}\"\ndata = {data:?}\nsend_time = false\nprofile = \"router\"\n\
         default_model = \"openai/scripted\"\n\
         [[provider]]\nname = \"openai\"\nkind = \"openai\"\nbase_url = \"http://{at}\"\n\
         models = [\"scripted\"]\napi_key_file = {key:?}\n\
         [[provider]]\nname = \"anthropic\"\nkind = \"anthropic\"\nbase_url = \"http://{at}\"\n\
         models = [\"scripted\"]\napi_key_file = {key:?}\n",
        at = provider.addr
    );
    fs::write(&file, text)?;
    Ok(file)
}

impl Server {
    /// Starts the server on `data`, and pairs with it the first time. `by`: words before its command, such as
    /// strace's.
    pub fn start(
        scratch: &mut Scratch,
        data: &str,
        provider: &Provider,
        by: &[&str],
    ) -> Result<Server, Oops> {
        let port = free_port()?;
        let config = config(&scratch.path, &scratch.path.join(data), port, provider)?;
        let binary = env!("CARGO_BIN_EXE_siskin");
        let mut words = by.to_vec();
        words.push(binary);
        let (program, rest) = words.split_first().expect("the binary is in it");
        let started = Instant::now();
        let mut child = Command::new(program)
            .args(rest)
            .args(["serve", "--config"])
            .arg(&config)
            .env_remove("ANTHROPIC_API_KEY")
            .env_remove("OPENAI_API_KEY")
            .stdout(Stdio::piped())
            .stderr(fs::File::create(scratch.path.join("server.log"))?)
            .spawn()?;
        let addr = SocketAddr::from(([127, 0, 0, 1], port));
        let first_answer = first_answer(addr, started, &mut child)?;
        let mut out = BufReader::new(child.stdout.take().ok_or("no standard output")?);
        let token = match scratch.tokens.get(data) {
            Some(token) => token.clone(),
            None => pair(addr, &mut out)?,
        };
        scratch.tokens.insert(data.to_string(), token.clone());
        let pid = if by.is_empty() { child.id() } else { only_child(child.id())? };
        Ok(Server { child, _out: out, pid, addr, token, first_answer, sent: 0 })
    }

    /// A connection with the token.
    pub fn http(&self) -> Result<Http, Oops> {
        Http::connect(self.addr, Some(&self.token))
    }

    /// What `/api/status` says.
    pub fn status(&self) -> Result<Value, Oops> {
        self.http()?.get("/api/status")?.json(200)
    }

    /// A new tab for a model.
    pub fn new_tab(&self, model: &str) -> Result<String, Oops> {
        let tab = self.http()?.post("/api/tabs", &json!({"model": model}))?.json(201)?;
        Ok(tab["id"].as_str().ok_or("no id")?.to_string())
    }

    /// Sends a message.
    pub fn send(&mut self, tab: &str, text: &str) -> Result<(), Oops> {
        self.sent += 1;
        let body = json!({"clientId": format!("b{}-{}", self.pid, self.sent), "text": text});
        self.http()?.post(&format!("/api/tabs/{tab}/messages"), &body)?.json(202)?;
        Ok(())
    }

    /// Sends a message and reads until its turn is sealed.
    pub fn turn(&mut self, socket: &mut Socket, tab: &str) -> Result<(), Oops> {
        self.send(tab, "hello")?;
        socket.until_sealed(tab)
    }

    /// Resident memory now, in bytes.
    pub fn rss(&self) -> Result<u64, Oops> {
        status_field(self.pid, "VmRSS:")
    }

    /// Resident memory by what it is: the process's own, and pages of files, which the kernel can drop at
    /// will.
    pub fn rss_parts(&self) -> Result<[u64; 2], Oops> {
        Ok([status_field(self.pid, "RssAnon:")?, status_field(self.pid, "RssFile:")?])
    }

    /// Most resident memory since the start or the last [`Server::reset_peak`], in bytes.
    pub fn peak_rss(&self) -> Result<u64, Oops> {
        status_field(self.pid, "VmHWM:")
    }

    /// Lets the peak begin anew.
    pub fn reset_peak(&self) -> Result<(), Oops> {
        Ok(fs::write(format!("/proc/{}/clear_refs", self.pid), "5")?)
    }

    /// Ends it as its owner would, so that its data can be opened again.
    pub fn stop(mut self) -> Result<(), Oops> {
        let pid = Pid::from_raw(self.pid.try_into()?).ok_or("the server has no pid")?;
        kill_process(pid, Signal::TERM)?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Asks `/healthz` until it answers.
fn first_answer(addr: SocketAddr, started: Instant, child: &mut Child) -> Result<Duration, Oops> {
    loop {
        let answer = Http::connect(addr, None).and_then(|mut http| http.get("/healthz"));
        if answer.is_ok_and(|answer| answer.status == 200) {
            return Ok(started.elapsed());
        }
        if let Some(status) = child.try_wait()? {
            return Err(format!("the server ended at once: {status}").into());
        }
        if started.elapsed() > Duration::from_secs(20) {
            return Err("no answer for 20 s after the start".into());
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Pairs with the code in the printed link; gives the token.
fn pair(addr: SocketAddr, out: &mut impl BufRead) -> Result<String, Oops> {
    let code = loop {
        let mut line = String::new();
        if out.read_line(&mut line)? == 0 {
            return Err("the server printed no pairing link".into());
        }
        if let Some((_, code)) = line.split_once("#pair=") {
            break code
                .split(|c: char| !c.is_ascii_alphanumeric() && c != '-')
                .next()
                .unwrap_or("")
                .to_string();
        }
    };
    let paired = Http::connect(addr, None)?.post("/api/pair", &json!({"code": code, "name": "bench"}))?;
    Ok(paired.json(201)?["token"].as_str().ok_or("no token")?.to_string())
}

fn only_child(pid: u32) -> Result<u32, Oops> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    Ok(children.split_whitespace().next().ok_or("no child")?.parse()?)
}

fn status_field(pid: u32, name: &str) -> Result<u64, Oops> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find(|line| line.starts_with(name)).ok_or("no such field")?;
    let kib: u64 = line.split_whitespace().nth(1).ok_or("no value")?.parse()?;
    Ok(kib * 1024)
}

/// A WebSocket that said hello.
pub struct Socket {
    ws: WebSocket<TcpStream>,
    open_bytes: usize,
}

impl Socket {
    /// Connects, says hello, and opens a tab.
    pub fn open(server: &Server, tab: &str) -> Result<Socket, Oops> {
        let stream = TcpStream::connect(server.addr)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        let (ws, _) = tungstenite::client(format!("ws://{}/ws", server.addr), stream)
            .map_err(|error| format!("no WebSocket: {error}"))?;
        let mut socket = Socket { ws, open_bytes: 0 };
        socket.say(&json!({"type": "hello", "protocol": 1, "token": server.token}))?;
        socket.until("welcome")?;
        socket.say(&json!({"type": "open", "tab": tab, "req": 1}))?;
        socket.until("window")?;
        Ok(socket)
    }

    /// Lets the kernel hold as little as it can for a socket that is not read, so that its server comes to
    /// feel it.
    pub fn shrink(&self) -> Result<(), Oops> {
        Ok(rustix::net::sockopt::set_socket_recv_buffer_size(self.ws.get_ref(), 4096)?)
    }

    /// Sends a frame.
    pub fn say(&mut self, frame: &Value) -> Result<(), Oops> {
        Ok(self.ws.send(Message::text(frame.to_string()))?)
    }

    /// The next frame and the moment at which it was there.
    pub fn next(&mut self) -> Result<(Value, Instant), Oops> {
        loop {
            let message = self.ws.read()?;
            let now = Instant::now();
            match message {
                Message::Text(text) => return Ok((serde_json::from_str(&text)?, now)),
                Message::Close(close) => return Err(format!("the socket was closed: {close:?}").into()),
                _ => {}
            }
        }
    }

    /// Reads up to a frame of this type and gives it.
    pub fn until(&mut self, kind: &str) -> Result<Value, Oops> {
        loop {
            let (frame, _) = self.next()?;
            if frame["type"] == "error" {
                return Err(format!("the server refused: {frame}").into());
            }
            if frame["type"] == kind {
                return Ok(frame);
            }
        }
    }

    /// Reads until a turn of this tab is sealed well.
    pub fn until_sealed(&mut self, tab: &str) -> Result<(), Oops> {
        sealed_well(&self.seal(tab)?)
    }

    /// Reads until a turn of this tab is sealed, however it ended, and gives the frame that says so.
    pub fn seal(&mut self, tab: &str) -> Result<Value, Oops> {
        loop {
            let frame = self.until("turn-sealed")?;
            if frame["tab"] == tab {
                return Ok(frame);
            }
        }
    }

    /// Reads one turn and notes when each delta of [`DELTA_BYTES`] was there.
    pub fn deltas(&mut self) -> Result<Vec<Instant>, Oops> {
        let mut at = Vec::new();
        let mut pending = 0;
        loop {
            let (frame, now) = self.next()?;
            pending += self.fresh_bytes(&frame);
            while pending >= DELTA_BYTES {
                pending -= DELTA_BYTES;
                at.push(now);
            }
            if frame["type"] == "turn-sealed" {
                sealed_well(&frame)?;
                return Ok(at);
            }
        }
    }

    /// How many bytes of the answer's text a frame shows for the first time.
    fn fresh_bytes(&mut self, frame: &Value) -> usize {
        let whole = &frame["chunk"];
        if whole["role"] == "user" {
            return 0;
        }
        match frame["type"].as_str() {
            Some("chunk-delta") => {
                let fresh = frame["text"].as_str().map_or(0, str::len);
                self.open_bytes += fresh;
                fresh
            }
            Some("chunk-open") => {
                self.open_bytes = whole["data"]["text"].as_str().map_or(0, str::len);
                self.open_bytes
            }
            Some("chunk") => {
                let all = whole["data"]["text"].as_str().map_or(0, str::len);
                let fresh = all.saturating_sub(self.open_bytes);
                self.open_bytes = 0;
                fresh
            }
            _ => 0,
        }
    }
}

fn sealed_well(frame: &Value) -> Result<(), Oops> {
    if frame["stopReason"] == "end" { Ok(()) } else { Err(format!("a turn went wrong: {frame}").into()) }
}
