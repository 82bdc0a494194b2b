//! One TOML table with its place in the file: typed reads whose errors name file, line and key.

use std::fmt::Display;
use std::path::Path;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Where errors are.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// the file
    pub path: &'a Path,
    /// its text
    pub text: &'a str,
}

impl Source<'_> {
    /// One line: file, line, and what is wrong there.
    pub fn error(&self, at: usize, what: impl Display) -> String {
        let line = 1 + self.text.bytes().take(at).filter(|byte| *byte == b'\n').count();
        format!("{}: line {line}: {what}", self.path.display())
    }
}

/// A table whose keys are all known.
pub struct Section<'a> {
    source: Source<'a>,
    /// where it begins
    pub at: usize,
    label: &'static str,
    table: &'a DeTable<'a>,
}

impl<'a> Section<'a> {
    /// Refuses any key that is not in `known`.
    pub fn new(
        source: Source<'a>,
        at: usize,
        label: &'static str,
        table: &'a DeTable<'a>,
        known: &[&str],
    ) -> Result<Section<'a>, String> {
        for key in table.keys() {
            let name: &str = key.get_ref();
            if !known.contains(&name) {
                let near = nearest(name, known);
                let what = format!("{label}key {name:?} is unknown; the nearest known one is {near:?}");
                return Err(source.error(key.span().start, what));
            }
        }
        Ok(Section { source, at, label, table })
    }

    fn get(&self, key: &str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.table.get(key)
    }

    /// An error at a key (at the section itself if the key is absent).
    pub fn error(&self, key: &str, what: impl Display) -> String {
        let at = self.get(key).map_or(self.at, |value| value.span().start);
        self.source.error(at, format!("{}{key}: {what}", self.label))
    }

    fn typed<T>(
        &self,
        key: &str,
        wanted: &str,
        read: impl FnOnce(&'a DeValue<'a>) -> Option<T>,
    ) -> Result<Option<T>, String> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match read(value.get_ref()) {
            Some(read) => Ok(Some(read)),
            None => {
                Err(self.error(key, format!("must be {wanted}, not {}", article(value.get_ref().type_str()))))
            }
        }
    }

    /// A string without NUL.
    pub fn string(&self, key: &str) -> Result<Option<&'a str>, String> {
        let text = self.typed(key, "a string", |value| value.as_str())?;
        match text {
            Some(text) if text.contains('\0') => Err(self.error(key, "must not contain a zero byte")),
            text => Ok(text),
        }
    }

    /// `true` or `false`.
    pub fn flag(&self, key: &str) -> Result<Option<bool>, String> {
        self.typed(key, "true or false", DeValue::as_bool)
    }

    /// A whole number within `least..=most`.
    pub fn number(&self, key: &str, least: u64, most: u64) -> Result<Option<u64>, String> {
        let Some(text) = self.typed(key, "a whole number", DeValue::as_integer)? else { return Ok(None) };
        match u64::from_str_radix(text.as_str(), text.radix()) {
            Ok(number) if (least..=most).contains(&number) => Ok(Some(number)),
            _ => Err(self.error(key, format!("must be {least} to {most}, not {text}"))),
        }
    }

    /// At most `most` strings, or a single one; each with its place.
    pub fn strings(&self, key: &str, most: usize) -> Result<Option<Vec<(usize, &'a str)>>, String> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let items = match value.get_ref() {
            DeValue::String(text) => vec![(value.span().start, &**text)],
            DeValue::Array(items) => {
                let strings = items.iter().map(|item| Some((item.span().start, item.get_ref().as_str()?)));
                strings
                    .collect::<Option<Vec<_>>>()
                    .ok_or_else(|| self.error(key, "must hold only strings"))?
            }
            other => {
                let what =
                    format!("must be a string or a list of strings, not {}", article(other.type_str()));
                return Err(self.error(key, what));
            }
        };
        if items.len() > most {
            return Err(self.error(key, format!("has {} entries, more than {most}", items.len())));
        }
        Ok(Some(items))
    }

    /// A list whose entries are parsed one by one; an error stands at its entry.
    pub fn list<T>(
        &self,
        key: &str,
        most: usize,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<Vec<T>>, String> {
        let Some(items) = self.strings(key, most)? else { return Ok(None) };
        let parsed = items.into_iter().map(|(at, text)| {
            parse(text).map_err(|what| self.source.error(at, format!("{}{key}: {what}", self.label)))
        });
        parsed.collect::<Result<Vec<T>, String>>().map(Some)
    }

    /// A string that must be one of some words; gives its meaning.
    pub fn word<T: Copy>(&self, key: &str, words: &[(&str, T)]) -> Result<Option<T>, String> {
        let Some(text) = self.string(key)? else { return Ok(None) };
        match words.iter().find(|(word, _)| *word == text) {
            Some((_, meaning)) => Ok(Some(*meaning)),
            None => {
                let all = words.iter().map(|(word, _)| format!("{word:?}")).collect::<Vec<_>>().join(", ");
                Err(self.error(key, format!("must be one of {all}, not {text:?}")))
            }
        }
    }

    /// The tables of `[[key]]`, each with its place.
    pub fn tables(&self, key: &str, most: usize) -> Result<Vec<(usize, &'a DeTable<'a>)>, String> {
        let wanted = format!("tables written as [[{key}]]");
        let Some(items) = self.typed(key, &wanted, DeValue::as_array)? else { return Ok(Vec::new()) };
        if items.len() > most {
            return Err(self.error(key, format!("{} of them, more than {most}", items.len())));
        }
        let tables = items.iter().map(|item| Some((item.span().start, item.get_ref().as_table()?)));
        tables.collect::<Option<Vec<_>>>().ok_or_else(|| self.error(key, format!("must be {wanted}")))
    }

    /// The table `[key]`.
    pub fn table(&self, key: &str) -> Result<Option<(usize, &'a DeTable<'a>)>, String> {
        let at = self.get(key).map_or(0, |value| value.span().start);
        Ok(self.typed(key, "a table", DeValue::as_table)?.map(|table| (at, table)))
    }
}

fn article(word: &str) -> String {
    let an = word.starts_with(['a', 'e', 'i', 'o', 'u']);
    format!("{} {word}", if an { "an" } else { "a" })
}

/// The known word with the fewest edits from `word`.
fn nearest<'k>(word: &str, known: &[&'k str]) -> &'k str {
    known.iter().min_by_key(|candidate| edits(word, candidate)).copied().unwrap_or_default()
}

/// How many letters must be put in, taken out or changed.
fn edits(from: &str, to: &str) -> usize {
    // Keys are short; what is longer is not near anything.
    let from: Vec<char> = from.chars().take(64).collect();
    let to: Vec<char> = to.chars().take(64).collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (above, letter) in from.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = above + 1;
        for (at, other) in to.iter().enumerate() {
            let changed = diagonal + usize::from(letter != other);
            diagonal = row[at + 1];
            row[at + 1] = changed.min(row[at] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_key_is_the_one_with_fewest_edits() {
        let known = ["listen", "hosts", "data", "send_time"];
        for (word, near) in
            [("lisen", "listen"), ("host", "hosts"), ("date", "data"), ("sendtime", "send_time")]
        {
            assert_eq!(nearest(word, &known), near);
        }
        assert_eq!(edits("", "abc"), 3);
        assert_eq!(edits("kitten", "sitting"), 3);
    }
}
