//! The floors of the delay per delta: the provider read directly, and a bare relay of the same crates (ureq
//! in, tungstenite out) in a process of its own, which keeps no log and knows no tabs.

use crate::Oops;
use crate::provider::DELTA_BYTES;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tungstenite::{Message, WebSocket};

const REQUEST: &str = r#"{"model":"scripted","stream":true,"messages":[{"role":"user","content":"hello"}]}"#;

/// The relay's own main: serves one WebSocket, and asks the provider once per frame that comes in.
pub fn serve(url: &str) -> Result<(), Oops> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut out = std::io::stdout();
    writeln!(out, "{}", listener.local_addr()?)?;
    out.flush()?;
    let (stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    let mut ws = tungstenite::accept(stream).map_err(|error| format!("no WebSocket: {error}"))?;
    while let Ok(Message::Text(_)) = ws.read() {
        let config = ureq::Agent::config_builder().no_delay(true).input_buffer_size(8 * 1024).build();
        let answer = ureq::Agent::new_with_config(config)
            .post(url)
            .header("content-type", "application/json")
            .send(REQUEST)?;
        for_each_text(answer.into_body().into_reader(), |text| {
            Ok(ws.send(Message::text(format!("{{\"type\":\"chunk-delta\",\"text\":\"{text}\"}}")))?)
        })?;
        ws.send(Message::text("end"))?;
    }
    Ok(())
}

/// Parses an answer as a relay has to: line by line, each event's JSON.
fn for_each_text(body: impl Read, mut each: impl FnMut(&str) -> Result<(), Oops>) -> Result<(), Oops> {
    for line in BufReader::with_capacity(8 * 1024, body).lines() {
        let line = line?;
        let Some(data) = line.strip_prefix("data: {") else { continue };
        let event: serde_json::Value = serde_json::from_str(&format!("{{{data}"))?;
        if let Some(text) = event["choices"][0]["delta"]["content"].as_str() {
            each(text)?;
        }
    }
    Ok(())
}

/// A relay in a process of its own and a client of it.
pub struct Relay {
    child: Child,
    ws: WebSocket<TcpStream>,
}

impl Relay {
    /// Starts this same program as the relay and connects to it.
    pub fn start(provider: SocketAddr) -> Result<Relay, Oops> {
        let url = format!("http://{provider}/v1/chat/completions");
        let mut child =
            Command::new(std::env::current_exe()?).args(["relay", &url]).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("no standard output")?).read_line(&mut line)?;
        let stream = TcpStream::connect(line.trim())?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        let (ws, _) = tungstenite::client("ws://127.0.0.1/", stream)
            .map_err(|error| format!("no WebSocket to the relay: {error}"))?;
        Ok(Relay { child, ws })
    }

    /// One answer through the relay: when each delta was there.
    pub fn deltas(&mut self) -> Result<Vec<Instant>, Oops> {
        self.ws.send(Message::text("go"))?;
        let mut at = Vec::new();
        loop {
            let message = self.ws.read()?;
            let now = Instant::now();
            let text = message.into_text()?;
            if text.as_str() == "end" {
                return Ok(at);
            }
            let frame: serde_json::Value = serde_json::from_str(&text)?;
            let deltas = frame["text"].as_str().map_or(0, str::len) / DELTA_BYTES;
            at.extend(std::iter::repeat_n(now, deltas));
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// One answer read from the provider with nothing between: when each delta was there.
pub fn direct(provider: SocketAddr) -> Result<Vec<Instant>, Oops> {
    let mut stream = TcpStream::connect(provider)?;
    stream.set_nodelay(true)?;
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: {provider}\r\nContent-Length: {}\r\n\r\n",
        REQUEST.len()
    );
    stream.write_all(format!("{head}{REQUEST}").as_bytes())?;
    let mut at = Vec::new();
    for line in BufReader::new(stream).lines() {
        let line = line?;
        let now = Instant::now();
        if line.contains("\"content\":\"") {
            at.push(now);
        }
    }
    Ok(at)
}
