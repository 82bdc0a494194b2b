//! The control socket: how `siskin pair`, `backup` and `export` reach the running server.
//!
//! `DATA/control.sock`, mode 0600, inside a directory that only its owner may enter; besides, the kernel
//! tells the peer's user (SO_PEERCRED), who must be the server's own or root. One request a connection, one
//! line: `pair`, `backup PATH` or `export TAB FORMAT`. One line comes back: `code CODE URL`, `done BYTES`,
//! `error TEXT`; or for an export pieces, each `piece LENGTH` and so many bytes, until `done BYTES`. One
//! thread serves one peer after the other. A line must come within five seconds, from a buffer of
//! [`LINE_BYTES_MAX`]; a peer that takes nothing of an answer for so long is left.

use crate::agent::stop::Stop;
use crate::budget::CONTROL_STACK_BYTES;
use rustix::event::{PollFd, PollFlags, poll};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The longest line either side sends: a word and a path.
pub const LINE_BYTES_MAX: usize = 4096 + 64;
/// An export's bytes in one piece.
const PIECE_BYTES: usize = 8 * 1024;
const PATIENCE: Duration = Duration::from_secs(5);
const NAME: &str = "control.sock";

/// A pairing code and the link that carries it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pairing {
    /// `ABCD-EFGH`
    pub code: String,
    /// `http://HOST:PORT/#pair=ABCD-EFGH`
    pub url: String,
}

/// What the server does for who asks. Errors are one line.
pub trait Server: Send {
    /// Makes a pairing.
    fn pair(&self) -> Result<Pairing, String>;
    /// Copies the database to a file; gives its bytes.
    fn backup(&self, to: &Path) -> Result<u64, String>;
    /// A tab's log in a format, both as the command line names them.
    fn export(&self, tab: &str, format: &str) -> Result<Box<dyn Read>, String>;
}

/// The serving side; dropping it ends its thread and removes the socket.
pub struct Control {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
    path: PathBuf,
}

impl Control {
    /// Listens in `data`, whose lock this process holds: a socket that is there was left by a process that
    /// died.
    pub fn listen(data: &Path, server: Box<dyn Server>) -> Result<Control, String> {
        let path = data.join(NAME);
        let fault = |error: io::Error| format!("control socket {}: {error}", path.display());
        match std::fs::symlink_metadata(&path) {
            Ok(meta) if meta.file_type().is_socket() => std::fs::remove_file(&path).map_err(fault)?,
            Ok(_) => return Err(format!("control socket {}: something else is there", path.display())),
            Err(_) => {}
        }
        let listener = short_path(data, |path| UnixListener::bind(path)).map_err(fault)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).map_err(fault)?;
        listener.set_nonblocking(true).map_err(fault)?;
        let stop = Arc::new(Stop::new().map_err(fault)?);
        let (seen, thread) = (stop.clone(), std::thread::Builder::new().name("control".to_owned()));
        let thread = thread.stack_size(CONTROL_STACK_BYTES).spawn(move || run(&listener, &seen, &*server));
        Ok(Control { stop, thread: Some(thread.map_err(fault)?), path })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.stop.raise();
        if let Some(thread) = self.thread.take() {
            // A panic in it was logged by the hook.
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Calls `with` a path of the socket that fits `sockaddr_un` (108 bytes), however long the directory's own
/// is.
fn short_path<T>(data: &Path, with: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    let path = data.join(NAME);
    if path.as_os_str().len() < 100 {
        return with(&path);
    }
    let dir = std::fs::File::open(data)?;
    with(&PathBuf::from(format!("/proc/self/fd/{}/{NAME}", dir.as_raw_fd())))
}

fn run(listener: &UnixListener, stop: &Stop, server: &dyn Server) {
    loop {
        let mut fds = [PollFd::new(listener, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        // An interrupted poll is seen as "nothing to accept" below.
        let _ = poll(&mut fds, None);
        if stop.is_raised() {
            return;
        }
        match listener.accept() {
            Ok((peer, _)) => {
                if let Err(error) = serve(&peer, stop, server) {
                    log::debug!("control socket: {error}");
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                log::warn!("control socket: {error}");
                stop.wait(Duration::from_millis(100));
            }
        }
    }
}

fn serve(peer: &UnixStream, stop: &Stop, server: &dyn Server) -> io::Result<()> {
    let uid = rustix::net::sockopt::socket_peercred(peer)?.uid;
    if uid != rustix::process::geteuid() && !uid.is_root() {
        log::warn!("control socket: refused user {}", uid.as_raw());
        return answer(peer, "error only the server's own user and root may do this");
    }
    let line = read_line(peer, Some(stop), PATIENCE)?;
    let unknown = || Err("the server does not know this request; use the same version of siskin".to_owned());
    let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
    let done = match word {
        "pair" => server.pair().map(|made| format!("code {} {}", made.code, made.url)),
        "backup" => server.backup(Path::new(rest)).map(|bytes| format!("done {bytes}")),
        "export" => {
            let (tab, format) = rest.split_once(' ').unwrap_or_default();
            match server.export(tab, format) {
                Ok(mut log) => return send(peer, stop, &mut *log),
                Err(why) => Err(why),
            }
        }
        _ => unknown(),
    };
    answer(peer, &done.unwrap_or_else(|why| format!("error {why}")))
}

/// Sends what a reader gives, in pieces.
fn send(mut peer: &UnixStream, stop: &Stop, log: &mut dyn Read) -> io::Result<()> {
    let mut buffer = vec![0; PIECE_BYTES];
    let mut bytes = 0;
    loop {
        match log.read(&mut buffer) {
            Ok(0) => return answer(peer, &format!("done {bytes}")),
            Ok(_) if stop.is_raised() => return answer(peer, "error the server stops"),
            Ok(amount) => {
                answer(peer, &format!("piece {amount}"))?;
                peer.write_all(buffer.split_at(amount).0)?;
                bytes += amount as u64;
            }
            Err(error) => return answer(peer, &format!("error {error}")),
        }
    }
}

fn answer(mut peer: &UnixStream, line: &str) -> io::Result<()> {
    peer.set_nonblocking(false)?;
    peer.set_write_timeout(Some(PATIENCE))?;
    let line = crate::chunk::shorten(line, LINE_BYTES_MAX - 1).replace('\n', " ");
    peer.write_all(format!("{line}\n").as_bytes())
}

/// One line of at most [`LINE_BYTES_MAX`] bytes within `time` in all. Nothing may come behind it.
fn read_line(mut peer: &UnixStream, stop: Option<&Stop>, time: Duration) -> io::Result<String> {
    let end = Instant::now() + time;
    let mut buffer = [0u8; LINE_BYTES_MAX];
    let mut filled = 0;
    peer.set_nonblocking(true)?;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || stop.is_some_and(Stop::is_raised) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        wait(peer, stop, left);
        match peer.read(buffer.get_mut(filled..).unwrap_or_default()) {
            Ok(0) => return Err(io::Error::new(io::ErrorKind::InvalidData, "no whole line came")),
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        let line = buffer.iter().take(filled).position(|byte| *byte == b'\n');
        if let Some(text) = line.and_then(|end| buffer.get(..end)) {
            return String::from_utf8(text.to_vec()).map_err(|_| io::ErrorKind::InvalidData.into());
        }
    }
}

fn wait(peer: &UnixStream, stop: Option<&Stop>, time: Duration) {
    let mut fds = vec![PollFd::new(peer, PollFlags::IN)];
    if let Some(stop) = stop {
        fds.push(PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN));
    }
    // A failed poll only means that the caller looks again, until its time is over.
    let _ = poll(&mut fds, rustix::event::Timespec::try_from(time).ok().as_ref());
}

/// A request to the server of a data directory, and where its answer is read from.
struct Request {
    path: PathBuf,
    answer: BufReader<UnixStream>,
}

impl Request {
    /// Asks; the error is one line with cause and mend.
    fn send(data: &Path, line: &str, patience: Duration) -> Result<Request, String> {
        let path = data.join(NAME);
        let peer =
            short_path(data, |path| UnixStream::connect(path)).map_err(|error| match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => format!(
                    "no server runs with data directory {}; start one with `siskin serve`, \
                 or give the --config or --data that it runs with",
                    data.display()
                ),
                io::ErrorKind::PermissionDenied => {
                    format!("{}: not allowed; run this as the server's user or as root", path.display())
                }
                _ => format!("{}: {error}", path.display()),
            })?;
        let asked = answer(&peer, line).and_then(|()| peer.set_read_timeout(Some(patience)));
        asked.map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Request { path, answer: BufReader::new(peer) })
    }

    /// The next line of the answer, without its first word, which has to be one of `words`.
    fn line(&mut self, words: &[&str]) -> Result<(usize, String), String> {
        let mut line = Vec::new();
        let read = (&mut self.answer).take(LINE_BYTES_MAX as u64).read_until(b'\n', &mut line);
        read.map_err(|error| self.fault(&error))?;
        let line = String::from_utf8_lossy(&line);
        let (word, rest) = line.trim_end().split_once(' ').unwrap_or_default();
        if word == "error" {
            return Err(rest.to_owned());
        }
        match words.iter().position(|known| *known == word) {
            Some(at) => Ok((at, rest.to_owned())),
            None if line.is_empty() => {
                Err(format!("{}: the server ended before it answered; try again", self.path.display()))
            }
            None => Err(format!("{}: an answer that is not understood", self.path.display())),
        }
    }

    fn fault(&self, error: &io::Error) -> String {
        match error.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
                format!("{}: the server does not answer", self.path.display())
            }
            _ => format!("{}: {error}", self.path.display()),
        }
    }
}

/// Asks the server of `data` for a pairing.
pub fn ask_pair(data: &Path) -> Result<Pairing, String> {
    let mut request = Request::send(data, "pair", PATIENCE)?;
    let (_, made) = request.line(&["code"])?;
    let (code, url) = made.split_once(' ').unwrap_or_default();
    Ok(Pairing { code: code.to_owned(), url: url.to_owned() })
}

/// Has the server of `data` copy its database to an absolute path; gives the copy's bytes.
pub fn ask_backup(data: &Path, to: &Path) -> Result<u64, String> {
    /// A gigabyte on slow flash takes minutes.
    const COPYING: Duration = Duration::from_secs(3600);
    let Some(path) = to.to_str().filter(|path| !path.contains('\n') && path.len() <= 4096) else {
        return Err(format!("{}: the name must be UTF-8 on one line", to.display()));
    };
    let mut request = Request::send(data, &format!("backup {path}"), COPYING)?;
    let (_, bytes) = request.line(&["done"])?;
    Ok(bytes.parse().unwrap_or(0))
}

/// Has the server of `data` write a tab's log to `out`. It goes through a file without a name, so that who
/// reads `out` slowly, such as a pager, does not keep the server waiting.
pub fn ask_export(data: &Path, tab: &str, format: &str, out: &mut dyn Write) -> Result<(), ExportFault> {
    let spool = std::env::temp_dir();
    let no_spool = |error: io::Error| format!("{}: no file for the export: {error}", spool.display());
    let mut file = unnamed(&spool).map_err(no_spool)?;
    let mut request = Request::send(data, &format!("export {tab} {format}"), 4 * PATIENCE)?;
    loop {
        let (kind, rest) = request.line(&["piece", "done"])?;
        if kind == 1 {
            file.rewind().map_err(no_spool)?;
            return io::copy(&mut file, out).map(drop).map_err(ExportFault::Out);
        }
        let length = rest.parse().unwrap_or(0);
        let copied = io::copy(&mut (&mut request.answer).take(length), &mut file).map_err(no_spool)?;
        if copied < length {
            return Err("the server ended in the middle of the log".to_owned().into());
        }
    }
}

/// A file that nobody else can open and that is gone with this process.
fn unnamed(dir: &Path) -> io::Result<File> {
    let path = dir.join(format!("siskin-export-{}", std::process::id()));
    // Left by a process of the same number that was killed; a new one, since the folder may be everyone's.
    let _ = std::fs::remove_file(&path);
    let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

/// Why an export ended early.
#[derive(Debug)]
pub enum ExportFault {
    /// the server says
    Server(String),
    /// what it is written to says
    Out(io::Error),
}

impl From<String> for ExportFault {
    fn from(text: String) -> ExportFault {
        ExportFault::Server(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Dir;

    /// A server whose every answer is known.
    struct Known;

    fn pairing() -> Result<Pairing, String> {
        Ok(Pairing { code: "ABCD-EFGH".into(), url: "http://h:1/#pair=ABCD-EFGH".into() })
    }

    impl Server for Known {
        fn pair(&self) -> Result<Pairing, String> {
            pairing()
        }

        fn backup(&self, to: &Path) -> Result<u64, String> {
            if to == Path::new("/x y/z") { Ok(7) } else { Err("two\nlines".to_owned()) }
        }

        fn export(&self, tab: &str, format: &str) -> Result<Box<dyn Read>, String> {
            match (tab, format) {
                ("t1", "md") => Ok(Box::new(io::repeat(b'x').take(100_000))),
                ("t2", "md") => Ok(Box::new(io::repeat(b'x').take(10_000).chain(Broken))),
                _ => Err("there is no such tab".to_owned()),
            }
        }
    }

    struct Broken;

    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("the log cannot be read"))
        }
    }

    #[test]
    fn a_copy_and_an_export_are_asked_for_and_their_faults_are_told() {
        let dir = Dir::new();
        let _control = Control::listen(dir.path(), Box::new(Known)).unwrap();
        assert_eq!(ask_backup(dir.path(), Path::new("/x y/z")), Ok(7));
        assert_eq!(ask_backup(dir.path(), Path::new("/else")), Err("two lines".to_owned()));
        assert!(ask_backup(dir.path(), Path::new("/a\nb")).unwrap_err().contains("one line"));
        let mut out = Vec::new();
        ask_export(dir.path(), "t1", "md", &mut out).unwrap();
        assert_eq!(out.len(), 100_000);
        let fault = |tab| match ask_export(dir.path(), tab, "md", &mut Vec::new()) {
            Err(ExportFault::Server(text)) => text,
            other => panic!("{other:?}"),
        };
        assert_eq!(fault("t2"), "the log cannot be read");
        assert_eq!(fault("t3"), "there is no such tab");
        assert_eq!(ask_pair(dir.path()), pairing());
    }

    #[test]
    fn a_code_comes_over_the_socket_and_the_socket_goes_with_the_server() {
        let dir = Dir::new();
        let control = Control::listen(dir.path(), Box::new(Known)).unwrap();
        let mode = std::fs::metadata(dir.path().join(NAME)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(ask_pair(dir.path()), pairing());
        assert_eq!(ask_pair(dir.path()), pairing());
        drop(control);
        assert!(!dir.path().join(NAME).exists());
        assert!(ask_pair(dir.path()).unwrap_err().contains("no server runs"));
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_file_in_its_place_is_not() {
        let dir = Dir::new();
        drop(UnixListener::bind(dir.path().join(NAME)).unwrap());
        assert!(ask_pair(dir.path()).unwrap_err().contains("no server runs"));
        let control = Control::listen(dir.path(), Box::new(Known)).unwrap();
        assert!(ask_pair(dir.path()).is_ok());
        drop(control);
        std::fs::write(dir.path().join(NAME), "mine").unwrap();
        assert!(Control::listen(dir.path(), Box::new(Known)).is_err());
    }

    #[test]
    fn a_long_directory_works() {
        let dir = Dir::new();
        let deep = dir.path().join("d".repeat(120));
        std::fs::create_dir(&deep).unwrap();
        let control = Control::listen(&deep, Box::new(Known)).unwrap();
        assert_eq!(ask_pair(&deep), pairing());
        drop(control);
    }

    #[test]
    fn a_server_that_ends_before_it_answers_is_told_as_that() {
        let dir = Dir::new();
        let listener = std::os::unix::net::UnixListener::bind(dir.path().join(NAME)).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| drop(listener.accept().unwrap().0.read(&mut [0; 64])));
            let told = ask_pair(dir.path()).unwrap_err();
            assert!(told.ends_with("the server ended before it answered; try again"), "{told}");
        });
    }

    #[test]
    fn an_unknown_an_endless_and_a_silent_peer_do_not_stop_the_next() {
        let dir = Dir::new();
        let control = Control::listen(dir.path(), Box::new(Known)).unwrap();
        let connect = || UnixStream::connect(dir.path().join(NAME)).unwrap();
        let mut wrong = connect();
        wrong.write_all(b"open sesame\n").unwrap();
        let mut said = String::new();
        wrong.read_to_string(&mut said).unwrap();
        assert!(said.starts_with("error "), "{said}");
        let mut endless = connect();
        // The server closes after its line buffer is full; writing on may then fail.
        let _ = endless.write_all(&[b'x'; 2 * LINE_BYTES_MAX]);
        drop(connect());
        assert!(ask_pair(dir.path()).is_ok());
        let silent = connect();
        drop(control);
        drop(silent);
    }
}
