//! `<think>…</think>` at the very start of an answer, told apart from the answer, whichever way the tags are
//! split.
//!
//! Holds at most a tag's length and the spaces before it.

use super::{Delta, Fault, Sink};

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// nothing but spaces and a start of the tag was seen
    Start,
    Inside,
    /// the tag was closed; line ends before the answer are dropped
    After,
    Answer,
}

/// Sorts the text of an answer; see the module's text.
#[derive(Debug)]
pub struct Think {
    state: State,
    held: String,
}

/// Spaces before an answer that are still taken for the wait before a tag.
const SPACES_MAX: usize = 64;

impl Default for Think {
    fn default() -> Think {
        Think { state: State::Start, held: String::new() }
    }
}

impl Think {
    /// Takes a piece of the answer's text.
    pub fn text(&mut self, text: &str, sink: &mut dyn Sink) -> Result<(), Fault> {
        if self.state == State::Answer {
            return if text.is_empty() { Ok(()) } else { sink.delta(Delta::Text(text)) };
        }
        self.held.push_str(text);
        let mut held = std::mem::take(&mut self.held);
        if self.state == State::Start {
            let tail = held.trim_start();
            if let Some(rest) = tail.strip_prefix(OPEN) {
                self.state = State::Inside;
                held = rest.to_owned();
            } else if OPEN.starts_with(tail) && held.len() - tail.len() <= SPACES_MAX {
                self.held = held;
                return Ok(());
            } else {
                self.state = State::Answer;
                return sink.delta(Delta::Text(&held));
            }
        }
        if self.state == State::Inside {
            let Some((thought, rest)) = held.split_once(CLOSE) else {
                let keep = tag_start(&held);
                let (thought, tail) = held.split_at(held.len() - keep);
                if !thought.is_empty() {
                    sink.delta(Delta::Thinking(thought))?;
                }
                self.held = tail.to_owned();
                return Ok(());
            };
            if !thought.is_empty() {
                sink.delta(Delta::Thinking(thought))?;
                sink.delta(Delta::BlockEnd)?;
            }
            held = rest.to_owned();
            self.state = State::After;
        }
        let answer = held.trim_start_matches(['\n', '\r']);
        if !answer.is_empty() {
            self.state = State::Answer;
            sink.delta(Delta::Text(answer))?;
        }
        Ok(())
    }

    /// The text ended: what was held is what it is.
    pub fn finish(&mut self, sink: &mut dyn Sink) -> Result<(), Fault> {
        let held = std::mem::take(&mut self.held);
        match self.state {
            _ if held.is_empty() => Ok(()),
            State::Inside => sink.delta(Delta::Thinking(&held)),
            _ => sink.delta(Delta::Text(&held)),
        }
    }
}

/// Bytes at the end of `text` that may be the start of the closing tag.
fn tag_start(text: &str) -> usize {
    (1..CLOSE.len()).rev().find(|length| text.ends_with(CLOSE.split_at(*length).0)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Seen, Taken};
    use super::*;

    fn run(pieces: &[&str]) -> Vec<Seen> {
        let mut taken = Taken::default();
        let mut think = Think::default();
        for piece in pieces {
            think.text(piece, &mut taken).unwrap();
        }
        think.finish(&mut taken).unwrap();
        taken.blocks()
    }

    fn check(text: &str, thinking: &str, answer: &str) {
        let mut expected = Vec::new();
        if !thinking.is_empty() {
            expected.push(Seen::Thinking(thinking.to_owned(), String::new()));
        }
        if !answer.is_empty() {
            expected.push(Seen::Text(answer.to_owned()));
        }
        for (at, _) in text.char_indices() {
            let (a, b) = text.split_at(at);
            assert_eq!(run(&[a, b]), expected, "{text:?} cut at {at}");
        }
        let single: Vec<String> = text.chars().map(String::from).collect();
        assert_eq!(run(&single.iter().map(String::as_str).collect::<Vec<_>>()), expected, "{text:?}");
    }

    #[test]
    fn thinking_is_told_apart_only_at_the_very_start() {
        check("<think>a < b</think>\n\nyes é", "a < b", "yes é");
        check("\n <think>a</thin</think>x", "a</thin", "x");
        check("<think>\n\n</think>\n\nx", "\n\n", "x");
        check("<think></think>x", "", "x");
        check("say <think>no</think>", "", "say <think>no</think>");
        check("no</think>yes", "", "no</think>yes");
        check("<thinking>x", "", "<thinking>x");
        check("<think>never closed</th", "never closed</th", "");
        check("<thi", "", "<thi");
        check("  x", "", "  x");
    }
}
