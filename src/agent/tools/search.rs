//! `search`: a plain text in the files below a path, ignoring case.
//!
//! The walk is bounded in depth, names held, files, bytes and time, and says so when it ended early. Symbolic
//! links are not followed, binary files and `.git` are skipped.

use super::files::{Root, show};
use super::output::{clean_line, looks_binary};
use super::{Output, Patience, Place};
use crate::budget::SEARCH_PENDING_BYTES_MAX;
use cap_std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

const HITS_MAX: usize = 200;
const DEPTH_MAX: usize = 16;
const FILES_MAX: usize = 20_000;
const BYTES_MAX: u64 = 256 * 1024 * 1024;
const QUERY_BYTES_MAX: usize = 1024;
/// A longer line is searched piece by piece.
const LINE_BYTES_MAX: u64 = 8 * 1024;
const BUFFER_BYTES: usize = 8 * 1024;
/// Shown of a line: so much, from so far before the hit.
const SHOWN_BYTES: usize = 240;
const SHOWN_BEFORE: usize = 80;
const NOTE_BYTES: usize = 256;

/// Searches below `path`.
pub fn run(query: &str, path: &str, place: &Place<'_>) -> Output {
    search(query, path, place).unwrap_or_else(Output::error)
}

fn search(query: &str, path: &str, place: &Place<'_>) -> Result<Output, String> {
    if query.trim().is_empty() {
        return Err("query must not be blank".to_owned());
    }
    if query.len() > QUERY_BYTES_MAX || query.contains('\n') {
        return Err(format!("query must be one line of at most {QUERY_BYTES_MAX} bytes"));
    }
    let root = Root::open(place)?;
    let path = root.relative(path)?;
    let meta = root.dir.metadata(&path).map_err(|error| root.fault(&path, &error))?;
    let mut walk = Walk {
        root,
        needle: Needle::new(query),
        patience: Patience::new(place),
        hits: Hits { text: String::new(), count: 0, room: place.budget.tool_output_bytes - NOTE_BYTES },
        pending: Vec::new(),
        pending_bytes: 0,
        files: 0,
        bytes: 0,
        left_out: 0,
        ended: None,
    };
    if meta.is_dir() {
        walk.push(path, 0, true);
        walk.run();
    } else {
        let (file, _) = walk.root.file(&path)?;
        walk.file(&path, file).map_err(|error| walk.root.fault(&path, &error))?;
    }
    Ok(walk.told())
}

struct Walk<'a> {
    root: Root<'a>,
    needle: Needle,
    patience: Patience<'a>,
    hits: Hits,
    pending: Vec<(PathBuf, usize, bool)>,
    pending_bytes: usize,
    files: usize,
    bytes: u64,
    left_out: usize,
    ended: Option<&'static str>,
}

impl Walk<'_> {
    fn push(&mut self, path: PathBuf, depth: usize, dir: bool) {
        let bytes = path.as_os_str().len() + size_of::<(PathBuf, usize, bool)>();
        if depth > DEPTH_MAX || self.pending_bytes + bytes > SEARCH_PENDING_BYTES_MAX {
            self.left_out += 1;
            return;
        }
        self.pending_bytes += bytes;
        self.pending.push((path, depth, dir));
    }

    fn run(&mut self) {
        while let Some((path, depth, dir)) = self.pending.pop() {
            self.pending_bytes -= path.as_os_str().len() + size_of::<(PathBuf, usize, bool)>();
            self.ended = self.ended.or_else(|| self.patience.over());
            if self.ended.is_some() {
                return;
            }
            let done = if dir { self.dir(&path, depth) } else { self.found(&path) };
            if done.is_err() {
                // Not readable, or gone meanwhile.
                self.left_out += 1;
            }
        }
    }

    /// Puts a directory's entries before what waits, in the order of their names.
    fn dir(&mut self, path: &Path, depth: usize) -> io::Result<()> {
        let from = self.pending.len();
        for (at, entry) in self.root.dir.read_dir(path)?.enumerate() {
            let entry = entry?;
            let kind = entry.file_type()?;
            let name = entry.file_name();
            if (kind.is_dir() && name != ".git") || kind.is_file() {
                let whole = if path == Path::new(".") { PathBuf::from(name) } else { path.join(name) };
                self.push(whole, depth + 1, kind.is_dir());
            }
            if at % 256 == 255 && self.patience.over().is_some() {
                break;
            }
        }
        if let Some(new) = self.pending.get_mut(from..) {
            new.sort_unstable_by(|left, right| right.0.cmp(&left.0));
        }
        Ok(())
    }

    fn found(&mut self, path: &Path) -> io::Result<()> {
        if self.files >= FILES_MAX {
            self.ended = Some("ended after 20000 files");
            return Ok(());
        }
        let (file, _) = self.root.file(path).map_err(io::Error::other)?;
        self.file(path, file)
    }

    fn file(&mut self, path: &Path, file: File) -> io::Result<()> {
        self.files += 1;
        let mut reader = BufReader::with_capacity(BUFFER_BYTES, file);
        if looks_binary(reader.fill_buf()?) {
            return Ok(());
        }
        let mut line = Vec::new();
        let mut number = 1;
        let mut seen = false;
        loop {
            let read = reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
            if read == 0 || self.ended.is_some() {
                return Ok(());
            }
            self.bytes += read as u64;
            let ended = line.last() == Some(&b'\n');
            if !seen && let Some(at) = self.needle.find(&line) {
                seen = true;
                self.ended = self.hits.add(path, number, &line, at);
            }
            if ended {
                line.clear();
                number += 1;
                seen = false;
            } else {
                // A hit may lie across two pieces, and is shown with what stands before it.
                let keep = line.len().saturating_sub(self.needle.longest() + SHOWN_BEFORE);
                line.drain(..keep);
            }
            self.ended = self.ended.or_else(|| self.over());
        }
    }

    fn over(&self) -> Option<&'static str> {
        if self.bytes > BYTES_MAX { Some("ended after 256 MiB") } else { self.patience.over() }
    }

    fn told(self) -> Output {
        let mut text = self.hits.text;
        if self.hits.count == 0 {
            text.push_str(&format!("nothing found in {} files\n", self.files));
        }
        if let Some(why) = self.ended {
            text.push_str(&format!("[{why}; there may be more: narrow query or path]\n"));
        }
        if self.left_out > 0 {
            text.push_str(&format!("[{} files or directories could not be searched]\n", self.left_out));
        }
        Output::whole(text)
    }
}

struct Hits {
    text: String,
    count: usize,
    room: usize,
}

impl Hits {
    /// Adds a hit; tells why no further one is wanted.
    fn add(&mut self, path: &Path, number: u64, line: &[u8], at: usize) -> Option<&'static str> {
        let hit = format!("{}:{number}: {}\n", show(path), around(line, at));
        if self.text.len() + hit.len() > self.room {
            return Some("the output is full");
        }
        self.text.push_str(&hit);
        self.count += 1;
        (self.count >= HITS_MAX).then_some("ended after 200 hits")
    }
}

/// The line, or what is around the hit if it is long; cut between characters.
fn around(line: &[u8], at: usize) -> String {
    let text = String::from_utf8_lossy(line);
    let text = text.trim_end();
    // Lossy text may be longer than the bytes, so the place is only near.
    let from = if text.len() <= SHOWN_BYTES { 0 } else { at.saturating_sub(SHOWN_BEFORE) };
    let from = crate::chunk::floor_boundary(text, from);
    let (mark, rest) = if from > 0 { ("…", text.split_at(from).1) } else { ("", text) };
    format!("{mark}{}", super::output::cut(clean_line(rest.trim_start().as_bytes()).as_str(), SHOWN_BYTES))
}

/// What is looked for.
enum Needle {
    /// compared byte by byte
    Ascii(Vec<u8>),
    /// compared as lower-case text
    Text(String),
}

impl Needle {
    fn new(query: &str) -> Needle {
        if query.is_ascii() {
            Needle::Ascii(query.to_ascii_lowercase().into_bytes())
        } else {
            Needle::Text(query.to_lowercase())
        }
    }

    /// Where it begins in the line, as a byte; near it for text beyond ASCII.
    fn find(&self, line: &[u8]) -> Option<usize> {
        match self {
            Needle::Ascii(needle) => {
                let first = *needle.first()?;
                let starts = line.iter().enumerate().filter(|(_, byte)| byte.eq_ignore_ascii_case(&first));
                let mut starts = starts.map(|(at, _)| at);
                starts.find(|at| {
                    line.get(*at..at + needle.len()).is_some_and(|piece| piece.eq_ignore_ascii_case(needle))
                })
            }
            Needle::Text(needle) => String::from_utf8_lossy(line).to_lowercase().find(needle.as_str()),
        }
    }

    /// The most bytes that a hit may have in a file: upper case may be written longer.
    fn longest(&self) -> usize {
        match self {
            Needle::Ascii(needle) => needle.len(),
            Needle::Text(needle) => needle.len() * 3,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::stop::Stop;
    use crate::budget::Budget;
    use crate::testing::Dir;

    fn find(dir: &Dir, query: &str, path: &str) -> Output {
        let stop = Stop::new().unwrap();
        run(query, path, &Place { workdir: dir.path(), budget: &Budget::ROUTER, stop: &stop })
    }

    fn write(dir: &Dir, name: &str, content: impl AsRef<[u8]>) {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    #[test]
    fn hits_come_in_order_with_path_and_line_whatever_the_case() {
        let dir = Dir::new();
        write(&dir, "b/x.txt", "one\ntwo Needle\n\tNEEDLE and needle\n");
        write(&dir, "a.txt", "needle without line end");
        write(&dir, ".git/c", "needle");
        assert_eq!(
            find(&dir, "nEEdle", ".").text,
            "a.txt:1: needle without line end\nb/x.txt:2: two Needle\nb/x.txt:3: NEEDLE and needle\n"
        );
        assert_eq!(find(&dir, "two", "b").text, "b/x.txt:2: two Needle\n");
        assert_eq!(find(&dir, "two", "b/x.txt").text, "b/x.txt:2: two Needle\n");
        assert_eq!(find(&dir, "three", ".").text, "nothing found in 2 files\n");
        write(&dir, "u.txt", "Grüße aus ÄÖÜ\n");
        assert_eq!(find(&dir, "äöü", ".").text, "u.txt:1: Grüße aus ÄÖÜ\n");
    }

    #[test]
    fn links_binaries_pipes_and_ways_out_are_not_searched() {
        let dir = Dir::new();
        let outside = Dir::new();
        write(&outside, "secret", "needle");
        write(&dir, "binary", b"needle\0\x01");
        std::os::unix::fs::symlink(outside.path(), dir.path().join("out")).unwrap();
        std::os::unix::fs::symlink(".", dir.path().join("loop")).unwrap();
        std::os::unix::fs::symlink(outside.path().join("secret"), dir.path().join("file")).unwrap();
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert_eq!(find(&dir, "needle", ".").text, "nothing found in 1 files\n");
        for way in ["out", "..", "/etc", "file", "fifo", "out/secret"] {
            let found = find(&dir, "needle", way);
            assert!(found.is_error, "{way}: {}", found.text);
        }
    }

    #[test]
    fn hits_and_lines_are_bounded_and_cut_between_characters() {
        let dir = Dir::new();
        write(&dir, "many", "needle\n".repeat(1000));
        let text = find(&dir, "needle", ".").text;
        assert_eq!(text.lines().count(), HITS_MAX + 1);
        assert!(text.contains("ended after 200 hits"));
        write(&dir, "many", "👍".repeat(50_000) + "needle" + &"é".repeat(50_000));
        let text = find(&dir, "needle", ".").text;
        assert!(text.len() < 300 && text.contains("👍needleé") && text.starts_with("many:1: …"), "{text}");
        write(&dir, "many", ("needle".to_owned() + &"x".repeat(300) + "\n").repeat(200));
        assert!(find(&dir, "needle", ".").text.len() <= Budget::ROUTER.tool_output_bytes);
    }

    #[test]
    fn a_hit_across_two_pieces_of_a_long_line_is_found_once() {
        let dir = Dir::new();
        for before in LINE_BYTES_MAX as usize - 8..LINE_BYTES_MAX as usize + 2 {
            write(&dir, "long", "x".repeat(before) + "needle" + &"y".repeat(9000));
            assert_eq!(find(&dir, "needle", ".").text.lines().count(), 1, "{before}");
            assert!(find(&dir, "needle", ".").text.contains("xneedle"), "{before}");
        }
    }

    #[test]
    fn a_deep_tree_ends_and_a_stop_is_honoured() {
        let dir = Dir::new();
        write(&dir, &("d/".repeat(40) + "f"), "needle");
        let text = find(&dir, "needle", ".").text;
        assert!(text.contains("could not be searched"), "{text}");
        let stop = Stop::new().unwrap();
        stop.raise();
        let found = run("needle", ".", &Place { workdir: dir.path(), budget: &Budget::ROUTER, stop: &stop });
        assert!(found.text.contains("stopped by the owner"));
    }

    #[test]
    fn a_blank_or_long_query_is_refused() {
        let dir = Dir::new();
        for query in ["", "  ", "a\nb", &"q".repeat(2000)] {
            assert!(find(&dir, query, ".").is_error);
        }
    }
}
