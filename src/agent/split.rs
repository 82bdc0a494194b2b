//! Where content that is longer than a chunk is cut into parts.
//!
//! A part ends at a blank line outside a code fence, else at a line's end, both within its last 2 KiB, else
//! at a character. Every byte of the content stands in exactly one part. For Markdown each part also knows
//! what it starts inside of, so that it can be rendered alone.

use crate::chunk::{Md, escaped_fit};

/// How far before its end a full part may be cut.
const CUT_WITHIN: usize = 2048;

/// What kind of place is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// blank line outside a fence, else line, else character
    Markdown,
    /// line, else character
    Lines,
    /// character
    Anywhere,
}

/// Follows code fences through Markdown, across parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fences {
    open: Option<Fence>,
    /// the start of the line that has not ended, as far as it may matter
    line: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Fence {
    mark: char,
    count: usize,
    lang: String,
}

/// A line's start that is kept: indent, fence and language.
const LINE_KEPT: usize = 96;

impl Fences {
    /// Reads on.
    pub fn read(&mut self, text: &str) {
        for piece in text.split_inclusive('\n') {
            if self.line.len() < LINE_KEPT {
                self.line.push_str(crate::chunk::shorten(piece, LINE_KEPT - self.line.len()));
            }
            if piece.ends_with('\n') {
                self.end_line();
            }
        }
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        let body = line.trim_start_matches(' ');
        if line.len() - body.len() > 3 {
            return;
        }
        let Some(mark) = body.chars().next().filter(|c| matches!(c, '`' | '~')) else { return };
        let info = body.trim_start_matches(mark);
        let count = body.len() - info.len();
        let info = info.trim();
        match &self.open {
            None if count >= 3 && !(mark == '`' && info.contains('`')) => {
                let lang = info.split_whitespace().next().unwrap_or_default().to_owned();
                self.open = Some(Fence { mark, count, lang });
            }
            Some(open) if open.mark == mark && count >= open.count && info.is_empty() => self.open = None,
            _ => {}
        }
    }

    /// Whether a fence is open.
    pub fn inside(&self) -> bool {
        self.open.is_some()
    }

    /// What the next part starts inside of; `None` for plain Markdown.
    pub fn md(&self) -> Option<Md> {
        let fence = self.open.as_ref()?;
        let lang = (!fence.lang.is_empty()).then(|| fence.lang.clone());
        Some(Md { fence: Some(std::iter::repeat_n(fence.mark, fence.count).collect()), lang })
    }
}

/// Where to cut a part that is full: the byte where the next part begins, never 0 unless `text` is empty.
/// `fences` is the state at the start of `text`.
pub fn cut_point(text: &str, cut: Cut, fences: &Fences) -> usize {
    if cut == Cut::Anywhere {
        return text.len();
    }
    let earliest = text.len().saturating_sub(CUT_WITHIN);
    let (mut at, mut blank, mut line) = (0, None, None);
    let mut fences = fences.clone();
    for piece in text.split_inclusive('\n') {
        at += piece.len();
        if cut == Cut::Markdown {
            fences.read(piece);
        }
        if at <= earliest || !piece.ends_with('\n') {
            continue;
        }
        line = Some(at);
        if cut == Cut::Markdown && piece.trim().is_empty() && !fences.inside() {
            blank = Some(at);
        }
    }
    blank.or(line).unwrap_or(text.len())
}

/// Cuts whole content into parts; `room` tells how many bytes of escaped text the part of a number may hold.
/// There is at least one part, also for empty content.
pub fn parts(text: &str, cut: Cut, room: impl Fn(u32) -> usize) -> Vec<&str> {
    let (mut rest, mut parts, mut fences) = (text, Vec::new(), Fences::default());
    loop {
        let fit = escaped_fit(rest, room(parts.len() as u32));
        if fit == rest.len() {
            parts.push(rest);
            return parts;
        }
        let full = rest.split_at(fit).0;
        let (part, next) = rest.split_at(cut_point(full, cut, &fences));
        assert!(!part.is_empty(), "a part has room for a character");
        fences.read(part);
        parts.push(part);
        rest = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::escaped_len;
    use proptest::prelude::*;

    fn cut_of(text: &str) -> (String, String) {
        let (part, next) = text.split_at(cut_point(text, Cut::Markdown, &Fences::default()));
        (part.to_owned(), next.to_owned())
    }

    #[test]
    fn a_part_ends_at_a_blank_line_outside_a_fence() {
        assert_eq!(cut_of("one\n\ntwo\nthr"), ("one\n\n".into(), "two\nthr".into()));
        assert_eq!(cut_of("```rs\na\n\nb\nc"), ("```rs\na\n\nb\n".into(), "c".into()));
        assert_eq!(cut_of("a\n\n```\nb\n\nc\n"), ("a\n\n".into(), "```\nb\n\nc\n".into()));
        assert_eq!(cut_of("no line"), ("no line".into(), String::new()));
    }

    #[test]
    fn a_blank_line_far_from_the_end_is_no_place_to_cut() {
        let text = format!("a\n\n{}", "b".repeat(CUT_WITHIN + 1));
        assert_eq!(cut_of(&text).0.len(), text.len());
    }

    #[test]
    fn fences_close_with_their_own_mark_only() {
        let mut fences = Fences::default();
        fences.read("~~~ rust x\n```\n");
        let md = fences.md().map(|md| (md.fence, md.lang));
        assert_eq!(md, Some((Some("~~~".into()), Some("rust".into()))));
        fences.read("~~~");
        assert!(fences.inside(), "the line has not ended");
        fences.read("\n");
        assert!(!fences.inside());
        fences.read("    ```\nplain `code`\n``` a`b\n");
        assert!(!fences.inside());
    }

    proptest! {
        #[test]
        fn parts_hold_every_byte_and_keep_to_their_room(
            text in "([a-z`~é👍\u{1}\" ]{0,40}\n{0,2}){0,60}", room in 64usize..2000, which in 0usize..3
        ) {
            let cut = [Cut::Markdown, Cut::Lines, Cut::Anywhere][which];
            let parts = parts(&text, cut, |_| room);
            prop_assert_eq!(parts.concat(), text.as_str());
            for part in parts {
                prop_assert!(escaped_len(part) <= room);
            }
        }

        #[test]
        fn fences_do_not_care_how_text_arrives(
            text in "([`~]{0,4}[a-z ]{0,5}\n{0,2}){0,20}",
            at in 0usize..200,
        ) {
            let at = crate::chunk::floor_boundary(&text, at);
            let (mut whole, mut pieces) = (Fences::default(), Fences::default());
            whole.read(&text);
            pieces.read(text.split_at(at).0);
            pieces.read(text.split_at(at).1);
            prop_assert_eq!(whole, pieces);
        }
    }
}
