//! Frames that carry rows.

use super::{Session, store_gone};
use crate::chunk::{Seq, TabNo, json};
use crate::net::ws::{FrameOut, Gone};
use crate::store::{Queued, Store};
use serde::Serialize;

/// Writes rows after `after` up to `upto` into a frame, a batch at a time, and gives their sizes, ascending.
pub fn push_rows(
    frame: &mut FrameOut<'_>,
    store: &Store,
    tab: TabNo,
    after: Seq,
    upto: Seq,
    batch: usize,
) -> Result<Vec<u32>, Gone> {
    let mut sizes = Vec::new();
    let mut sent = after;
    let mut out = String::new();
    while sent < upto {
        let rows = store.rows(tab, sent, upto, batch).map_err(store_gone)?;
        if rows.is_empty() {
            log::debug!("{tab} was erased while its rows were sent");
            return Err(Gone::Close(1013, "the tab is gone"));
        }
        for row in rows {
            assert_eq!(row.seq, sent + 1, "the log has no gaps");
            out.clear();
            if !sizes.is_empty() {
                out.push(',');
            }
            row.write_json(&mut out);
            frame.push(&out)?;
            sizes.push(row.data.len() as u32);
            sent = row.seq;
        }
    }
    Ok(sizes)
}

/// A queued message as clients see it.
pub fn queued_json(queued: &Queued) -> String {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Out<'a> {
        message_id: crate::chunk::MessageNo,
        client_id: &'a str,
        text: &'a str,
        bytes: u64,
    }
    json(&Out {
        message_id: queued.no,
        client_id: &queued.client_id,
        text: &queued.head,
        bytes: queued.bytes,
    })
}

impl Session<'_> {
    /// A `chunks` frame; the window takes its rows.
    pub(super) fn send_chunks(&mut self, req: &str, page: PageOut) -> Result<(), Gone> {
        let Some(view) = &mut self.view else { return Ok(()) };
        let edge = match page.edge {
            super::End::Older => "older",
            super::End::Newer => "newer",
        };
        let tab = view.tab;
        let mut frame = self.wire.frame();
        frame.push(&format!(r#"{{"type":"chunks",{req}"tab":"{tab}","edge":"{edge}","chunks":["#))?;
        let batch = self.shared.config.budget.row_buffer_bytes;
        let sizes = push_rows(&mut frame, &self.shared.store, tab, page.after, page.upto, batch)?;
        frame.push(&format!(r#"],"total":{}}}"#, page.total))?;
        frame.end()?;
        match page.edge {
            super::End::Older => {
                for (seq, bytes) in (page.after + 1..=page.upto).rev().zip(sizes.into_iter().rev()) {
                    view.window.push_older(seq, bytes);
                }
            }
            super::End::Newer => {
                for (seq, bytes) in (page.after + 1..=page.upto).zip(sizes) {
                    view.window.push_newer(seq, bytes);
                }
            }
        }
        view.told = page.total;
        Ok(())
    }
}

/// A page to be sent: rows after `after` up to `upto`.
#[derive(Clone, Copy, Debug)]
pub struct PageOut {
    /// which end of the window it extends
    pub edge: super::End,
    /// exclusive
    pub after: Seq,
    /// inclusive
    pub upto: Seq,
    /// the log's newest seq
    pub total: Seq,
}
