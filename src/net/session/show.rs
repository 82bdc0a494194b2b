//! Windows: a tab shown anew, a window kept over a reconnect, and the filling that follows.

use super::asks::{Resume, sum};
use super::frames::{PageOut, push_rows, queued_json};
use super::{Cursor, End, Fill, Session, View, store_gone};
use crate::agent::live::{Live, Open};
use crate::chunk::{Seq, TabNo, TurnNo};
use crate::net::window::{Limits, Window};
use crate::net::ws::Gone;
use crate::store::{Edge, RowSize};

/// Where a tab is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// at the bottom, following
    Tail,
    /// around a seq, reading
    Around(Seq),
}

/// A tab as it was at the moment of its snapshot.
struct Snapshot {
    newest: Seq,
    turn: Option<TurnNo>,
    open: Option<Open>,
}

impl Session<'_> {
    /// Shows a tab with one page of its rows; what the client held of it is replaced.
    pub(super) fn replace(&mut self, req: &str, tab: TabNo, place: Place) -> Result<(), Gone> {
        let Some(snapshot) = self.snapshot(tab) else {
            self.show_none();
            return Ok(());
        };
        let (rows, bytes) = self.page_limit(Some(u64::MAX));
        let page = self.first_page(tab, place, snapshot.newest, rows, bytes)?;
        let after = page.first().map_or(snapshot.newest, |row| row.seq - 1);
        let upto = after + page.len() as Seq;
        let following = place == Place::Tail;
        let mut window = Window::new(self.limits, after, following);
        if upto < snapshot.newest {
            window.set_detached(true);
        }
        let fill = match place {
            Place::Tail => Fill::Older,
            Place::Around(_) => Fill::Both(End::Older),
        };
        let view = View { tab, window, open: None, fill: Some(fill), told: snapshot.newest, tail_at: None };
        self.send_window(req, view, "replace", upto, snapshot)
    }

    /// Takes the snapshot and, in the same moment, makes the tab the visible one.
    fn snapshot(&self, tab: TabNo) -> Option<Snapshot> {
        self.shared.agent.look(tab, |live: &Live| {
            self.mailbox.show(Some(tab));
            Snapshot { newest: live.newest, turn: live.turn, open: live.open.clone() }
        })
    }

    fn first_page(
        &self,
        tab: TabNo,
        place: Place,
        newest: Seq,
        rows: usize,
        bytes: usize,
    ) -> Result<Vec<RowSize>, Gone> {
        let store = &self.shared.store;
        let page = |edge, rows, bytes| store.page(tab, edge, rows, bytes).map_err(store_gone);
        match place {
            Place::Tail => page(Edge::Before(newest + 1), rows, bytes),
            Place::Around(seq) => {
                let seq = seq.min(newest).max(1);
                let mut all = page(Edge::Before(seq + 1), rows.div_ceil(2), bytes / 2)?;
                if rows > all.len() {
                    let above = page(Edge::After(seq), rows - all.len(), bytes.saturating_sub(sum(&all)))?;
                    all.extend(above.into_iter().filter(|row| row.seq <= newest));
                }
                Ok(all)
            }
        }
    }

    /// A `window` frame with the rows after the view's newest up to `upto`, and all that goes with them.
    fn send_window(
        &mut self,
        req: &str,
        mut view: View,
        base: &str,
        upto: Seq,
        snapshot: Snapshot,
    ) -> Result<(), Gone> {
        let store = &self.shared.store;
        let budget = self.shared.config.budget;
        let (tab, total) = (view.tab, snapshot.newest);
        let following = view.window.following();
        let queue = store.queue(tab).map_err(store_gone)?;
        let mut frame = self.wire.frame();
        frame.push(&format!(r#"{{"type":"window",{req}"tab":"{tab}","base":"{base}","chunks":["#))?;
        let after = view.window.newest();
        let sizes = push_rows(&mut frame, store, tab, after, upto, budget.row_buffer_bytes)?;
        for (seq, bytes) in (after + 1..).zip(sizes) {
            view.window.push_newer(seq, bytes);
        }
        frame.push(&format!(r#"],"total":{total},"following":{following}"#))?;
        let shown = !view.window.detached() && (following || !view.window.full(budget.chunk_bytes));
        let open = snapshot.open.filter(|open| shown && open.seq == view.window.newest() + 1);
        view.open = open.as_ref().filter(|_| snapshot.turn.is_some()).map(|open| Cursor {
            seq: open.seq,
            version: open.version,
            sent: open.text().len(),
        });
        if let Some(turn) = snapshot.turn {
            frame.push(&format!(r#","live":{{"turnId":"{turn}""#))?;
            if let Some(open) = open {
                let row = open.row();
                drop(open);
                let mut out = String::from(r#","open":"#);
                row.write_json(&mut out);
                frame.push(&out)?;
            }
            frame.push("}")?;
        }
        frame.push(r#","queue":["#)?;
        for (at, queued) in queue.iter().enumerate() {
            frame.push(if at > 0 { "," } else { "" })?;
            frame.push(&queued_json(queued))?;
        }
        frame.push("]}")?;
        frame.end()?;
        self.view = Some(view);
        self.windows += 1;
        // Whatever moved between the snapshot and now is looked for.
        self.dirty = true;
        self.leave_tail_if_full()
    }

    /// The window of a client that comes back, if it can be kept: the same server, rows that are there and
    /// within the limits, and, for one that follows, at most one page missing, which fits.
    pub(super) fn resumable(&self, tab: TabNo, resume: &Resume) -> Result<Option<Window>, Gone> {
        let newest = self.shared.agent.look(tab, |live| live.newest);
        let (Some(newest), true) = (newest, resume.epoch == self.shared.epoch) else { return Ok(None) };
        let (oldest, held) = (resume.oldest_seq, resume.newest_seq);
        if oldest < 1 || held < oldest || held > newest || held - oldest >= self.limits.rows as Seq {
            return Ok(None);
        }
        let count = (held - oldest + 1) as usize;
        let sizes = self.shared.store.page(tab, Edge::After(oldest - 1), count, self.limits.bytes);
        let sizes = sizes.map_err(store_gone)?;
        if sizes.len() != count || sum(&sizes) > self.limits.bytes {
            return Ok(None);
        }
        let mut window = Window::new(self.limits, oldest - 1, resume.following);
        for row in &sizes {
            window.push_newer(row.seq, row.bytes);
        }
        let missing = self.missing(tab, &window, newest)?;
        let whole = held + missing.len() as Seq == newest;
        let fits =
            missing.len() + count <= self.limits.rows && sum(&missing) + sum(&sizes) <= self.limits.bytes;
        Ok((!resume.following || (whole && fits)).then_some(window))
    }

    /// One page above a window, up to `newest`.
    fn missing(&self, tab: TabNo, window: &Window, newest: Seq) -> Result<Vec<RowSize>, Gone> {
        if window.newest() >= newest {
            return Ok(Vec::new());
        }
        let (rows, bytes) = self.page_limit(Some(u64::MAX));
        let page =
            self.shared.store.page(tab, Edge::After(window.newest()), rows, bytes).map_err(store_gone)?;
        Ok(page.into_iter().filter(|row| row.seq <= newest).collect())
    }

    /// Goes on with the window that a client kept.
    pub(super) fn keep(&mut self, tab: TabNo, mut window: Window) -> Result<(), Gone> {
        let Some(snapshot) = self.snapshot(tab) else { return Ok(()) };
        let held = window.newest();
        let mut page = self.missing(tab, &window, snapshot.newest)?;
        let row_max = self.shared.config.budget.chunk_bytes;
        let (mut rows, mut bytes) = (window.rows(), window.bytes());
        page.retain(|row| {
            let fits =
                rows < self.limits.rows && bytes + row_max.max(row.bytes as usize) <= self.limits.bytes;
            // After the first that does not fit, none does: rows stay contiguous.
            rows = if fits { rows + 1 } else { self.limits.rows };
            bytes += row.bytes as usize;
            fits
        });
        let upto = held + page.len() as Seq;
        if upto < snapshot.newest && !window.following() {
            window.set_detached(true);
        }
        let view = View { tab, window, open: None, fill: None, told: snapshot.newest, tail_at: None };
        self.send_window("", view, "keep", upto, snapshot)
    }

    /// Goes on filling the window; whether there may be more to fill.
    pub(super) fn fill(&mut self) -> Result<bool, Gone> {
        let Some(View { fill: Some(fill), tab, window, .. }) = &self.view else { return Ok(false) };
        let (tab, fill) = (*tab, *fill);
        let room = window.room_to_fill();
        let (oldest, newest) = (window.oldest(), window.newest());
        let total = self.newest();
        let older = self.fill_page(tab, Edge::Before(oldest), room, total)?;
        let wants_newer = matches!(fill, Fill::Both(_)) && window.detached();
        let newer =
            if wants_newer { self.fill_page(tab, Edge::After(newest), room, total)? } else { Vec::new() };
        let end = match (fill, older.is_empty(), newer.is_empty()) {
            (_, true, true) => None,
            (Fill::Both(End::Newer), _, false) | (_, true, false) => Some(End::Newer),
            _ => Some(End::Older),
        };
        let Some(view) = &mut self.view else { return Ok(false) };
        view.fill = match (fill, end) {
            (_, None) => None,
            (Fill::Older, _) => Some(Fill::Older),
            (_, Some(End::Older)) => Some(Fill::Both(End::Newer)),
            (_, Some(End::Newer)) => Some(Fill::Both(End::Older)),
        };
        match end {
            None => return Ok(false),
            Some(End::Older) => {
                let after = oldest - 1 - older.len() as Seq;
                self.send_chunks("", PageOut { edge: End::Older, after, upto: oldest - 1, total })?;
            }
            Some(End::Newer) => {
                let upto = newest + newer.len() as Seq;
                if upto >= total {
                    view.window.set_detached(false);
                }
                self.send_chunks("", PageOut { edge: End::Newer, after: newest, upto, total })?;
                self.dirty = true;
            }
        }
        Ok(true)
    }

    /// The sizes of a page within the room that filling has; empty if the first row does not fit.
    fn fill_page(&self, tab: TabNo, edge: Edge, room: Limits, total: Seq) -> Result<Vec<RowSize>, Gone> {
        let (rows, bytes) = self.page_limit(Some(u64::MAX));
        let (rows, bytes) = (rows.min(room.rows), bytes.min(room.bytes));
        if rows == 0 || bytes == 0 || edge == Edge::Before(1) {
            return Ok(Vec::new());
        }
        let mut page = self.shared.store.page(tab, edge, rows, bytes).map_err(store_gone)?;
        page.retain(|row| row.seq <= total);
        // A page holds one row at least, however large.
        Ok(if sum(&page) > room.bytes { Vec::new() } else { page })
    }
}
