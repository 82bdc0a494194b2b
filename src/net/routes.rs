//! The HTTP routes under `/api`, as protocol.md lists them.

mod log;

use super::conn::Request;
use super::export::{self, Format};
use super::head::percent_decode;
use super::respond::{Fault, Reply};
use super::{Shared, json, settings, status};
use crate::agent::{Refusal, TabView, tab_json};
use crate::chunk::{DeviceNo, MessageNo, Seq, TabNo, TurnNo, shorten};
use crate::store::{NewTab, Sent, Store, StoreError, TabChange};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Largest body of a request that only holds names and small values.
const SMALL_BODY: usize = 8 * 1024;
/// Largest body of a pairing: it needs no token, so it gets no more.
const PAIR_BODY: usize = 1024;
/// Longest title, model and effort, so that a tab fits a note.
const NAME_MAX: usize = 512;
/// Longest working directory.
const PATH_MAX: usize = 2048;

/// Answers a request below `/api`, or `/healthz`.
pub fn answer(shared: &Arc<Shared>, request: &mut Request<'_>) -> Result<Reply, Fault> {
    let parts = split_path(request.head.path)?;
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    match parts.as_slice() {
        ["healthz"] => {
            only(request.method, "GET, HEAD")?;
            Ok(Reply {
                status: 200,
                fields: vec![("Content-Type", "text/plain".into()), ("Cache-Control", "no-store".into())],
                body: super::respond::Body::Static(b"ok"),
            })
        }
        ["d", secret] => {
            only(request.method, "GET")?;
            let gone = || Fault::not_found("this link was used, or is older than a minute; make another");
            let (tab, format) = shared.links.take(secret).ok_or_else(gone)?;
            export(shared, tab, format)
        }
        ["api", "pair"] => {
            only(request.method, "POST")?;
            pair(shared, request)
        }
        ["api", rest @ ..] => {
            let device = request.device(shared)?;
            let query = Query::parse(request.head.query)?;
            match rest {
                ["tabs", tab, rest @ ..] => of_tab(shared, request, &query, tab_no(tab)?, rest),
                _ => of_server(shared, request, &query, device, rest),
            }
        }
        _ => Err(unknown()),
    }
}

fn of_server(
    shared: &Arc<Shared>,
    request: &mut Request<'_>,
    query: &Query,
    device: DeviceNo,
    parts: &[&str],
) -> Result<Reply, Fault> {
    let method = request.method;
    match (parts, method) {
        (["pair", "code"], "POST") => new_code(shared, request.host),
        (["devices"], "GET") => devices(&shared.store, device),
        (["devices", id], "DELETE") => remove_device(shared, id),
        (["status"], "GET") => Ok(Reply::json(200, status::json(shared))),
        (["tabs"], "GET") => tabs(shared, query),
        (["tabs"], "POST") => create_tab(shared, request),
        (["models"], "GET") => Ok(models(shared)),
        (["settings"], "GET") => Ok(Reply::json(200, settings::whole(shared)?)),
        (["settings"], "PUT") => change_settings(shared, request),
        (["approvals"], "GET") => Ok(Reply::json(200, r#"{"approvals":[]}"#.into())),
        (["approvals", _], "POST") => Err(Fault::not_found("there is no such approval")),
        (["pair", "code"] | ["approvals", _], _) => Err(wrong_method("POST")),
        (["devices"] | ["status"] | ["models"] | ["approvals"], _) => Err(wrong_method("GET, HEAD")),
        (["devices", _], _) => Err(wrong_method("DELETE")),
        (["tabs"], _) => Err(wrong_method("GET, HEAD, POST")),
        (["settings"], _) => Err(wrong_method("GET, HEAD, PUT")),
        _ => Err(unknown()),
    }
}

fn of_tab(
    shared: &Arc<Shared>,
    request: &mut Request<'_>,
    query: &Query,
    tab: TabNo,
    parts: &[&str],
) -> Result<Reply, Fault> {
    let agent = &shared.agent;
    match (parts, request.method) {
        ([], "PATCH") => change_tab(shared, request, tab),
        ([], "DELETE") => {
            agent.remove_tab(tab, query.flag("purge")?).map_err(|e| refused(shared, e))?;
            Ok(Reply::empty())
        }
        (["chunks"], "GET") => log::chunks(shared, query, tab),
        (["turns"], "GET") => log::turns(shared, query, tab),
        (["results", seq], "GET") => log::result(shared, query, tab, seq),
        (["messages"], "POST") => send(shared, request, tab),
        (["queue", "send"], "POST") => {
            agent.send_queue(tab).map_err(|e| refused(shared, e))?;
            Ok(Reply::json(202, "{}".into()))
        }
        (["queue", message], "DELETE") => {
            let message: MessageNo =
                message.parse().map_err(|_| Fault::not_found("there is no such message"))?;
            agent.cancel_queued(tab, message).map_err(|e| refused(shared, e))?;
            Ok(Reply::empty())
        }
        (["stop"], "POST") => {
            agent.stop(tab).map_err(|e| refused(shared, e))?;
            Ok(Reply::json(202, "{}".into()))
        }
        (["export"], "GET") => export(shared, tab, format_of(query)?),
        (["export"], "POST") => {
            known_tab(shared, tab)?;
            let secret = shared.links.make(tab, format_of(query)?);
            let secret = secret.map_err(|text| Fault::new(500, "internal", text))?;
            Ok(Reply::json(201, crate::chunk::json(&serde_json::json!({"url": format!("/d/{secret}")}))))
        }
        (["compact"], "POST") => {
            agent.compact(tab).map_err(|e| refused(shared, e))?;
            Ok(Reply::json(202, "{}".into()))
        }
        ([], _) => Err(wrong_method("PATCH, DELETE")),
        (["chunks"] | ["turns"] | ["results", _], _) => Err(wrong_method("GET, HEAD")),
        (["export"], _) => Err(wrong_method("GET, HEAD, POST")),
        (["messages"] | ["queue", "send"] | ["stop"] | ["compact"], _) => Err(wrong_method("POST")),
        (["queue", _], _) => Err(wrong_method("DELETE")),
        _ => Err(unknown()),
    }
}

fn format_of(query: &Query) -> Result<Format, Fault> {
    let word = query.get("format").unwrap_or("md");
    Format::from_word(word).ok_or_else(|| Fault::bad("format must be md or jsonl"))
}

/// The whole log as a download.
fn export(shared: &Shared, tab: TabNo, format: Format) -> Result<Reply, Fault> {
    let stored = shared.store.tab(tab).map_err(store_fault)?;
    let tab = stored.ok_or_else(|| Fault::not_found(format!("there is no tab {tab}")))?;
    let name = format!("attachment; filename=\"{}\"", export::file_name(&tab, format));
    Ok(Reply {
        status: 200,
        fields: vec![
            ("Content-Type", format.media_type().into()),
            ("Content-Disposition", name),
            ("Cache-Control", "no-store".into()),
        ],
        body: super::respond::Body::Stream(Box::new(export::open(shared.store.clone(), &tab, format))),
    })
}

// -- pairing and devices

fn pair(shared: &Shared, request: &mut Request<'_>) -> Result<Reply, Fault> {
    #[derive(Deserialize)]
    struct In {
        code: String,
        name: Option<String>,
    }
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Out {
        token: String,
        device_id: DeviceNo,
    }
    let body: In = request.upload.json(PAIR_BODY)?;
    let name: String = body.name.unwrap_or_default().chars().filter(|c| !c.is_control()).collect();
    let name = shorten(name.trim(), 64);
    let name = if name.is_empty() { "device" } else { name };
    let (token, device_id) =
        shared.access.pair(request.peer, &body.code, name, &shared.store).map_err(|e| named(shared, e))?;
    ::log::info!("a device was paired: {device_id}");
    Ok(Reply::json(201, crate::chunk::json(&Out { token, device_id })))
}

fn new_code(shared: &Shared, host: &str) -> Result<Reply, Fault> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Out {
        code: String,
        url: String,
        expires_at: i64,
    }
    let code = shared
        .access
        .new_code()
        .ok_or_else(|| Fault::new(500, "internal", "the system gives no random numbers; see the log"))?;
    let url = format!("http://{host}/#pair={}", code.text);
    Ok(Reply::json(201, crate::chunk::json(&Out { url, code: code.text, expires_at: code.expires_at })))
}

fn devices(store: &Store, current: DeviceNo) -> Result<Reply, Fault> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Out<'a> {
        id: DeviceNo,
        name: &'a str,
        created_at: i64,
        last_seen_at: i64,
        current: bool,
    }
    let devices = store.devices().map_err(store_fault)?;
    Ok(Reply::stream(json::list("devices", devices, move |device| {
        Ok(crate::chunk::json(&Out {
            id: device.no,
            name: &device.name,
            created_at: device.created_at,
            last_seen_at: device.last_seen_at,
            current: device.no == current,
        }))
    })))
}

fn remove_device(shared: &Shared, id: &str) -> Result<Reply, Fault> {
    let none = || Fault::not_found("there is no such device");
    let device: DeviceNo = id.parse().map_err(|_| none())?;
    if !shared.store.remove_device(device).map_err(store_fault)? {
        return Err(none());
    }
    shared.registry.revoke(device);
    ::log::info!("a device was removed: {device}");
    Ok(Reply::empty())
}

// -- tabs

fn tabs(shared: &Shared, query: &Query) -> Result<Reply, Fault> {
    let tabs = shared.agent.tabs(query.flag("archived")?).map_err(|e| refused(shared, e))?;
    let agent = shared.agent.clone();
    // One at a time while they are written out; one that was erased meanwhile is left out.
    let tabs = tabs.into_iter().map(move |tab| agent.tab(tab));
    let tabs = tabs.filter(|tab| !matches!(tab, Err(Refusal::NotFound(_))));
    Ok(Reply::stream(json::list("tabs", tabs, |tab| match tab {
        Ok(tab) => Ok(tab_json(&tab)),
        Err(e) => Err(std::io::Error::other(format!("the tabs cannot be read: {e}"))),
    })))
}

#[derive(Deserialize)]
struct TabIn {
    title: Option<String>,
    model: Option<String>,
    #[serde(default, deserialize_with = "json::nullable")]
    effort: Option<Option<String>>,
    workdir: Option<String>,
    position: Option<i64>,
    archived: Option<bool>,
}

impl TabIn {
    fn check(&self) -> Result<(), Fault> {
        let effort = self.effort.as_ref().and_then(Option::as_ref);
        let names = [("title", self.title.as_ref()), ("model", self.model.as_ref()), ("effort", effort)];
        for (name, value) in names {
            bounded(name, value, NAME_MAX)?;
        }
        bounded("workdir", self.workdir.as_ref(), PATH_MAX)
    }
}

fn bounded(name: &str, value: Option<&String>, most: usize) -> Result<(), Fault> {
    match value {
        Some(text) if text.len() > most => Err(Fault::bad(format!("{name} must be at most {most} bytes"))),
        Some(text) if text.contains('\0') => Err(Fault::bad(format!("{name} must not hold a NUL"))),
        _ => Ok(()),
    }
}

fn create_tab(shared: &Shared, request: &mut Request<'_>) -> Result<Reply, Fault> {
    let body: TabIn = request.upload.json_or_empty(SMALL_BODY)?;
    body.check()?;
    let new = NewTab {
        title: body.title.unwrap_or_default(),
        model: body.model.unwrap_or_default(),
        effort: body.effort.flatten(),
        workdir: body.workdir.unwrap_or_default(),
    };
    let view = shared.agent.create_tab(new).map_err(|e| refused(shared, e))?;
    Ok(tab_reply(201, &view))
}

fn change_tab(shared: &Shared, request: &mut Request<'_>, tab: TabNo) -> Result<Reply, Fault> {
    let body: TabIn = request.upload.json_or_empty(SMALL_BODY)?;
    body.check()?;
    let change = TabChange {
        title: body.title,
        model: body.model,
        effort: body.effort,
        workdir: body.workdir,
        position: body.position,
        archived: body.archived,
    };
    let view = shared.agent.change_tab(tab, change).map_err(|e| refused(shared, e))?;
    Ok(tab_reply(200, &view))
}

fn tab_reply(status: u16, view: &TabView) -> Reply {
    Reply::json(status, tab_json(view))
}

fn known_tab(shared: &Shared, tab: TabNo) -> Result<Seq, Fault> {
    let tab = shared.store.tab(tab).map_err(store_fault)?;
    tab.map(|tab| tab.total).ok_or_else(|| Fault::not_found("there is no such tab"))
}

// -- messages

fn send(shared: &Arc<Shared>, request: &mut Request<'_>, tab: TabNo) -> Result<Reply, Fault> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct In {
        client_id: String,
        text: String,
    }
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Out {
        status: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        turn_id: Option<TurnNo>,
        #[serde(skip_serializing_if = "Option::is_none")]
        message_id: Option<MessageNo>,
    }
    let body: In = request.upload.json(usize::MAX)?;
    let sent = shared.agent.send(tab, &body.client_id, &body.text).map_err(|e| refused(shared, e))?;
    let (status, turn_id, message_id) = match sent {
        Sent::Started(turn) => ("started", Some(turn), None),
        Sent::Waiting(turn) => ("waiting", Some(turn), None),
        Sent::Queued(message) => ("queued", None, Some(message)),
    };
    Ok(Reply::json(202, crate::chunk::json(&Out { status, turn_id, message_id })))
}

// -- models and settings

fn models(shared: &Shared) -> Reply {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct ModelOut<'a> {
        id: &'a str,
        provider: &'a str,
        name: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        context_tokens: Option<u64>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        efforts: Vec<&'static str>,
    }
    #[derive(Serialize)]
    struct ErrorOut<'a> {
        provider: &'a str,
        message: &'a str,
    }
    let models = shared.agent.models();
    let errors = models.errors.iter().map(|(provider, message)| ErrorOut { provider, message });
    let rest = format!(r#","errors":{}"#, crate::chunk::json(&errors.collect::<Vec<_>>()));
    let all = 0..models.len();
    Reply::stream(json::list_and("models", all, rest, move |at| {
        let Some(model) = models.get(at) else { return Err(std::io::Error::other("the models changed")) };
        Ok(crate::chunk::json(&ModelOut {
            id: &model.id,
            provider: &model.provider,
            name: &model.name,
            context_tokens: model.facts.context_tokens,
            efforts: model.facts.efforts.unwrap_or_default().words().collect(),
        }))
    }))
}

fn change_settings(shared: &Shared, request: &mut Request<'_>) -> Result<Reply, Fault> {
    // As large as its largest parts: a prompt and a full table of rules.
    let change: settings::Change = request.upload.json(usize::MAX)?;
    let changes = change.checked(&shared.config)?;
    let changes: Vec<(&str, Option<&str>)> =
        changes.iter().map(|(key, value)| (*key, value.as_deref())).collect();
    if !changes.is_empty() {
        shared.store.set_settings(&changes).map_err(store_fault)?;
        shared.registry.limits_changed();
    }
    Ok(Reply::json(200, settings::whole(shared)?))
}

// -- shared

/// 405 unless `method` is one of `allow`.
pub fn only(method: &str, allow: &'static str) -> Result<(), Fault> {
    if allow.split(", ").any(|allowed| allowed == method) { Ok(()) } else { Err(wrong_method(allow)) }
}

fn wrong_method(allow: &'static str) -> Fault {
    Fault { allow: Some(allow), ..Fault::new(405, "method", format!("this path knows only {allow}")) }
}

fn unknown() -> Fault {
    Fault::not_found("there is no such route")
}

fn tab_no(text: &str) -> Result<TabNo, Fault> {
    text.parse().map_err(|_| Fault::not_found("there is no such tab"))
}

fn split_path(path: &str) -> Result<Vec<String>, Fault> {
    // Split first, decode then: an encoded slash is not a separator.
    path.split('/').skip(1).map(|part| percent_decode(part, false)).collect()
}

/// A query's parameters. Unknown ones are ignored; one that stands twice is refused.
struct Query(Vec<(String, String)>);

impl Query {
    fn parse(text: &str) -> Result<Query, Fault> {
        let mut all: Vec<(String, String)> = Vec::new();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (name, value) = (percent_decode(name, true)?, percent_decode(value, true)?);
            if all.iter().any(|(known, _)| *known == name) {
                return Err(Fault::bad(format!("{} stands in the query twice", shorten(&name, 32))));
            }
            all.push((name, value));
        }
        Ok(Query(all))
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    fn number(&self, name: &str, least: u64, most: u64) -> Result<Option<u64>, Fault> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let number = digits(text).filter(|number| (least..=most).contains(number));
        match number {
            Some(number) => Ok(Some(number)),
            None if most >= i64::MAX as u64 => {
                Err(Fault::bad(format!("{name} must be a number of at least {least}")))
            }
            None => Err(Fault::bad(format!("{name} must be {least} to {most}"))),
        }
    }

    fn flag(&self, name: &str) -> Result<bool, Fault> {
        match self.get(name) {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(Fault::bad(format!("{name} must be true or false"))),
        }
    }
}

fn digits(text: &str) -> Option<u64> {
    (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok()).flatten()
}

/// What the store says, as an answer.
pub fn store_fault(e: StoreError) -> Fault {
    match e {
        StoreError::Full(name) => Fault::new(409, "full", format!("{name} is at its limit")),
        StoreError::NoSpace(message) => Fault::new(507, "store_full", message),
        StoreError::Broken(message) => Fault::new(500, "store", message),
    }
}

/// A `full` of the store with the limit's number, which only the budget knows.
fn named(shared: &Shared, fault: Fault) -> Fault {
    if fault.code != "full" {
        return fault;
    }
    let rows = shared.config.budget.rows();
    match rows.iter().find(|row| fault.message.starts_with(&format!("{} ", row.name))) {
        Some(row) => Fault::full(row.name, row.limit),
        None => fault,
    }
}

/// What the agent says, as an answer.
fn refused(shared: &Shared, e: Refusal) -> Fault {
    match e {
        Refusal::NotFound(message) => Fault::not_found(message),
        Refusal::Bad(message) => Fault::bad(message),
        Refusal::Conflict(message) => Fault::new(409, "conflict", message),
        Refusal::TooLarge(message) => Fault::new(413, "too_large", message),
        Refusal::Full(name) => named(shared, store_fault(StoreError::Full(name))),
        Refusal::Store(e) => named(shared, store_fault(e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_read_strictly() {
        let number = |query: &str| Query::parse(query).and_then(|query| query.number("limit", 1, 256));
        assert_eq!(number("limit=256&x=y").unwrap(), Some(256));
        assert_eq!(number("").unwrap(), None);
        for wrong in [
            "limit=0",
            "limit=257",
            "limit=",
            "limit",
            "limit=-1",
            "limit=+1",
            "limit=1.5",
            "limit=99999999999999999999",
        ] {
            assert_eq!(number(wrong).unwrap_err().message, "limit must be 1 to 256", "{wrong}");
        }
        assert!(number("limit=1&limit=2").is_err() && number("limit=%zz").is_err());
        assert!(Query::parse("purge=yes").unwrap().flag("purge").is_err());
    }

    #[test]
    fn an_encoded_slash_is_no_separator() {
        assert_eq!(split_path("/api/tabs/t1%2Fchunks").unwrap(), ["api", "tabs", "t1/chunks"]);
    }

    #[test]
    fn a_wrong_method_is_told_the_right_ones() {
        assert!(only("GET", "GET, HEAD").is_ok());
        let fault = only("PUT", "GET, HEAD").unwrap_err();
        assert_eq!((fault.status, fault.allow), (405, Some("GET, HEAD")));
    }
}
