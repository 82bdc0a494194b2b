//! Where the wire's bytes go: kept for the socket, or counted and hashed.

use sha2::{Digest, Sha256};
use std::borrow::Cow;

/// Bytes on their way; see the module's text.
pub struct Out {
    bytes: Vec<u8>,
    /// of what was cleared away
    cleared: u64,
    hash: Option<Sha256>,
    /// the hash as it was at the end of the last block
    at_block: Option<Sha256>,
    blocks: u32,
    /// the hash that is to be met after so many blocks
    expected: Option<(u32, String)>,
    met: bool,
}

impl Out {
    /// Counts and hashes, and keeps nothing but the piece at hand.
    pub fn counting() -> Out {
        let hash = Sha256::new();
        Out { at_block: Some(hash.clone()), hash: Some(hash), ..Out::keeping() }
    }

    /// Keeps bytes until they are cleared, without hashing them.
    pub fn keeping() -> Out {
        Out {
            bytes: Vec::new(),
            cleared: 0,
            hash: None,
            at_block: None,
            blocks: 0,
            expected: None,
            met: false,
        }
    }

    /// Bytes as they are.
    pub fn raw(&mut self, text: &str) {
        self.hash_only(text.as_bytes());
        self.bytes.extend_from_slice(text.as_bytes());
        self.spill();
    }

    /// Bytes that are part of the body but not of its hash.
    pub fn mark(&mut self, text: &str) {
        self.bytes.extend_from_slice(text.as_bytes());
    }

    /// Text as the inside of a JSON string; pieces one after the other are the same as the whole.
    pub fn escaped(&mut self, text: &str) {
        let start = self.bytes.len();
        escape(text, &mut self.bytes);
        if let Some(hash) = &mut self.hash {
            hash.update(self.bytes.split_at(start).1);
        }
        self.spill();
    }

    /// Hashes what is not part of the messages.
    pub fn hash_only(&mut self, bytes: &[u8]) {
        if let Some(hash) = &mut self.hash {
            hash.update(bytes);
        }
    }

    /// A content block is whole.
    pub fn block(&mut self) {
        self.blocks += 1;
        if self.hash.is_some() {
            self.at_block.clone_from(&self.hash);
            self.compare();
        }
    }

    /// Says what the hash was after so many blocks when it was made before.
    pub fn expect(&mut self, blocks: u32, hash: String) {
        self.met = false;
        self.expected = self.hash.is_some().then_some((blocks, hash));
        self.compare();
    }

    /// Whether the last expectation came true; asked once.
    pub fn met(&mut self) -> bool {
        self.expected = None;
        std::mem::take(&mut self.met)
    }

    /// Whether bytes are counted and hashed.
    pub fn counts(&self) -> bool {
        self.hash.is_some()
    }

    fn compare(&mut self) {
        if self.expected.as_ref().is_some_and(|(blocks, _)| *blocks == self.blocks)
            && let Some((_, hash)) = self.expected.take()
        {
            self.met = hash == self.hash();
        }
    }

    fn spill(&mut self) {
        if self.hash.is_some() {
            self.clear();
        }
    }

    /// Forgets the bytes that were taken.
    pub fn clear(&mut self) {
        self.cleared += self.bytes.len() as u64;
        self.bytes.clear();
    }

    /// The bytes since the last clearing.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// All bytes so far.
    pub fn total(&self) -> u64 {
        self.cleared + self.bytes.len() as u64
    }

    /// Content blocks so far.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// The first 16 bytes of the hash up to the last block, in hex.
    pub fn hash(&self) -> String {
        let Some(hash) = &self.at_block else { return String::new() };
        hash.clone().finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
    }
}

/// `text` as serde_json writes it, without the quotes, and with U+FFFD for each NUL: providers refuse a
/// request that has one anywhere, for ever after.
fn escape(text: &str, into: &mut Vec<u8>) {
    let clean = if text.contains('\0') { text.replace('\0', "\u{fffd}").into() } else { Cow::Borrowed(text) };
    let start = into.len();
    serde_json::to_writer(&mut *into, &*clean).expect("writing text into memory does not fail");
    into.pop();
    into.remove(start);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_nul_never_goes_on_the_wire() {
        let mut out = Out::keeping();
        out.escaped("a\0b\u{1}");
        assert_eq!(out.bytes(), "a\u{fffd}b\\u0001".as_bytes());
    }

    proptest! {
        #[test]
        fn escaped_text_is_the_inside_of_a_string(before in any::<String>(), text in any::<String>()) {
            let mut out = Out::keeping();
            out.raw(&before);
            out.escaped(&text);
            let whole = serde_json::to_string(&text.replace('\0', "\u{fffd}")).unwrap();
            let inside = whole.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap();
            prop_assert_eq!(out.bytes().to_vec(), format!("{before}{inside}").into_bytes());
        }

        #[test]
        fn both_kinds_count_the_same(pieces in proptest::collection::vec(any::<String>(), 0..8)) {
            let (mut a, mut b) = (Out::counting(), Out::keeping());
            for piece in &pieces {
                for out in [&mut a, &mut b] {
                    out.escaped(piece);
                    out.mark("m");
                    out.raw(piece);
                }
            }
            prop_assert_eq!(a.total(), b.total());
            prop_assert_eq!(b.total(), b.bytes().len() as u64);
        }
    }
}
