//! The models that a provider offers, read from a list of any length through a small buffer.

use super::http::{self, Request};
use super::{Fault, join};
use crate::agent::stop::Stop;
use crate::budget::Budget;
use crate::config::{ApiKind, Provider};
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::fmt;
use std::io::{self, BufReader, Read};
use std::time::{Duration, Instant};

/// Lists are read no further than this.
const LIST_BYTES_MAX: u64 = 8 << 20;
/// Names longer than this are left out.
const NAME_BYTES_MAX: usize = 200;
/// No string of the list may be longer, since it is held while it is parsed.
const STRING_BYTES_MAX: usize = 64 * 1024;
const WAIT: Duration = Duration::from_secs(20);

/// Asks a provider for its models and, where it tells, the tokens of their contexts; at most `models` of the
/// budget.
pub fn models(
    provider: &Provider,
    budget: &Budget,
    stop: &Stop,
) -> Result<Vec<(String, Option<u64>)>, String> {
    let mut url = join(&provider.base_url, "/models");
    if provider.kind == ApiKind::Anthropic {
        url.push_str("?limit=1000");
    }
    let mut times = http::times(provider);
    times.first_event = WAIT.min(times.first_event);
    times.idle = WAIT.min(times.idle);
    let reply = http::open(provider, Request { url, body: None, times }, stop).map_err(text)?;
    if !reply.status.is_success() {
        return Err(text(http::failed(provider, reply)));
    }
    let bounded = Bounded::new(reply.body.take(LIST_BYTES_MAX), Instant::now() + WAIT);
    read(BufReader::with_capacity(4096, bounded), budget.models)
        .map_err(|error| format!("provider {} sent no list of models: {error}", provider.name))
}

fn text(fault: Fault) -> String {
    match fault {
        Fault::Refusal { message, .. } | Fault::Cut { message, .. } | Fault::TooBig(message) => message,
        Fault::Stopped => "stopped".to_owned(),
        Fault::Store(error) => error.to_string(),
    }
}

fn read(from: impl Read, most: usize) -> serde_json::Result<Vec<(String, Option<u64>)>> {
    let mut found = Vec::new();
    let mut json = serde_json::Deserializer::from_reader(from);
    List { found: &mut found, most }.deserialize(&mut json)?;
    Ok(found)
}

/// Refuses JSON with a string so long that the parser would grow with it, and a list that comes too slowly as
/// a whole.
struct Bounded<R> {
    inner: R,
    until: Instant,
    in_string: bool,
    escaped: bool,
    length: usize,
}

impl<R> Bounded<R> {
    fn new(inner: R, until: Instant) -> Bounded<R> {
        Bounded { inner, until, in_string: false, escaped: false, length: 0 }
    }
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if Instant::now() >= self.until {
            return Err(io::Error::other(format!("it did not end within {} s", WAIT.as_secs())));
        }
        let amount = self.inner.read(into)?;
        for byte in into.iter().take(amount) {
            self.length = if self.in_string { self.length + 1 } else { 0 };
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_string => self.escaped = true,
                b'"' => self.in_string = !self.in_string,
                _ => {}
            }
            if self.length > STRING_BYTES_MAX {
                return Err(io::Error::other(format!(
                    "a string in it is longer than {STRING_BYTES_MAX} bytes"
                )));
            }
        }
        Ok(amount)
    }
}

/// `{"data":[…]}`; other keys are skipped without being held.
struct List<'a> {
    found: &'a mut Vec<(String, Option<u64>)>,
    most: usize,
}

impl<'de> DeserializeSeed<'de> for List<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for List<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with a list named data")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            if key == "data" {
                map.next_value_seed(Entries { found: self.found, most: self.most })?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }

    /// Some servers give the list alone.
    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<(), A::Error> {
        Entries { found: self.found, most: self.most }.visit_seq(seq)
    }
}

struct Entries<'a> {
    found: &'a mut Vec<(String, Option<u64>)>,
    most: usize,
}

impl<'de> DeserializeSeed<'de> for Entries<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Entries<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of models")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while let Some(entry) = seq.next_element::<Entry>()? {
            let name = entry.0;
            let usable = !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.contains(char::is_control);
            if usable && self.found.len() < self.most {
                self.found.push((name, entry.1));
            }
        }
        Ok(())
    }
}

/// One model: its id, and its context under any of the names that servers give it.
struct Entry(String, Option<u64>);

impl<'de> serde::Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Entry, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Entry;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a model")
            }
            fn visit_str<E>(self, name: &str) -> Result<Entry, E> {
                Ok(Entry(name.to_owned(), None))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entry, A::Error> {
                let mut entry = Entry(String::new(), None);
                while let Some(key) = map.next_key::<String>()? {
                    match key.as_str() {
                        "id" => entry.0 = map.next_value::<Option<String>>()?.unwrap_or_default(),
                        "max_input_tokens" | "context_length" | "max_model_len" | "context_window"
                        | "max_context_length" => {
                            let told = map.next_value::<serde_json::Value>()?.as_u64();
                            entry.1 = entry.1.or(told.filter(|tokens| *tokens > 0));
                        }
                        "meta" => {
                            // llama.cpp: what the model was trained with, which bounds what it is served with
                            let meta = map.next_value::<Option<Meta>>()?;
                            entry.1 = entry.1.or(meta.and_then(|meta| meta.n_ctx));
                        }
                        _ => {
                            map.next_value::<IgnoredAny>()?;
                        }
                    }
                }
                Ok(entry)
            }
        }
        from.deserialize_any(Fields)
    }
}

#[derive(serde::Deserialize)]
struct Meta {
    #[serde(default)]
    n_ctx: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bug: only silence was bounded. Effect: a provider that sent a byte a minute held everyone who asked
    /// for the models. Mend: the list as a whole has a time.
    #[test]
    fn a_list_that_does_not_end_is_given_up() {
        let mut late = Bounded::new(&b"{}"[..], Instant::now());
        assert!(late.read(&mut [0; 8]).unwrap_err().to_string().contains("20 s"));
    }

    #[test]
    fn lists_of_all_kinds_are_read() {
        let list = r#"{"object":"list","models":[{"x":[]}],"data":[{"id":"a","created":1},{"id":null},
            {"id":"b","context_length":4096,"architecture":{"x":[1]}},{"id":"c","meta":{"n_ctx":2048,"y":1}},
            {"id":"d","max_input_tokens":null}],"has_more":false}"#;
        let expected = [("a", None), ("b", Some(4096)), ("c", Some(2048)), ("d", None)];
        let expected: Vec<_> = expected.map(|(name, tokens)| (name.to_owned(), tokens)).into();
        assert_eq!(read(list.as_bytes(), 10).unwrap(), expected);
        assert_eq!(read(r#"["a"]"#.as_bytes(), 10).unwrap(), [("a".to_owned(), None)]);
        assert_eq!(read(r#"{"data":null}"#.as_bytes(), 10).unwrap(), []);
        assert!(read("<html>".as_bytes(), 10).is_err());
    }

    #[test]
    fn no_more_are_kept_than_the_budget_says() {
        let list: Vec<String> = (0..100).map(|at| format!(r#"{{"id":"m{at}"}}"#)).collect();
        let list = format!(r#"{{"data":[{}]}}"#, list.join(","));
        assert_eq!(read(list.as_bytes(), 7).unwrap().len(), 7);
    }

    #[test]
    fn an_endless_string_is_refused_before_it_is_held() {
        let list = format!(r#"{{"data":[{{"id":"{}"}}]}}"#, "x".repeat(STRING_BYTES_MAX + 10));
        let bounded = Bounded::new(list.as_bytes(), Instant::now() + WAIT);
        assert!(read(bounded, 7).unwrap_err().to_string().contains("longer than 65536 bytes"));
    }
}
