//! Every limit of Siskin in one table, with its unit and what it costs.
//!
//! A limit is an ordinary value: reaching one is answered, never a crash (see each line). `Budget::ROUTER`
//! and `Budget::SBC` are the two profiles; the config's `[budget]` table may change single lines.
//! [`Budget::total`] adds up the worst case, one consumer a line, and is asserted against the profile at
//! compile time and against a changed budget at start. Use and peak of what can be counted stand in
//! [`Meters`].

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

macro_rules! budgets {
    ($($(#[doc = $doc:literal])+ $name:ident: $router:expr, $sbc:expr, $unit:literal;)+) => {
        /// The limits that hold in this process; see the module's text.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Budget { $($(#[doc = $doc])+ pub $name: usize,)+ }

        impl Budget {
            /// For a router with 64 MB of memory: at most 16 MiB of peak RSS.
            pub const ROUTER: Budget = Budget { $($name: $router,)+ };
            /// For a single-board computer with 512 MB of memory: at most 48 MiB of peak RSS.
            pub const SBC: Budget = Budget { $($name: $sbc,)+ };

            /// Each limit as name, value, unit and what it is.
            pub fn rows(&self) -> Vec<Row> {
                vec![$(Row {
                    name: stringify!($name),
                    limit: self.$name,
                    unit: $unit,
                    text: concat!($($doc),+).trim_start(),
                },)+]
            }

            /// Changes one limit by its name; `false` if there is none of that name.
            pub fn set(&mut self, name: &str, value: usize) -> bool {
                match name {
                    $(stringify!($name) => self.$name = value,)+
                    _ => return false,
                }
                true
            }
        }
    };
}

/// One line of the table that `siskin budget` prints.
pub struct Row {
    /// The name, as in the config's `[budget]`.
    pub name: &'static str,
    /// The limit in `unit`s.
    pub limit: usize,
    /// `bytes`, `count`, `ms` or `s`.
    pub unit: &'static str,
    /// What it bounds.
    pub text: &'static str,
}

budgets! {
    /// most resident memory that all of the below may add up to
    total_bytes: 16 * MIB, 48 * MIB, "bytes";
    /// pages of the program and its libraries that get touched
    code_bytes: 3 * MIB, 3 * MIB, "bytes";
    /// fixed cost of threads that always run, what the allocator keeps, the tables of tabs, devices and rules
    base_bytes: 2560 * KIB, 3 * MIB, "bytes";
    /// SQLite's hard heap limit; an allocation beyond it fails that one request or turn
    sqlite_bytes: 2 * MIB, 4 * MIB, "bytes";
    /// connections at once; a newcomer beyond it displaces an idle one or gets 503
    connections: 24, 64, "count";
    /// of these, WebSockets; one more is answered 503
    sockets: 16, 48, "count";
    /// WebSockets of one address before displacement begins
    sockets_per_address: 16, 48, "count";
    /// plain connections of one address before a newcomer displaces its oldest that rests for a second
    requests_per_address: 4, 8, "count";
    /// stack of a connection's thread (reserved; about 20 KiB are touched)
    connection_stack_bytes: 128 * KIB, 128 * KIB, "bytes";
    /// touched part of a connection's stack that the sum counts
    connection_stack_touched_bytes: 32 * KIB, 32 * KIB, "bytes";
    /// a request's head: line and fields; longer is answered 431
    head_bytes: 8 * KIB, 8 * KIB, "bytes";
    /// time for a whole head to arrive; longer is answered 408
    head_ms: 10_000, 10_000, "ms";
    /// time for a whole body to arrive; longer is answered 408
    body_ms: 30_000, 30_000, "ms";
    /// time that a connection may rest between two requests
    keep_alive_ms: 30_000, 30_000, "ms";
    /// time that a peer may take nothing of what is written to it
    write_stall_ms: 20_000, 20_000, "ms";
    /// a WebSocket frame from a client; larger closes the socket with 1009
    frame_bytes: 4 * KIB, 4 * KIB, "bytes";
    /// time for a client's first frame, `hello`
    hello_ms: 5_000, 5_000, "ms";
    /// small events that wait for one slow client; beyond it the client gets a fresh welcome and window
    mailbox_bytes: 32 * KIB, 64 * KIB, "bytes";
    /// one row being written to one client
    row_buffer_bytes: 24 * KIB, 24 * KIB, "bytes";
    /// request bodies held at once; one more is answered 503 with Retry-After
    bodies: 2, 4, "count";
    /// a request's body: a message of quotes only, escaped, and what is around it; larger is answered 413
    body_bytes: 260 * KIB, 260 * KIB, "bytes";
    /// turns that run at once; one more waits for a slot
    turns: 3, 8, "count";
    /// stack of a turn's thread (reserved)
    turn_stack_bytes: 256 * KIB, 256 * KIB, "bytes";
    /// touched part of a turn's stack that the sum counts
    turn_stack_touched_bytes: 96 * KIB, 96 * KIB, "bytes";
    /// one server-sent event of a provider; longer ends the turn with an error
    event_bytes: 256 * KIB, MIB, "bytes";
    /// TLS and HTTP buffers of one request to a provider
    provider_buffer_bytes: 100 * KIB, 100 * KIB, "bytes";
    /// data of one chunk as JSON; longer content goes on in the next part
    chunk_bytes: 16 * KIB, 16 * KIB, "bytes";
    /// what a tool may give the model; the middle of a longer output is left out
    tool_output_bytes: 32 * KIB, 32 * KIB, "bytes";
    /// a tool call's arguments; longer ends the turn with an error
    arguments_bytes: 256 * KIB, 512 * KIB, "bytes";
    /// text of one message; longer is answered 413
    message_bytes: 128 * KIB, 128 * KIB, "bytes";
    /// rows of one page, as bytes of data
    page_bytes: 64 * KIB, 64 * KIB, "bytes";
    /// rows of one page
    page_rows: 256, 256, "count";
    /// tabs, archived ones included; one more is answered 409
    tabs: 256, 1024, "count";
    /// messages waiting in one tab's queue; one more is answered 409
    queue: 16, 32, "count";
    /// approvals waiting at once; the call of one more is rejected
    approvals: 16, 32, "count";
    /// paired devices; one more is answered 409
    devices: 64, 128, "count";
    /// stored permission rules; one more is answered 409
    rules: 128, 256, "count";
    /// the system prompt's text
    system_prompt_bytes: 32 * KIB, 32 * KIB, "bytes";
    /// models listed over all providers; further ones are left out
    models: 512, 2048, "count";
    /// rows of a window when the client does not say
    window_rows: 200, 200, "count";
    /// most rows of a window
    window_rows_max: 1000, 2000, "count";
    /// bytes of a window's rows when the client does not say
    window_bytes: MIB, MIB, "bytes";
    /// most bytes of a window's rows
    window_bytes_max: 4 * MIB, 8 * MIB, "bytes";
    /// the write-ahead log; the housekeeper checkpoints beyond it, writers wait beyond four times as much
    wal_bytes: 4 * MIB, 8 * MIB, "bytes";
    /// the whole database; new turns are refused beyond it
    store_bytes: 1024 * MIB, 2047 * MIB, "bytes";
    /// answers of the model in one turn
    steps: 200, 200, "count";
    /// requests to the provider in one turn, other tries and those for summaries included
    requests: 400, 400, "count";
    /// tool calls in one turn
    calls: 400, 400, "count";
    /// tries of one request to a provider
    attempts: 5, 5, "count";
}

/// Stack of the thread that accepts; like the stacks of all threads that always run, its touched part is in
/// `base_bytes`.
pub const ACCEPT_STACK_BYTES: usize = 64 * KIB;
/// Stack of the thread that answers `siskin pair`.
pub const CONTROL_STACK_BYTES: usize = 96 * KIB;
/// Stack of the housekeeper's thread.
pub const HOUSEKEEPER_STACK_BYTES: usize = 128 * KIB;
/// Stack of the thread that watches over a clean end.
pub const DEADLINE_STACK_BYTES: usize = 32 * KIB;
/// Name lookups that may hang at once, each in a thread of its own.
pub const LOOKUPS_MAX: usize = 4;
/// Stack of a lookup's thread (reserved).
pub const LOOKUP_STACK_BYTES: usize = 256 * KIB;
/// Touched part of it: glibc's resolver takes 64 KiB in one piece, and fills little of that.
const LOOKUP_STACK_TOUCHED_BYTES: usize = 64 * KIB;
/// A connection's buffer for what comes from a provider; a response's head must fit it.
pub const PROVIDER_IN_BYTES: usize = 16 * KIB;
/// A connection's buffer for what goes to a provider.
pub const PROVIDER_OUT_BYTES: usize = 8 * KIB;
/// A `ca_file`, held while its certificates are taken out of it.
pub const CA_FILE_BYTES: usize = 32 * KIB;
/// One listed model: its id, name and provider.
const MODEL_BYTES: usize = 640;
/// Paths that a search has found and not looked into yet. It runs between two answers, so it takes the place
/// of their event and its text.
pub const SEARCH_PENDING_BYTES_MAX: usize = 192 * KIB;
/// Text of one page of a result.
pub const RESULT_PAGE_BYTES: usize = 16 * KIB;

/// Fewest rows that a window may be limited to.
pub const WINDOW_ROWS_MIN: usize = 20;
/// Fewest bytes that a window may be limited to.
pub const WINDOW_BYTES_MIN: usize = 256 * KIB;

impl Budget {
    /// The most memory that this budget lets the process use: one consumer a line, copies included.
    pub const fn total(&self) -> usize {
        self.items().0
    }

    const fn items(&self) -> (usize, [usize; 11]) {
        let items = [
            self.code_bytes,
            self.base_bytes,
            self.sqlite_bytes,
            self.connections * (self.connection_stack_touched_bytes + self.head_bytes),
            // frame in, tungstenite's buffers in and out, the mailbox, the sizes of the window's rows
            self.sockets * (3 * self.frame_bytes + self.mailbox_bytes + 4 * self.window_rows_max),
            // a row read and the same row rendered; a page is written row by row, so no page is ever held
            self.connections * 2 * self.row_buffer_bytes,
            // the body and the message in it
            self.bodies * (self.body_bytes + self.message_bytes),
            // per turn: stack, the event and its decoded text, TLS, the arguments, a tool's output twice, the
            // open chunk twice
            self.turns * (self.turn_stack_touched_bytes + self.provider_buffer_bytes),
            self.turns
                * (2 * self.event_bytes
                    + self.arguments_bytes
                    + 2 * self.tool_output_bytes
                    + 2 * self.chunk_bytes),
            // one caller at a time asks; everyone else shares what it found
            self.models * MODEL_BYTES + self.turn_stack_touched_bytes + self.provider_buffer_bytes,
            LOOKUPS_MAX * LOOKUP_STACK_TOUCHED_BYTES,
        ];
        let mut sum = 0;
        let mut at = 0;
        while at < items.len() {
            sum += items[at];
            at += 1;
        }
        (sum, items)
    }

    /// The sum's lines for `siskin budget`: what, and how many bytes at worst.
    pub fn sum(&self) -> Vec<(&'static str, usize)> {
        const NAMES: [&str; 11] = [
            "program pages",
            "base",
            "SQLite",
            "connections: stacks and heads",
            "WebSockets: frames, mailboxes, windows",
            "rows being written",
            "request bodies",
            "turns: stacks and TLS",
            "turns: events, arguments, output, open chunks",
            "models: the list, and asking for it",
            "name lookups",
        ];
        NAMES.into_iter().zip(self.items().1).collect()
    }

    /// What is wrong with a changed budget, if anything: the sum, or a relation between two lines.
    pub fn fault(&self) -> Option<String> {
        if self.total() > self.total_bytes {
            return Some(format!(
                "the budget adds up to {} KiB, more than total_bytes ({} KiB)",
                self.total() / KIB,
                self.total_bytes / KIB
            ));
        }
        let relations = [
            (
                self.sockets >= 1 && self.sockets <= self.connections,
                "sockets must be at least 1 and must not exceed connections",
            ),
            (
                self.chunk_bytes >= 4 * KIB && self.chunk_bytes <= WINDOW_BYTES_MIN / 4,
                "chunk_bytes must be 4096 to 65536",
            ),
            (self.head_bytes >= KIB, "head_bytes must be at least 1024"),
            (self.frame_bytes >= KIB, "frame_bytes must be at least 1024"),
            (self.mailbox_bytes >= 16 * KIB, "mailbox_bytes must be at least 16384"),
            (self.tool_output_bytes >= KIB, "tool_output_bytes must be at least 1024"),
            (self.page_rows >= 1, "page_rows must be at least 1"),
            (self.steps >= 1 && self.attempts >= 1, "steps, attempts: at least 1"),
            (
                self.head_ms.min(self.body_ms).min(self.hello_ms) >= 100,
                "head_ms, body_ms, hello_ms: at least 100",
            ),
            (
                self.keep_alive_ms.min(self.write_stall_ms) >= 100,
                "keep_alive_ms, write_stall_ms: at least 100",
            ),
            (
                self.chunk_bytes + KIB <= self.row_buffer_bytes,
                "row_buffer_bytes must be 1 KiB above chunk_bytes",
            ),
            (self.chunk_bytes <= self.page_bytes, "page_bytes must be at least chunk_bytes"),
            (self.message_bytes <= self.body_bytes, "body_bytes must be at least message_bytes"),
            (
                self.turns >= 1 && self.connections >= 4 && self.bodies >= 1,
                "turns, bodies: at least 1, connections: at least 4",
            ),
            (self.window_rows_max >= WINDOW_ROWS_MIN, "window_rows_max must be at least 20"),
            (self.window_bytes_max >= WINDOW_BYTES_MIN, "window_bytes_max must be at least 262144"),
            (self.connection_stack_bytes >= 64 * KIB, "connection_stack_bytes must be at least 65536"),
            (self.turn_stack_bytes >= 128 * KIB, "turn_stack_bytes must be at least 131072"),
        ];
        relations.into_iter().find(|(holds, _)| !holds).map(|(_, text)| text.to_owned())
    }
}

const _: () = assert!(Budget::ROUTER.total() <= Budget::ROUTER.total_bytes);
const _: () = assert!(Budget::SBC.total() <= Budget::SBC.total_bytes);
const _: () = assert!(Budget::ROUTER.chunk_bytes + KIB <= Budget::ROUTER.row_buffer_bytes);
const _: () = assert!(Budget::ROUTER.sockets <= Budget::ROUTER.connections);
const _: () = assert!(2 * (PROVIDER_IN_BYTES + PROVIDER_OUT_BYTES) <= Budget::ROUTER.provider_buffer_bytes);
// The file is gone before the connection has buffers; its certificates are smaller than their base64.
const _: () = assert!(2 * CA_FILE_BYTES <= Budget::ROUTER.provider_buffer_bytes);
const _: () = assert!(SEARCH_PENDING_BYTES_MAX <= 2 * Budget::ROUTER.event_bytes);
const _: () = assert!(RESULT_PAGE_BYTES <= Budget::ROUTER.row_buffer_bytes);

/// Use and peak of one counted thing.
#[derive(Debug, Default)]
pub struct Meter {
    used: AtomicUsize,
    peak: AtomicUsize,
}

impl Meter {
    /// A meter at zero.
    pub const fn new() -> Meter {
        Meter { used: AtomicUsize::new(0), peak: AtomicUsize::new(0) }
    }

    /// Takes `n`, or says that it is full: `limit` would be passed.
    pub fn take(&'static self, n: usize, limit: usize) -> Option<Permit> {
        let taken =
            self.used.fetch_update(Relaxed, Relaxed, |used| used.checked_add(n).filter(|sum| *sum <= limit));
        let before = taken.ok()?;
        self.peak.fetch_max(before + n, Relaxed);
        Some(Permit { meter: self, n })
    }

    /// Counts one more of what only ever grows.
    pub fn count(&self) {
        self.peak.fetch_max(self.used.fetch_add(1, Relaxed) + 1, Relaxed);
    }

    /// What is in use now.
    pub fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    /// The most that was ever in use.
    pub fn peak(&self) -> usize {
        self.peak.load(Relaxed)
    }

    /// Sets a use that is counted elsewhere, such as the bytes of a file.
    pub fn set(&self, used: usize) {
        self.used.store(used, Relaxed);
        self.peak.fetch_max(used, Relaxed);
    }
}

/// A share of a [`Meter`], given back when dropped.
#[derive(Debug)]
pub struct Permit {
    meter: &'static Meter,
    n: usize,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.meter.used.fetch_sub(self.n, Relaxed);
    }
}

/// What is counted while the server runs, by the name of its limit.
pub struct Meters {
    /// open connections
    pub connections: Meter,
    /// open WebSockets
    pub sockets: Meter,
    /// bodies held
    pub bodies: Meter,
    /// turns running
    pub turns: Meter,
    /// bytes in the mailbox that changed last; the peak is the fullest there was
    pub mailbox_bytes: Meter,
    /// bytes of the last provider event; the peak is the longest
    pub event_bytes: Meter,
    /// bytes of the arguments that came last; the peak is the longest
    pub arguments_bytes: Meter,
    /// SQLite's heap
    pub sqlite_bytes: Meter,
    /// bytes of the write-ahead log
    pub wal_bytes: Meter,
    /// bytes of the database
    pub store_bytes: Meter,
    /// tabs that exist
    pub tabs: Meter,
    /// devices paired
    pub devices: Meter,
    /// threads that ended by a panic
    pub panics: Meter,
}

/// The one set of meters of this process.
pub static METERS: Meters = Meters {
    connections: Meter::new(),
    sockets: Meter::new(),
    bodies: Meter::new(),
    turns: Meter::new(),
    mailbox_bytes: Meter::new(),
    event_bytes: Meter::new(),
    arguments_bytes: Meter::new(),
    sqlite_bytes: Meter::new(),
    wal_bytes: Meter::new(),
    store_bytes: Meter::new(),
    tabs: Meter::new(),
    devices: Meter::new(),
    panics: Meter::new(),
};

impl Meters {
    /// The meter of a limit, if it is counted.
    pub fn of(&'static self, name: &str) -> Option<&'static Meter> {
        Some(match name {
            "connections" => &self.connections,
            "sockets" => &self.sockets,
            "bodies" => &self.bodies,
            "turns" => &self.turns,
            "mailbox_bytes" => &self.mailbox_bytes,
            "event_bytes" => &self.event_bytes,
            "arguments_bytes" => &self.arguments_bytes,
            "sqlite_bytes" => &self.sqlite_bytes,
            "wal_bytes" => &self.wal_bytes,
            "store_bytes" => &self.store_bytes,
            "tabs" => &self.tabs,
            "devices" => &self.devices,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_meter_refuses_what_is_over_its_limit_and_takes_back() {
        static METER: Meter = Meter::new();
        let held = METER.take(2, 3);
        assert!(held.is_some());
        assert!(METER.take(2, 3).is_none());
        drop(held);
        assert!(METER.take(3, 3).is_some());
        assert_eq!(METER.peak(), 3);
    }

    /// Bug: any number was taken. Effect: with `page_rows = 0` or `frame_bytes = 0` every connection
    /// panicked, with `hello_ms = 0` none could begin. Mend: a limit with which nothing works is refused at
    /// the start.
    #[test]
    fn a_limit_with_which_nothing_works_is_refused_by_its_name() {
        let names = [
            "page_rows",
            "frame_bytes",
            "head_bytes",
            "mailbox_bytes",
            "tool_output_bytes",
            "attempts",
            "steps",
            "sockets",
            "head_ms",
            "body_ms",
            "keep_alive_ms",
            "write_stall_ms",
            "hello_ms",
            "turns",
            "bodies",
            "connections",
        ];
        for name in names {
            let mut budget = Budget::ROUTER;
            assert!(budget.set(name, 0), "{name}");
            assert!(budget.fault().is_some_and(|text| text.contains(name)), "{name}: {:?}", budget.fault());
        }
        // A row larger than a quarter of the smallest window would not fit a page of it.
        let large = Budget {
            connections: 8,
            sockets: 8,
            chunk_bytes: 66_000,
            row_buffer_bytes: 68_000,
            page_bytes: 68_000,
            ..Budget::SBC
        };
        assert!(large.fault().is_some_and(|text| text.contains("chunk_bytes")), "{:?}", large.fault());
        assert_eq!((Budget::ROUTER.fault(), Budget::SBC.fault()), (None, None));
    }

    #[test]
    fn limits_are_changed_by_name_and_checked_again() {
        let mut budget = Budget::ROUTER;
        assert!(budget.set("connections", 30));
        assert!(!budget.set("conections", 30));
        assert_eq!(budget.connections, 30);
        assert_eq!(budget.fault(), None);
        budget.event_bytes = 64 * MIB;
        assert!(budget.fault().is_some_and(|text| text.contains("total_bytes")));
    }
}
