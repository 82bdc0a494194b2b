//! What the store takes and gives.

use crate::chunk::*;

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
    /// it started this turn
    Started(TurnNo),
    /// it began this turn, which had to wait for a slot
    Waiting(TurnNo),
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
    /// 0: the answer; 1, 2: a request for the summary that this step needed first
    pub attempt: u32,
    /// when it was made
    pub at: Millis,
    /// `provider/model`
    pub model: String,
    /// what became of it
    pub outcome: StepOutcome,
    /// tokens, as the provider told
    pub usage: Usage,
    /// the frozen prefix; 0: none
    pub prefix: PrefixNo,
    /// the row that began its generation
    pub since: Seq,
    /// what else a cache depends on: how the model was to think
    pub shape: String,
    /// bytes of its body
    pub bytes: u64,
    /// content blocks that it held
    pub prefix_blocks: u32,
    /// hash of its bytes, marks aside, in hex
    pub prefix_hash: String,
    /// why the provider's cache was of no use, if it was not
    pub miss: Option<String>,
}

impl Step {
    /// A request that is about to be made.
    pub fn new(step: u32, attempt: u32, model: String) -> Step {
        Step {
            step,
            attempt,
            at: super::now(),
            model,
            outcome: StepOutcome::Open,
            usage: Usage::default(),
            prefix: 0,
            since: 0,
            shape: String::new(),
            bytes: 0,
            prefix_blocks: 0,
            prefix_hash: String::new(),
            miss: None,
        }
    }
}

/// The number of a frozen prefix.
pub type PrefixNo = u32;

/// Where the part of a log begins that goes on the wire as it is; see [`super::Store::generation`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Generation {
    /// the row that began it; 0: the tab's first row did. No thinking from before it is sent
    pub since: Seq,
    /// the newest summary
    pub summary: Option<Summary>,
}

/// A `compacted` row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// the row
    pub seq: Seq,
    /// the last row that it stands for
    pub upto: Seq,
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

impl std::fmt::Display for StoreError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StoreError::Full(limit) => write!(f, "{limit} of the budget is reached"),
            StoreError::NoSpace(text) | StoreError::Broken(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for StoreError {}
