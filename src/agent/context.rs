//! How large a conversation is for its model, and where it may be cut.
//!
//! Tokens are what the provider counted last, scaled by the bytes of its request. Where nothing was counted
//! yet, a token is taken for three and a half bytes, which is on the safe side for most texts.

use crate::chunk::*;
use crate::store::{Step, Store, Stored};

/// Bytes of rows that are read at once.
const BATCH_BYTES: usize = 32 * 1024;

/// All tokens of a request, wherever they were read from.
pub fn asked(usage: &Usage) -> u64 {
    usage.input + usage.cache_read + usage.cache_write
}

/// Tokens that a request of so many bytes has, judged by the newest one that was counted.
pub fn estimate(bytes: u64, last: Option<&Step>) -> u64 {
    match last.map(|last| (last.bytes, asked(&last.usage))) {
        Some((last_bytes, tokens)) if last_bytes > 0 && tokens > 0 => {
            let scaled = u128::from(bytes) * u128::from(tokens) / u128::from(last_bytes);
            u64::try_from(scaled).unwrap_or(u64::MAX)
        }
        _ => bytes.saturating_mul(2) / 7,
    }
}

/// Bytes that so many tokens have, judged the same way.
pub fn bytes_of(tokens: u64, last: Option<&Step>) -> u64 {
    let scale = 1024;
    tokens.saturating_mul(scale) / estimate(scale, last).max(1)
}

/// The most tokens that a request may have and leave room for its answer.
pub fn room(context: u64, max_tokens: u64) -> u64 {
    let answer = if max_tokens == 0 { context / 4 } else { max_tokens.min(context / 4) };
    (context - context / 20).saturating_sub(answer)
}

/// Whether a server that counted `told` tokens for a request of `bytes` seems to have left its beginning out.
/// `before`: an earlier request of the same generation and model.
pub fn is_truncated(told: u64, bytes: u64, before: Option<&Step>) -> bool {
    const BYTES_A_TOKEN: u64 = 7;
    const SMALL: u64 = 16 * 1024;
    let counted = before.map_or(0, |before| asked(&before.usage));
    // What fell to less than half was not cut off: such a server counts only what it had not cached.
    if told == 0 || told < counted / 2 {
        return false;
    }
    let shrunk = before.is_some_and(|before| before.bytes <= bytes && told < counted - counted / 20);
    shrunk || (bytes > SMALL && bytes / told >= BYTES_A_TOKEN)
}

/// A place where a conversation may be cut: what lies up to it can be replaced by a summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// the last row that is replaced
    pub upto: Seq,
    /// bytes of data up to it
    pub bytes: u64,
}

/// Finds where to cut the rows after `after` up to `upto`: as early as leaves at most `keep` bytes after it,
/// but with at most `most` bytes before it. Never between a call and its result; `None` if there is no such
/// place. Reads each row twice, a batch at a time.
pub fn cut(store: &Store, tab: TabNo, after: Seq, upto: Seq, keep: u64, most: u64) -> Stored<Option<Cut>> {
    let mut all = 0;
    each_row(store, tab, after, upto, |row, _| {
        all += row.data.len() as u64;
        true
    })?;
    let (mut best, mut before): (Option<Cut>, u64) = (None, 0);
    each_row(store, tab, after, upto, |row, last| {
        let enough = best.is_some_and(|best| all - best.bytes <= keep);
        if row.seq > after + 1 && begins(row, last) && before <= most && !enough {
            best = Some(Cut { upto: row.seq - 1, bytes: before });
        }
        before += row.data.len() as u64;
        true
    })?;
    Ok(best)
}

/// Whether there is any place to cut these rows. Reads no further than to the first.
pub fn has_cut(store: &Store, tab: TabNo, after: Seq, upto: Seq) -> Stored<bool> {
    let mut found = false;
    each_row(store, tab, after, upto, |row, last| {
        found = row.seq > after + 1 && begins(row, last);
        !found
    })?;
    Ok(found)
}

/// Whether a message of the owner or a step's answer begins here: all calls before are answered then.
fn begins(row: &Row, last: Option<(Role, TurnNo, u32)>) -> bool {
    match (row.role, row.kind) {
        (Role::User, Kind::Text) => {
            serde_json::from_str::<UserText>(&row.data).is_ok_and(|user| user.part == 0)
        }
        (Role::Assistant, Kind::Text | Kind::Thinking | Kind::ToolCall) => {
            last != Some((Role::Assistant, row.turn, row.step))
        }
        _ => false,
    }
}

/// Shows each row to `see`, until that gives `false`.
fn each_row(
    store: &Store,
    tab: TabNo,
    after: Seq,
    upto: Seq,
    mut see: impl FnMut(&Row, Option<(Role, TurnNo, u32)>) -> bool,
) -> Stored<()> {
    let (mut at, mut last) = (after, None);
    while at < upto {
        let rows = store.rows(tab, at, upto, BATCH_BYTES)?;
        for row in &rows {
            if !see(row, last) {
                return Ok(());
            }
            at = row.seq;
            // Notices may stand inside an answer.
            if row.role != Role::System {
                last = Some((row.role, row.turn, row.step));
            }
        }
        if rows.is_empty() {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budget;
    use crate::store::NewTab;
    use crate::testing::Dir;
    use proptest::prelude::*;

    fn counted(bytes: u64, input: u64) -> Step {
        let usage = Usage { input, cache_read: input, cache_write: input, output: 7 };
        Step { bytes, usage, ..Step::new(1, 0, String::new()) }
    }

    #[test]
    fn tokens_are_judged_by_what_was_counted_last() {
        assert_eq!(estimate(7000, None), 2000);
        assert_eq!(estimate(9000, Some(&counted(3000, 200))), 1800);
        assert_eq!(bytes_of(1800, Some(&counted(3000, 200))), 9035, "rounded");
        assert_eq!(estimate(7000, Some(&counted(0, 0))), 2000, "the demo counts nothing");
        assert!(estimate(u64::MAX / 4, Some(&counted(1, 1))) > 0, "no overflow");
        assert_eq!(estimate(u64::MAX, Some(&counted(1, 9))), u64::MAX);
        assert!(bytes_of(u64::MAX, None) > u64::MAX / 1024, "a list may tell any context");
    }

    #[test]
    fn room_is_left_for_the_answer() {
        assert_eq!(room(200_000, 16_000), 174_000);
        assert_eq!(room(4096, 16_000), 2868);
        assert_eq!(room(4096, 0), 2868);
        assert_eq!(room(0, 0), 0);
    }

    #[test]
    fn a_count_that_is_too_small_is_noticed_and_an_honest_one_is_not() {
        assert!(is_truncated(4096, 36_000, None));
        assert!(!is_truncated(9000, 36_000, None));
        assert!(!is_truncated(0, 36_000, None), "many servers count nothing");
        assert!(!is_truncated(100, 2000, None), "small requests are mostly names of fields");
        assert!(is_truncated(2800, 16_000, Some(&counted(15_000, 1000))));
        assert!(!is_truncated(3100, 16_000, Some(&counted(15_000, 1000))));
        assert!(!is_truncated(2000, 4000, Some(&counted(15_000, 1000))), "a shorter request");
        assert!(
            !is_truncated(900, 36_000, Some(&counted(35_000, 4000))),
            "only what was not cached is counted"
        );
    }

    fn rows_of(acts: &[u8]) -> Vec<Row> {
        let mut rows: Vec<Row> = Vec::new();
        let mut push = |step: u32, role, kind, data: String| {
            let (seq, turn) = (rows.len() as Seq + 1, TurnNo(1));
            rows.push(Row { seq, turn, step, role, kind, data, opaque: None, created_at: 0 });
        };
        for (at, act) in acts.iter().enumerate() {
            let step = at as u32 + 1;
            match act % 4 {
                0 => {
                    for part in 0..u32::from(act / 64) + 1 {
                        let text = "x".repeat(usize::from(*act));
                        let user = UserText { text, client_id: at.to_string(), part, ..Default::default() };
                        push(step, Role::User, Kind::Text, json(&user));
                    }
                }
                1 => push(step, Role::System, Kind::System, json(&SystemData::default())),
                _ => {
                    let calls = u32::from(act / 32);
                    push(step, Role::Assistant, Kind::Text, json(&AssistantText::default()));
                    for no in 0..calls {
                        let (call_id, block) = (format!("{at}_{no}"), no + 1);
                        let call = ToolCall { call_id, block, ..Default::default() };
                        push(step, Role::Assistant, Kind::ToolCall, json(&call));
                    }
                    for no in 0..calls {
                        let call_id = format!("{at}_{no}");
                        let result = "r".repeat(usize::from(*act));
                        let result = ToolResult { call_id, result, ..Default::default() };
                        push(step, Role::Tool, Kind::ToolResult, json(&result));
                    }
                }
            }
        }
        rows
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

        #[test]
        fn a_cut_keeps_calls_with_their_results_and_to_its_bounds(
            acts in prop::collection::vec(any::<u8>(), 0..20),
            after in 0u64..20,
            keep in 0u64..4000,
            most in 0u64..8000,
        ) {
            let dir = Dir::new();
            let store = Store::open(dir.path(), &Budget::ROUTER).unwrap();
            let tab = store.create_tab(&NewTab::default()).unwrap().no;
            let rows = rows_of(&acts);
            store.append(tab, &rows).unwrap();
            let upto = rows.len() as Seq;
            let found = cut(&store, tab, after.min(upto), upto, keep, most).unwrap();
            let any = cut(&store, tab, after.min(upto), upto, 0, u64::MAX).unwrap().is_some();
            prop_assert_eq!(has_cut(&store, tab, after.min(upto), upto).unwrap(), any);
            let Some(cut) = found else { return Ok(()) };
            prop_assert!(cut.upto > after && cut.upto < upto && cut.bytes <= most);
            let size = |row: &Row| row.data.len() as u64;
            let covered = rows.iter().filter(|row| row.seq > after && row.seq <= cut.upto);
            prop_assert_eq!(covered.map(size).sum::<u64>(), cut.bytes);
            let next = &rows[cut.upto as usize];
            prop_assert!(next.role == Role::User || next.role == Role::Assistant);
            for (at, row) in rows.iter().enumerate().filter(|(_, row)| row.kind == Kind::ToolCall) {
                let call: ToolCall = serde_json::from_str(&row.data).unwrap();
                let answer = rows.iter().position(|other| other.kind == Kind::ToolResult
                    && serde_json::from_str::<ToolResult>(&other.data).unwrap().call_id == call.call_id);
                let covered = |at: usize| at < cut.upto as usize;
                prop_assert_eq!(covered(at), covered(answer.unwrap()));
            }
        }
    }
}
