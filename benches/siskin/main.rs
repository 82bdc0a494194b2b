//! The figures that README quotes, measured on the real release binary against its goals.
//!
//! `cargo bench` prints the tables and writes `benches/RESULTS.md`; `cargo bench -- idle delay` runs only
//! these groups and writes nothing. It takes about three minutes after the build, needs no network, and makes
//! its own provider, clients and floors. Groups: size, idle, fsync, delay, long, wire,
//! peak.

mod fill;
mod groups;
mod http;
mod provider;
mod relay;
mod report;
mod server;
mod wire;

use report::Report;
use std::collections::HashMap;
use std::path::PathBuf;

/// Anything that ends the bench: it is a program for people who read its last line.
type Oops = Box<dyn std::error::Error + Send + Sync>;

/// One group of measurements.
type Group = fn(&mut Scratch, &mut Report) -> Result<(), Oops>;

const GROUPS: [(&str, Group); 7] = [
    ("size", groups::size),
    ("idle", groups::idle),
    ("fsync", groups::fsync),
    ("delay", groups::delay),
    ("long", groups::long),
    ("wire", wire::wire),
    ("peak", groups::peak),
];

/// A folder that goes when the bench ends, and the tokens of the servers whose data lies in it.
struct Scratch {
    path: PathBuf,
    tokens: HashMap<String, String>,
}

impl Scratch {
    fn new() -> Result<Scratch, Oops> {
        let path = std::env::temp_dir().join(format!("siskin-bench-{}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(Scratch { path, tokens: HashMap::new() })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed lies in the temporary folder and hurts nobody.
        drop(std::fs::remove_dir_all(&self.path));
    }
}

/// Starts a thread with a name and a stack of a set size.
fn spawn<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<std::thread::JoinHandle<T>> {
    std::thread::Builder::new().name(name.into()).stack_size(512 * 1024).spawn(run)
}

fn main() -> Result<(), Oops> {
    // Cargo itself passes `--bench`.
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    if let [first, url] = words.as_slice()
        && first == "relay"
    {
        return relay::serve(url);
    }
    if let Some(word) = words.iter().find(|word| GROUPS.iter().all(|(name, _)| name != word)) {
        return Err(
            format!("no group is called {word}; there are: size idle fsync delay long wire peak").into()
        );
    }
    let mut scratch = Scratch::new()?;
    let mut report = Report::new();
    for (name, group) in GROUPS {
        if words.is_empty() || words.iter().any(|word| word == name) {
            group(&mut scratch, &mut report).map_err(|error| format!("{name}: {error}"))?;
        }
    }
    if words.is_empty() {
        report.write("benches/RESULTS.md")?;
    }
    Ok(())
}
