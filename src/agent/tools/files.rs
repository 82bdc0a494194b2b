//! `list_files` and `read_file`: beneath the working directory only.
//!
//! Every path goes through cap-std, which resolves it step by step beneath an open directory: no `..`, no
//! absolute path and no symbolic link leads out, also when a link is exchanged meanwhile. Only regular files
//! are opened, without waiting for a fifo's writer, and looked at once more after opening. Files are
//! streamed; memory is 8 KiB and the output.

use super::output::{Cleaner, clean_line, looks_binary};
use super::{Output, Patience, Place};
use crate::chunk::shorten;
use cap_std::ambient_authority;
use cap_std::fs::{Dir, File, Metadata, OpenOptions, OpenOptionsExt};
use rustix::fs::OFlags;
use std::collections::BinaryHeap;
use std::io::{self, BufRead, BufReader};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Entries of a directory that are listed.
pub const ENTRIES_MAX: usize = 500;
/// Linux takes no longer path.
const PATH_BYTES_MAX: usize = 4096;
const BUFFER_BYTES: usize = 8 * 1024;
/// Room for the note that follows a text that is not whole.
const NOTE_BYTES: usize = 256;

/// The working directory, open.
pub struct Root<'a> {
    /// the open directory
    pub dir: Dir,
    workdir: &'a Path,
}

impl<'a> Root<'a> {
    /// Opens the working directory.
    pub fn open(place: &Place<'a>) -> Result<Root<'a>, String> {
        let workdir = place.workdir;
        let dir = Dir::open_ambient_dir(workdir, ambient_authority()).map_err(|error| {
            format!(
                "the working directory {} cannot be opened: {error}; only the owner can change it",
                show(workdir)
            )
        })?;
        Ok(Root { dir, workdir })
    }

    /// The path relative to the working directory. An absolute one must lie below it.
    pub fn relative(&self, path: &str) -> Result<PathBuf, String> {
        if path.contains('\0') {
            return Err("a path must not hold a zero byte".to_owned());
        }
        if path.len() > PATH_BYTES_MAX {
            return Err(format!("a path must not be longer than {PATH_BYTES_MAX} bytes"));
        }
        let path = Path::new(path);
        let mut below = path;
        if path.is_absolute() {
            let real = self.workdir.canonicalize().ok();
            below = path
                .strip_prefix(self.workdir)
                .or_else(|error| real.as_ref().map_or(Err(error), |real| path.strip_prefix(real)))
                .map_err(|_| self.outside(path))?;
        }
        Ok(if below.as_os_str().is_empty() { PathBuf::from(".") } else { below.to_owned() })
    }

    fn outside(&self, path: &Path) -> String {
        format!(
            "{} is outside the working directory {}, where alone tools may look",
            show(path),
            show(self.workdir)
        )
    }

    /// An error of the file system in words.
    pub fn fault(&self, path: &Path, error: &io::Error) -> String {
        match error.kind() {
            io::ErrorKind::NotFound => {
                format!("there is no {} in the working directory {}", show(path), show(self.workdir))
            }
            // cap-std refuses a way out without an error number of the system.
            io::ErrorKind::PermissionDenied if error.raw_os_error().is_none() => self.outside(path),
            io::ErrorKind::PermissionDenied => format!("{} is not readable for Siskin's user", show(path)),
            io::ErrorKind::NotADirectory => format!("{} is not a directory", show(path)),
            _ => format!("{}: {error}", show(path)),
        }
    }

    /// Opens a regular file, and nothing else.
    pub fn file(&self, path: &Path) -> Result<(File, Metadata), String> {
        let fault = |error: io::Error| self.fault(path, &error);
        // Looked at first: merely opening some devices does something.
        regular(path, &self.dir.metadata(path).map_err(fault)?)?;
        let mut options = OpenOptions::new();
        let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
        options.read(true).custom_flags(flags.bits().cast_signed());
        let file = self.dir.open_with(path, &options).map_err(fault)?;
        let meta = file.metadata().map_err(fault)?;
        regular(path, &meta)?;
        Ok((file, meta))
    }
}

fn regular(path: &Path, meta: &Metadata) -> Result<(), String> {
    if meta.is_dir() {
        return Err(format!("{} is a directory; list_files shows what is in it", show(path)));
    }
    if !meta.is_file() {
        return Err(format!(
            "{} is not a regular file (a pipe, socket or device); it is not read",
            show(path)
        ));
    }
    Ok(())
}

/// A path for a message: clean, on one line, not too long.
pub fn show(path: &Path) -> String {
    let bytes = path.as_os_str().as_bytes();
    super::output::cut(&clean_line(bytes.get(..512).unwrap_or(bytes)), 300)
}

/// Lists a directory: its first entries by name, directories with `/`, files with their size.
pub fn list(path: &str, place: &Place<'_>) -> Output {
    list_in(path, place).unwrap_or_else(Output::error)
}

fn list_in(path: &str, place: &Place<'_>) -> Result<Output, String> {
    let root = Root::open(place)?;
    let path = root.relative(path)?;
    let meta = root.dir.metadata(&path).map_err(|error| root.fault(&path, &error))?;
    if !meta.is_dir() {
        return Err(format!("{} is not a directory; it has {} bytes", show(&path), meta.len()));
    }
    let dir = root.dir.open_dir(&path).map_err(|error| root.fault(&path, &error))?;
    let (names, total, ended) = first_names(&dir, &Patience::new(place))?;
    let mut text = match total {
        0 => format!("{} is empty", show(&path)),
        1 => format!("1 entry in {}:\n", show(&path)),
        _ => format!("{total} entries in {}:\n", show(&path)),
    };
    let room = place.budget.tool_output_bytes - NOTE_BYTES;
    let mut shown = 0;
    for name in &names {
        let line = entry_line(&dir, name);
        if text.len() + line.len() > room {
            break;
        }
        text.push_str(&line);
        shown += 1;
    }
    if let Some(why) = ended {
        text.push_str(&format!("[{why}: the directory holds more than was counted]\n"));
    } else if shown < total {
        text.push_str(&format!("[the first {shown} of {total} by name; search finds the others]\n"));
    }
    Ok(Output::whole(text))
}

type Names = (Vec<Vec<u8>>, usize, Option<&'static str>);

/// The first names in order, how many there are, and why the count ended early. Holds [`ENTRIES_MAX`] names
/// at most.
fn first_names(dir: &Dir, patience: &Patience<'_>) -> Result<Names, String> {
    let mut first = BinaryHeap::new();
    let mut total = 0;
    let mut ended = None;
    for entry in dir.entries().map_err(|error| error.to_string())? {
        let entry = entry.map_err(|error| error.to_string())?;
        total += 1;
        first.push(entry.file_name().into_vec());
        if first.len() > ENTRIES_MAX {
            first.pop();
        }
        if total % 256 == 0 {
            ended = patience.over();
            if ended.is_some() {
                break;
            }
        }
    }
    Ok((first.into_sorted_vec(), total, ended))
}

fn entry_line(dir: &Dir, name: &[u8]) -> String {
    let shown = clean_line(name);
    match dir.symlink_metadata(Path::new(std::ffi::OsStr::from_bytes(name))) {
        Ok(meta) if meta.is_dir() => format!("{shown}/\n"),
        Ok(meta) if meta.is_symlink() => format!("{shown} (link)\n"),
        Ok(meta) if meta.is_file() => format!("{shown} {}\n", meta.len()),
        Ok(_) => format!("{shown} (pipe, socket or device)\n"),
        // Gone since it was listed, or not to be looked at: its name is still true.
        Err(_) => format!("{shown}\n"),
    }
}

/// Reads lines `offset` (from 1) to at most `limit` further, as many as fit the output.
pub fn read(path: &str, offset: Option<u64>, limit: Option<u64>, place: &Place<'_>) -> Output {
    read_in(path, offset.unwrap_or(1).max(1), limit, place).unwrap_or_else(Output::error)
}

fn read_in(path: &str, offset: u64, limit: Option<u64>, place: &Place<'_>) -> Result<Output, String> {
    if limit == Some(0) {
        return Err("limit must be at least 1".to_owned());
    }
    let root = Root::open(place)?;
    let path = root.relative(path)?;
    let (file, meta) = root.file(&path)?;
    let fault = |error: io::Error| root.fault(&path, &error);
    let mut reader = BufReader::with_capacity(BUFFER_BYTES, file);
    let head = reader.fill_buf().map_err(fault)?;
    if head.is_empty() {
        return Ok(Output::whole("[the file is empty]"));
    }
    if looks_binary(head) {
        return Ok(Output::whole(format!("[binary file, {} bytes]", meta.len())));
    }
    let patience = Patience::new(place);
    let skipped = skip_lines(&mut reader, offset - 1, &patience).map_err(fault)?;
    if let Skipped::End(lines) = skipped {
        return Err(format!("offset {offset} is beyond the end: {} has {lines} lines", show(&path)));
    }
    if let Skipped::Over(why) = skipped {
        return Err(format!("{why} before line {offset} was reached"));
    }
    let room = place.budget.tool_output_bytes - NOTE_BYTES;
    let taken = take_lines(&mut reader, limit.unwrap_or(u64::MAX), room, &patience).map_err(fault)?;
    Ok(told(taken, offset, meta.len()))
}

enum Skipped {
    /// the reader stands at the wanted line, which is not empty of bytes
    There,
    /// the file ended after so many lines
    End(u64),
    /// out of time
    Over(&'static str),
}

fn skip_lines(reader: &mut impl BufRead, lines: u64, patience: &Patience<'_>) -> io::Result<Skipped> {
    let mut passed = 0;
    let mut open_line = false;
    while passed < lines {
        let buffer = reader.fill_buf()?;
        if buffer.is_empty() {
            return Ok(Skipped::End(passed + u64::from(open_line)));
        }
        let end = buffer.iter().position(|byte| *byte == b'\n');
        let used = end.map_or(buffer.len(), |end| end + 1);
        passed += u64::from(end.is_some());
        open_line = end.is_none();
        reader.consume(used);
        if let Some(why) = patience.over() {
            return Ok(Skipped::Over(why));
        }
    }
    if reader.fill_buf()?.is_empty() {
        return Ok(Skipped::End(passed));
    }
    Ok(Skipped::There)
}

/// Lines that were read.
struct Taken {
    text: String,
    /// whole lines in `text`
    lines: u64,
    /// the file goes on behind them
    more: bool,
    /// not even one line fitted: `text` is its beginning
    cut_line: bool,
    /// out of time
    over: Option<&'static str>,
}

fn take_lines(
    reader: &mut impl BufRead,
    limit: u64,
    room: usize,
    patience: &Patience<'_>,
) -> io::Result<Taken> {
    let mut cleaner = Cleaner::new();
    let mut taken = Taken { text: String::new(), lines: 0, more: false, cut_line: false, over: None };
    // Where the last whole line ends; what lies behind it may have to be taken back.
    let mut whole = 0;
    while taken.lines < limit {
        taken.over = patience.over();
        let buffer = reader.fill_buf()?;
        if buffer.is_empty() || taken.over.is_some() {
            break;
        }
        let end = buffer.iter().position(|byte| *byte == b'\n');
        let used = end.map_or(buffer.len(), |end| end + 1);
        cleaner.push(buffer.get(..used).unwrap_or_default(), &mut |piece| taken.text.push_str(piece));
        reader.consume(used);
        if taken.text.len() > room {
            return Ok(overfull(taken, whole, room));
        }
        if end.is_some() {
            taken.lines += 1;
            whole = taken.text.len();
        }
    }
    cleaner.finish(&mut |piece| taken.text.push_str(piece));
    if taken.text.len() > room {
        return Ok(overfull(taken, whole, room));
    }
    taken.more = taken.over.is_some() || !reader.fill_buf()?.is_empty();
    Ok(taken)
}

fn overfull(mut taken: Taken, whole: usize, room: usize) -> Taken {
    taken.more = true;
    taken.cut_line = whole == 0;
    let end = if whole == 0 { shorten(&taken.text, room).len() } else { whole };
    taken.text.truncate(end);
    taken
}

fn told(taken: Taken, offset: u64, bytes: u64) -> Output {
    let mut output = Output::whole(taken.text);
    let next = offset + taken.lines + u64::from(taken.cut_line);
    if taken.cut_line {
        let note = format!("\n[line {offset} is too long and was cut here; offset {next} is the next line]");
        output.text.push_str(&note);
        output.truncated = Some(bytes);
    } else if taken.more {
        if !output.text.is_empty() && !output.text.ends_with('\n') {
            output.text.push('\n');
        }
        let why = taken.over.map(|why| format!("{why}; ")).unwrap_or_default();
        let last = next - 1;
        let note =
            format!("[{why}lines {offset} to {last} of a file of {bytes} bytes; go on with offset {next}]");
        output.text.push_str(&note);
    }
    output
}

#[cfg(test)]
mod tests;
