//! What clients ask.

use super::frames::PageOut;
use super::show::Place;
use super::{End, FAULTS_FORGOTTEN, FAULTS_MAX, Session, store_gone};
use crate::chunk::{Seq, TabNo};
use crate::net::json;
use crate::net::ws::Gone;
use crate::store::{Edge, RowSize};
use serde::Deserialize;
use std::time::Instant;

/// Longest `req` that is echoed.
const REQ_MAX: usize = 64;

/// Any frame of a client. What a type does not use is ignored.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ask {
    #[serde(rename = "type")]
    pub(super) kind: String,
    req: Option<serde_json::Value>,
    tab: Option<String>,
    around: Option<u64>,
    limit: Option<u64>,
    on: Option<bool>,
    n: Option<u64>,
    pub(super) protocol: Option<u64>,
    pub(super) token: Option<String>,
    pub(super) chunk_limit: Option<u64>,
    pub(super) byte_limit: Option<u64>,
    pub(super) resume: Option<Resume>,
}

/// What a client that comes back holds.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Resume {
    pub(super) epoch: String,
    pub(super) tab: String,
    pub(super) oldest_seq: Seq,
    pub(super) newest_seq: Seq,
    pub(super) following: bool,
}

/// `"req":…,` to be put into a reply, or nothing.
fn req_field(req: Option<&serde_json::Value>) -> Option<String> {
    let Some(req) = req else { return Some(String::new()) };
    let text = req.to_string();
    let plain = (req.is_string() || req.is_number()) && text.len() <= REQ_MAX;
    plain.then(|| format!(r#""req":{text},"#))
}

impl Session<'_> {
    /// Does what one frame asks.
    pub(super) fn take(&mut self, text: &str) -> Result<(), Gone> {
        let ask = match json::parse::<Ask>(text.as_bytes()) {
            Ok(ask) => ask,
            Err(fault) => return self.fault("", "bad_request", &fault.message),
        };
        let Some(req) = req_field(ask.req.as_ref()) else {
            return self.fault("", "bad_request", "req must be a number or a string of at most 62 bytes");
        };
        if ask.kind == "ping" {
            let n = ask.n.unwrap_or(0);
            return self.wire.send(&format!(r#"{{"type":"pong","n":{n}}}"#));
        }
        if !matches!(ask.kind.as_str(), "open" | "older" | "newer" | "follow") {
            return self.fault(&req, "bad_request", "this type of frame is not known here");
        }
        let Some(tab) = ask.tab.as_deref().and_then(|tab| tab.parse::<TabNo>().ok()) else {
            return self.fault(&req, "not_found", "there is no such tab");
        };
        if ask.kind == "open" {
            return self.open(&req, tab, ask.around);
        }
        if self.view.as_ref().is_none_or(|view| view.tab != tab) {
            return self.fault(&req, "not_open", "this tab is not the visible one; open it first");
        }
        match (ask.kind.as_str(), ask.on) {
            ("older", _) => self.older(&req, ask.limit),
            ("newer", _) => self.newer(&req, ask.limit),
            (_, Some(true)) => self.follow(&req),
            (_, Some(false)) => self.read_on(),
            _ => self.fault(&req, "bad_request", "on must be true or false"),
        }
    }

    fn open(&mut self, req: &str, tab: TabNo, around: Option<u64>) -> Result<(), Gone> {
        if self.shared.agent.look(tab, |_| ()).is_none() {
            return self.fault(req, "not_found", "there is no such tab");
        }
        self.replace(req, tab, around.map_or(Place::Tail, Place::Around))
    }

    /// Rows and bytes of one page for this client.
    pub(super) fn page_limit(&self, asked: Option<u64>) -> (usize, usize) {
        let budget = self.shared.config.budget;
        let most = budget.page_rows.min(self.limits.rows / 2);
        let rows = asked.unwrap_or(50).clamp(1, most as u64) as usize;
        (rows, budget.page_bytes.min(self.limits.bytes / 4))
    }

    fn older(&mut self, req: &str, limit: Option<u64>) -> Result<(), Gone> {
        let (rows, bytes) = self.page_limit(limit);
        let Some(view) = &mut self.view else { return Ok(()) };
        view.fill = None;
        view.window.set_following(false);
        let oldest = view.window.oldest();
        let page = self.shared.store.page(view.tab, Edge::Before(oldest), rows, bytes).map_err(store_gone)?;
        let evict = view.window.make_room(End::Older, page.len(), sum(&page));
        let total = self.newest();
        self.evict(req, evict)?;
        let after = oldest - 1 - page.len() as Seq;
        self.send_chunks(req, PageOut { edge: End::Older, after, upto: oldest - 1, total })?;
        self.dirty = true;
        self.leave_tail_if_full()
    }

    fn newer(&mut self, req: &str, limit: Option<u64>) -> Result<(), Gone> {
        let total = self.newest();
        let (rows, bytes) = self.page_limit(limit);
        let row_max = self.shared.config.budget.chunk_bytes;
        let Some(view) = &mut self.view else { return Ok(()) };
        view.fill = None;
        let newest = view.window.newest();
        let page = self.newer_page(newest, total, rows, bytes)?;
        let Some(view) = &mut self.view else { return Ok(()) };
        // With room for one row more: a reader who came down to the tail sees what happens there.
        let evict = match page.len() {
            0 => None,
            rows => view.window.make_room(End::Newer, rows + 1, sum(&page) + row_max),
        };
        let upto = newest + page.len() as Seq;
        if upto >= total {
            view.window.set_detached(false);
        }
        self.evict(req, evict)?;
        self.send_chunks(req, PageOut { edge: End::Newer, after: newest, upto, total })?;
        self.dirty = true;
        self.leave_tail_if_full()
    }

    /// The sizes of a page above `newest`, up to `total`.
    fn newer_page(&self, newest: Seq, total: Seq, rows: usize, bytes: usize) -> Result<Vec<RowSize>, Gone> {
        let Some(view) = &self.view else { return Ok(Vec::new()) };
        let mut page =
            self.shared.store.page(view.tab, Edge::After(newest), rows, bytes).map_err(store_gone)?;
        page.retain(|row| row.seq <= total);
        Ok(page)
    }

    /// To the bottom.
    fn follow(&mut self, req: &str) -> Result<(), Gone> {
        let total = self.newest();
        let (rows, bytes) = self.page_limit(Some(u64::MAX));
        let Some(view) = &self.view else { return Ok(()) };
        let (tab, newest) = (view.tab, view.window.newest());
        let page = self.newer_page(newest, total, rows, bytes)?;
        if newest + (page.len() as Seq) < total {
            return self.replace(req, tab, Place::Tail);
        }
        let Some(view) = &mut self.view else { return Ok(()) };
        view.window.set_following(true);
        let evict = view.window.make_room(End::Newer, page.len(), sum(&page));
        self.evict(req, evict)?;
        self.send_chunks(req, PageOut { edge: End::Newer, after: newest, upto: total.max(newest), total })?;
        self.dirty = true;
        Ok(())
    }

    fn read_on(&mut self) -> Result<(), Gone> {
        if let Some(view) = &mut self.view {
            view.window.set_following(false);
        }
        self.leave_tail_if_full()
    }

    /// The newest row of the visible tab.
    pub(super) fn newest(&self) -> Seq {
        let tab = self.view.as_ref().map(|view| view.tab);
        tab.and_then(|tab| self.shared.agent.look(tab, |live| live.newest)).unwrap_or(0)
    }

    /// Answers a wrong frame; after a few the socket is closed.
    fn fault(&mut self, req: &str, code: &str, message: &str) -> Result<(), Gone> {
        if self.fault_at.is_none_or(|at| at.elapsed() > FAULTS_FORGOTTEN) {
            self.faults = 0;
        }
        self.faults += 1;
        self.fault_at = Some(Instant::now());
        let message = crate::chunk::json(&message);
        self.wire.send(&format!(r#"{{"type":"error",{req}"code":"{code}","message":{message}}}"#))?;
        if self.faults > FAULTS_MAX { Err(Gone::Close(1008, "too many wrong frames")) } else { Ok(()) }
    }
}

pub(super) fn sum(page: &[RowSize]) -> usize {
    page.iter().map(|row| row.bytes as usize).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn req_is_echoed_as_it_came_if_it_is_small_and_plain() {
        let echo = |text: &str| req_field(Some(&serde_json::from_str(text).unwrap()));
        assert_eq!(echo("7").unwrap(), r#""req":7,"#);
        assert_eq!(echo(r#""a\"b""#).unwrap(), r#""req":"a\"b","#);
        assert_eq!(req_field(None).unwrap(), "");
        assert!(echo("[1]").is_none() && echo(&format!("\"{}\"", "x".repeat(70))).is_none());
    }

    #[test]
    fn unknown_fields_are_ignored_and_wrong_ones_are_not() {
        assert!(json::parse::<Ask>(br#"{"type":"ping","n":1,"new":{"a":[]}}"#).is_ok());
        assert!(json::parse::<Ask>(br#"{"type":"older","tab":"t1","limit":-1}"#).is_err());
        assert!(json::parse::<Ask>(br#"{"n":1}"#).is_err());
    }
}
