use super::*;
use crate::agent::stop::Stop;
use crate::budget::Budget;
use crate::testing::Dir;
use std::os::unix::fs::symlink;

fn with<R>(dir: &Dir, run: impl FnOnce(&Place<'_>) -> R) -> R {
    let stop = Stop::new().unwrap();
    run(&Place { workdir: dir.path(), budget: &Budget::ROUTER, stop: &stop })
}

fn read_all(dir: &Dir, path: &str) -> Output {
    with(dir, |place| read(path, None, None, place))
}

fn list_all(dir: &Dir, path: &str) -> Output {
    with(dir, |place| list(path, place))
}

fn fifo(path: &Path) {
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
}

/// A working directory with ways out of it.
fn prison() -> (Dir, Dir) {
    let (dir, outside) = (Dir::new(), Dir::new());
    std::fs::write(outside.path().join("secret"), "secret\n").unwrap();
    std::fs::create_dir(dir.path().join("sub")).unwrap();
    std::fs::write(dir.path().join("sub/in"), "inside\n").unwrap();
    symlink(outside.path().join("secret"), dir.path().join("link")).unwrap();
    symlink(outside.path(), dir.path().join("dirlink")).unwrap();
    symlink("../..", dir.path().join("sub/up")).unwrap();
    symlink("sub/in", dir.path().join("good")).unwrap();
    symlink("endless", dir.path().join("endless")).unwrap();
    fifo(&dir.path().join("fifo"));
    (dir, outside)
}

#[test]
fn no_path_leads_out_of_the_working_directory() {
    let (dir, outside) = prison();
    let sibling = format!("../{}/secret", outside.path().file_name().unwrap().to_str().unwrap());
    let absolute = outside.path().join("secret").to_string_lossy().into_owned();
    let prefix = format!("{}x/secret", dir.path().display());
    let crooked = format!("{}/../{}", dir.path().display(), sibling.trim_start_matches("../"));
    for path in [
        "link",
        "dirlink/secret",
        "sub/up/secret",
        "sub/../../etc/passwd",
        "..",
        "/etc/passwd",
        "/",
        "/dev/zero",
        "/proc/self/environ",
        &sibling,
        &absolute,
        &prefix,
        &crooked,
        "./link",
        "sub/in/../../../x",
    ] {
        for output in [read_all(&dir, path), list_all(&dir, path)] {
            assert!(output.is_error, "{path}: {}", output.text);
            assert!(!output.text.contains("secret\n"), "{path}");
        }
        let text = read_all(&dir, path).text;
        assert!(
            ["outside the working directory", "not a directory", "there is no"]
                .iter()
                .any(|why| text.contains(why)),
            "{path}: {text}"
        );
    }
}

#[test]
fn only_regular_files_are_read_and_nothing_waits() {
    let (dir, _outside) = prison();
    for (path, why) in [
        ("fifo", "not a regular file"),
        ("sub", "is a directory"),
        (".", "is a directory"),
        ("", "is a directory"),
        ("missing", "there is no missing"),
        ("sub/in/x", "not a directory"),
        ("a\0b", "zero byte"),
        ("endless", "endless"),
        (&"x".repeat(5000), "longer than"),
        (&"x".repeat(300), "xxx"),
    ] {
        let output = read_all(&dir, path);
        assert!(output.is_error && output.text.contains(why), "{path}: {}", output.text);
        assert!(output.text.len() < 1000);
    }
    let stop = Stop::new().unwrap();
    let devices = Place { workdir: Path::new("/dev"), budget: &Budget::ROUTER, stop: &stop };
    assert!(read("zero", None, None, &devices).text.contains("not a regular file"));
    let gone = Place { workdir: Path::new("/nowhere/at/all"), budget: &Budget::ROUTER, stop: &stop };
    assert!(read("a", None, None, &gone).text.contains("working directory /nowhere/at/all cannot be opened"));
}

#[test]
fn links_and_absolute_paths_within_are_fine() {
    let (dir, _outside) = prison();
    let absolute = dir.path().join("sub/in").to_string_lossy().into_owned();
    for path in ["good", "sub/in", "sub/../sub/in", &absolute, "./sub/in"] {
        assert_eq!(read_all(&dir, path), Output::whole("inside\n"), "{path}");
    }
    assert!(!list_all(&dir, &dir.path().to_string_lossy()).is_error);
}

#[test]
fn a_listing_is_sorted_and_says_what_each_entry_is() {
    let (dir, _outside) = prison();
    std::fs::write(dir.path().join("b\nad\x1b[31m"), "12345").unwrap();
    assert_eq!(
        list_all(&dir, ".").text,
        "7 entries in .:\nb\u{fffd}ad 5\ndirlink (link)\nendless (link)\nfifo (pipe, socket or device)\n\
         good (link)\nlink (link)\nsub/\n"
    );
    assert_eq!(list_all(&dir, "sub").text, "2 entries in sub:\nin 7\nup (link)\n");
    std::fs::create_dir(dir.path().join("empty")).unwrap();
    assert_eq!(list_all(&dir, "empty").text, "empty is empty");
    assert!(list_all(&dir, "sub/in").text.contains("not a directory"));
}

#[test]
fn a_large_directory_is_capped_with_a_note() {
    let dir = Dir::new();
    for at in 0..700 {
        std::fs::write(dir.path().join(format!("{at:04}")), "").unwrap();
    }
    let text = list_all(&dir, ".").text;
    assert!(text.starts_with("700 entries in .:\n0000 0\n0001 0\n"));
    assert!(text.contains("\n0499 0\n[the first 500 of 700 by name"), "{text}");
    let dir = Dir::new();
    for at in 0..400 {
        std::fs::write(dir.path().join(format!("{at:04}{}", "n".repeat(240))), "").unwrap();
    }
    let text = list_all(&dir, ".").text;
    assert!(text.len() <= Budget::ROUTER.tool_output_bytes && text.contains("of 400 by name"));
}

fn read_lines(content: &[u8], offset: Option<u64>, limit: Option<u64>) -> Output {
    let dir = Dir::new();
    std::fs::write(dir.path().join("f"), content).unwrap();
    with(&dir, |place| read("f", offset, limit, place))
}

#[test]
fn lines_are_counted_from_one_and_more_is_told() {
    let text = b"one\ntwo\nthree\nfour";
    assert_eq!(read_lines(text, None, None).text, "one\ntwo\nthree\nfour");
    assert_eq!(read_lines(text, Some(0), None).text, "one\ntwo\nthree\nfour");
    assert_eq!(read_lines(text, Some(3), None).text, "three\nfour");
    let some = read_lines(text, Some(2), Some(2)).text;
    assert_eq!(some, "two\nthree\n[lines 2 to 3 of a file of 18 bytes; go on with offset 4]");
    assert_eq!(read_lines(text, Some(4), Some(1)).text, "four");
    assert_eq!(read_lines(text, Some(4), Some(9)).text, "four");
    assert_eq!(read_lines(b"one\n", Some(1), Some(1)).text, "one\n");
    for (content, offset, lines) in [(&b"one\n"[..], 2, 1), (b"one", 3, 1), (text, 5, 4)] {
        let output = read_lines(content, Some(offset), None);
        assert!(output.is_error && output.text.ends_with(&format!("has {lines} lines")), "{}", output.text);
    }
    assert!(read_lines(text, None, Some(0)).is_error);
    assert_eq!(read_lines(b"", None, None).text, "[the file is empty]");
    assert_eq!(read_lines(b"a\r\nb\x1b[1mc\r\n", None, None).text, "a\nbc\n");
}

#[test]
fn a_long_file_is_read_in_pages_that_join_without_loss() {
    let dir = Dir::new();
    let whole: String = (1..=20_000).map(|line| format!("line {line} é\n")).collect();
    std::fs::write(dir.path().join("f"), &whole).unwrap();
    let mut joined = String::new();
    let mut offset = 1;
    loop {
        let page = with(&dir, |place| read("f", Some(offset), None, place)).text;
        assert!(page.len() <= Budget::ROUTER.tool_output_bytes);
        match page.split_once("[lines") {
            Some((lines, note)) => {
                joined.push_str(lines);
                let next = note.rsplit_once("offset ").unwrap().1.trim_end_matches(']').parse().unwrap();
                assert!(next > offset);
                offset = next;
            }
            None => {
                joined.push_str(&page);
                break;
            }
        }
    }
    assert_eq!(joined, whole);
}

#[test]
fn an_endless_line_is_cut_at_a_character_and_the_next_is_reachable() {
    let content = "👍".repeat(100_000) + "\nnext\n";
    let output = read_lines(content.as_bytes(), None, None);
    assert!(output.text.len() <= Budget::ROUTER.tool_output_bytes);
    assert!(output.text.ends_with("[line 1 is too long and was cut here; offset 2 is the next line]"));
    assert_eq!(output.truncated, Some(400_006));
    assert_eq!(read_lines(content.as_bytes(), Some(2), None).text, "next\n");
}

#[test]
fn a_binary_file_is_only_its_size_and_a_sparse_giant_costs_nothing() {
    assert_eq!(read_lines(b"\x7fELF\0\x01", None, None).text, "[binary file, 6 bytes]");
    let dir = Dir::new();
    let file = std::fs::File::create(dir.path().join("giant")).unwrap();
    file.set_len(1 << 40).unwrap();
    assert_eq!(read_all(&dir, "giant").text, format!("[binary file, {} bytes]", 1u64 << 40));
}

#[test]
fn a_stop_ends_a_long_read() {
    let dir = Dir::new();
    std::fs::write(dir.path().join("f"), "x\n".repeat(10_000)).unwrap();
    let stop = Stop::new().unwrap();
    stop.raise();
    let place = Place { workdir: dir.path(), budget: &Budget::ROUTER, stop: &stop };
    let output = read("f", Some(9000), None, &place);
    assert!(output.is_error && output.text.contains("stopped by the owner"));
}
