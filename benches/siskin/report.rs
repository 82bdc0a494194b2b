//! The table of figures: printed as they come, and written as Markdown at the end.

use crate::Oops;
use std::fmt::Write;
use std::io::Write as _;
use std::time::Duration;

/// A goal and whether the figure reaches it.
pub enum Goal {
    /// nothing to reach: a floor, or a figure that explains another
    None,
    /// at most this
    AtMost(f64),
    /// at least this
    AtLeast(f64),
    /// exactly this
    Exactly(f64),
}

struct Line {
    figure: String,
    value: String,
    goal: String,
}

/// All figures so far.
pub struct Report {
    lines: Vec<Line>,
    load: String,
}

impl Report {
    /// An empty one; prints the table's head.
    pub fn new() -> Report {
        say(&format!("{:<66} {:>14}   goal", "figure", "measured"));
        Report { lines: Vec::new(), load: read("/proc/loadavg") }
    }

    /// Adds a figure in some unit.
    pub fn add(&mut self, figure: &str, value: f64, unit: &str, goal: Goal) {
        let (bound, holds) = match goal {
            Goal::None => (String::new(), true),
            Goal::AtMost(most) => (format!("≤ {} {unit}", number(most)), value <= most),
            Goal::AtLeast(least) => (format!("≥ {} {unit}", number(least)), value >= least),
            Goal::Exactly(exact) => (format!("{} {unit}", number(exact)), value == exact),
        };
        let goal = if holds { bound } else { format!("{bound} — missed") };
        let value = format!("{} {unit}", number(value));
        say(&format!("{figure:<66} {value:>14}   {goal}"));
        self.lines.push(Line { figure: figure.into(), value, goal });
    }

    /// Writes the table and what it was measured on.
    pub fn write(&self, path: &str) -> Result<(), Oops> {
        let mut text =
            String::from("# Measurements\n\nMade by `cargo bench`; goals are those of the design.\n\n");
        let load = self.load.split(' ').next().unwrap_or("?");
        writeln!(text, "{} Load average at the start, from other work: {load}.\n", machine())?;
        text.push_str("| figure | measured | goal |\n|---|---|---|\n");
        for line in &self.lines {
            writeln!(text, "| {} | {} | {} |", line.figure, line.value.trim(), line.goal.trim())?;
        }
        std::fs::write(path, text)?;
        Ok(())
    }
}

fn say(line: &str) {
    // A closed pipe ends the bench at its next measurement or not at all; neither matters here.
    drop(writeln!(std::io::stdout(), "{line}"));
}

fn number(value: f64) -> String {
    if value.fract() == 0.0 || value.abs() >= 1000.0 {
        format!("{value:.0}")
    } else if value.abs() >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn machine() -> String {
    let info = read("/proc/cpuinfo");
    let field = |name: &str| {
        info.lines()
            .find(|line| line.starts_with(name))
            .and_then(|line| line.split_once(": "))
            .map(|(_, v)| v)
    };
    let cpu = field("model name").unwrap_or("unknown processor");
    let cores = std::thread::available_parallelism().map_or(0, |cores| cores.get());
    let kernel = read("/proc/sys/kernel/osrelease");
    format!("Machine: {cpu}, {cores} cores, {}, Linux {}.", std::env::consts::ARCH, kernel.trim())
}

/// Bytes as MiB.
pub fn mib(bytes: u64) -> f64 {
    bytes as f64 / (1024.0 * 1024.0)
}

/// A duration in milliseconds.
pub fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

/// The value below which `share` of the values lie; sorts them.
pub fn quantile(values: &mut [Duration], share: f64) -> Duration {
    values.sort_unstable();
    let at = ((values.len() as f64 * share) as usize).min(values.len().saturating_sub(1));
    values.get(at).copied().unwrap_or_default()
}
