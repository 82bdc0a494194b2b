//! What tests of the store, and of what stands on it, begin with.

use super::*;
use crate::budget::Budget;
use crate::chunk::*;
pub(crate) use crate::testing::Dir;

/// A changed budget, kept for the rest of the process.
pub(crate) fn budget(change: impl FnOnce(&mut Budget)) -> &'static Budget {
    let mut budget = Budget::ROUTER;
    change(&mut budget);
    Box::leak(Box::new(budget))
}

/// A store in a folder of its own, with one tab.
pub(crate) fn store() -> (Dir, Store, TabNo) {
    let dir = Dir::new();
    let store = Store::open(dir.path(), &Budget::ROUTER).unwrap();
    let tab = store.create_tab(&NewTab::default()).unwrap().no;
    (dir, store, tab)
}

/// An answer's row.
pub(crate) fn text_row(turn: TurnNo, seq: Seq, step: u32, text: &str) -> Row {
    row_of(turn, seq, step, Kind::Text, json(&AssistantText { text: text.into(), ..Default::default() }))
}

/// A row of some kind, in its usual role.
pub(crate) fn row_of(turn: TurnNo, seq: Seq, step: u32, kind: Kind, data: String) -> Row {
    let role = match kind {
        Kind::ToolResult => Role::Tool,
        Kind::System => Role::System,
        _ => Role::Assistant,
    };
    Row { seq, turn, step, role, kind, data, opaque: None, created_at: 1 }
}

/// A message's row.
pub(crate) fn user_row(seq: Seq, text: &str) -> Row {
    let data = json(&UserText { text: text.into(), client_id: format!("c{seq}"), ..Default::default() });
    Row { role: Role::User, ..row_of(TurnNo(0), seq, 1, Kind::Text, data) }
}

/// A running turn that begins with one message at `seq`.
pub(crate) fn begin(store: &Store, tab: TabNo, seq: Seq) -> TurnNo {
    let rows = &mut [user_row(seq, "hello")];
    store.begin_turn(BeginTurn { tab, rows, consumed: &[], sent: None, status: TurnStatus::Running }).unwrap()
}

/// Ends a turn well.
pub(crate) fn seal(store: &Store, tab: TabNo, turn: TurnNo) -> Sealed {
    store
        .seal_turn(SealTurn { tab, turn, rows: &[], status: TurnStatus::Done, stop: StopReason::End })
        .unwrap()
}

/// What a killed process leaves: the files as they are now, in another folder.
pub(crate) fn killed(dir: &Dir) -> Dir {
    let copy = Dir::new();
    for suffix in ["", "-wal"] {
        let name = format!("{FILE}{suffix}");
        let from = dir.path().join(&name);
        if from.exists() {
            std::fs::copy(from, copy.path().join(name)).unwrap();
        }
    }
    copy
}

impl Store {
    /// A checkpoint now, whoever else makes one.
    pub fn try_checkpoint(&self) -> rusqlite::Result<()> {
        let _one = lock_of(&self.checkpointing);
        self.checkpoint_alone().map(drop)
    }
}
