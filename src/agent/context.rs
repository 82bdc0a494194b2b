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
            (u128::from(bytes) * u128::from(tokens) / u128::from(last_bytes)) as u64
        }
        _ => bytes * 2 / 7,
    }
}

/// Bytes that so many tokens have, judged the same way.
pub fn bytes_of(tokens: u64, last: Option<&Step>) -> u64 {
    let scale = 1024;
    tokens * scale / estimate(scale, last).max(1)
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
    let shrunk = before.is_some_and(|before| {
        let counted = asked(&before.usage);
        before.bytes <= bytes && counted > 0 && told < counted - counted / 20
    });
    told > 0 && (shrunk || (bytes > SMALL && bytes / told >= BYTES_A_TOKEN))
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
    each_row(store, tab, after, upto, |row, _| all += row.data.len() as u64)?;
    let (mut best, mut before): (Option<Cut>, u64) = (None, 0);
    each_row(store, tab, after, upto, |row, last| {
        let enough = best.is_some_and(|best| all - best.bytes <= keep);
        if row.seq > after + 1 && begins(row, last) && before <= most && !enough {
            best = Some(Cut { upto: row.seq - 1, bytes: before });
        }
        before += row.data.len() as u64;
    })?;
    Ok(best)
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

fn each_row(
    store: &Store,
    tab: TabNo,
    after: Seq,
    upto: Seq,
    mut see: impl FnMut(&Row, Option<(Role, TurnNo, u32)>),
) -> Stored<()> {
    let (mut at, mut last) = (after, None);
    while at < upto {
        let rows = store.rows(tab, at, upto, BATCH_BYTES)?;
        for row in &rows {
            see(row, last);
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
