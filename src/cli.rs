//! The command line: which verb with which options, and how a run ends.
//!
//! 0: done. 1: something failed at run time. 2: a wrong option or config, with one line that says where. A
//! closed pipe on standard output ends a command quietly.

use crate::budget::Budget;
use crate::config::file::listen_address;
use crate::config::{Config, Options};
use crate::control::{self, Pairing};
use crate::{check, serve};
use lexopt::prelude::*;
use qrcodegen::{QrCode, QrCodeEcc};
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

const HELP: &str = "\
siskin: an LLM agent server for constrained devices

usage: siskin [serve] [options]   serve until SIGTERM; prints the address
       siskin pair [options]      a pairing code of the running server: link and QR code
       siskin check [options]     what is right and wrong with this installation
       siskin budget [options]    every limit, and what they add up to

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// serve until a signal
    Serve,
    /// ask the running server for a pairing code
    Pair,
    /// look for what is wrong
    Check,
    /// print the limits
    Budget,
    /// print the version
    Version,
    /// print the usage
    Help,
}

const VERBS: [(&str, Verb); 5] = [
    ("serve", Verb::Serve),
    ("pair", Verb::Pair),
    ("check", Verb::Check),
    ("budget", Verb::Budget),
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
    match done.and_then(|(verb, options)| act(verb, &options, &mut io::stdout())) {
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
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<(Verb, Options), String> {
    let mut parser = lexopt::Parser::from_args(arguments);
    let mut options = Options::default();
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
            Long("version") | Short('V') => return Ok((Verb::Version, options)),
            Long("help") | Short('h') => return Ok((Verb::Help, options)),
            Value(word) if verb.is_none() => verb = Some(verb_of(&word)?),
            Value(word) => return Err(format!("{word:?}: one command at a time; see siskin --help")),
            other => return Err(format!("{}; see siskin --help", told(other.unexpected()))),
        }
    }
    Ok((verb.unwrap_or(Verb::Serve), options))
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
    known
        .map(|(_, verb)| *verb)
        .ok_or_else(|| format!("{word:?} is not a command: serve, pair, check or budget; see siskin --help"))
}

/// Carries out a verb; `out` is standard output.
pub fn act(verb: Verb, options: &Options, out: &mut dyn Write) -> Result<(), Failure> {
    match verb {
        Verb::Help => out.write_all(HELP.as_bytes())?,
        Verb::Version => writeln!(out, "siskin {}", env!("CARGO_PKG_VERSION"))?,
        Verb::Serve => return serve::run(options, out),
        Verb::Pair => pair(options, out)?,
        Verb::Budget => budget(options, out)?,
        Verb::Check => return check::run(options, out),
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

    fn read(line: &str) -> Result<(Verb, Options), String> {
        parse(line.split_whitespace().map(OsString::from))
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
        let ended = act(Verb::Help, &Options::default(), &mut Gone).unwrap_err();
        assert_eq!(ended, Failure { code: 0, text: String::new() });
    }
}
