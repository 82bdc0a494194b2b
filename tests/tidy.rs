//! What the source keeps to, looked at as text: how threads are started, who prints, how long lines are, what
//! may know what, and that nothing of one machine stands in it.
//!
//! A line that is a fault here is told with its file, its number and the rule.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Longest line, in characters.
const COLUMNS_MAX: usize = 110;
/// Largest file under version control.
const BLOB_BYTES_MAX: u64 = 256 * 1024;

/// A file under version control.
struct File {
    /// from the repository's root, with `/`
    name: String,
    text: String,
}

impl File {
    fn is_rust(&self) -> bool {
        self.name.ends_with(".rs")
    }

    fn is_below(&self, folder: &str) -> bool {
        self.name.starts_with(folder)
    }

    /// Lines with their numbers, up to the module's unit tests.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let tests = ["tests.rs", "testing.rs"].iter().any(|end| self.name.ends_with(end));
        let end = if tests { 0 } else { usize::MAX };
        let lines = self.text.lines().enumerate().map(|(at, line)| (at + 1, line)).take(end);
        let code = lines.take_while(|(_, line)| *line != "#[cfg(test)]" && !line.starts_with("mod tests {"));
        code.filter(|(_, line)| !line.trim_start().starts_with("//"))
    }

    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(at, line)| (at + 1, line))
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The files that Git knows or would take, with their sizes.
fn paths() -> Vec<String> {
    let listed = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .expect("git is there: tests/run installs it");
    assert!(listed.status.success(), "git ls-files: {}", String::from_utf8_lossy(&listed.stderr));
    let names = String::from_utf8(listed.stdout).expect("names are UTF-8");
    let names = names.split('\0').filter(|name| !name.is_empty());
    // One that was removed and is not committed yet is still listed.
    names.filter(|name| root().join(name).is_file()).map(str::to_owned).collect()
}

fn files() -> Vec<File> {
    let own = paths().into_iter().filter(|name| !name.starts_with("static/vendor/"));
    let read = |name: String| {
        let text = std::fs::read(root().join(PathBuf::from(&name))).expect("the file is there");
        String::from_utf8(text).ok().map(|text| File { name, text })
    };
    own.filter_map(read).collect()
}

#[track_caller]
fn nothing(faults: Vec<String>) {
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

/// A fault for each line of code of each file that `of` picks in which `is_wrong`.
fn wrong_lines(of: impl Fn(&File) -> bool, rule: &str, is_wrong: impl Fn(&str) -> bool) -> Vec<String> {
    let mut faults = Vec::new();
    for file in files().iter().filter(|file| of(file)) {
        let wrong = file.code().filter(|(_, line)| is_wrong(line));
        faults.extend(wrong.map(|(no, line)| format!("{}:{no}: {rule}: {}", file.name, line.trim())));
    }
    faults
}

fn is_source(file: &File) -> bool {
    file.is_rust() && (file.is_below("src/") || file.is_below("benches/"))
}

#[test]
fn every_thread_has_a_name_and_a_stack_size() {
    nothing(wrong_lines(is_source, "a thread is started by Builder", |line| {
        line.contains("thread::spawn(") || line.contains("scope.spawn(")
    }));
    let mut faults = Vec::new();
    for file in files().iter().filter(|file| is_source(file)) {
        let code: Vec<(usize, &str)> = file.code().collect();
        for (at, (no, line)) in code.iter().enumerate() {
            if !(line.contains("thread::Builder::new()") || line.contains(" Builder::new()")) {
                continue;
            }
            let near: String = code.iter().skip(at).take(8).map(|(_, line)| *line).collect();
            for wanted in [".name(", ".stack_size("] {
                if !near.contains(wanted) {
                    faults.push(format!("{}:{no}: a thread without {wanted}…)", file.name));
                }
            }
        }
    }
    nothing(faults);
}

#[test]
fn only_the_command_line_prints() {
    let allowed = ["src/main.rs", "src/cli.rs"];
    let of = |file: &File| file.is_below("src/") && file.is_rust() && !allowed.contains(&file.name.as_str());
    nothing(wrong_lines(of, "output goes through log", |line| {
        ["println!(", "print!(", "dbg!("].iter().any(|word| line.contains(word))
    }));
}

#[test]
fn only_sys_has_unsafe_code() {
    let of = |file: &File| is_source(file) && file.name != "src/sys.rs";
    nothing(wrong_lines(of, "unsafe code is in src/sys.rs only", |line| {
        ["unsafe {", "unsafe fn", "unsafe impl", "allow(unsafe_code)"].iter().any(|word| line.contains(word))
    }));
}

#[test]
fn nothing_outside_tests_may_panic_on_what_it_reads() {
    let of = |file: &File| file.is_below("src/") && file.is_rust();
    nothing(wrong_lines(of, "no unwrap outside tests; expect states an invariant", |line| {
        line.contains(".unwrap()")
    }));
    nothing(wrong_lines(of, "a slice that can panic; see chunk::shorten and split_at", slices_by_range));
}

/// Whether a line has `name[..n]`, `name[n..]` or `name[a..b]`: on a str each may cut a character.
fn slices_by_range(line: &str) -> bool {
    let opens = line.match_indices('[').filter(|(at, _)| {
        let before = line.split_at(*at).0.chars().next_back();
        before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | ')' | ']'))
    });
    opens.map(|(at, _)| line.split_at(at + 1).1).any(|rest| {
        let inner = rest.split(']').next().unwrap_or_default();
        inner.contains("..") && inner.trim() != ".." && !inner.contains('"')
    })
}

#[test]
fn ranges_in_brackets_are_recognised() {
    let check = |line: &str, expected: bool| assert_eq!(slices_by_range(line), expected, "{line}");
    check("text[..n].len()", true);
    check("call()[1..]", true);
    check("all[a..b]", true);
    check("rows[..]", false);
    check("rows[at]", false);
    check("[\"tabs\", rest @ ..]", false);
    check("let [a, ..] = b", false);
    check("#[derive(Debug)]", false);
}

#[test]
fn lines_are_at_most_110_columns_long() {
    let folders = ["src/", "static/", "tests/", "benches/"];
    let mut faults = Vec::new();
    // A picture's path is one line.
    let of = |file: &&File| !file.name.ends_with(".svg") && folders.iter().any(|at| file.is_below(at));
    for file in files().iter().filter(of) {
        for (no, line) in file.lines() {
            let columns = line.chars().count();
            if columns > COLUMNS_MAX {
                faults.push(format!("{}:{no}: {columns} columns", file.name));
            }
        }
    }
    nothing(faults);
}

#[test]
fn no_file_is_larger_than_256_kib() {
    let size = |name: &String| std::fs::metadata(root().join(name)).map_or(0, |meta| meta.len());
    let large =
        paths().into_iter().map(|name| (size(&name), name)).filter(|(size, _)| *size > BLOB_BYTES_MAX);
    nothing(large.map(|(size, name)| format!("{name}: {size} bytes")).collect());
}

/// Each layer, and the modules of the crate that it must not know. Its unit tests may.
const ORDER: [(&str, &[&str]); 6] = [
    ("src/chunk.rs", &["store", "agent", "net", "serve", "cli", "control", "check", "config", "event"]),
    ("src/event.rs", &["store", "agent", "net", "serve", "cli", "control", "check", "config"]),
    (
        "src/budget.rs",
        &["chunk", "event", "store", "agent", "net", "serve", "cli", "control", "check", "config"],
    ),
    ("src/store/", &["agent", "net", "serve", "cli", "control", "check", "config", "event"]),
    ("src/agent/", &["net", "serve", "cli", "control", "check"]),
    ("src/net/", &["serve", "cli", "control", "check"]),
];

#[test]
fn imports_run_one_way() {
    let mut faults = Vec::new();
    for (layer, unknown) in ORDER {
        let words: Vec<String> = unknown.iter().map(|name| format!("crate::{name}")).collect();
        faults.extend(wrong_lines(
            |file| file.is_below(layer) && file.is_rust(),
            &format!("{layer} knows what stands above it"),
            |line| words.iter().any(|word| names(line, word)),
        ));
        for file in files().iter().filter(|file| file.is_below(layer) && file.is_rust()) {
            let grouped = file.code().filter(|(_, line)| line.starts_with("use crate::{"));
            faults.extend(grouped.map(|(no, _)| format!("{}:{no}: one module a line, please", file.name)));
        }
    }
    nothing(faults);
}

/// Whether `word` stands in the line as a whole word.
fn names(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let after = line.split_at(at + word.len()).1.chars().next();
        !after.is_some_and(|c| c.is_alphanumeric() || c == '_')
    })
}

#[test]
fn only_the_store_speaks_sql_and_only_providers_speak_to_providers() {
    let homes = [
        ("rusqlite", "src/store/"),
        ("ureq", "src/agent/provider/"),
        ("tungstenite", "src/net/"),
        ("tiny_http", "src/net/"),
    ];
    for (crate_name, home) in homes {
        // sys.rs reads SQLite's own count of its memory, which is unsafe code.
        let of = |file: &File| {
            file.is_below("src/") && file.is_rust() && !file.is_below(home) && file.name != "src/sys.rs"
        };
        let (path, import) = (format!("{crate_name}::"), format!("use {crate_name}"));
        nothing(wrong_lines(of, &format!("{crate_name} is used in {home} only"), |line| {
            // A URL's type is no request.
            let line = line.replace("ureq::http::Uri", "");
            line.contains(&path) || line.contains(&import)
        }));
    }
}

#[test]
fn nothing_of_one_machine_stands_in_the_repository() {
    // Put together, so that this file does not hold them itself.
    let words = ["work/", "root/", "tmp/wt"].map(|folder| format!("/{folder}"));
    let mut faults = Vec::new();
    for file in files() {
        for (no, line) in file.lines() {
            let found = words.iter().find(|word| stands_alone(line, word));
            faults.extend(found.map(|word| format!("{}:{no}: a path of a machine: {word}", file.name)));
        }
    }
    nothing(faults);
}

/// Whether a path begins in the line with `word`: `DATA/work/` is none, and neither is a URL's path.
fn stands_alone(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line.split_at(at).0.chars().next_back();
        before.is_none_or(|c| c.is_whitespace() || matches!(c, '"' | '\'' | '`' | '=' | '(' | ':'))
    })
}

#[test]
fn the_architecture_page_is_short_and_names_what_there_is() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).expect("the page is there");
    assert!(text.lines().count() < 200, "ARCHITECTURE.md stays under 200 lines");
    let names = text.split('`').skip(1).step_by(2);
    let modules = names.filter(|name| name.ends_with(".rs") && !name.contains(' '));
    let all = paths();
    let missing =
        modules.filter(|name| !all.iter().any(|path| path.ends_with(&format!("/{name}")) || path == name));
    nothing(missing.map(|name| format!("ARCHITECTURE.md names {name}, which is not there")).collect());
}
