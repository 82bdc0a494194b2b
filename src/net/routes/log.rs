//! Routes that read a tab's log: pages of rows, turns, and results whole.
//!
//! Rows and turns are read while they are written out, a batch at a time; no statement lives across a write.

use super::{Query, digits, known_tab, store_fault};
use crate::budget::RESULT_PAGE_BYTES;
use crate::chunk::{Seq, TabNo, TurnNo, Usage, shorten};
use crate::net::respond::{Fault, Reply};
use crate::net::{Shared, json};
use crate::store::{Edge, Store, StoreError, Turn};
use serde::Serialize;
use std::io;
use std::sync::Arc;

/// `GET …/chunks`.
pub fn chunks(shared: &Shared, query: &Query, tab: TabNo) -> Result<Reply, Fault> {
    let limit = query.number("limit", 1, shared.config.budget.page_rows as u64)?.unwrap_or(50);
    let before = query.number("before", 1, i64::MAX as u64)?;
    let after = query.number("after", 1, i64::MAX as u64)?;
    let edge = match (before, after) {
        (Some(_), Some(_)) => return Err(Fault::bad("before and after exclude each other")),
        (Some(before), None) => Edge::Before(before as Seq),
        (None, Some(after)) => Edge::After(after as Seq),
        (None, None) => Edge::Tail,
    };
    let total = known_tab(shared, tab)?;
    let budget = shared.config.budget;
    let page = shared.store.page(tab, edge, limit as usize, budget.page_bytes).map_err(store_fault)?;
    let number = |seq: Option<Seq>| seq.map_or("null".to_owned(), |seq| seq.to_string());
    let (oldest, newest) = (page.first().map(|row| row.seq), page.last().map(|row| row.seq));
    // A row may be younger than the total that was read before it.
    let total = total.max(newest.unwrap_or(0));
    let end = format!(r#"],"total":{total},"oldestSeq":{},"newestSeq":{}}}"#, number(oldest), number(newest));
    let rows =
        Rows { store: shared.store.clone(), tab, sent: oldest.unwrap_or(1) - 1, upto: newest.unwrap_or(0) };
    Ok(Reply::stream(rows.into_json(budget.row_buffer_bytes, end)))
}

/// Rows on their way out, a batch at a time.
struct Rows {
    store: Arc<Store>,
    tab: TabNo,
    sent: Seq,
    upto: Seq,
}

impl Rows {
    fn into_json(mut self, batch: usize, end: String) -> impl io::Read {
        let mut start = "{\"chunks\":[";
        json::Pieces::new(move |out| {
            out.push_str(std::mem::take(&mut start));
            if self.sent >= self.upto {
                out.push_str(&end);
                return Ok(false);
            }
            let first = out.len() > 1;
            let rows = self.store.rows(self.tab, self.sent, self.upto, batch).map_err(broken)?;
            for (at, row) in rows.iter().enumerate() {
                if !first || at > 0 {
                    out.push(',');
                }
                row.write_json(out);
                self.sent = row.seq;
            }
            if rows.is_empty() { Err(io::Error::other("the tab was erased meanwhile")) } else { Ok(true) }
        })
    }
}

fn broken(e: StoreError) -> io::Error {
    io::Error::other(format!("the log cannot be read: {e}"))
}

/// `GET …/turns`.
pub fn turns(shared: &Shared, query: &Query, tab: TabNo) -> Result<Reply, Fault> {
    let limit = query.number("limit", 1, shared.config.budget.page_rows as u64)?.unwrap_or(50);
    let before = query.number("before", 1, i64::MAX as u64)?;
    known_tab(shared, tab)?;
    // Turn by turn: one may have hundreds of steps. Ordinals have no gaps.
    let store = shared.store.clone();
    let newest = store.turns(tab, before, 1).map_err(store_fault)?.last().map_or(0, |turn| turn.ordinal);
    let ordinals = newest.saturating_sub(limit) + 1..=newest;
    let render = move |ordinal: u64| {
        let turns = store.turns(tab, Some(ordinal + 1), 1).map_err(broken)?;
        let turn = turns.last().ok_or_else(|| io::Error::other("the tab was erased meanwhile"))?;
        Ok(turn_json(turn))
    };
    Ok(Reply::stream(json::list("turns", ordinals, render)))
}

fn turn_json(turn: &Turn) -> String {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Out<'a> {
        turn_id: TurnNo,
        ordinal: u64,
        first_seq: Seq,
        last_seq: Seq,
        status: crate::chunk::TurnStatus,
        stop_reason: Option<crate::chunk::StopReason>,
        started_at: i64,
        sealed_at: Option<i64>,
        steps: Vec<StepOut<'a>>,
    }
    #[derive(Serialize)]
    struct StepOut<'a> {
        model: &'a str,
        usage: Usage,
        prefix: Prefix<'a>,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        compaction: bool,
    }
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Prefix<'a> {
        blocks: u32,
        hash: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        miss_cause: Option<&'a str>,
    }
    let steps = turn.steps.iter().map(|step| StepOut {
        model: &step.model,
        usage: step.usage,
        prefix: Prefix {
            blocks: step.prefix_blocks,
            hash: &step.prefix_hash,
            miss_cause: step.miss.as_deref(),
        },
        compaction: step.attempt > 0,
    });
    crate::chunk::json(&Out {
        turn_id: turn.turn,
        ordinal: turn.ordinal,
        first_seq: turn.first_seq,
        last_seq: turn.last_seq,
        status: turn.status,
        stop_reason: turn.stop,
        started_at: turn.started_at,
        sealed_at: turn.sealed_at,
        steps: steps.collect(),
    })
}

/// `GET …/results/:seq`: a page of a result, joined over its parts, which stand one behind the other in the
/// log.
pub fn result(shared: &Shared, query: &Query, tab: TabNo, seq: &str) -> Result<Reply, Fault> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Out<'a> {
        text: &'a str,
        offset: usize,
        #[serde(skip_serializing_if = "Option::is_none")]
        next_offset: Option<usize>,
        bytes: usize,
    }
    let none = || Fault::not_found("there is no result whose last part is this row");
    let seq: Seq = digits(seq).ok_or_else(none)? as Seq;
    let offset = query.number("offset", 0, i64::MAX as u64)?.unwrap_or(0) as usize;
    known_tab(shared, tab)?;
    let last = result_part(shared, tab, seq)?.filter(|part| part.is_error.is_some()).ok_or_else(none)?;
    let first = seq - Seq::from(last.part);
    let mut page = Page::new(offset);
    for at in first..seq {
        let part =
            result_part(shared, tab, at)?.filter(|part| part.call_id == last.call_id).ok_or_else(none)?;
        page.take(&part.result);
    }
    page.take(&last.result);
    if offset > page.bytes {
        return Err(Fault::bad(format!("offset must be 0 to {}", page.bytes)));
    }
    let next = page.start + page.text.len();
    let next_offset = (next < page.bytes).then_some(next);
    let out = Out { text: &page.text, offset: page.start, next_offset, bytes: page.bytes };
    Ok(Reply::json(200, crate::chunk::json(&out)))
}

fn result_part(shared: &Shared, tab: TabNo, seq: Seq) -> Result<Option<crate::chunk::ToolResult>, Fault> {
    let row = shared.store.row(tab, seq).map_err(store_fault)?;
    let row = row.filter(|row| row.kind == crate::chunk::Kind::ToolResult);
    let parsed = row.map(|row| serde_json::from_str(&row.data)).transpose();
    parsed.map_err(|e| Fault::new(500, "internal", format!("row {seq} is damaged: {e}")))
}

/// Cuts a page out of text that comes in parts.
struct Page {
    offset: usize,
    start: usize,
    text: String,
    bytes: usize,
    full: bool,
}

impl Page {
    fn new(offset: usize) -> Page {
        Page { offset, start: offset, text: String::new(), bytes: 0, full: false }
    }

    fn take(&mut self, part: &str) {
        let begin = self.bytes;
        self.bytes += part.len();
        if self.full || self.bytes <= self.offset {
            return;
        }
        let from = crate::chunk::floor_boundary(part, self.offset.saturating_sub(begin));
        if self.text.is_empty() {
            self.start = begin + from;
        }
        let rest = part.split_at(from).1;
        let fits = shorten(rest, RESULT_PAGE_BYTES - self.text.len());
        self.text.push_str(fits);
        self.full = fits.len() < rest.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pages_of_a_result_join_to_the_whole(
            parts in proptest::collection::vec("[aé👍]{0,9000}", 1..5),
        ) {
            let whole: String = parts.concat();
            let (mut joined, mut offset) = (String::new(), 0);
            loop {
                let mut page = Page::new(offset);
                parts.iter().for_each(|part| page.take(part));
                prop_assert_eq!(page.bytes, whole.len());
                prop_assert!(page.text.len() <= RESULT_PAGE_BYTES);
                joined.push_str(&page.text);
                let next = page.start + page.text.len();
                if next >= page.bytes {
                    break;
                }
                prop_assert!(next > offset);
                offset = next;
            }
            prop_assert_eq!(joined, whole);
        }
    }
}
