//! The command line: which verb with which options, and how a run ends.
//!
//! 0: done. 1: something failed at run time. 2: a wrong option or config, with one line that says where. A
//! closed pipe on standard output ends a command quietly.

use crate::budget::Budget;
use crate::chunk::TabNo;
use crate::config::file::listen_address;
use crate::config::{Config, Options};
use crate::control::{self, ExportFault, Pairing};
use crate::net::export::Format;
use crate::store::{self, Store};
use crate::{check, net, serve};
use lexopt::prelude::*;
use qrcodegen::{QrCode, QrCodeEcc};
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

const HELP: &str = "\
siskin: an LLM agent server for constrained devices

usage: siskin [serve] [options]   serve until SIGTERM; prints the address
       siskin pair [options]      a pairing code of the running server: link and QR code
       siskin check [options]     what is right and wrong with this installation
       siskin budget [options]    every limit, and what they add up to
       siskin backup FILE         a copy of the database, also while the server runs
       siskin restore FILE        puts a copy back; the server must be stopped, the old one is kept
       siskin export TAB          a conversation as Markdown, or as one row a line: --format md|jsonl;
                                  TAB as in the page's address, such as t1

options:
  --config FILE         TOML file (default: /etc/siskin/siskin.toml if it exists)
  --data DIR            data directory (default: /var/lib/siskin; not as root: ~/.local/share/siskin)
  --listen ADDR:PORT    address to listen on, may be repeated (default: 127.0.0.1:8787)
  --profile router|sbc  limits for 64 MB of memory, or for 512 MB
  --demo                a built-in model without network or key; temporary data unless --data
  --static-dir DIR      serve the web client from DIR (development)
  --version  --help
";

/// What to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verb {
    /// serve until a signal
    #[default]
    Serve,
    /// ask the running server for a pairing code
    Pair,
    /// look for what is wrong
    Check,
    /// print the limits
    Budget,
    /// copy the database
    Backup,
    /// put a copy back
    Restore,
    /// write a conversation to standard output
    Export,
    /// print the version
    Version,
    /// print the usage
    Help,
}

/// A whole command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Command {
    /// what to do
    pub verb: Verb,
    /// with which config
    pub options: Options,
    /// the file or tab that some verbs name
    pub subject: Option<OsString>,
    /// `--format` of an export
    pub format: Option<Format>,
}

const VERBS: [(&str, Verb); 8] = [
    ("serve", Verb::Serve),
    ("pair", Verb::Pair),
    ("check", Verb::Check),
    ("budget", Verb::Budget),
    ("backup", Verb::Backup),
    ("restore", Verb::Restore),
    ("export", Verb::Export),
    ("help", Verb::Help),
];

/// Why a run ended badly: one line for standard error, and the exit code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// 1 or 2; 0 for a reader that went away
    pub code: u8,
    /// empty: nothing more to say
    pub text: String,
}

impl Failure {
    /// A wrong option or config.
    pub fn usage(text: impl Into<String>) -> Failure {
        Failure { code: 2, text: text.into() }
    }

    /// Something that failed at run time.
    pub fn run(text: impl Into<String>) -> Failure {
        Failure { code: 1, text: text.into() }
    }
}

impl From<io::Error> for Failure {
    /// An error of standard output; nobody reads any more is no failure.
    fn from(error: io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure { code: 0, text: String::new() },
            _ => Failure::run(format!("standard output: {error}")),
        }
    }
}

/// Does what the process's arguments say.
pub fn main() -> ExitCode {
    let done = parse(std::env::args_os().skip(1)).map_err(Failure::usage);
    match done.and_then(|command| act(&command, &mut io::stdout())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.text.is_empty() {
                // A closed stderr is nobody's error.
                let _ = writeln!(io::stderr(), "siskin: {}", failure.text);
            }
            ExitCode::from(failure.code)
        }
    }
}

/// Reads the arguments; the error is one line.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Command, String> {
    let mut parser = lexopt::Parser::from_args(arguments);
    let mut command = Command::default();
    let options = &mut command.options;
    let mut verb = None;
    while let Some(argument) = parser.next().map_err(told)? {
        match argument {
            Long("config") => options.config = Some(path(&mut parser, "--config")?),
            Long("data") => options.data = Some(path(&mut parser, "--data")?),
            Long("static-dir") => options.static_dir = Some(path(&mut parser, "--static-dir")?),
            Long("demo") => options.demo = true,
            Long("listen") => {
                let text = text(&mut parser, "--listen")?;
                options.listen.push(listen_address(&text).map_err(|what| format!("--listen: {what}"))?);
            }
            Long("profile") => options.profile = Some(profile(&text(&mut parser, "--profile")?)?),
            Long("format") => command.format = Some(format_of(&text(&mut parser, "--format")?)?),
            Long("version") | Short('V') => return Ok(Command { verb: Verb::Version, ..command }),
            Long("help") | Short('h') => return Ok(Command { verb: Verb::Help, ..command }),
            Value(word) if verb.is_none() => verb = Some(verb_of(&word)?),
            Value(word) if verb.and_then(subject_of).is_some() && command.subject.is_none() => {
                command.subject = Some(word);
            }
            Value(word) => return Err(format!("{word:?}: one command at a time; see siskin --help")),
            other => return Err(format!("{}; see siskin --help", told(other.unexpected()))),
        }
    }
    command.verb = verb.unwrap_or_default();
    match subject_of(command.verb) {
        Some((name, what)) if command.subject.is_none() => Err(format!("{name} needs {what}")),
        _ if command.format.is_some() && command.verb != Verb::Export => {
            Err("--format belongs to export; see siskin --help".to_owned())
        }
        _ => Ok(command),
    }
}

/// What a verb needs beside its options.
fn subject_of(verb: Verb) -> Option<(&'static str, &'static str)> {
    match verb {
        Verb::Backup => Some(("backup", "the file to make")),
        Verb::Restore => Some(("restore", "the file to put back")),
        Verb::Export => Some(("export", "a tab, such as t1")),
        _ => None,
    }
}

fn format_of(text: &str) -> Result<Format, String> {
    Format::from_word(text).ok_or_else(|| format!("--format must be md or jsonl, not {text:?}"))
}

fn told(error: lexopt::Error) -> String {
    error.to_string()
}

fn path(parser: &mut lexopt::Parser, option: &str) -> Result<PathBuf, String> {
    let value = parser.value().map_err(|_| format!("{option} needs a path"))?;
    if value.is_empty() { Err(format!("{option} needs a path, not an empty one")) } else { Ok(value.into()) }
}

fn text(parser: &mut lexopt::Parser, option: &str) -> Result<String, String> {
    let value = parser.value().map_err(|_| format!("{option} needs a value"))?;
    value.into_string().map_err(|value| format!("{option}: {value:?} is not UTF-8"))
}

fn profile(text: &str) -> Result<&'static str, String> {
    match text {
        "router" => Ok("router"),
        "sbc" => Ok("sbc"),
        other => Err(format!("--profile must be router or sbc, not {other:?}")),
    }
}

fn verb_of(word: &OsString) -> Result<Verb, String> {
    let known = VERBS.iter().find(|(name, _)| word == name);
    known.map(|(_, verb)| *verb).ok_or_else(|| format!("{word:?} is not a command; see siskin --help"))
}

/// Carries out a verb; `out` is standard output.
pub fn act(command: &Command, out: &mut dyn Write) -> Result<(), Failure> {
    let options = &command.options;
    let subject = Path::new(command.subject.as_deref().unwrap_or_default());
    match command.verb {
        Verb::Help => out.write_all(HELP.as_bytes())?,
        Verb::Version => writeln!(out, "siskin {}", env!("CARGO_PKG_VERSION"))?,
        Verb::Serve => return serve::run(options, out),
        Verb::Pair => pair(options, out)?,
        Verb::Budget => budget(options, out)?,
        Verb::Check => return check::run(options, out),
        Verb::Backup => backup(options, subject, out)?,
        Verb::Restore => restore(options, subject, out)?,
        Verb::Export => export(options, subject, command.format.unwrap_or(Format::Md), out)?,
    }
    out.flush()?;
    Ok(())
}

fn pair(options: &Options, out: &mut dyn Write) -> Result<(), Failure> {
    if options.demo && options.data.is_none() {
        let what =
            "--demo keeps its data in a temporary folder; name it with --data, or pair on the page: Device";
        return Err(Failure::usage(what));
    }
    let config = Config::from_process(options).map_err(Failure::usage)?;
    let made = control::ask_pair(&config.data).map_err(Failure::run)?;
    show_pairing(&made, out)?;
    Ok(())
}

fn show_pairing(made: &Pairing, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "code: {}", made.code)?;
    writeln!(out, "link: {} (once, within 10 minutes)", made.url)?;
    match QrCode::encode_text(&made.url, QrCodeEcc::Low) {
        Ok(code) => out.write_all(draw(&code).as_bytes()),
        // Longer than any QR code: the link is enough.
        Err(_) => Ok(()),
    }
}

/// Two modules a character, light on dark as a terminal mostly is, with the quiet zone that scanners need.
fn draw(code: &QrCode) -> String {
    const QUIET: i32 = 2;
    let span = -QUIET..code.size() + QUIET;
    let mut text = String::new();
    for y in span.clone().step_by(2) {
        for x in span.clone() {
            // Outside the code every module reads as light.
            let (upper, lower) = (!code.get_module(x, y), !code.get_module(x, y + 1));
            text.push(match (upper, lower) {
                (true, true) => '█',
                (true, false) => '▀',
                (false, true) => '▄',
                (false, false) => ' ',
            });
        }
        text.push('\n');
    }
    text
}

/// Copies the database: the running server does it, else this process.
fn backup(options: &Options, to: &Path, out: &mut dyn Write) -> Result<(), Failure> {
    let config = Config::from_process(options).map_err(Failure::usage)?;
    let to = std::path::absolute(to).map_err(|error| Failure::run(format!("{}: {error}", to.display())))?;
    let bytes = match store::lock::holder(&config.data) {
        Some(_) => control::ask_backup(&config.data, &to),
        None => store::backup_at_rest(&config.data, &to),
    };
    let bytes = bytes.map_err(Failure::run)?;
    writeln!(out, "{}: {bytes} bytes", to.display())?;
    Ok(())
}

fn restore(options: &Options, from: &Path, out: &mut dyn Write) -> Result<(), Failure> {
    let config = Config::from_process(options).map_err(Failure::usage)?;
    let old = store::restore(&config.data, from).map_err(Failure::run)?;
    writeln!(out, "{} is the database of {} now", from.display(), config.data.display())?;
    if let Some(old) = old {
        writeln!(out, "the one before was moved to {}", old.display())?;
    }
    Ok(())
}

/// Writes a conversation to `out`: the running server reads it, else this process.
fn export(options: &Options, tab: &Path, format: Format, out: &mut dyn Write) -> Result<(), Failure> {
    let config = Config::from_process(options).map_err(Failure::usage)?;
    let tab = tab.to_string_lossy();
    if store::lock::holder(&config.data).is_some() {
        return control::ask_export(&config.data, &tab, format.word(), out).map_err(|fault| match fault {
            ExportFault::Server(text) => Failure::run(text),
            ExportFault::Out(error) => error.into(),
        });
    }
    if !config.data.join(store::FILE).is_file() {
        return Err(Failure::run(format!("there is no database in {}", config.data.display())));
    }
    let store = Store::open(&config.data, config.budget).map_err(Failure::run)?;
    let no: Option<TabNo> = tab.parse().ok();
    let found = no.map(|no| store.tab(no)).transpose().map_err(|error| Failure::run(error.to_string()))?;
    let found = found.flatten().ok_or_else(|| Failure::run(format!("there is no tab {tab}")))?;
    io::copy(&mut net::export::open(Arc::new(store), &found, format), out)?;
    Ok(())
}

fn budget(options: &Options, out: &mut dyn Write) -> Result<(), Failure> {
    let config = Config::from_process(options).map_err(Failure::usage)?;
    table(config.profile, config.budget, out)?;
    Ok(())
}

fn table(profile: &str, budget: &Budget, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "profile {profile}")?;
    for row in budget.rows() {
        writeln!(out, "{:<31} {:>11} {:<6} {}", row.name, row.limit, row.unit, row.text)?;
    }
    writeln!(out, "\nat worst, resident:")?;
    for (name, bytes) in budget.sum() {
        writeln!(out, "{name:<48} {:>7} KiB", bytes.div_ceil(1024))?;
    }
    writeln!(out, "{:<48} {:>7} KiB", "total", budget.total().div_ceil(1024))?;
    writeln!(out, "{:<48} {:>7} KiB", "total_bytes", budget.total_bytes / 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_words(line: &str) -> Result<Command, String> {
        parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn some_commands_name_a_file_or_a_tab() {
        let command = parse_words("--data /d export t3 --format jsonl").unwrap();
        assert_eq!(command.subject.as_deref(), Some("t3".as_ref()));
        assert_eq!((command.verb, command.format), (Verb::Export, Some(Format::Jsonl)));
        for (line, named) in [
            ("backup", "the file to make"),
            ("restore", "the file to put back"),
            ("export", "a tab"),
            ("export t1 t2", "t2"),
            ("export t1 --format pdf", "md or jsonl"),
            ("check --format md", "--format"),
        ] {
            let said = parse_words(line).unwrap_err();
            assert!(said.contains(named) && !said.contains('\n'), "{line}: {said}");
        }
    }

    fn read(line: &str) -> Result<(Verb, Options), String> {
        parse_words(line).map(|command| (command.verb, command.options))
    }

    #[test]
    fn options_stand_before_or_behind_the_verb() {
        let (verb, options) = read("--data /d pair --config=/c").unwrap();
        assert_eq!(verb, Verb::Pair);
        assert_eq!(options.data, Some("/d".into()));
        assert_eq!(options.config, Some("/c".into()));
        assert_eq!(read("").unwrap(), (Verb::Serve, Options::default()));
        let (_, options) = read("serve --listen 127.0.0.1:0 --listen [::1]:9 --profile sbc --demo").unwrap();
        assert_eq!(options.listen, ["127.0.0.1:0".parse().unwrap(), "[::1]:9".parse().unwrap()]);
        assert_eq!((options.profile, options.demo), (Some("sbc"), true));
    }

    #[test]
    fn a_wrong_argument_is_one_line_that_names_it() {
        for (line, named) in [
            ("--lisen x", "--lisen"),
            ("--listen 8787", "--listen"),
            ("--listen", "--listen"),
            ("--profile big", "--profile"),
            ("--data", "--data"),
            ("--demo=1", "--demo"),
            ("fly", "fly"),
            ("pair budget", "budget"),
        ] {
            let said = read(line).unwrap_err();
            assert!(said.contains(named) && !said.contains('\n'), "{line}: {said}");
        }
    }

    #[test]
    fn the_code_is_the_first_line_and_the_picture_has_every_module() {
        let made =
            Pairing { code: "ABCD-EFGH".into(), url: "http://192.168.1.1:8787/#pair=ABCD-EFGH".into() };
        let mut out = Vec::new();
        show_pairing(&made, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.lines().next(), Some("code: ABCD-EFGH"));
        let code = QrCode::encode_text(&made.url, QrCodeEcc::Low).unwrap();
        let picture: Vec<Vec<char>> = text.lines().skip(2).map(|line| line.chars().collect()).collect();
        for y in 0..code.size() {
            for x in 0..code.size() {
                let shown = picture[(y as usize + 2) / 2][x as usize + 2];
                let lit = if y % 2 == 0 { "█▀" } else { "█▄" };
                assert_eq!(!code.get_module(x, y), lit.contains(shown), "{x} {y}");
            }
        }
    }

    #[test]
    fn the_table_names_every_limit_and_the_sum() {
        let mut out = Vec::new();
        table("router", &Budget::ROUTER, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        for row in Budget::ROUTER.rows() {
            assert!(text.contains(row.name));
        }
        assert!(text.contains(&format!("{} KiB", Budget::ROUTER.total().div_ceil(1024))));
    }

    #[test]
    fn a_closed_pipe_is_a_quiet_end() {
        struct Gone;
        impl Write for Gone {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let ended = act(&Command { verb: Verb::Help, ..Command::default() }, &mut Gone).unwrap_err();
        assert_eq!(ended, Failure { code: 0, text: String::new() });
    }
}
