//! The small frames that the agent's notes carry, as protocol 1 has them.

use crate::agent::TabView;
use crate::chunk::*;
use crate::store::{Queued, Sealed};
use serde::Serialize;
use serde_json::json as value;

/// Tokens as clients see them.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UsageView {
    #[serde(flatten)]
    usage: Usage,
    #[serde(skip_serializing_if = "Option::is_none")]
    hit_rate: Option<f64>,
}

impl From<&Usage> for UsageView {
    fn from(usage: &Usage) -> UsageView {
        UsageView { usage: *usage, hit_rate: usage.hit_rate() }
    }
}

/// A tab as clients see it.
pub fn tab(view: &TabView) -> String {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Out<'a> {
        id: TabNo,
        title: &'a str,
        model: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        effort: Option<&'a str>,
        workdir: &'a str,
        position: i64,
        created_at: Millis,
        updated_at: Millis,
        archived: bool,
        status: TabStatus,
        total: Seq,
        usage: UsageView,
    }
    let tab = &view.tab;
    json(&Out {
        id: tab.no,
        title: &tab.title,
        model: &tab.model,
        effort: tab.effort.as_deref(),
        workdir: &tab.workdir,
        position: tab.position,
        created_at: tab.created_at,
        updated_at: tab.updated_at,
        archived: tab.archived,
        status: view.status,
        total: tab.total,
        usage: (&tab.usage).into(),
    })
}

/// `tab`: it was made or changed.
pub fn tab_changed(view: &TabView) -> String {
    format!(r#"{{"type":"tab","tab":{}}}"#, tab(view))
}

/// `tab-removed`.
pub fn tab_removed(tab: TabNo) -> String {
    value!({"type": "tab-removed", "id": tab}).to_string()
}

/// `turn-start`.
pub fn turn_start(tab: TabNo, turn: TurnNo) -> String {
    value!({"type": "turn-start", "tab": tab, "turnId": turn}).to_string()
}

/// `turn-sealed`: its rows are durable.
pub fn turn_sealed(tab: TabNo, turn: TurnNo, sealed: &Sealed, stop: StopReason) -> String {
    value!({
        "type": "turn-sealed", "tab": tab, "turnId": turn,
        "firstSeq": sealed.first_seq, "lastSeq": sealed.last_seq,
        "stopReason": stop, "usage": UsageView::from(&sealed.usage),
    })
    .to_string()
}

/// `status`.
pub fn status(tab: TabNo, status: TabStatus) -> String {
    value!({"type": "status", "tab": tab, "status": status}).to_string()
}

/// `status` with what a client may show beside it.
pub fn status_detail(tab: TabNo, status: TabStatus, attempt: u32, delay_ms: u64, message: &str) -> String {
    let detail = value!({"attempt": attempt, "delayMs": delay_ms, "message": shorten(message, 2048)});
    value!({"type": "status", "tab": tab, "status": status, "detail": detail}).to_string()
}

/// `status` with what is being done.
pub fn status_working(tab: TabNo, status: TabStatus, message: &str) -> String {
    value!({"type": "status", "tab": tab, "status": status, "detail": {"message": message}}).to_string()
}

/// `message-queued`.
pub fn queued(tab: TabNo, message: &Queued) -> String {
    value!({
        "type": "message-queued", "tab": tab, "messageId": message.no, "clientId": message.client_id,
        "text": message.head, "bytes": message.bytes,
    })
    .to_string()
}

/// `message-consumed`: it became the row `seq`.
pub fn consumed(tab: TabNo, message: &Queued, seq: Seq) -> String {
    value!({
        "type": "message-consumed", "tab": tab, "messageId": message.no, "clientId": message.client_id,
        "seq": seq,
    })
    .to_string()
}

/// `message-cancelled`: it was taken back.
pub fn cancelled(tab: TabNo, message: &Queued) -> String {
    value!({
        "type": "message-cancelled", "tab": tab, "messageId": message.no, "clientId": message.client_id,
    })
    .to_string()
}

/// `config-reload`: what came of reading the config again.
pub fn config_reload(text: &str) -> String {
    value!({"type": "config-reload", "text": shorten(text, 4096)}).to_string()
}
