//! The models that a provider offers and what they take, read from a list of any length through a small
//! buffer.
//!
//! The vendors' lists have little in common. What is understood: `max_input_tokens`, `max_tokens` and
//! `capabilities` (Anthropic), `context_length`, `supported_parameters` and `top_provider` (OpenRouter),
//! `meta.n_ctx` (llama.cpp), `max_model_len` (vLLM), `max_context_length` and `loaded_context_length` (LM
//! Studio, Mistral), `context_window` (Groq). Where a context is told twice, the smaller counts.

use super::facts::{EFFORTS, Efforts, Facts, Ways};
use super::http::{self, Request};
use super::{Fault, join};
use crate::agent::stop::Stop;
use crate::config::{ApiKind, Provider};
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::fmt;
use std::io::{self, BufReader, Read};
use std::time::{Duration, Instant};

/// Lists are read no further than this.
const LIST_BYTES_MAX: u64 = 8 << 20;
/// A list of more pages is read no further.
const PAGES_MAX: usize = 20;
/// Names longer than this are left out.
const NAME_BYTES_MAX: usize = 200;
/// No string of the list may be longer, since it is held while it is parsed.
const STRING_BYTES_MAX: usize = 64 * 1024;

/// A model of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// as the provider names it
    pub name: Box<str>,
    /// what the list tells
    pub facts: Facts,
}

/// Which model of a list is meant by a name: the one of that name; else its newest dated one, as the vendor's
/// aliases go (`claude-x-1` for `claude-x-1-20260131`); else its `:latest`.
pub fn find<'a>(list: &'a [Listed], name: &str) -> Option<&'a Listed> {
    let dated = list.iter().filter(|listed| is_dated(&listed.name, name)).max_by_key(|listed| &listed.name);
    list.iter()
        .find(|listed| *listed.name == *name)
        .or(dated)
        .or_else(|| list.iter().find(|listed| listed.name.strip_suffix(":latest") == Some(name)))
}

fn is_dated(listed: &str, name: &str) -> bool {
    let date = listed.strip_prefix(name).and_then(|rest| rest.strip_prefix('-'));
    date.is_some_and(|date| date.len() == 8 && date.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Asks a provider for its models, for at most `wait`. Of a provider whose models the config names only those
/// are kept, and at most `most` in all.
pub fn models(provider: &Provider, most: usize, wait: Duration, stop: &Stop) -> Result<Vec<Listed>, String> {
    let until = Instant::now() + wait;
    let late = |message| {
        let name = &provider.name;
        let late = Instant::now() >= until && !stop.is_raised();
        if late {
            format!("provider {name} gave no list of models within {} s", wait.as_secs())
        } else {
            message
        }
    };
    let mut list = List { found: Vec::new(), most, named: &provider.models, more: false, last: None };
    for _ in 0..PAGES_MAX {
        page(provider, &mut list, until, stop).map_err(late)?;
        if provider.kind != ApiKind::Anthropic
            || !list.more
            || list.last.is_none()
            || list.found.len() >= most
        {
            break;
        }
    }
    Ok(list.found)
}

fn page(provider: &Provider, list: &mut List<'_>, until: Instant, stop: &Stop) -> Result<(), String> {
    let mut url = join(&provider.base_url, "/models");
    if provider.kind == ApiKind::Anthropic {
        url.push_str("?limit=1000");
    }
    if let Some(last) = list.last.take() {
        url.push_str("&after_id=");
        url.extend(last.bytes().map(escaped));
    }
    let mut times = http::times(provider);
    times.until = Some(until);
    let reply = http::open(provider, Request { url, body: None, times }, stop).map_err(text)?;
    if !reply.status.is_success() {
        return Err(text(http::failed(provider, reply)));
    }
    list.more = false;
    let bounded = Bounded::new(reply.body.take(LIST_BYTES_MAX), until);
    read(BufReader::with_capacity(4096, bounded), list)
        .map_err(|error| format!("provider {} sent no list of models: {error}", provider.name))
}

fn escaped(byte: u8) -> String {
    match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    }
}

fn text(fault: Fault) -> String {
    match fault {
        Fault::Refusal { message, .. } | Fault::Cut { message, .. } | Fault::TooBig(message) => message,
        Fault::Stopped => "stopped".to_owned(),
        Fault::Store(error) => error.to_string(),
    }
}

fn read(from: impl Read, list: &mut List<'_>) -> serde_json::Result<()> {
    let mut json = serde_json::Deserializer::from_reader(from);
    list.deserialize(&mut json)
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
            return Err(io::Error::other("it did not end in time"));
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

/// `{"data":[…]}` and what was found in it; other keys are skipped without being held.
struct List<'a> {
    found: Vec<Listed>,
    most: usize,
    /// keep only these, if there are any
    named: &'a [String],
    /// there is a further page
    more: bool,
    /// the last id of this page
    last: Option<String>,
}

impl List<'_> {
    fn take(&mut self, entry: Entry) {
        let Entry { name, facts } = entry;
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains(char::is_control) {
            return;
        }
        let wanted = |named: &String| {
            *named == name || is_dated(&name, named) || name.strip_suffix(":latest") == Some(named)
        };
        if (self.named.is_empty() || self.named.iter().any(wanted)) && self.found.len() < self.most {
            self.found.push(Listed { name: name.into(), facts });
        }
    }
}

impl<'de> DeserializeSeed<'de> for &mut List<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for &mut List<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with a list named data")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "data" => map.next_value_seed(&mut *self)?,
                "has_more" => self.more = map.next_value::<Option<bool>>()?.unwrap_or(false),
                "last_id" => self.last = map.next_value()?,
                _ => _ = map.next_value::<IgnoredAny>()?,
            }
        }
        Ok(())
    }

    /// The list, which some servers give alone.
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        loop {
            let mut entry = Entry { name: String::new(), facts: Facts::default() };
            match seq.next_element_seed(Walk { place: Place::Model, entry: &mut entry })? {
                Some(()) => self.take(entry),
                None => return Ok(()),
            }
        }
    }
}

/// One model, while it is read.
struct Entry {
    name: String,
    facts: Facts,
}

/// Where in a model's entry the reading stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// the entry: an object, or only the name
    Model,
    Name,
    /// a number of tokens of the context
    Context,
    /// a number of tokens of an answer
    Output,
    /// llama.cpp: what it serves; `n_ctx_train` would be what the model was trained with
    Meta,
    TopProvider,
    Capabilities,
    Thinking,
    Types,
    Adaptive,
    Enabled,
    Efforts,
    Effort(usize),
    /// the fields that a request may have
    Parameters,
    Parameter,
}

impl Place {
    fn within(self, key: &str) -> Option<Place> {
        Some(match (self, key) {
            (Place::Model, "id") => Place::Name,
            (
                Place::Model | Place::TopProvider,
                "max_input_tokens"
                | "context_length"
                | "max_model_len"
                | "context_window"
                | "max_context_length"
                | "loaded_context_length",
            )
            | (Place::Meta, "n_ctx") => Place::Context,
            (
                Place::Model | Place::TopProvider,
                "max_tokens" | "max_completion_tokens" | "max_output_tokens",
            ) => Place::Output,
            (Place::Model, "meta") => Place::Meta,
            (Place::Model, "top_provider") => Place::TopProvider,
            (Place::Model, "capabilities") => Place::Capabilities,
            (Place::Model, "supported_parameters") => Place::Parameters,
            (Place::Capabilities, "thinking") => Place::Thinking,
            (Place::Thinking, "types") => Place::Types,
            (Place::Types, "adaptive") => Place::Adaptive,
            (Place::Types, "enabled") => Place::Enabled,
            (Place::Capabilities, "effort") => Place::Efforts,
            (Place::Efforts, word) => Place::Effort(EFFORTS.iter().position(|known| *known == word)?),
            // A capability is an object that says so.
            (Place::Adaptive | Place::Enabled | Place::Effort(_), "supported") => self,
            _ => return None,
        })
    }
}

/// Reads a value at a place; what is of another kind than expected there is skipped, never an error.
struct Walk<'a> {
    place: Place,
    entry: &'a mut Entry,
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a model")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let facts = &mut self.entry.facts;
        match self.place {
            Place::Types => _ = facts.thinking.get_or_insert(Ways::default()),
            Place::Efforts => _ = facts.efforts.get_or_insert(Efforts::NONE),
            _ => {}
        }
        while let Some(key) = map.next_key::<String>()? {
            match self.place.within(&key) {
                Some(place) => map.next_value_seed(Walk { place, entry: &mut *self.entry })?,
                None => _ = map.next_value::<IgnoredAny>()?,
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        if self.place != Place::Parameters {
            while seq.next_element::<IgnoredAny>()?.is_some() {}
            return Ok(());
        }
        self.entry.facts.efforts.get_or_insert(Efforts::NONE);
        while seq.next_element_seed(Walk { place: Place::Parameter, entry: &mut *self.entry })?.is_some() {}
        Ok(())
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        match self.place {
            Place::Model | Place::Name => text.clone_into(&mut self.entry.name),
            Place::Parameter if matches!(text, "reasoning" | "reasoning_effort") => {
                self.entry.facts.efforts = Some(Efforts::ALL);
            }
            Place::Context | Place::Output => text.parse().map_or((), |tokens| self.tokens(tokens)),
            _ => {}
        }
        Ok(())
    }

    fn visit_bool<E>(self, supported: bool) -> Result<(), E> {
        let facts = &mut self.entry.facts;
        match self.place {
            Place::Adaptive => facts.thinking.get_or_insert(Ways::default()).adaptive = supported,
            Place::Enabled => facts.thinking.get_or_insert(Ways::default()).budget = supported,
            Place::Effort(at) => facts.efforts.get_or_insert(Efforts::NONE).set(EFFORTS[at], supported),
            _ => {}
        }
        Ok(())
    }

    fn visit_u64<E>(self, number: u64) -> Result<(), E> {
        self.tokens(number);
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, number: f64) -> Result<(), E> {
        self.tokens(number as u64);
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

impl Walk<'_> {
    fn tokens(self, tokens: u64) {
        let facts = &mut self.entry.facts;
        let known = match self.place {
            Place::Context => &mut facts.context_tokens,
            Place::Output => &mut facts.output_tokens,
            _ => return,
        };
        if tokens > 0 {
            *known = Some(known.map_or(tokens, |known| known.min(tokens)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(json: &str, most: usize, named: &[String]) -> Result<Vec<Listed>, serde_json::Error> {
        let mut list = List { found: Vec::new(), most, named, more: false, last: None };
        read(json.as_bytes(), &mut list).map(|()| list.found)
    }

    fn only(json: &str) -> Facts {
        let found = list(&format!(r#"{{"data":[{json}]}}"#), 9, &[]).unwrap();
        assert_eq!(found.len(), 1, "{json}");
        found[0].facts
    }

    /// Bug: only silence was bounded. Effect: a provider that sent a byte a minute held everyone who asked
    /// for the models. Mend: the list as a whole has a time.
    #[test]
    fn a_list_that_does_not_end_is_given_up() {
        let mut late = Bounded::new(&b"{}"[..], Instant::now());
        assert!(late.read(&mut [0; 8]).unwrap_err().to_string().contains("in time"));
    }

    #[test]
    fn lists_of_all_kinds_are_read() {
        let json = r#"{"object":"list","models":[{"x":[]}],"data":[{"id":"a","created":1},{"id":null},
            {"id":"b","context_length":4096,"architecture":{"x":[1]}},{"id":"c","meta":{"n_ctx":2048,"y":1}},
            {"id":"d","max_input_tokens":null}],"has_more":false}"#;
        let found = list(json, 10, &[]).unwrap();
        let found: Vec<_> = found.iter().map(|one| (&*one.name, one.facts.context_tokens)).collect();
        assert_eq!(found, [("a", None), ("b", Some(4096)), ("c", Some(2048)), ("d", None)]);
        assert_eq!(&*list(r#"["a"]"#, 10, &[]).unwrap()[0].name, "a");
        assert_eq!(list(r#"{"data":null}"#, 10, &[]).unwrap(), []);
        assert!(list("<html>", 10, &[]).is_err());
        assert!(list("7", 10, &[]).is_err());
    }

    #[test]
    fn capabilities_tell_how_a_model_thinks_and_how_hard() {
        let facts = only(
            r#"{"type":"model","id":"claude-x","max_input_tokens":1000000,"max_tokens":128000,"capabilities":{
                "batch":{"supported":true},"effort":{"supported":true,"low":{"supported":true},
                "medium":{"supported":true},"high":{"supported":true},"max":{"supported":false},"xhigh":null},
                "thinking":{"supported":true,"types":{"adaptive":{"supported":true},
                "enabled":{"supported":false}}}}}"#,
        );
        assert_eq!((facts.context_tokens, facts.output_tokens), (Some(1_000_000), Some(128_000)));
        assert_eq!(facts.thinking, Some(Ways { adaptive: true, budget: false }));
        assert_eq!(facts.efforts.unwrap().words().collect::<Vec<_>>(), ["low", "medium", "high"]);
        let plain = only(r#"{"id":"x","capabilities":{"effort":{"low":true},"thinking":null}}"#);
        assert_eq!((plain.thinking, plain.efforts.unwrap().has("low")), (None, true));
        let silent = only(r#"{"id":"x","capabilities":null}"#);
        assert_eq!(silent, Facts::default());
    }

    #[test]
    fn servers_of_chat_completions_tell_in_their_own_words() {
        let openrouter = only(
            r#"{"id":"a/b","context_length":131072,"supported_parameters":["tools","reasoning"],
                "top_provider":{"context_length":65536,"max_completion_tokens":8192,"is_moderated":false}}"#,
        );
        assert_eq!((openrouter.context_tokens, openrouter.output_tokens), (Some(65_536), Some(8192)));
        assert_eq!(openrouter.efforts, Some(Efforts::ALL));
        assert_eq!(only(r#"{"id":"x","supported_parameters":["tools"]}"#).efforts, Some(Efforts::NONE));
        for (json, tokens) in [
            (r#"{"id":"x","meta":{"n_ctx_train":131072,"n_ctx":4096}}"#, Some(4096)),
            (r#"{"id":"x","meta":{"n_ctx_train":131072}}"#, None),
            (r#"{"id":"x","max_model_len":32768}"#, Some(32_768)),
            (r#"{"id":"x","max_context_length":32768,"loaded_context_length":4096}"#, Some(4096)),
            (r#"{"id":"x","context_window":"8192"}"#, Some(8192)),
            (r#"{"id":"x","context_length":0}"#, None),
            (r#"{"id":"x","context_length":-5}"#, None),
            (r#"{"id":"x","context_length":4096.0}"#, Some(4096)),
            (r#"{"id":"x","context_length":[1,[2,{"a":3}]],"meta":7,"capabilities":["vision"]}"#, None),
        ] {
            assert_eq!(only(json).context_tokens, tokens, "{json}");
        }
    }

    #[test]
    fn no_more_are_kept_than_the_budget_says_and_only_those_that_are_named() {
        let entries: Vec<String> = (0..100).map(|at| format!(r#"{{"id":"m{at}"}}"#)).collect();
        let json = format!(r#"{{"data":[{}]}}"#, entries.join(","));
        assert_eq!(list(&json, 7, &[]).unwrap().len(), 7);
        let named = ["m98".to_owned(), "other".to_owned()];
        assert_eq!(&*list(&json, 7, &named).unwrap()[0].name, "m98");
    }

    #[test]
    fn a_name_is_found_by_itself_its_newest_date_or_its_latest_tag() {
        let json = r#"["c-1-20260101","c-1-20260301","c-1-mini","g:latest","g:1b","c-2"]"#;
        let all = list(json, 9, &[]).unwrap();
        let found = |name: &str| find(&all, name).map(|listed| &*listed.name);
        assert_eq!(found("c-2"), Some("c-2"));
        assert_eq!(found("c-1"), Some("c-1-20260301"));
        assert_eq!(found("g"), Some("g:latest"));
        assert_eq!(found("c"), None);
        let named = ["c-1".to_owned(), "g".to_owned()];
        assert_eq!(list(json, 9, &named).unwrap().len(), 3);
    }

    #[test]
    fn an_endless_string_is_refused_before_it_is_held() {
        let json = format!(r#"{{"data":[{{"id":"{}"}}]}}"#, "x".repeat(STRING_BYTES_MAX + 10));
        let bounded = Bounded::new(json.as_bytes(), Instant::now() + Duration::from_secs(20));
        let mut list = List { found: Vec::new(), most: 7, named: &[], more: false, last: None };
        assert!(read(bounded, &mut list).unwrap_err().to_string().contains("longer than 65536 bytes"));
    }
}
