//! The store: every tab's append-only log and all else that must outlive the process, in one SQLite file.

use crate::budget::Budget;
use crate::chunk::*;
use std::path::Path;

/// Why the store did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// a counted thing is at its limit: the limit's name in the budget
    Full(&'static str),
    /// the database is at `store_bytes`, or the disk has no space
    NoSpace(String),
    /// anything else that SQLite says: cause and mend
    Broken(String),
}

/// The result of a store operation.
pub type Stored<T> = Result<T, StoreError>;

/// One conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct Tab {
    /// its number, never used again
    pub no: TabNo,
    /// shown in the list; empty until the first message names it
    pub title: String,
    /// `provider/model`, or empty
    pub model: String,
    /// how hard the model thinks
    pub effort: Option<String>,
    /// where its tools work
    pub workdir: String,
    /// order in the list
    pub position: i64,
    /// when it was made
    pub created_at: Millis,
    /// when its last row came
    pub updated_at: Millis,
    /// hidden from the list
    pub archived: bool,
    /// rows in its log, which is also its newest seq
    pub total: Seq,
    /// sum of all its requests
    pub usage: Usage,
    /// stop reason of its last turn, if one ended
    pub last_stop: Option<StopReason>,
}

/// What a new tab starts with.
#[derive(Clone, Debug, Default)]
pub struct NewTab {
    /// may be empty
    pub title: String,
    /// `provider/model`, or empty
    pub model: String,
    /// how hard the model thinks
    pub effort: Option<String>,
    /// absolute path
    pub workdir: String,
}

/// What changes in a tab; `None` stays.
#[derive(Clone, Debug, Default)]
pub struct TabChange {
    /// new title
    pub title: Option<String>,
    /// new model
    pub model: Option<String>,
    /// new effort; `Some(None)` removes it
    pub effort: Option<Option<String>>,
    /// new working directory
    pub workdir: Option<String>,
    /// new position
    pub position: Option<i64>,
    /// archive or bring back
    pub archived: Option<bool>,
}

/// Which rows a page is cut from; the seqs are exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// the newest rows
    Tail,
    /// the newest rows below a seq
    Before(Seq),
    /// the oldest rows above a seq
    After(Seq),
}

/// A row's position and the length of its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowSize {
    /// position
    pub seq: Seq,
    /// bytes of its data
    pub bytes: u32,
}

/// How a turn begins. All of it is one commit, without a sync.
#[derive(Debug)]
pub struct BeginTurn<'a> {
    /// its tab
    pub tab: TabNo,
    /// its first rows, the owner's messages; the store fills in their `turn`
    pub rows: &'a mut [Row],
    /// queued messages that these rows are
    pub consumed: &'a [MessageNo],
    /// the message that is being sent, remembered for idempotency: client id and text
    pub sent: Option<(&'a str, &'a str)>,
    /// `Waiting` or `Running`
    pub status: TurnStatus,
}

/// How a turn ends. All of it is one commit with one sync, which covers every commit before it.
#[derive(Debug)]
pub struct SealTurn<'a> {
    /// its tab
    pub tab: TabNo,
    /// the turn
    pub turn: TurnNo,
    /// last rows: an error, a notice
    pub rows: &'a [Row],
    /// `Done`, `Interrupted` or `Error`
    pub status: TurnStatus,
    /// why
    pub stop: StopReason,
}

/// What a sealed turn amounts to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// its first row
    pub first_seq: Seq,
    /// its last row
    pub last_seq: Seq,
    /// sum over its steps
    pub usage: Usage,
}

/// What became of a message that was sent before with the same client id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// it started this turn (or waits for a slot with it)
    Started(TurnNo),
    /// it was queued as this
    Queued(MessageNo),
}

/// A remembered send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// never seen
    New,
    /// the same text: this was the answer
    Same(Sent),
    /// another text under the same client id
    Other,
}

/// A queued message as clients see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queued {
    /// its number
    pub no: MessageNo,
    /// the sender's id
    pub client_id: String,
    /// the first 1 KiB
    pub head: String,
    /// bytes of the whole
    pub bytes: u64,
}

/// Whether a call's arguments can be run and replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallState {
    /// its arguments are a JSON object
    Good,
    /// they are not: replayed as `{}`
    Bad,
    /// the connection ended inside it: left out of the wire
    Cut,
}

/// The rendered system prompt and tool list of a tab, replayed byte for byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// the system prompt
    pub system: String,
    /// JSON array of `{"name","description","parameters"}`, in a fixed order
    pub tools: String,
}

/// What a request to the provider was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// from 1 within its turn
    pub step: u32,
    /// `provider/model`
    pub model: String,
    /// what became of it
    pub outcome: StepOutcome,
    /// tokens, as the provider told
    pub usage: Usage,
    /// content blocks that the request held
    pub prefix_blocks: u32,
    /// hash of its bytes, marks aside, in hex
    pub prefix_hash: String,
}

/// A turn as `GET …/turns` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// the turn
    pub turn: TurnNo,
    /// 1, 2, 3 … within its tab
    pub ordinal: u64,
    /// its first row
    pub first_seq: Seq,
    /// its last row so far
    pub last_seq: Seq,
    /// how it stands
    pub status: TurnStatus,
    /// why it ended
    pub stop: Option<StopReason>,
    /// when its first row came
    pub started_at: Millis,
    /// when it was sealed
    pub sealed_at: Option<Millis>,
    /// its requests
    pub steps: Vec<Step>,
}

/// A paired device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// its number
    pub no: DeviceNo,
    /// as its owner calls it
    pub name: String,
    /// when it was paired
    pub created_at: Millis,
    /// when it last asked for something
    pub last_seen_at: Millis,
}

/// What `/api/status` says of the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreStatus {
    /// bytes of the database file
    pub bytes: u64,
    /// most bytes that it may have
    pub limit_bytes: u64,
    /// bytes of the write-ahead log
    pub wal_bytes: u64,
    /// `wal`, `wal-exclusive` or `truncate`
    pub journal: &'static str,
    /// syncs in a turn's path
    pub turn_syncs: u64,
    /// syncs of checkpoints
    pub checkpoint_syncs: u64,
    /// other syncs: settings, devices, long turns
    pub other_syncs: u64,
    /// turns sealed since the start
    pub sealed_turns: u64,
    /// one sentence: what survives a power cut
    pub promise: &'static str,
    /// what is wrong now, if anything
    pub error: Option<String>,
}

/// The database and its connections. Shared by reference; every operation is short and holds no statement after it.
pub struct Store {}

#[allow(unused_variables, missing_docs)]
impl Store {
    // -- life (mod.rs, schema.rs, lock.rs, repair.rs)
    /// Opens (or makes) the store in `dir`, for `serve`: takes `dir/lock`, migrates, repairs what was running.
    /// The error is one line with cause and mend (not writable, in use by pid N, newer schema, damaged …).
    pub fn open(dir: &Path, budget: &'static Budget) -> Result<Store, String> {
        todo!()
    }
    pub fn status(&self) -> StoreStatus {
        todo!()
    }
    /// Checkpoint and close; no writes after it.
    pub fn close(&self) {
        todo!()
    }
    /// One round of the housekeeper, called every second by its thread: sizes, checkpoints when idle or when the
    /// write-ahead log passes `wal_bytes`, sync of turns that run longer than a minute.
    pub fn housekeep(&self) {
        todo!()
    }

    // -- tabs.rs
    pub fn tabs(&self, archived: bool) -> Stored<Vec<Tab>> {
        todo!()
    }
    pub fn tab(&self, tab: TabNo) -> Stored<Option<Tab>> {
        todo!()
    }
    pub fn create_tab(&self, new: &NewTab) -> Stored<Tab> {
        todo!()
    }
    pub fn change_tab(&self, tab: TabNo, change: &TabChange) -> Stored<Option<Tab>> {
        todo!()
    }
    /// Erases a tab and its rows, a bounded number per transaction.
    pub fn purge_tab(&self, tab: TabNo) -> Stored<bool> {
        todo!()
    }

    // -- log.rs
    /// Appends rows, whose seqs must go on from the tab's newest (asserted), in one commit without a sync.
    pub fn append(&self, tab: TabNo, rows: &[Row]) -> Stored<()> {
        todo!()
    }
    pub fn row(&self, tab: TabNo, seq: Seq) -> Stored<Option<Row>> {
        todo!()
    }
    /// Rows after `after` up to and with `upto`, ascending, as many as fit `bytes_max` of data, at least one if any.
    pub fn rows(&self, tab: TabNo, after: Seq, upto: Seq, bytes_max: usize) -> Stored<Vec<Row>> {
        todo!()
    }
    /// The sizes of a page's rows, ascending: at most `rows_max`, at most `bytes_max`, at least one if any. Reads no data.
    pub fn page(&self, tab: TabNo, edge: Edge, rows_max: usize, bytes_max: usize) -> Stored<Vec<RowSize>> {
        todo!()
    }

    // -- turns.rs
    pub fn begin_turn(&self, begin: BeginTurn<'_>) -> Stored<TurnNo> {
        todo!()
    }
    pub fn set_turn_status(&self, turn: TurnNo, status: TurnStatus) -> Stored<()> {
        todo!()
    }
    pub fn begin_step(&self, turn: TurnNo, step: &Step) -> Stored<()> {
        todo!()
    }
    pub fn end_step(&self, turn: TurnNo, step: u32, outcome: StepOutcome, usage: &Usage) -> Stored<()> {
        todo!()
    }
    pub fn step(&self, turn: TurnNo, step: u32) -> Stored<Option<Step>> {
        todo!()
    }
    pub fn seal_turn(&self, seal: SealTurn<'_>) -> Stored<Sealed> {
        todo!()
    }
    /// Ascending: the newest `limit` turns with an ordinal below `before`.
    pub fn turns(&self, tab: TabNo, before: Option<u64>, limit: usize) -> Stored<Vec<Turn>> {
        todo!()
    }
    /// Appends the last row of a call together with the call's state.
    pub fn append_call(&self, tab: TabNo, row: &Row, call_id: &str, state: CallState) -> Stored<()> {
        todo!()
    }
    /// Whether the tab already has a call of this id.
    pub fn call_state(&self, tab: TabNo, call_id: &str) -> Stored<Option<CallState>> {
        todo!()
    }
    /// Notes that a call is about to run, before it does.
    pub fn start_call(&self, tab: TabNo, call_id: &str) -> Stored<()> {
        todo!()
    }

    // -- queue.rs
    pub fn known(&self, tab: TabNo, client_id: &str, text: &str) -> Stored<Known> {
        todo!()
    }
    /// Queues a message and remembers its send.
    pub fn enqueue(&self, tab: TabNo, client_id: &str, text: &str) -> Stored<MessageNo> {
        todo!()
    }
    pub fn queue(&self, tab: TabNo) -> Stored<Vec<Queued>> {
        todo!()
    }
    pub fn queued_text(&self, tab: TabNo, message: MessageNo) -> Stored<Option<String>> {
        todo!()
    }
    pub fn unqueue(&self, tab: TabNo, message: MessageNo) -> Stored<Option<Queued>> {
        todo!()
    }
    /// Appends rows that are a queued message and takes it out of the queue, in one commit.
    pub fn append_queued(&self, tab: TabNo, rows: &[Row], message: MessageNo) -> Stored<()> {
        todo!()
    }

    // -- settings.rs: frozen prefixes and settings
    pub fn prefix(&self, tab: TabNo) -> Stored<Option<Prefix>> {
        todo!()
    }
    /// Freezes a tab's prefix, stored once per content.
    pub fn freeze(&self, tab: TabNo, prefix: &Prefix) -> Stored<()> {
        todo!()
    }
    pub fn setting(&self, key: &str) -> Stored<Option<String>> {
        todo!()
    }
    /// Sets (or with `None` removes) settings in one synced commit.
    pub fn set_settings(&self, changes: &[(&str, Option<&str>)]) -> Stored<()> {
        todo!()
    }

    // -- devices.rs (commits are synced)
    pub fn add_device(&self, name: &str, token_hash: &[u8; 32]) -> Stored<DeviceNo> {
        todo!()
    }
    pub fn devices(&self) -> Stored<Vec<Device>> {
        todo!()
    }
    /// The device of a token, unless it was unused for 90 days; notes the use at most once an hour, without a sync.
    pub fn device_of(&self, token_hash: &[u8; 32]) -> Stored<Option<DeviceNo>> {
        todo!()
    }
    pub fn remove_device(&self, device: DeviceNo) -> Stored<bool> {
        todo!()
    }

    /// Local wall time with offset, as `2026-11-30T20:15+01:00` (SQLite knows the zone).
    pub fn local_time(&self) -> Stored<String> {
        todo!()
    }
}

/// Now, in Unix milliseconds.
pub fn now() -> Millis {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |d| d.as_millis() as Millis)
}
