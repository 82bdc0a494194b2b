//! Server-sent events, pushed in as they come from the network and handed on one by one.
//!
//! Guarantees: an event is decoded as UTF-8 only when its line is whole, so a character cut by a read stays
//! itself; memory is never more than the limit, whatever arrives; the work is linear in the bytes. Line ends
//! may be LF, CRLF or CR, also split between two reads. Read first: the HTML standard's section "Server-sent
//! events", and `finish`, which is more lenient than it at the end of the stream.

use super::Fault;
use crate::budget::METERS;
use std::borrow::Cow;

/// What a stream consists of.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// an event; the name is empty if the stream gives none
    Event {
        /// the `event:` field, or `error` for a lone `error:` field as older llama.cpp servers write it
        name: &'a str,
        /// the `data:` lines, joined; never empty
        data: &'a str,
    },
    /// a comment or an empty event: a sign of life and nothing else
    KeepAlive,
}

/// Names of events longer than this are not names.
const NAME_BYTES_MAX: usize = 64;
/// A buffer that grew beyond this for one event is given back after it.
const KEPT_BYTES: usize = 16 * 1024;

/// The parser; see the module's text.
#[derive(Debug)]
pub struct Sse {
    /// the event's data so far, then the line that is arriving
    held: Vec<u8>,
    /// where that line starts in `held`
    line: usize,
    /// the event has a data line (which may be empty)
    has_data: bool,
    name: String,
    /// the last byte was a CR: a LF right after it belongs to it
    after_cr: bool,
    /// the first line was not seen yet: it may start with a byte order mark
    at_start: bool,
    limit: usize,
}

/// Takes the pieces of a stream; an error ends the parsing at once.
pub type Take<'a> = dyn FnMut(Piece<'_>) -> Result<(), Fault> + 'a;

impl Sse {
    /// A parser that holds at most `limit` bytes of one event.
    pub fn new(limit: usize) -> Sse {
        Sse {
            held: Vec::new(),
            line: 0,
            has_data: false,
            name: String::new(),
            after_cr: false,
            at_start: true,
            limit,
        }
    }

    /// Bytes that are allocated for the event at hand.
    pub fn capacity(&self) -> usize {
        self.held.capacity()
    }

    /// Takes what one read gave.
    pub fn feed(&mut self, mut bytes: &[u8], take: &mut Take<'_>) -> Result<(), Fault> {
        while let Some(first) = bytes.first() {
            if std::mem::take(&mut self.after_cr) && *first == b'\n' {
                bytes = bytes.split_at(1).1;
                continue;
            }
            let Some(end) = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r')) else {
                return self.hold(bytes);
            };
            let (line, rest) = bytes.split_at(end);
            self.hold(line)?;
            self.after_cr = rest.first() == Some(&b'\r');
            bytes = rest.split_at(1).1;
            self.end_line(take)?;
        }
        Ok(())
    }

    /// The stream ended. An event without its blank line counts only if its data is one whole JSON value:
    /// what broke off in the middle is dropped, what a server forgot to close is not.
    pub fn finish(&mut self, take: &mut Take<'_>) -> Result<(), Fault> {
        if self.held.len() > self.line {
            self.end_line(take)?;
        }
        let whole = {
            let data = self.held.split_at(self.line).0;
            data.trim_ascii() == b"[DONE]"
                || serde_json::from_slice::<serde::de::IgnoredAny>(data).is_ok()
                || self.name == "error"
        };
        let result = if self.has_data && whole { self.dispatch(take) } else { Ok(()) };
        self.held = Vec::new();
        self.line = 0;
        self.has_data = false;
        self.name.clear();
        result
    }

    /// Keeps a piece of a line, growing by doubling but never over the limit.
    fn hold(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        let need = self.held.len() + bytes.len();
        if need > self.limit {
            return Err(Fault::TooBig(format!(
                "an event of the provider's stream is longer than event_bytes ({} bytes)",
                self.limit
            )));
        }
        if need > self.held.capacity() {
            let room = need.max(2 * self.held.capacity()).min(self.limit);
            self.held.reserve_exact(room - self.held.len());
        }
        self.held.extend_from_slice(bytes);
        Ok(())
    }

    fn end_line(&mut self, take: &mut Take<'_>) -> Result<(), Fault> {
        let mut line = self.held.split_at(self.line).1;
        if std::mem::take(&mut self.at_start) {
            line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        }
        if line.is_empty() {
            self.held.truncate(self.line);
            return self.dispatch(take);
        }
        let (field, value) = match line.iter().position(|byte| *byte == b':') {
            Some(colon) => (line.split_at(colon).0, line.split_at(colon + 1).1),
            None => line.split_at(line.len()),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"data" => {
                let start = self.held.len() - value.len();
                self.join_data(start);
                return Ok(());
            }
            b"error" => {
                let start = self.held.len() - value.len();
                self.name = "error".to_owned();
                self.join_data(start);
                return Ok(());
            }
            b"event" => {
                let name = String::from_utf8_lossy(value);
                self.name = if name.len() <= NAME_BYTES_MAX { name.into_owned() } else { String::new() };
            }
            b"" => take(Piece::KeepAlive)?,
            // `id:`, `retry:` and what nobody knows
            _ => {}
        }
        self.held.truncate(self.line);
        Ok(())
    }

    /// Moves the value that stands from `start` to the end of `held` behind the data before it.
    fn join_data(&mut self, start: usize) {
        let mut to = self.line;
        if self.has_data {
            // There is room: the field's name and its colon stood here.
            if let Some(gap) = self.held.get_mut(to) {
                *gap = b'\n';
            }
            to += 1;
        }
        let end = self.held.len();
        self.held.copy_within(start..end, to);
        self.held.truncate(to + (end - start));
        self.line = self.held.len();
        self.has_data = true;
    }

    fn dispatch(&mut self, take: &mut Take<'_>) -> Result<(), Fault> {
        let had_data = std::mem::take(&mut self.has_data);
        let name = std::mem::take(&mut self.name);
        let data = self.held.split_at(self.line).0;
        METERS.event_bytes.set(data.len());
        let text: Cow<'_, str> = String::from_utf8_lossy(data);
        let blank = text.trim_ascii().is_empty() || text.starts_with(':');
        let result = match (had_data, blank) {
            (false, _) => Ok(()),
            (true, true) => take(Piece::KeepAlive),
            (true, false) => take(Piece::Event { name: &name, data: &text }),
        };
        self.held.clear();
        if self.held.capacity() > KEPT_BYTES {
            self.held.shrink_to(KEPT_BYTES);
        }
        self.line = 0;
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMIT: usize = 4096;

    fn parse(pieces: &[&[u8]]) -> (Vec<(String, String)>, usize, Result<(), Fault>) {
        let mut events = Vec::new();
        let mut alive = 0;
        let mut sse = Sse::new(LIMIT);
        let mut take = |piece: Piece<'_>| {
            match piece {
                Piece::Event { name, data } => events.push((name.to_owned(), data.to_owned())),
                Piece::KeepAlive => alive += 1,
            }
            Ok(())
        };
        let mut result = Ok(());
        for piece in pieces {
            result = result.and_then(|()| sse.feed(piece, &mut take));
            assert!(sse.capacity() <= LIMIT);
        }
        let result = result.and_then(|()| sse.finish(&mut take));
        (events, alive, result)
    }

    /// The same events whatever the line ends, and whichever way the bytes are cut in two or sent one by one.
    fn check(stream: &str, expected: &[(&str, &str)]) {
        let expected: Vec<_> = expected.iter().map(|(n, d)| (n.to_string(), d.to_string())).collect();
        for ends in ["\n", "\r\n", "\r"] {
            let text = stream.replace('\n', ends);
            let bytes = text.as_bytes();
            for at in 0..=bytes.len() {
                let (a, b) = bytes.split_at(at);
                let (events, _, result) = parse(&[a, b]);
                assert_eq!((&events, result), (&expected, Ok(())), "{text:?} cut at {at}");
            }
            let single: Vec<&[u8]> = bytes.chunks(1).collect();
            assert_eq!(parse(&single).0, expected, "{text:?} byte by byte");
        }
    }

    #[test]
    fn a_character_cut_by_a_read_stays_itself() {
        check("data: {\"delta\":{\"text\":\"é👍\"}}\n\n", &[("", "{\"delta\":{\"text\":\"é👍\"}}")]);
    }

    #[test]
    fn one_optional_space_is_stripped() {
        check("data:{\"x\":1}\n\ndata:  {\"x\":1}\n\n", &[("", "{\"x\":1}"), ("", " {\"x\":1}")]);
    }

    #[test]
    fn names_comments_ids_and_empty_data_are_told_apart() {
        check(
            ": OPENROUTER PROCESSING\n\n: x\n\nid: 7\nretry: 9\nevent: a\ndata: 1\n\n\
             data: : x\n\ndata:\n\ndata\n\ndata: 2\n\n",
            &[("a", "1"), ("", "2")],
        );
    }

    #[test]
    fn comments_and_empty_events_are_signs_of_life() {
        let (events, alive, _) = parse(&[b": a\n\n: b\n\ndata: : x\n\ndata:\n\n"]);
        assert_eq!((events.len(), alive), (0, 4));
    }

    #[test]
    fn line_ends_of_all_kinds_may_mix() {
        let mixed = b"data: 1\r\rdata: 2\n\ndata: 3\r\n\r\ndata: 4\n\r\ndata: 5\r\r\ndata: 6\n\r";
        let expected: Vec<_> = (1..=6).map(|n| (String::new(), n.to_string())).collect();
        for at in 0..=mixed.len() {
            let (a, b) = mixed.split_at(at);
            assert_eq!(parse(&[a, b]), (expected.clone(), 0, Ok(())), "cut at {at}");
        }
    }

    /// Feeds `bytes` in reads of `size`; gives how many events there were.
    fn count(bytes: &[u8], size: usize) -> usize {
        let mut events = 0;
        let mut sse = Sse::new(8 << 20);
        for read in bytes.chunks(size) {
            sse.feed(read, &mut |piece| {
                events += usize::from(matches!(piece, Piece::Event { .. }));
                Ok(())
            })
            .unwrap();
        }
        events
    }

    #[test]
    fn the_work_grows_no_faster_than_the_bytes() {
        crate::testing::grows_linearly(|times| {
            let line = [b"data: \"".as_slice(), &vec![b'x'; times << 20], b"\"\n\n"].concat();
            assert_eq!(count(&line, 1024), 1);
        });
        crate::testing::grows_linearly(|times| {
            let small = b"data: {\"choices\":[]}\n\n".repeat(20_000 * times);
            assert_eq!(count(&small, small.len()), 20_000 * times);
        });
        crate::testing::grows_linearly(|times| {
            let lines = [b"data: x\n".repeat(20_000 * times), b"\n".to_vec()].concat();
            assert_eq!(count(&lines, 1024), 1);
        });
    }

    #[test]
    fn several_data_lines_are_joined() {
        check("data: a\ndata:b\ndata: \ndata:c\n\n", &[("", "a\nb\n\nc")]);
        check("data\ndata\ndata: x\n\n", &[("", "\n\nx")]);
    }

    #[test]
    fn an_error_field_is_an_error_event() {
        check("error: {\"code\":500}\n\n", &[("error", "{\"code\":500}")]);
        check("error: {\"code\":500}", &[("error", "{\"code\":500}")]);
    }

    #[test]
    fn a_byte_order_mark_is_skipped() {
        check("\u{feff}data: 1\n\n", &[("", "1")]);
    }

    #[test]
    fn the_last_event_counts_without_its_blank_line_only_if_it_is_whole() {
        for tail in ["", "\n", "\n\n"] {
            check(&format!("data: {{\"a\":1}}{tail}"), &[("", "{\"a\":1}")]);
        }
        check("data: [DONE]", &[("", "[DONE]")]);
        check("data: {\"a\":", &[]);
        check("data: {\"a\":1}\n\ndata: {\"a\"\n", &[("", "{\"a\":1}")]);
        check("data: hello\n", &[]);
    }

    #[test]
    fn bad_bytes_become_replacement_characters_and_nothing_else_does() {
        let (events, ..) = parse(&[b"data: \"a\xffb\xc3\xa9\"\n\n"]);
        assert_eq!(events, [(String::new(), "\"a\u{fffd}bé\"".to_owned())]);
    }

    #[test]
    fn an_event_over_the_limit_is_an_error_that_names_it() {
        let long = vec![b'x'; LIMIT];
        let (_, _, result) = parse(&[b"data: ", &long]);
        assert!(matches!(result, Err(Fault::TooBig(text)) if text.contains("event_bytes (4096 bytes)")));
        let lines = b"data: x\n".repeat(LIMIT);
        assert!(matches!(parse(&[&lines]).2, Err(Fault::TooBig(_))));
        // A comment without end is an event without end.
        let comment = b":".repeat(LIMIT + 1);
        assert!(matches!(parse(&[&comment]).2, Err(Fault::TooBig(_))));
    }

    #[test]
    fn memory_of_a_big_event_is_given_back() {
        let mut sse = Sse::new(1 << 20);
        let line = [b"data: \"".as_slice(), &vec![b'x'; 500_000], b"\"\n\n"].concat();
        let mut seen = 0;
        for read in line.chunks(1000) {
            sse.feed(read, &mut |piece| {
                if let Piece::Event { data, .. } = piece {
                    seen += data.len();
                }
                Ok(())
            })
            .unwrap();
        }
        assert_eq!(seen, 500_002);
        assert!(sse.capacity() <= KEPT_BYTES);
    }

    #[test]
    fn an_error_of_the_taker_ends_the_parsing() {
        let mut seen = 0;
        let result = Sse::new(LIMIT).feed(b"data: 1\n\ndata: 2\n\n", &mut |_| {
            seen += 1;
            Err(Fault::Stopped)
        });
        assert_eq!((result, seen), (Err(Fault::Stopped), 1));
    }

    proptest! {
        #[test]
        fn any_bytes_in_any_cuts_give_the_same_events(
            bytes in proptest::collection::vec(
                prop_oneof![Just(b'\n'), Just(b'\r'), Just(b':'), Just(b'd'), any::<u8>()], 0..80),
            cut in 0usize..80,
        ) {
            let cut = cut.min(bytes.len());
            let (a, b) = bytes.split_at(cut);
            prop_assert_eq!(parse(&[&bytes]), parse(&[a, b]));
        }

        #[test]
        fn data_lines_come_out_as_they_went_in(lines in proptest::collection::vec("[^\r\n:]{1,20}", 1..6)) {
            prop_assume!(!lines.iter().all(|line| line.trim_ascii().is_empty()));
            let stream: String = lines.iter().map(|line| format!("data: {line}\n")).collect();
            let stream = stream + "\n";
            let (events, ..) = parse(&[stream.as_bytes()]);
            prop_assert_eq!(&events[0].1, &lines.join("\n"));
        }
    }
}
