//! What is measured, one function a group.

use crate::http::Http;
use crate::provider::{DELTA_BYTES, Provider};
use crate::relay::{Relay, direct};
use crate::report::{Goal, Report, mib, ms, quantile};
use crate::server::{Server, Socket};
use crate::{Oops, Scratch, fill, spawn};
use serde_json::{Value, json};
use std::thread::sleep;
use std::time::{Duration, Instant};

const SECOND: Duration = Duration::from_secs(1);
/// After this time without a turn, a server has given back what it does not need at rest.
const REST: Duration = Duration::from_secs(14);
/// After this time, what a server does right after a turn is done.
pub const PAUSE: Duration = Duration::from_millis(300);

/// Rows of the long log, and the characters of each one's text.
const LONG_ROWS: u64 = 100_000;
const ROW_BYTES: usize = 960;
/// Rows of the longest log, which keeps within `store_bytes` by shorter texts.
const MILLION: u64 = 1_000_000;
const SHORT_BYTES: usize = 200;

/// The program on disk.
pub fn size(_: &mut Scratch, report: &mut Report) -> Result<(), Oops> {
    let bytes = std::fs::metadata(env!("CARGO_BIN_EXE_siskin"))?.len();
    report.add("release binary, stripped", mib(bytes), "MiB", Goal::AtMost(4.0));
    Ok(())
}

/// Memory of a server that does nothing, before and after its first turn; what a first message costs.
pub fn idle(scratch: &mut Scratch, report: &mut Report) -> Result<(), Oops> {
    let provider = Provider::start()?;
    provider.say(40, DELTA_BYTES, Duration::from_millis(2));
    let mut server = Server::start(scratch, "idle", &provider, &[])?;
    sleep(PAUSE);
    report.add("RSS just after the start and the first pairing", mib(server.rss()?), "MiB", Goal::None);
    sleep(REST);
    report.add("idle RSS, before a turn", mib(server.rss()?), "MiB", Goal::AtMost(4.0));
    let chat = hello(&mut server, &provider, "openai/scripted")?;
    report.add("RSS just after one turn (plain http)", mib(server.rss()?), "MiB", Goal::None);
    sleep(REST);
    report.add("idle RSS, after one turn (plain http)", mib(server.rss()?), "MiB", Goal::AtMost(5.0));
    let [own, files] = server.rss_parts()?;
    report.add("… of it memory of its own", mib(own), "MiB", Goal::None);
    report.add("… of it mapped pages of program and libraries", mib(files), "MiB", Goal::None);
    let messages = hello(&mut server, &provider, "anthropic/scripted")?;
    for (wire, body) in [("chat completions", chat), ("Messages", messages)] {
        let figure = format!("request body for \"hello\" with all tools, {wire}");
        report.add(&figure, body as f64, "bytes", Goal::AtMost(6000.0));
    }
    server.stop()
}

/// Says hello in a new tab with a socket that goes afterwards; gives the bytes of the request that it made.
fn hello(server: &mut Server, provider: &Provider, model: &str) -> Result<u64, Oops> {
    let tab = server.new_tab(model)?;
    let mut socket = Socket::open(server, &tab)?;
    provider.take_seen();
    server.turn(&mut socket, &tab)?;
    Ok(provider.take_seen().first().ok_or("no request came")?.bytes)
}

/// Syncs in a turn's path: what the server counts, and what strace sees, if there is one.
pub fn fsync(scratch: &mut Scratch, report: &mut Report) -> Result<(), Oops> {
    let provider = Provider::start()?;
    provider.say(20, 2048, Duration::ZERO);
    let trace = scratch.path.join("syncs");
    let trace = trace.to_str().ok_or("the temporary folder's name is not UTF-8")?;
    let strace = ["strace", "-f", "-Y", "--seccomp-bpf", "-qq", "-e", "trace=fsync,fdatasync", "-o", trace];
    let traced = std::process::Command::new("strace").arg("-V").output().is_ok();
    let count = |server: &Server| -> Result<[f64; 5], Oops> {
        // So that no checkpoint falls between the two counts.
        sleep(2 * SECOND);
        let trace = std::fs::read_to_string(trace).unwrap_or_default();
        let syncs = || trace.lines().filter(|line| line.contains("sync("));
        // strace names each thread, and a turn's thread is called after its turn.
        let of_turns = syncs().filter(|line| line.contains("<turn ")).count();
        let store = server.status()?;
        let read = |name: &str| store["store"][name].as_f64().unwrap_or(f64::NAN);
        Ok([
            read("turnSyncs"),
            read("checkpointSyncs"),
            read("otherSyncs"),
            of_turns as f64,
            syncs().count() as f64,
        ])
    };
    let mut server = Server::start(scratch, "fsync", &provider, if traced { &strace } else { &[] })?;
    let before = count(&server)?;
    hundred_turns(&mut server)?;
    let after = count(&server)?;
    server.stop()?;
    let [turn, checkpoint, other, of_turns, seen] = std::array::from_fn(|at| after[at] - before[at]);
    report.add("fsyncs in the path of 100 turns of 40 KiB, as counted", turn, "", Goal::Exactly(100.0));
    if traced {
        report.add("… of turns' threads, as strace sees them", of_turns, "", Goal::Exactly(100.0));
        let counted = turn + checkpoint + other;
        report.add("… of all threads, as strace sees them", seen, "", Goal::AtMost(counted));
    }
    report.add("… of checkpoints meanwhile, as counted", checkpoint, "", Goal::None);
    report.add("… others meanwhile, as counted", other, "", Goal::None);
    let mut server = Server::start(scratch, "fsync", &provider, &[])?;
    let took = hundred_turns(&mut server)?;
    report.add("time per such turn, without strace", ms(took) / 100.0, "ms", Goal::None);
    server.stop()
}

fn hundred_turns(server: &mut Server) -> Result<Duration, Oops> {
    let tab = server.new_tab("openai/scripted")?;
    let mut socket = Socket::open(server, &tab)?;
    let started = Instant::now();
    for _ in 0..100 {
        server.turn(&mut socket, &tab)?;
    }
    Ok(started.elapsed())
}

/// Delay per delta, against the provider read directly and against a bare relay, in turns of one run.
pub fn delay(scratch: &mut Scratch, report: &mut Report) -> Result<(), Oops> {
    const ROUNDS: usize = 25;
    const DELTAS: usize = 60;
    let provider = Provider::start()?;
    let mut server = Server::start(scratch, "delay", &provider, &[])?;
    let tab = server.new_tab("openai/scripted")?;
    let mut socket = Socket::open(&server, &tab)?;
    let mut relay = Relay::start(provider.addr)?;
    provider.say(DELTAS, DELTA_BYTES, Duration::from_millis(4));
    let mut delays: [Vec<Duration>; 3] = Default::default();
    for round in 0..=ROUNDS {
        for (way, delays) in delays.iter_mut().enumerate() {
            provider.take_wrote();
            let read = match way {
                0 => direct(provider.addr)?,
                1 => relay.deltas()?,
                _ => {
                    server.send(&tab, "hello")?;
                    socket.deltas()?
                }
            };
            let wrote = provider.take_wrote();
            if read.len() != wrote.len() {
                return Err(format!("{} deltas came, {} were written", read.len(), wrote.len()).into());
            }
            // The first round warms up.
            if round > 0 {
                delays.extend(read.iter().zip(&wrote).map(|(read, wrote)| read.duration_since(*wrote)));
            }
        }
    }
    for (share, name) in [(0.5, "p50"), (0.95, "p95"), (0.99, "p99")] {
        let [floor, relay, siskin] = delays.each_mut().map(|delays| ms(quantile(delays, share)));
        report.add(&format!("delay per delta, {name}: the provider directly"), floor, "ms", Goal::None);
        report.add(&format!("delay per delta, {name}: a bare relay"), relay, "ms", Goal::None);
        let goal = if share == 0.95 { Goal::None } else { Goal::AtMost(relay * 1.3) };
        report.add(&format!("delay per delta, {name}: siskin"), siskin, "ms", goal);
    }
    server.stop()
}

/// What a long log costs: memory, start, pages.
pub fn long(scratch: &mut Scratch, report: &mut Report) -> Result<(), Oops> {
    let provider = Provider::start()?;
    provider.say(4, DELTA_BYTES, Duration::ZERO);
    let thousand = fill::tab(scratch, "thousand", 1000, SHORT_BYTES)?;
    let million = fill::tab(scratch, "million", MILLION, SHORT_BYTES)?;
    let used_short = walk(scratch, "thousand", &thousand, &provider)?;
    let used_long = walk(scratch, "million", &million, &provider)?;
    let more = (used_long as f64 - used_short as f64) / 1024.0;
    report.add("RSS after a turn and 20 pages at 1000 rows", mib(used_short), "MiB", Goal::None);
    report.add("RSS after the same at 1 000 000 rows", mib(used_long), "MiB", Goal::None);
    report.add("… difference", more, "KiB", Goal::AtMost(256.0));
    start(scratch, report, &provider)?;
    pages(scratch, report, &provider, &thousand, &million)
}

/// Fills the long log, once per run of the bench.
pub fn long_tab(scratch: &Scratch, report: &mut Report) -> Result<String, Oops> {
    let note = scratch.path.join("long.tab");
    if let Ok(tab) = std::fs::read_to_string(&note) {
        return Ok(tab);
    }
    let started = Instant::now();
    let tab = fill::tab(scratch, "long", LONG_ROWS, ROW_BYTES)?;
    let each = ms(started.elapsed()) * 1000.0 / LONG_ROWS as f64;
    report.add("writing 100 000 rows of 1 KB in 1000 turns, per row", each, "µs", Goal::None);
    std::fs::write(note, &tab)?;
    Ok(tab)
}

/// Opens a tab, pages back, takes a turn; gives the memory afterwards.
fn walk(scratch: &mut Scratch, data: &str, tab: &str, provider: &Provider) -> Result<u64, Oops> {
    let mut server = Server::start(scratch, data, provider, &[])?;
    let mut socket = Socket::open(&server, tab)?;
    page_back(&mut server.http()?, tab, 20)?;
    server.turn(&mut socket, tab)?;
    drop(socket);
    sleep(SECOND);
    let rss = server.rss()?;
    server.stop()?;
    Ok(rss)
}

fn page_back(http: &mut Http, tab: &str, pages: usize) -> Result<(), Oops> {
    let mut edge = String::new();
    for _ in 0..pages {
        let page = http.get(&format!("/api/tabs/{tab}/chunks?limit=50{edge}"))?.json(200)?;
        match page["oldestSeq"].as_u64() {
            Some(oldest) if oldest > 1 => edge = format!("&before={oldest}"),
            _ => edge.clear(),
        }
    }
    Ok(())
}

fn start(scratch: &mut Scratch, report: &mut Report, provider: &Provider) -> Result<(), Oops> {
    let mut took = Vec::new();
    for _ in 0..9 {
        let server = Server::start(scratch, "million", provider, &[])?;
        took.push(server.first_answer);
        server.stop()?;
    }
    let median = ms(quantile(&mut took, 0.5));
    report.add("start to first answer at 1 000 000 rows, median of 9", median, "ms", Goal::AtMost(20.0));
    Ok(())
}

/// The same page near the middle of a short and of a long log, in turns.
fn pages(
    scratch: &mut Scratch,
    report: &mut Report,
    provider: &Provider,
    thousand: &str,
    million: &str,
) -> Result<(), Oops> {
    let servers = [
        Server::start(scratch, "thousand", provider, &[])?,
        Server::start(scratch, "million", provider, &[])?,
    ];
    let mut http = [servers[0].http()?, servers[1].http()?];
    let ends = [(thousand, 1000), (million, MILLION)];
    let mut took: [Vec<Duration>; 2] = Default::default();
    for round in 0..400 {
        for (at, (tab, rows)) in ends.iter().enumerate() {
            // Other places each time, so that neither side lives off one warm page.
            let before = rows / 4 + (round * 7919) % (rows / 2);
            let path = format!("/api/tabs/{tab}/chunks?limit=50&before={before}");
            let started = Instant::now();
            let answer = http[at].get(&path)?;
            took[at].push(started.elapsed());
            if answer.status != 200 {
                return Err(format!("a page was answered {}", answer.status).into());
            }
        }
    }
    let [short, long] = took.each_mut().map(|took| ms(quantile(took, 0.5)));
    report.add("page of 50 rows anywhere in 1000 rows, p50", short, "ms", Goal::None);
    report.add("page of 50 rows anywhere in 1 000 000 rows, p50", long, "ms", Goal::None);
    report.add("… ratio", long / short, "×", Goal::AtMost(1.2));
    servers.into_iter().try_for_each(Server::stop)
}

/// The most memory under what the design promises to bear: 16 sockets, three turns, a dead reader, paging.
pub fn peak(scratch: &mut Scratch, report: &mut Report) -> Result<(), Oops> {
    let provider = Provider::start()?;
    let long = long_tab(scratch, report)?;
    let mut server = Server::start(scratch, "long", &provider, &[])?;
    let tabs: Vec<String> = (0..3).map(|_| server.new_tab("openai/scripted")).collect::<Result<_, _>>()?;
    let mut readers = Vec::new();
    for at in 0..15 {
        let tab = &tabs[at % 3];
        let mut socket = Socket::open(&server, tab)?;
        let tab = tab.clone();
        readers.push(spawn("reader", move || socket.until_sealed(&tab))?);
    }
    // It said hello and opened a tab, and never reads again.
    let mut dead = Socket::open(&server, &tabs[0])?;
    dead.shrink()?;
    dead.say(&json!({"type": "older", "tab": tabs[0], "limit": 50}))?;
    server.reset_peak()?;
    // Three answers of 1.2 MB, about 80 rows each, as fast as a quick provider speaks.
    provider.say(6000, 200, Duration::from_millis(1));
    for tab in &tabs {
        server.send(tab, "hello")?;
    }
    let mut http = server.http()?;
    page_back(&mut http, &long, 400)?;
    for reader in readers {
        reader.join().map_err(|_| "a reader panicked")??;
    }
    sleep(PAUSE);
    let status: Value = server.status()?;
    report.add(
        "peak RSS: 16 sockets, 3 streaming turns, a dead reader, paging",
        mib(server.peak_rss()?),
        "MiB",
        Goal::AtMost(16.0),
    );
    report.add(
        "… as its own status tells",
        mib(status["memory"]["peakRss"].as_u64().unwrap_or(0)),
        "MiB",
        Goal::None,
    );
    drop(dead);
    server.stop()
}
