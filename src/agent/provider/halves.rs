//! Characters that a server cut in two: half of a surrogate pair at the end of one event's text, the other
//! half at the beginning of the next one's. Servers that count in UTF-16 units cut so, and write each half as
//! an escape that no strict reader of JSON takes; the whole event would be lost.
//!
//! A first half at the end of a string is held back and put before the second one that begins a later string.
//! A half that finds no other is U+FFFD. Only an event with such a half is copied, once.

use std::borrow::Cow;

/// What is held back of a stream.
#[derive(Debug, Default)]
pub struct Halves {
    /// the escape of a first half, such as `\ud83d`
    held: Option<String>,
}

/// Bytes of an escape.
const ESCAPE: usize = 6;
const BAD: &str = "\\ufffd";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Half {
    First,
    Second,
}

impl Halves {
    /// An event's JSON with every pair whole.
    pub fn mend<'a>(&mut self, data: &'a str) -> Cow<'a, str> {
        let mut mended = String::new();
        let mut copied = 0;
        let mut at = 0;
        while let Some(next) = data.split_at(at).1.find('\\') {
            at += next;
            let Some(half) = half_at(data, at) else {
                // The escaped character may be a backslash. What is not ASCII cannot be escaped.
                at = (at + 2).min(data.len());
                while !data.is_char_boundary(at) {
                    at += 1;
                }
                continue;
            };
            if half == Half::First && half_at(data, at + ESCAPE) == Some(Half::Second) {
                at += 2 * ESCAPE;
                continue;
            }
            mended.push_str(data.split_at(at).0.split_at(copied).1);
            let (before, rest) = data.split_at(at);
            let (escape, after) = rest.split_at(ESCAPE);
            match half {
                Half::First if after.starts_with('"') => self.held = Some(escape.to_owned()),
                Half::Second if before.ends_with('"') && self.held.is_some() => {
                    mended.push_str(&self.held.take().unwrap_or_default());
                    mended.push_str(escape);
                }
                _ => mended.push_str(BAD),
            }
            at += ESCAPE;
            copied = at;
        }
        if copied == 0 {
            return Cow::Borrowed(data);
        }
        mended.push_str(data.split_at(copied).1);
        Cow::Owned(mended)
    }
}

fn half_at(data: &str, at: usize) -> Option<Half> {
    let escape = data.as_bytes().get(at..at + ESCAPE)?;
    let hex = std::str::from_utf8(escape.strip_prefix(b"\\u")?).ok()?;
    match u16::from_str_radix(hex, 16).ok()? {
        0xd800..=0xdbff => Some(Half::First),
        0xdc00..=0xdfff => Some(Half::Second),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(events: &[&str]) -> Vec<String> {
        let mut halves = Halves::default();
        events.iter().map(|event| halves.mend(event).into_owned()).collect()
    }

    #[test]
    fn a_pair_that_was_cut_is_whole_in_the_later_event() {
        let mended = all(&[r#"{"text":"ab\ud83d"}"#, r#"{"type":"ping"}"#, r#"{"text":"\udc4dc"}"#]);
        assert_eq!(mended, [r#"{"text":"ab"}"#, r#"{"type":"ping"}"#, r#"{"text":"\ud83d\udc4dc"}"#]);
    }

    #[test]
    fn a_half_without_its_other_is_a_replacement_character() {
        assert_eq!(all(&[r#"["\udc4d"]"#]), [r#"["\ufffd"]"#]);
        assert_eq!(all(&[r#"["\ud83dx","x\udc4d"]"#]), [r#"["\ufffdx","x\ufffd"]"#]);
        assert_eq!(all(&[r#"["\ud83d"]"#, r#"["x"]"#]), [r#"[""]"#, r#"["x"]"#]);
    }

    #[test]
    fn what_only_looks_like_a_half_is_left_alone() {
        for text in
            [r#"["\\ud83d"]"#, r#"["\\\\ud83d"]"#, r#"["\ud83d\udc4d"]"#, r#"["\u00e9\n"]"#, "\\", "\\é"]
        {
            assert!(matches!(Halves::default().mend(text), Cow::Borrowed(_)), "{text}");
        }
        assert_eq!(all(&[r#"["\\\ud83dx"]"#]), [r#"["\\\ufffdx"]"#]);
    }

    proptest! {
        #[test]
        fn text_cut_anywhere_between_two_units_is_what_it_was(
            text in any::<String>(),
            cuts in any::<Vec<usize>>(),
        ) {
            let units: Vec<u16> = text.encode_utf16().collect();
            let mut ends: Vec<usize> = cuts.iter().map(|cut| cut % (units.len() + 1)).collect();
            ends.extend([0, units.len()]);
            ends.sort_unstable();
            let mut halves = Halves::default();
            let mut told = String::new();
            for pair in ends.windows(2) {
                let piece: String = units.get(pair[0]..pair[1]).unwrap().iter()
                    .map(|unit| format!("\\u{unit:04x}")).collect();
                told += &serde_json::from_str::<String>(&halves.mend(&format!("\"{piece}\""))).unwrap();
            }
            prop_assert_eq!(told, text);
        }

        #[test]
        fn anything_at_all_does_not_panic(text in any::<String>(), more in "[\\\\ud8dcé\"u0-9]{0,40}") {
            all(&[&text, &more]);
        }
    }
}
