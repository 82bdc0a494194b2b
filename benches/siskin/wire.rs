//! What a provider's wire costs: sending a long history, and receiving one event as long as may be.

use crate::groups::{PAUSE, long_tab};
use crate::provider::{DELTA_BYTES, Provider};
use crate::report::{Goal, Report, mib};
use crate::server::{Server, Socket};
use crate::{Oops, Scratch};
use serde_json::json;
use siskin::budget::Budget;
use std::time::{Duration, Instant};

/// A provider in the server's config, and how the figures name its API.
const WIRES: [(&str, &str); 2] = [("openai", "chat completions"), ("anthropic", "Messages")];
/// What a server may grow by while it sends any history.
const HISTORY_MIB: f64 = 1.0;
/// … while it receives an event of 256 KiB: the event, its decoded text, and the rows that it becomes.
const EVENT_MIB: f64 = 1.5;

/// Throughput and memory, over each wire.
pub fn wire(scratch: &mut Scratch, report: &mut Report) -> Result<(), Oops> {
    let provider = Provider::start()?;
    let long = long_tab(scratch, report)?;
    // Each in a process of its own, so that none lives off what another left to it.
    for (wire, name) in WIRES {
        let mut server = Server::start(scratch, "long", &provider, &[])?;
        history(report, &provider, &mut server, &long, wire, name)?;
        server.stop()?;
    }
    for (wire, name) in WIRES {
        for more in [0, 1] {
            let mut server = Server::start(scratch, "long", &provider, &[])?;
            event(report, &provider, &mut server, wire, name, more)?;
            server.stop()?;
        }
    }
    Ok(())
}

/// The server's memory now, after turns that touched all code and every buffer which any turn needs; its
/// peak begins anew.
fn warm(server: &mut Server, provider: &Provider, wire: &str) -> Result<u64, Oops> {
    provider.say(4, DELTA_BYTES, Duration::ZERO);
    let tab = server.new_tab(&format!("{wire}/scripted"))?;
    let mut socket = Socket::open(server, &tab)?;
    for _ in 0..3 {
        server.turn(&mut socket, &tab)?;
    }
    drop(socket);
    std::thread::sleep(PAUSE);
    server.reset_peak()?;
    provider.take_seen();
    server.rss()
}

/// Sends the long log.
fn history(
    report: &mut Report,
    provider: &Provider,
    server: &mut Server,
    tab: &str,
    wire: &str,
    name: &str,
) -> Result<(), Oops> {
    server.http()?.patch(&format!("/api/tabs/{tab}"), &json!({"model": format!("{wire}/scripted")}))?;
    let before = warm(server, provider, wire)?;
    let mut socket = Socket::open(server, tab)?;
    let started = Instant::now();
    server.turn(&mut socket, tab)?;
    let took = started.elapsed();
    let growth = server.peak_rss()?.saturating_sub(before);
    let seen = *provider.take_seen().first().ok_or("no request came")?;
    let mb = seen.bytes as f64 / 1e6;
    report.add(&format!("request body of the long log, {name}"), mb, "MB", Goal::None);
    let rate = mb / seen.last.duration_since(seen.first).as_secs_f64();
    report.add("… streamed from SQLite, first to last byte", rate, "MB/s", Goal::AtLeast(200.0));
    report.add("… and with the pass that counts it, whole turn", mb / took.as_secs_f64(), "MB/s", Goal::None);
    report.add("… peak RSS meanwhile, above that before", mib(growth), "MiB", Goal::AtMost(HISTORY_MIB));
    Ok(())
}

/// Receives one event that fills `event_bytes`, or is longer by `more` and then has to be refused.
fn event(
    report: &mut Report,
    provider: &Provider,
    server: &mut Server,
    wire: &str,
    name: &str,
    more: usize,
) -> Result<(), Oops> {
    let limit = Budget::ROUTER.event_bytes;
    let before = warm(server, provider, wire)?;
    let tab = server.new_tab(&format!("{wire}/scripted"))?;
    let mut socket = Socket::open(server, &tab)?;
    provider.say_line(wire, limit + more);
    server.send(&tab, "hello")?;
    let seal = socket.seal(&tab)?;
    let growth = server.peak_rss()?.saturating_sub(before);
    let said = server.http()?.get(&format!("/api/tabs/{tab}/chunks?limit=1"))?.json(200)?.to_string();
    let named = said.contains(&format!("longer than event_bytes ({limit} bytes)"));
    let (whole, refused) = (seal["stopReason"] == "end", seal["stopReason"] == "error" && named);
    if (whole, refused) != (more == 0, more > 0) {
        return Err(format!("an event of {} bytes ended so: {seal} {said}", limit + more).into());
    }
    let which = if more > 0 { "a byte longer, refused" } else { "of 256 KiB" };
    let figure = format!("one event {which}, {name}: peak RSS above that before");
    report.add(&figure, mib(growth), "MiB", Goal::AtMost(EVENT_MIB));
    Ok(())
}
