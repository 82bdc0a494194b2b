//! The control socket: how `siskin pair` reaches the running server.
//!
//! `DATA/control.sock`, mode 0600, inside a directory that only its owner may enter; besides, the kernel
//! tells the peer's user (SO_PEERCRED), who must be the server's own or root. One request a connection: a
//! line of one word; one line comes back, `code CODE URL` or `error TEXT`. One thread serves one peer after
//! the other, each for at most five seconds, from a buffer of [`LINE_BYTES_MAX`].

use crate::agent::stop::Stop;
use crate::budget::CONTROL_STACK_BYTES;
use rustix::event::{PollFd, PollFlags, poll};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The longest line either side sends.
pub const LINE_BYTES_MAX: usize = 512;
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

/// Makes a pairing, or says why not.
pub type Pair = dyn Fn() -> Result<Pairing, String> + Send;

/// The serving side; dropping it ends its thread and removes the socket.
pub struct Control {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
    path: PathBuf,
}

impl Control {
    /// Listens in `data`, whose lock this process holds: a socket that is there was left by a process that
    /// died.
    pub fn listen(data: &Path, pair: Box<Pair>) -> Result<Control, String> {
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
        let thread = thread.stack_size(CONTROL_STACK_BYTES).spawn(move || run(&listener, &seen, &pair));
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

fn run(listener: &UnixListener, stop: &Stop, pair: &Pair) {
    loop {
        let mut fds = [PollFd::new(listener, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        // An interrupted poll is seen as "nothing to accept" below.
        let _ = poll(&mut fds, None);
        if stop.is_raised() {
            return;
        }
        match listener.accept() {
            Ok((peer, _)) => {
                if let Err(error) = serve(&peer, stop, pair) {
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

fn serve(peer: &UnixStream, stop: &Stop, pair: &Pair) -> io::Result<()> {
    let uid = rustix::net::sockopt::socket_peercred(peer)?.uid;
    if uid != rustix::process::geteuid() && !uid.is_root() {
        log::warn!("control socket: refused user {}", uid.as_raw());
        return answer(peer, "error only the server's own user and root may do this");
    }
    let line = read_line(peer, Some(stop))?;
    match line.as_str() {
        "pair" => match pair() {
            Ok(made) => answer(peer, &format!("code {} {}", made.code, made.url)),
            Err(why) => answer(peer, &format!("error {why}")),
        },
        _ => answer(peer, "error the server does not know this request; use the same version of siskin"),
    }
}

fn answer(mut peer: &UnixStream, line: &str) -> io::Result<()> {
    peer.set_nonblocking(false)?;
    peer.set_write_timeout(Some(PATIENCE))?;
    let line = crate::chunk::shorten(line, LINE_BYTES_MAX - 1).replace('\n', " ");
    peer.write_all(format!("{line}\n").as_bytes())
}

/// One line of at most [`LINE_BYTES_MAX`] bytes within [`PATIENCE`] in all.
fn read_line(mut peer: &UnixStream, stop: Option<&Stop>) -> io::Result<String> {
    let end = Instant::now() + PATIENCE;
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

/// Asks the server of `data` for a pairing. The error is one line with cause and mend.
pub fn ask_pair(data: &Path) -> Result<Pairing, String> {
    let path = data.join(NAME);
    let peer = short_path(data, |path| UnixStream::connect(path)).map_err(|error| match error.kind() {
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
    answer(&peer, "pair").map_err(|error| format!("{}: {error}", path.display()))?;
    let line = read_line(&peer, None).map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => format!("{}: the server does not answer", path.display()),
        _ => format!("{}: {error}", path.display()),
    })?;
    if let Some(why) = line.strip_prefix("error ") {
        return Err(why.to_owned());
    }
    let made = line.strip_prefix("code ").and_then(|rest| rest.split_once(' '));
    let (code, url) = made.ok_or_else(|| format!("{}: an answer that is not understood", path.display()))?;
    Ok(Pairing { code: code.to_owned(), url: url.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Dir;

    fn pairing() -> Result<Pairing, String> {
        Ok(Pairing { code: "ABCD-EFGH".into(), url: "http://h:1/#pair=ABCD-EFGH".into() })
    }

    #[test]
    fn a_code_comes_over_the_socket_and_the_socket_goes_with_the_server() {
        let dir = Dir::new();
        let control = Control::listen(dir.path(), Box::new(pairing)).unwrap();
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
        let control = Control::listen(dir.path(), Box::new(pairing)).unwrap();
        assert!(ask_pair(dir.path()).is_ok());
        drop(control);
        std::fs::write(dir.path().join(NAME), "mine").unwrap();
        assert!(Control::listen(dir.path(), Box::new(pairing)).is_err());
    }

    #[test]
    fn a_long_directory_works_and_a_refusal_is_told() {
        let dir = Dir::new();
        let deep = dir.path().join("d".repeat(120));
        std::fs::create_dir(&deep).unwrap();
        let control = Control::listen(&deep, Box::new(|| Err("two\nlines".to_owned()))).unwrap();
        assert_eq!(ask_pair(&deep), Err("two lines".to_owned()));
        drop(control);
    }

    #[test]
    fn an_unknown_an_endless_and_a_silent_peer_do_not_stop_the_next() {
        let dir = Dir::new();
        let control = Control::listen(dir.path(), Box::new(pairing)).unwrap();
        let connect = || UnixStream::connect(dir.path().join(NAME)).unwrap();
        let mut wrong = connect();
        wrong.write_all(b"open sesame\n").unwrap();
        let mut said = String::new();
        wrong.read_to_string(&mut said).unwrap();
        assert!(said.starts_with("error "), "{said}");
        let mut endless = connect();
        // The server closes after its line buffer is full; writing on may then fail.
        let _ = endless.write_all(&[b'x'; 4096]);
        drop(connect());
        assert!(ask_pair(dir.path()).is_ok());
        let silent = connect();
        drop(control);
        drop(silent);
    }
}
