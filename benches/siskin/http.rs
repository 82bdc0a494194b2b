//! A small HTTP client that keeps its connection, so that what is measured is the server.

use crate::Oops;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// One connection to a server.
pub struct Http {
    stream: BufReader<TcpStream>,
    host: String,
    token: Option<String>,
}

/// An answer.
pub struct Answer {
    /// its status
    pub status: u16,
    /// its whole body
    pub body: Vec<u8>,
}

impl Answer {
    /// The body as JSON, which the answer has to hold with one of these statuses.
    pub fn json(self, expected: u16) -> Result<serde_json::Value, Oops> {
        if self.status != expected {
            return Err(format!("status {}: {}", self.status, String::from_utf8_lossy(&self.body)).into());
        }
        Ok(serde_json::from_slice(&self.body)?)
    }
}

impl Http {
    /// Connects.
    pub fn connect(addr: SocketAddr, token: Option<&str>) -> Result<Http, Oops> {
        let stream = TcpStream::connect(addr)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        Ok(Http { stream: BufReader::new(stream), host: addr.to_string(), token: token.map(str::to_string) })
    }

    /// Asks for something.
    pub fn get(&mut self, path: &str) -> Result<Answer, Oops> {
        self.ask("GET", path, None)
    }

    /// Posts JSON.
    pub fn post(&mut self, path: &str, body: &serde_json::Value) -> Result<Answer, Oops> {
        self.ask("POST", path, Some(&body.to_string()))
    }

    /// Changes something by JSON, which has to be accepted.
    pub fn patch(&mut self, path: &str, body: &serde_json::Value) -> Result<serde_json::Value, Oops> {
        self.ask("PATCH", path, Some(&body.to_string()))?.json(200)
    }

    fn ask(&mut self, method: &str, path: &str, body: Option<&str>) -> Result<Answer, Oops> {
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\n", self.host);
        if let Some(token) = &self.token {
            head.push_str(&format!("Authorization: Bearer {token}\r\n"));
        }
        if let Some(body) = body {
            head.push_str(&format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len()));
        }
        head.push_str("\r\n");
        head.push_str(body.unwrap_or(""));
        self.stream.get_mut().write_all(head.as_bytes())?;
        self.answer()
    }

    fn answer(&mut self) -> Result<Answer, Oops> {
        let status_line = self.line()?;
        let status = status_line.split(' ').nth(1).ok_or("no status")?.parse()?;
        let (mut length, mut chunked) = (0, false);
        loop {
            let line = self.line()?.to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse()?;
            }
            chunked |= line.starts_with("transfer-encoding:") && line.contains("chunked");
        }
        let mut body = Vec::new();
        if !chunked {
            self.read_into(&mut body, length)?;
            return Ok(Answer { status, body });
        }
        loop {
            let size = usize::from_str_radix(self.line()?.trim(), 16)?;
            self.read_into(&mut body, size)?;
            self.line()?;
            if size == 0 {
                return Ok(Answer { status, body });
            }
        }
    }

    fn read_into(&mut self, body: &mut Vec<u8>, length: usize) -> Result<(), Oops> {
        let start = body.len();
        body.resize(start + length, 0);
        let room = body.split_at_mut(start).1;
        self.stream.read_exact(room)?;
        Ok(())
    }

    fn line(&mut self) -> Result<String, Oops> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err("the server closed the connection".into());
        }
        Ok(line.trim_end().to_string())
    }
}
