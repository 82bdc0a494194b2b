//! What the tests of this folder share, and tests of a whole request against a socket.

use super::*;

/// A block as a sink saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Text(String),
    Thinking(String, String),
    Redacted(String),
    Call(String, String, String),
}

/// A sink that puts deltas together.
#[derive(Default)]
pub(super) struct Taken {
    blocks: Vec<Seen>,
    open: bool,
}

impl Taken {
    pub(super) fn blocks(&self) -> Vec<Seen> {
        self.blocks.clone()
    }
}

impl Sink for Taken {
    fn delta(&mut self, delta: Delta<'_>) -> Result<(), Fault> {
        let last = if self.open { self.blocks.last_mut() } else { None };
        match (delta, last) {
            (Delta::Text(text), Some(Seen::Text(all))) => all.push_str(text),
            (Delta::Text(text), _) => self.blocks.push(Seen::Text(text.to_owned())),
            (Delta::Thinking(text), Some(Seen::Thinking(all, _))) => all.push_str(text),
            (Delta::Thinking(text), _) => self.blocks.push(Seen::Thinking(text.to_owned(), String::new())),
            (Delta::Signature(text), Some(Seen::Thinking(_, signature))) => *signature = text.to_owned(),
            (Delta::Signature(text), _) => self.blocks.push(Seen::Thinking(String::new(), text.to_owned())),
            (Delta::Redacted(data), _) => self.blocks.push(Seen::Redacted(data.to_owned())),
            (Delta::Call { id, name }, _) => {
                self.blocks.push(Seen::Call(id.to_owned(), name.to_owned(), String::new()));
            }
            (Delta::Arguments(text), Some(Seen::Call(.., all))) => all.push_str(text),
            (Delta::Arguments(text), last) => panic!("arguments {text:?} outside a call, in {last:?}"),
            (Delta::BlockEnd, _) => {
                self.open = false;
                return Ok(());
            }
        }
        self.open = true;
        Ok(())
    }
}

pub(super) fn provider(kind: ApiKind, base_url: &str) -> Provider {
    Provider {
        name: "p".to_owned(),
        kind,
        base_url: base_url.to_owned(),
        api_key: None,
        models: Vec::new(),
        max_tokens: 16_000,
        context_tokens: 0,
        first_event_s: 300,
        idle_s: 90,
        replay_reasoning: false,
        proxy: String::new(),
        ca_file: None,
    }
}

fn decode_pieces<D: Decoder>(mut decoder: D, pieces: &[&[u8]]) -> (Vec<Seen>, Result<Answer, Fault>) {
    let provider = provider(ApiKind::OpenAi, "http://localhost");
    let mut taken = Taken::default();
    let mut stream = Stream {
        provider: &provider,
        sse: Sse::new(1 << 16),
        nature: Nature::Unknown,
        document_max: 1 << 16,
        decoder: &mut decoder,
        out: Shown { sink: &mut taken, any: false },
    };
    let mut result = Ok(());
    for piece in pieces {
        result = result.and_then(|()| stream.take(piece).map(|_| ()));
    }
    let answer = result.and_then(|()| stream.end());
    (taken.blocks(), answer)
}

/// What a stream decodes to, checked to be the same for every cut in two and byte by byte.
pub(super) fn decode<D: Decoder>(decoder: fn() -> D, stream: &str) -> (Vec<Seen>, Result<Answer, Fault>) {
    let bytes = stream.as_bytes();
    let expected = decode_pieces(decoder(), &[bytes]);
    for at in 0..=bytes.len() {
        let (a, b) = bytes.split_at(at);
        assert_eq!(decode_pieces(decoder(), &[a, b]), expected, "{stream} cut at {at}");
    }
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(decode_pieces(decoder(), &single), expected, "{stream} byte by byte");
    let crlf = stream.replace('\n', "\r\n");
    assert_eq!(decode_pieces(decoder(), &[crlf.as_bytes()]), expected, "{stream} with CRLF");
    expected
}

pub(super) fn decode_error<D: Decoder>(decoder: fn() -> D, stream: &str) -> Fault {
    decode(decoder, stream).1.unwrap_err()
}
