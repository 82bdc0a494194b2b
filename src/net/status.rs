//! `/api/status`: what the server uses, beside what it may use.

use super::{PROTOCOL, Shared};
use crate::budget::METERS;
use serde::Serialize;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Out<'a> {
    version: &'static str,
    protocol: u32,
    epoch: &'a str,
    uptime_ms: u64,
    demo: bool,
    memory: Memory,
    budgets: Vec<Line>,
    connections: usize,
    turns: usize,
    panics: usize,
    store: StoreOut,
    sandbox: [(); 0],
    clock_ok: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Memory {
    rss: u64,
    peak_rss: u64,
    heap: usize,
    peak_heap: usize,
}

#[derive(Serialize)]
struct Line {
    name: &'static str,
    limit: usize,
    /// `null` for what is a bound of one thing at a time and is not counted
    used: Option<usize>,
    peak: Option<usize>,
    unit: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct StoreOut {
    bytes: u64,
    limit_bytes: u64,
    wal_bytes: u64,
    journal: &'static str,
    turn_syncs: u64,
    checkpoint_syncs: u64,
    other_syncs: u64,
    sealed_turns: u64,
    promise: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// The whole as JSON.
pub fn json(shared: &Shared) -> String {
    let (heap, peak_heap) = crate::sys::heap();
    let (rss, peak_rss) = resident();
    crate::chunk::json(&Out {
        version: env!("CARGO_PKG_VERSION"),
        protocol: PROTOCOL,
        epoch: &shared.epoch,
        uptime_ms: shared.started.elapsed().as_millis() as u64,
        demo: shared.config.demo,
        memory: Memory { rss, peak_rss, heap, peak_heap },
        budgets: budgets(shared, rss, peak_rss),
        connections: METERS.connections.used(),
        turns: METERS.turns.used(),
        panics: METERS.panics.used(),
        store: store(shared),
        sandbox: [],
        clock_ok: clock_ok(crate::store::now()),
    })
}

/// Whether the clock is after the build.
fn clock_ok(now: i64) -> bool {
    let built: i64 = env!("SISKIN_BUILD_DATE").parse().unwrap_or(0);
    now / 1000 >= built
}

fn budgets(shared: &Shared, rss: u64, peak_rss: u64) -> Vec<Line> {
    let rows = shared.config.budget.rows().into_iter();
    rows.map(|row| {
        let (used, peak) = match (row.name, METERS.of(row.name)) {
            ("total_bytes", _) => (Some(rss as usize), Some(peak_rss as usize)),
            (_, Some(meter)) => (Some(meter.used()), Some(meter.peak())),
            (_, None) => (None, None),
        };
        Line { name: row.name, limit: row.limit, used, peak, unit: row.unit }
    })
    .collect()
}

fn store(shared: &Shared) -> StoreOut {
    let status = shared.store.status();
    StoreOut {
        bytes: status.bytes,
        limit_bytes: status.limit_bytes,
        wal_bytes: status.wal_bytes,
        journal: status.journal,
        turn_syncs: status.turn_syncs,
        checkpoint_syncs: status.checkpoint_syncs,
        other_syncs: status.other_syncs,
        sealed_turns: status.sealed_turns,
        promise: status.promise,
        error: status.error,
    }
}

/// Resident bytes now and at most, as the kernel counts them; 0 where it does not tell.
fn resident() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    (field(&text, "VmRSS:"), field(&text, "VmHWM:"))
}

fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|rest| rest.split_whitespace().next()).and_then(|kib| kib.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_read_from_the_kernel() {
        assert_eq!(field("VmHWM:\t    1700 kB\nVmRSS:\t    12 kB\n", "VmRSS:"), 12 * 1024);
        assert_eq!(field("", "VmRSS:"), 0);
        let (rss, peak) = resident();
        assert!(rss > 0 && peak >= rss / 2);
    }

    #[test]
    fn a_clock_before_the_build_is_noticed() {
        assert!(clock_ok(crate::store::now()));
        assert!(!clock_ok(0));
    }
}
