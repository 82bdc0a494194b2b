//! The pieces of tool calls, as real chat-completion servers send them, put back together.
//!
//! The call in front streams on as it comes; pieces of others are held until the front one is whole or the
//! stream ends, so that blocks never mix. What is held is at most `arguments_bytes` over all calls; the work
//! is linear, since each byte of arguments is looked at once. Read first: wire.md B2 in the project's notes,
//! or the rules at [`Calls::piece`].

use super::{Delta, Fault, Sink};
use std::borrow::Cow;

/// Finds the end of a JSON object in pieces, without parsing it.
#[derive(Clone, Debug, Default)]
struct Scan {
    depth: u32,
    in_string: bool,
    escaped: bool,
    /// the first byte that was no space
    first: Option<u8>,
    whole: bool,
}

impl Scan {
    fn take(&mut self, text: &str) {
        for byte in text.bytes() {
            if self.first.is_none() && !byte.is_ascii_whitespace() {
                self.first = Some(byte);
            }
            if self.in_string {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.in_string = false,
                    _ => {}
                }
                self.whole |= !self.in_string && self.depth == 0;
                continue;
            }
            match byte {
                b'"' => self.in_string = true,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    self.whole |= self.depth == 0;
                }
                _ => {}
            }
        }
    }
}

/// Arguments as they come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arguments<'a> {
    /// none in this piece
    #[default]
    None,
    /// a part of the JSON text
    Text(&'a str),
    /// a whole JSON value where a string was due
    Value(&'a str),
}

impl Arguments<'_> {
    fn is_empty(&self) -> bool {
        matches!(self, Arguments::None | Arguments::Text(""))
    }

    fn is_blank(&self) -> bool {
        match self {
            Arguments::None => true,
            Arguments::Text(text) | Arguments::Value(text) => text.trim_ascii().is_empty(),
        }
    }
}

/// One piece of a call.
#[derive(Clone, Copy, Debug, Default)]
pub struct Piece<'a> {
    /// the server's number of the call, if it gives one
    pub index: Option<i64>,
    /// the call's id; may be empty
    pub id: &'a str,
    /// the tool's name; may be empty
    pub name: &'a str,
    /// some of the arguments
    pub arguments: Arguments<'a>,
}

#[derive(Debug, Default)]
struct Call {
    index: Option<i64>,
    id: String,
    name: String,
    /// arguments that were not handed on
    held: String,
    /// bytes of all arguments
    bytes: usize,
    scan: Scan,
    /// its [`Delta::Call`] was handed on
    begun: bool,
    ended: bool,
}

impl Call {
    /// Only what starts as an object can be handed on before it is whole: anything else needs another look.
    fn streams(&self) -> bool {
        self.scan.first == Some(b'{')
    }

    fn is_new_beside(&self, piece: &Piece<'_>) -> bool {
        !piece.name.is_empty() && self.scan.whole && (!piece.arguments.is_blank() || piece.name != self.name)
    }
}

/// Ids and names longer than this are cut; none is.
const WORD_BYTES_MAX: usize = 256;

/// The calls of one answer.
#[derive(Debug)]
pub struct Calls {
    calls: Vec<Call>,
    /// the call that streams
    front: usize,
    held_bytes: usize,
    arguments_max: usize,
    calls_max: usize,
}

impl Calls {
    /// Without calls; at most `calls_max`, each with at most `arguments_max` bytes of arguments.
    pub fn new(arguments_max: usize, calls_max: usize) -> Calls {
        Calls { calls: Vec::new(), front: 0, held_bytes: 0, arguments_max, calls_max }
    }

    /// Whether there is any call.
    pub fn any(&self) -> bool {
        !self.calls.is_empty()
    }

    /// Whether a call is not whole, so that nothing else can be handed on.
    pub fn busy(&self) -> bool {
        self.calls.iter().any(|call| !call.ended && !call.scan.whole)
    }

    /// Takes a piece. Whose it is:
    /// 1. a known id: that call's (unless it begins anew after a whole one);
    /// 2. a new id: a new call's, even if its index is known, unless a call without an id so far bears
    ///    that index;
    /// 3. no id but a known index: that call's, unless it carries a name and the call is already whole;
    /// 4. neither: the call's that was opened last, or a new one's if it carries another name or that call
    ///    is whole.
    pub fn piece(&mut self, piece: Piece<'_>, sink: &mut dyn Sink) -> Result<(), Fault> {
        if piece.id.is_empty() && piece.name.is_empty() && piece.arguments.is_empty() {
            return Ok(());
        }
        let at = match self.find(&piece) {
            Some(at) => at,
            None if self.calls.len() >= self.calls_max => {
                return Err(Fault::TooBig(format!(
                    "one answer has more than {} tool calls (calls)",
                    self.calls_max
                )));
            }
            None => {
                self.calls.push(Call { index: piece.index, ..Call::default() });
                self.calls.len() - 1
            }
        };
        let arguments = self.note(at, &piece);
        if let Some(text) = arguments {
            self.add(at, text)?;
        }
        self.advance(sink)
    }

    fn find(&self, piece: &Piece<'_>) -> Option<usize> {
        let last = self.calls.len().checked_sub(1)?;
        if !piece.id.is_empty() {
            if let Some(at) = self.calls.iter().rposition(|call| call.id == piece.id) {
                let call = &self.calls[at];
                let same_again = matches!(piece.arguments, Arguments::Text(text) | Arguments::Value(text)
                    if call.bytes == text.len() && call.name == piece.name);
                return (same_again || !call.is_new_beside(piece)).then_some(at);
            }
            // An id that comes late belongs to the call that has none.
            let nameless = |call: &Call| {
                call.id.is_empty()
                    && !call.begun
                    && piece.index.is_some()
                    && call.index == piece.index
                    && (piece.name.is_empty() || call.name.is_empty() || piece.name == call.name)
            };
            return self.calls.iter().rposition(nameless);
        }
        if piece.index.is_some() {
            if let Some(at) = self.calls.iter().rposition(|call| call.index == piece.index) {
                return (!self.calls[at].is_new_beside(piece)).then_some(at);
            }
            // The first index of all may belong to a call that was opened without one.
            return (self.calls[last].index.is_none() && piece.name.is_empty()).then_some(last);
        }
        let call = &self.calls[last];
        let other =
            !piece.name.is_empty() && (call.scan.whole || (call.name != piece.name && !call.name.is_empty()));
        (!other).then_some(last)
    }

    /// Notes id and name; gives the arguments that are new.
    fn note<'a>(&mut self, at: usize, piece: &Piece<'a>) -> Option<&'a str> {
        let call = &mut self.calls[at];
        if call.id.is_empty() {
            call.id = crate::chunk::shorten(piece.id, WORD_BYTES_MAX).to_owned();
        }
        if call.index.is_none() {
            call.index = piece.index;
        }
        let name_is_split = !call.begun && call.bytes == 0 && call.name != piece.name;
        if call.name.is_empty() || (name_is_split && call.name.len() + piece.name.len() <= WORD_BYTES_MAX) {
            call.name.push_str(crate::chunk::shorten(piece.name, WORD_BYTES_MAX));
        }
        let text = match piece.arguments {
            Arguments::None | Arguments::Value("null") => return None,
            Arguments::Text(text) | Arguments::Value(text) => text,
        };
        if call.ended || call.scan.whole {
            // Whatever follows a whole value is a repetition or a space.
            if !text.trim_ascii().is_empty() {
                log::debug!("arguments after the end of a call are ignored ({} bytes)", text.len());
            }
            return None;
        }
        Some(text)
    }

    fn add(&mut self, at: usize, text: &str) -> Result<(), Fault> {
        let call = &mut self.calls[at];
        call.bytes += text.len();
        self.held_bytes += text.len();
        if call.bytes > self.arguments_max || self.held_bytes > self.arguments_max {
            return Err(Fault::TooBig(format!(
                "a tool call's arguments are longer than arguments_bytes ({} bytes)",
                self.arguments_max
            )));
        }
        call.scan.take(text);
        call.held.push_str(text);
        Ok(())
    }

    /// Hands on what can be: all of the front call's, and the next call's once that is whole.
    fn advance(&mut self, sink: &mut dyn Sink) -> Result<(), Fault> {
        while self.front + 1 < self.calls.len() && self.calls[self.front].scan.whole {
            self.end_front(sink)?;
        }
        self.stream_front(sink)
    }

    fn stream_front(&mut self, sink: &mut dyn Sink) -> Result<(), Fault> {
        let Some(call) = self.calls.get_mut(self.front) else { return Ok(()) };
        if call.name.is_empty() || !call.streams() {
            return Ok(());
        }
        begin(call, sink)?;
        if !call.held.is_empty() {
            sink.delta(Delta::Arguments(&call.held))?;
            self.held_bytes -= call.held.len();
            call.held.clear();
        }
        Ok(())
    }

    fn end_front(&mut self, sink: &mut dyn Sink) -> Result<(), Fault> {
        self.stream_front(sink)?;
        let Some(call) = self.calls.get_mut(self.front) else { return Ok(()) };
        begin(call, sink)?;
        if !call.streams() {
            let arguments = whole_arguments(&call.held);
            sink.delta(Delta::Arguments(&arguments))?;
        }
        self.held_bytes -= call.held.len();
        call.held = String::new();
        call.ended = true;
        self.front += 1;
        sink.delta(Delta::BlockEnd)
    }

    /// Ends the calls that are whole, so that something else can follow; none may be [`busy`](Calls::busy).
    pub fn settle(&mut self, sink: &mut dyn Sink) -> Result<(), Fault> {
        while self.front < self.calls.len() && self.calls[self.front].scan.whole {
            self.end_front(sink)?;
        }
        Ok(())
    }

    /// The stream is whole: so are all calls, or as whole as they get.
    pub fn finish(&mut self, sink: &mut dyn Sink) -> Result<(), Fault> {
        while self.front < self.calls.len() {
            self.end_front(sink)?;
        }
        Ok(())
    }
}

fn begin(call: &mut Call, sink: &mut dyn Sink) -> Result<(), Fault> {
    if !std::mem::replace(&mut call.begun, true) {
        sink.delta(Delta::Call { id: &call.id, name: &call.name })?;
    }
    Ok(())
}

/// Arguments that do not start as an object: nothing and `null` are `{}`, a string may hold the object.
fn whole_arguments(text: &str) -> Cow<'_, str> {
    let text = text.trim_ascii();
    if text.is_empty() || text == "null" {
        return Cow::Borrowed("{}");
    }
    match serde_json::from_str::<String>(text) {
        Ok(inner) if inner.trim_ascii().is_empty() => Cow::Borrowed("{}"),
        Ok(inner) if inner.trim_ascii_start().starts_with('{') => Cow::Owned(inner),
        _ => Cow::Borrowed(text),
    }
}

#[cfg(test)]
mod tests;
