//! The log: one line a record on standard error; what holds a line end stays one line.

use log::{Level, LevelFilter, Log, Metadata, Record};
use std::io::Write;

/// A record longer than this is cut.
const LINE_BYTES_MAX: usize = 4 * 1024;

struct Stderr {
    journal: bool,
}

impl Log for Stderr {
    fn enabled(&self, meta: &Metadata<'_>) -> bool {
        // What libraries say below a warning is theirs to debug, and may hold parts of requests.
        meta.level() <= log::max_level() && (own(meta.target()) || meta.level() <= Level::Warn)
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let line = render(record.level(), &record.args().to_string(), self.stamp().as_deref(), self.journal);
        // One write, so that lines of several threads do not mix; a closed stderr is nobody's error.
        let _ = std::io::stderr().lock().write_all(line.as_bytes());
    }

    fn flush(&self) {}
}

impl Stderr {
    /// The journal stamps by itself; elsewhere a line bears UTC.
    fn stamp(&self) -> Option<String> {
        (!self.journal).then(|| crate::host::utc(crate::store::now() / 1000))
    }
}

fn own(target: &str) -> bool {
    target == "siskin" || target.starts_with("siskin::")
}

fn render(level: Level, text: &str, stamp: Option<&str>, journal: bool) -> String {
    let text: String = crate::chunk::shorten(text, LINE_BYTES_MAX)
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    match (stamp, journal) {
        // systemd reads a leading <N> as the syslog priority.
        (_, true) => format!("<{}>{text}\n", priority(level)),
        (Some(stamp), false) => format!("{stamp} {} {text}\n", level.as_str().to_ascii_lowercase()),
        (None, false) => format!("{} {text}\n", level.as_str().to_ascii_lowercase()),
    }
}

fn priority(level: Level) -> u8 {
    match level {
        Level::Error => 3,
        Level::Warn => 4,
        Level::Info => 6,
        Level::Debug | Level::Trace => 7,
    }
}

/// Starts the log; a second start only changes the level. Also makes a panic one line of the log.
pub fn start(level: LevelFilter) {
    let journal = std::env::var_os("JOURNAL_STREAM").is_some();
    log::set_max_level(level);
    if log::set_boxed_logger(Box::new(Stderr { journal })).is_ok() {
        std::panic::set_hook(Box::new(|info| {
            let text = info.payload_as_str().unwrap_or("no message");
            let name = std::thread::current().name().unwrap_or("unnamed").to_owned();
            match info.location() {
                Some(at) => log::error!("panic in thread {name} at {}:{}: {text}", at.file(), at.line()),
                None => log::error!("panic in thread {name}: {text}"),
            }
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_one_line_and_bounded() {
        assert_eq!(render(Level::Warn, "a\nb\u{1b}[31m", Some("T"), false), "T warn a b [31m\n");
        assert_eq!(render(Level::Error, "x", None, true), "<3>x\n");
        let long = "👍".repeat(4000);
        assert!(render(Level::Info, &long, None, true).len() <= LINE_BYTES_MAX + 8);
    }
}
