//! A tool's output as text for the model: cleaned while it streams, and kept as head and tail within a cap.
//!
//! Guaranteed whatever comes in, and however it is split: valid UTF-8, no escape sequence, no control byte
//! but line feed and tab, never longer than the cap, cut only between characters. Memory: the cap, and 1 KiB.

use crate::chunk::{floor_boundary, shorten};
use std::collections::VecDeque;

/// Bytes that are decoded at once.
const BATCH_BYTES: usize = 1024;
/// A control string (OSC, DCS …) that is longer has lost its end: what follows is text.
const STRING_BYTES_MAX: usize = 4096;
/// A control sequence (CSI) that is longer is none.
const SEQUENCE_BYTES_MAX: usize = 64;
/// Room for the note between head and tail.
const NOTE_BYTES: usize = 64;
/// Output shorter than this is shown even if it looks binary.
const BINARY_BYTES_MIN: u64 = 512;

const REPLACEMENT: &str = "\u{fffd}";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Text,
    /// carriage returns were seen; with or without a line feed they are one line end
    Return,
    Escape,
    EscapeMiddle,
    Sequence(usize),
    ControlString(usize),
    ControlStringEscape(usize),
}

/// Takes bytes in any pieces and gives clean text. See ECMA-48 for what is taken out.
#[derive(Debug)]
pub struct Cleaner {
    state: State,
    batch: Vec<u8>,
    /// bytes that came in
    pub raw: u64,
    /// of these, how many were replaced
    pub bad: u64,
}

impl Default for Cleaner {
    fn default() -> Cleaner {
        Cleaner::new()
    }
}

impl Cleaner {
    /// At the start of an output.
    pub fn new() -> Cleaner {
        Cleaner { state: State::Text, batch: Vec::with_capacity(BATCH_BYTES + 8), raw: 0, bad: 0 }
    }

    /// Takes more; `out` gets what is certain.
    pub fn push(&mut self, bytes: &[u8], out: &mut dyn FnMut(&str)) {
        self.raw += bytes.len() as u64;
        for byte in bytes {
            self.byte(*byte);
            if self.batch.len() >= BATCH_BYTES {
                self.decode(false, out);
            }
        }
        self.decode(false, out);
    }

    /// Gives what was held back.
    pub fn finish(&mut self, out: &mut dyn FnMut(&str)) {
        if self.state == State::Return {
            self.batch.push(b'\n');
        }
        self.state = State::Text;
        self.decode(true, out);
    }

    fn byte(&mut self, byte: u8) {
        match self.state {
            State::Text => self.text(byte),
            State::Return => self.after_return(byte),
            State::Escape => self.escape(byte),
            State::EscapeMiddle => match byte {
                0x20..=0x2f => {}
                0x30..=0x7e => self.state = State::Text,
                _ => self.text(byte),
            },
            State::Sequence(length) => match byte {
                0x20..=0x3f if length < SEQUENCE_BYTES_MAX => self.state = State::Sequence(length + 1),
                0x40..=0x7e => self.state = State::Text,
                _ => self.text(byte),
            },
            State::ControlString(length) => self.control_string(byte, length),
            State::ControlStringEscape(_) if byte == b'\\' => self.state = State::Text,
            // Not the string's end, so a new sequence begins and ends the string.
            State::ControlStringEscape(_) => self.escape(byte),
        }
    }

    fn text(&mut self, byte: u8) {
        self.state = State::Text;
        match byte {
            0x1b => self.state = State::Escape,
            b'\r' => self.state = State::Return,
            b'\n' | b'\t' => self.batch.push(byte),
            0..=0x1f | 0x7f => {
                self.bad += 1;
                self.batch.extend_from_slice(REPLACEMENT.as_bytes());
            }
            _ => self.batch.push(byte),
        }
    }

    fn after_return(&mut self, byte: u8) {
        match byte {
            b'\r' => {}
            b'\n' => self.text(byte),
            _ => {
                self.batch.push(b'\n');
                self.text(byte);
            }
        }
    }

    fn escape(&mut self, byte: u8) {
        self.state = match byte {
            b'[' => State::Sequence(0),
            b']' | b'P' | b'X' | b'^' | b'_' => State::ControlString(0),
            0x20..=0x2f => State::EscapeMiddle,
            0x30..=0x7e => State::Text,
            _ => return self.text(byte),
        };
    }

    fn control_string(&mut self, byte: u8, length: usize) {
        match byte {
            0x07 | 0x18 | 0x1a => self.state = State::Text,
            0x1b => self.state = State::ControlStringEscape(length),
            // A string that never ends must not swallow more than its line.
            b'\n' | b'\r' => self.text(byte),
            _ if length >= STRING_BYTES_MAX => self.text(byte),
            _ => self.state = State::ControlString(length + 1),
        }
    }

    /// Gives the batch as text; a character that may go on is kept unless this is the `last`.
    fn decode(&mut self, last: bool, out: &mut dyn FnMut(&str)) {
        let batch = std::mem::take(&mut self.batch);
        let mut at = 0;
        let mut kept = 0;
        for piece in batch.utf8_chunks() {
            without_c1(piece.valid(), out);
            at += piece.valid().len() + piece.invalid().len();
            if piece.invalid().is_empty() {
                continue;
            }
            let open = std::str::from_utf8(piece.invalid()).is_err_and(|error| error.error_len().is_none());
            if open && !last && at == batch.len() {
                kept = piece.invalid().len();
            } else {
                self.bad += piece.invalid().len() as u64;
                out(REPLACEMENT);
            }
        }
        let from = batch.len() - kept;
        self.batch = batch;
        self.batch.drain(..from);
    }
}

/// U+0080 to U+009F are control characters, too; some terminals obey them.
fn without_c1(text: &str, out: &mut dyn FnMut(&str)) {
    for (at, piece) in text.split(|c| ('\u{80}'..='\u{9f}').contains(&c)).enumerate() {
        if at > 0 {
            out(REPLACEMENT);
        }
        if !piece.is_empty() {
            out(piece);
        }
    }
}

/// A short text cleaned as a whole.
pub fn clean(bytes: &[u8]) -> String {
    let mut text = String::new();
    let mut cleaner = Cleaner::new();
    cleaner.push(bytes, &mut |piece| text.push_str(piece));
    cleaner.finish(&mut |piece| text.push_str(piece));
    text
}

/// A file's name on one line.
pub fn clean_line(bytes: &[u8]) -> String {
    clean(bytes).replace(['\n', '\t'], REPLACEMENT)
}

/// Whether the beginning of a file is not text.
pub fn looks_binary(head: &[u8]) -> bool {
    let mut cleaner = Cleaner::new();
    cleaner.push(head, &mut |_| {});
    head.contains(&0) || cleaner.bad * 5 > cleaner.raw
}

/// What is left of an output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// at most the cap
    pub text: String,
    /// bytes of the whole, if `text` is not all of it
    pub truncated: Option<u64>,
}

/// Cleans an output of any length and keeps its head and its tail.
#[derive(Debug)]
pub struct Collector {
    cleaner: Cleaner,
    ends: Ends,
}

impl Collector {
    /// Keeps at most `cap` bytes, at least a few hundred.
    pub fn new(cap: usize) -> Collector {
        assert!(cap >= 4 * NOTE_BYTES, "a cap must leave room for more than the note");
        Collector { cleaner: Cleaner::new(), ends: Ends::new(cap) }
    }

    /// Takes more of the output.
    pub fn push(&mut self, bytes: &[u8]) {
        let ends = &mut self.ends;
        self.cleaner.push(bytes, &mut |piece| ends.push(piece));
    }

    /// The whole output if it fits, else head, note and tail; binary output only by its size.
    pub fn finish(mut self) -> Kept {
        let ends = &mut self.ends;
        self.cleaner.finish(&mut |piece| ends.push(piece));
        let raw = self.cleaner.raw;
        if raw >= BINARY_BYTES_MIN && self.cleaner.bad * 5 > raw {
            return Kept { text: format!("[binary output, {raw} bytes]"), truncated: Some(raw) };
        }
        self.ends.finish()
    }
}

/// The first and the last bytes of a text.
#[derive(Debug)]
struct Ends {
    cap: usize,
    head: String,
    head_full: bool,
    tail: VecDeque<u8>,
    total: u64,
}

impl Ends {
    fn new(cap: usize) -> Ends {
        Ends { cap, head: String::new(), head_full: false, tail: VecDeque::new(), total: 0 }
    }

    fn push(&mut self, text: &str) {
        self.total += text.len() as u64;
        let mut rest = text;
        if !self.head_full {
            let fits = floor_boundary(text, self.cap / 2 - self.head.len());
            let (head, after) = text.split_at(fits);
            self.head.push_str(head);
            self.head_full = !after.is_empty();
            rest = after;
        }
        let room = self.cap - self.head.len();
        // Only the end of a long piece can stay; a character more, for the cut to fall on.
        let skip = rest.len().saturating_sub(room);
        let from = (skip..=rest.len()).find(|at| rest.is_char_boundary(*at)).unwrap_or(rest.len());
        let kept = rest.split_at(from).1;
        if from > 0 {
            self.tail.clear();
        }
        self.tail.extend(kept.as_bytes());
        drop_front(&mut self.tail, room);
    }

    fn finish(mut self) -> Kept {
        let mut text = self.head;
        if self.total <= self.cap as u64 {
            text.push_str(&String::from_utf8_lossy(self.tail.make_contiguous()));
            debug_assert_eq!(text.len() as u64, self.total, "what fits is kept whole");
            return Kept { text, truncated: None };
        }
        drop_front(&mut self.tail, self.cap - text.len() - NOTE_BYTES);
        let left_out = self.total - text.len() as u64 - self.tail.len() as u64;
        let note = format!("\n[… {left_out} bytes left out …]\n");
        assert!(note.len() <= NOTE_BYTES, "the note has its room");
        text.push_str(&note);
        // Whole characters only, so nothing is replaced here.
        text.push_str(&String::from_utf8_lossy(self.tail.make_contiguous()));
        Kept { text, truncated: Some(self.total) }
    }
}

/// Shortens UTF-8 from its front to at most `room` bytes, to the next character.
fn drop_front(tail: &mut VecDeque<u8>, room: usize) {
    let mut cut = tail.len().saturating_sub(room);
    let continues = |byte: &u8| (0x80..0xc0).contains(byte);
    if cut > 0 {
        while tail.get(cut).is_some_and(continues) {
            cut += 1;
        }
        tail.drain(..cut);
    }
}

/// `text` cut to `bytes`, with a mark if something is missing.
pub fn cut(text: &str, bytes: usize) -> String {
    if text.len() <= bytes {
        return text.to_owned();
    }
    format!("{}…", shorten(text, bytes.saturating_sub('…'.len_utf8())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn collect(pieces: &[&[u8]], cap: usize) -> Kept {
        let mut collector = Collector::new(cap);
        pieces.iter().for_each(|piece| collector.push(piece));
        collector.finish()
    }

    /// The same result whole, split in two at every place, and byte by byte.
    #[track_caller]
    fn check(input: &[u8], wanted: &str) {
        assert_eq!(clean(input), wanted);
        for at in 0..=input.len() {
            let (left, right) = input.split_at(at);
            assert_eq!(collect(&[left, right], 100_000).text, wanted, "split at {at}");
        }
        let bytes: Vec<&[u8]> = input.chunks(1).collect();
        assert_eq!(collect(&bytes, 100_000).text, wanted);
    }

    #[test]
    fn escapes_go_and_control_bytes_are_replaced() {
        check(b"a\0b\x1b[31mred\x1b[0m\x1b]0;t\x07\xff\xfe", "a\u{fffd}bred\u{fffd}\u{fffd}");
        check(b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link");
        check(b"\x1bPq#0;2;0;0;0\x1b\\after", "after");
        check(b"\x1b(Bplain\x1b=\x1b7\x1b[?25l\x1b[38;5;1mx", "plainx");
        check(b"bell\x07 back\x08 del\x7f", "bell\u{fffd} back\u{fffd} del\u{fffd}");
        check("c1 \u{9b}31m".as_bytes(), "c1 \u{fffd}31m");
        check(b"tab\tline\n", "tab\tline\n");
    }

    #[test]
    fn line_ends_of_every_kind_are_one_line_feed() {
        check(b"a\r\nb\rc\r\r\nd\r", "a\nb\nc\nd\n");
        check(b"\r", "\n");
        check(b"10%\r20%\r\x1b[K30%\n", "10%\n20%\n30%\n");
    }

    #[test]
    fn characters_survive_any_split_and_bad_bytes_are_replaced_one_by_one() {
        check("é👍漢".as_bytes(), "é👍漢");
        check(b"\xf0\x9f\x91", "\u{fffd}");
        check(b"\xf0\x9f\x91x\xc3", "\u{fffd}x\u{fffd}");
        check(b"\xed\xa0\x80", "\u{fffd}\u{fffd}\u{fffd}");
        check(b"\xc0\xaf", "\u{fffd}\u{fffd}");
    }

    #[test]
    fn a_sequence_without_end_takes_only_so_much() {
        check(b"\x1b]0;title\nnext", "\nnext");
        check(b"\x1b[31", "");
        check(b"\x1b", "");
        check(b"\x1b[31\x1b[32mx", "x");
        check(b"\x1b]0;t\x1b[1mx", "x");
        let mut long = b"\x1b]".to_vec();
        long.extend([b'a'; 6000]);
        assert_eq!(clean(&long).len(), 6000 - STRING_BYTES_MAX);
        let mut long = b"\x1b[".to_vec();
        long.extend([b'1'; 600]);
        assert_eq!(clean(&long).len(), 600 - SEQUENCE_BYTES_MAX);
    }

    #[test]
    fn a_long_output_keeps_both_ends_and_says_how_much_is_missing() {
        let text: String = (0..10_000).map(|line| format!("line {line}\n")).collect();
        let kept = collect(&[text.as_bytes()], 4096);
        assert!(kept.text.len() <= 4096 && kept.text.len() > 4000);
        assert!(kept.text.starts_with("line 0\n") && kept.text.ends_with("line 9999\n"));
        assert!(kept.text.contains("bytes left out"));
        assert_eq!(kept.truncated, Some(text.len() as u64));
    }

    #[test]
    fn a_cut_never_falls_inside_a_character() {
        let text = "a".repeat(29_999) + "👍";
        let kept = collect(&[text.as_bytes()], 30_000);
        assert!(kept.text.len() <= 30_000 && kept.text.ends_with("👍"));
        assert_eq!(collect(&[text.as_bytes()], 30_003), Kept { text, truncated: None });
    }

    #[test]
    fn binary_output_is_only_its_size() {
        let noise: Vec<u8> = (0..100_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        assert_eq!(collect(&[&noise], 32_768).text, "[binary output, 100000 bytes]");
        assert!(looks_binary(&noise) && looks_binary(b"\x7fELF\0"));
        assert!(!looks_binary("Grüße, 漢字\r\n".as_bytes()) && !looks_binary(b""));
    }

    fn hostile() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            any::<Vec<u8>>(),
            any::<String>().prop_map(String::into_bytes),
            Just(b"\x1b[3".to_vec()),
            Just(b"\x1b]0;x".to_vec()),
            Just(b"\r".to_vec()),
            Just(b"\x1b\\".to_vec()),
            Just("👍".repeat(40).into_bytes()),
            Just(vec![b'x'; 300]),
        ];
        proptest::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn any_output_becomes_clean_bounded_text(input in hostile(), cap in 256usize..1200) {
            let kept = collect(&[&input], cap);
            prop_assert!(kept.text.len() <= cap);
            prop_assert!(!kept.text.chars().any(|c| c.is_control() && c != '\n' && c != '\t'));
            let whole = clean(&input);
            if kept.truncated.is_none() {
                prop_assert_eq!(kept.text, whole);
            } else if !kept.text.starts_with("[binary") {
                prop_assert_eq!(kept.truncated, Some(whole.len() as u64));
                prop_assert!(whole.len() > cap);
                let (head, tail) = kept.text.split_once("\n[… ").expect("a note");
                prop_assert!(whole.starts_with(head));
                let tail = tail.split_once(" left out …]\n").expect("the note's end").1;
                prop_assert!(whole.ends_with(tail));
            }
        }

        #[test]
        fn splits_change_nothing(
            input in hostile(),
            cuts in proptest::collection::vec(any::<usize>(), 0..6),
        ) {
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (input.len() + 1)).collect();
            cuts.sort_unstable();
            let mut pieces = Vec::new();
            let mut rest = input.as_slice();
            let mut at = 0;
            for cut in cuts {
                let (piece, after) = rest.split_at(cut - at);
                pieces.push(piece);
                (rest, at) = (after, cut);
            }
            pieces.push(rest);
            prop_assert_eq!(collect(&pieces, 300), collect(&[&input], 300));
        }
    }
}
