//! JSON from the network: its depth is checked before anything recursive sees it, then it goes into typed
//! structs.

use super::respond::Fault;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use std::io::{self, Read};

/// Deepest nesting of what clients send.
const DEPTH_MAX: usize = 16;

/// Parses a body or frame.
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Fault> {
    check_depth(bytes)?;
    serde_json::from_slice(bytes).map_err(|e| Fault::bad(format!("not the JSON that was expected: {e}")))
}

/// Refuses what is nested deeper than 16.
pub fn check_depth(bytes: &[u8]) -> Result<(), Fault> {
    let (mut depth, mut in_text, mut escaped) = (0usize, false, false);
    for byte in bytes {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            b'[' | b'{' if !in_text => {
                depth += 1;
                if depth > DEPTH_MAX {
                    return Err(Fault::bad(format!("the JSON is nested deeper than {DEPTH_MAX}")));
                }
            }
            b']' | b'}' if !in_text => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    Ok(())
}

/// Tells `null` (`Some(None)`) from absent (`None`).
pub fn nullable<'de, T, D>(from: D) -> Result<Option<Option<T>>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    Option::deserialize(from).map(Some)
}

/// A reader over text that is made piece by piece: the next piece is made when the last is read.
pub struct Pieces<F> {
    make: F,
    piece: String,
    at: usize,
    done: bool,
}

impl<F: FnMut(&mut String) -> io::Result<bool>> Pieces<F> {
    /// `make` appends a piece and says whether there are more.
    pub fn new(make: F) -> Pieces<F> {
        Pieces { make, piece: String::new(), at: 0, done: false }
    }
}

impl<F: FnMut(&mut String) -> io::Result<bool>> Read for Pieces<F> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while self.at >= self.piece.len() && !self.done {
            self.piece.clear();
            self.at = 0;
            self.done = !(self.make)(&mut self.piece)?;
        }
        let mut rest = self.piece.as_bytes().split_at(self.at).1;
        let n = rest.read(buf)?;
        self.at += n;
        Ok(n)
    }
}

/// A reader over `{"name":[item,…]}`, one item at a time. An item that cannot be rendered breaks the answer
/// off.
pub fn list<I: IntoIterator, F>(name: &str, items: I, render: F) -> impl Read + use<I, F>
where
    F: Fn(I::Item) -> io::Result<String>,
{
    list_and(name, items, String::new(), render)
}

/// The same with more fields behind the list: `rest` is empty or begins with a comma.
pub fn list_and<I: IntoIterator, F>(name: &str, items: I, rest: String, render: F) -> impl Read + use<I, F>
where
    F: Fn(I::Item) -> io::Result<String>,
{
    let mut start = Some(format!(r#"{{"{name}":["#));
    let mut first = true;
    let mut items = items.into_iter();
    Pieces::new(move |out| {
        out.push_str(&start.take().unwrap_or_default());
        match items.next() {
            Some(item) => {
                if !std::mem::replace(&mut first, false) {
                    out.push(',');
                }
                out.push_str(&render(item)?);
                Ok(true)
            }
            None => {
                out.push(']');
                out.push_str(&rest);
                out.push('}');
                Ok(false)
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_is_counted_outside_of_strings() {
        let deep = |n: usize| format!("{}1{}", "[".repeat(n), "]".repeat(n));
        assert!(check_depth(deep(16).as_bytes()).is_ok());
        assert!(check_depth(deep(17).as_bytes()).is_err());
        assert!(check_depth(deep(100_000).as_bytes()).is_err());
        assert!(check_depth(format!(r#"["{}\"["]"#, "[".repeat(50)).as_bytes()).is_ok());
        assert!(check_depth(format!("[{}]", "[],".repeat(50)).as_bytes()).is_ok());
    }

    #[test]
    fn a_list_is_whole_however_it_is_read() {
        let read = |size: usize, items: Vec<u32>| {
            let mut reader = list("items", items, |item| Ok(item.to_string()));
            let (mut out, mut buf) = (Vec::new(), vec![0; size]);
            while let Ok(n @ 1..) = reader.read(&mut buf) {
                out.extend_from_slice(&buf[..n]);
            }
            String::from_utf8(out).unwrap()
        };
        for size in 1..40 {
            assert_eq!(read(size, vec![1, 22, 3]), r#"{"items":[1,22,3]}"#);
        }
        assert_eq!(read(3, vec![]), r#"{"items":[]}"#);
        let mut reader = list_and("a", [1], r#","b":2"#.into(), |n| Ok(n.to_string()));
        let mut out = String::new();
        reader.read_to_string(&mut out).unwrap();
        assert_eq!(out, r#"{"a":[1],"b":2}"#);
    }

    #[test]
    fn null_is_not_absent() {
        #[derive(Deserialize)]
        struct Two {
            #[serde(default, deserialize_with = "nullable")]
            a: Option<Option<u32>>,
        }
        assert_eq!(parse::<Two>(b"{}").unwrap().a, None);
        assert_eq!(parse::<Two>(br#"{"a":null}"#).unwrap().a, Some(None));
        assert_eq!(parse::<Two>(br#"{"a":1}"#).unwrap().a, Some(Some(1)));
    }
}
