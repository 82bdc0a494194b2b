//! Why a provider's cache was of no use to a request: a comparison of two steps.
//!
//! A cause is a short code, some with a detail: `model`, `prompt`, `tools: NAME`, `compaction`, `thinking`,
//! `effort`, `ttl: SECONDS s`, `minimum: TOKENS`, `lookback`, `block: N (row SEQ)`, `unexplained`.

use super::context::asked;
use super::wire::{Changed, openai};
use crate::chunk::*;
use crate::config::ApiKind;
use crate::store::{Prefix, Step, Store, Stored};

/// What was written to a provider's cache is kept so long, from the start of the request that wrote or read
/// it.
const KEPT: Millis = 5 * 60 * 1000;
/// From a cache mark a provider looks back over so many blocks.
const LOOKBACK: u32 = 20;

/// A request, the one before it in its tab, and whose API they were made to.
pub struct Pair<'a> {
    /// the request before
    pub before: &'a Step,
    /// this one, with its tokens
    pub now: &'a Step,
    /// where its blocks stopped being those of the one before
    pub changed: Option<Changed>,
    /// blocks up to its second cache mark
    pub tail_before: u32,
    /// whose API
    pub kind: ApiKind,
}

/// The fewest tokens that a model caches, by its family; 0: not known.
fn minimum(kind: ApiKind, model: &str) -> u64 {
    let name = model.to_ascii_lowercase().replace('.', "-");
    let is = |part: &str| name.contains(part);
    match kind {
        ApiKind::Anthropic if is("opus-4-6") || is("opus-4-5") || is("haiku-4-5") => 4096,
        ApiKind::Anthropic if is("opus-4-7") => 2048,
        ApiKind::Anthropic if is("opus-5") || is("sonnet-5-5") || is("fable-5") => 512,
        ApiKind::Anthropic if is("claude") => 1024,
        _ => 0,
    }
}

/// Why less was read from the cache than the request before had left there; `None` if nothing was lost.
pub fn miss(store: &Store, tab: TabNo, pair: &Pair<'_>) -> Stored<Option<String>> {
    let Pair { before, now, kind, .. } = *pair;
    let minimum = minimum(kind, &now.model);
    let left = match kind {
        ApiKind::Anthropic => before.usage.cache_read + before.usage.cache_write,
        _ => asked(&before.usage),
    };
    let (read, total) = (now.usage.cache_read, asked(&now.usage));
    let small = asked(&before.usage) < minimum;
    if total == 0 || (!small && left > 0 && read + read / 10 >= left.min(total)) {
        return Ok(None);
    }
    if let Some(cause) = changed(store, tab, before, now)? {
        return Ok(Some(cause));
    }
    if small {
        return Ok(Some(format!("minimum: {minimum}")));
    }
    // Many servers of chat completions tell nothing of a cache, or have none.
    let told = kind == ApiKind::Anthropic || before.usage.cache_read > 0 || read > 0;
    Ok(match pair.changed {
        Some(changed) => Some(format!("block: {} (row {})", changed.block, changed.row)),
        None if !told => None,
        None if now.at - before.at > KEPT => Some(format!("ttl: {} s", (now.at - before.at) / 1000)),
        None if pair.tail_before >= before.prefix_blocks + LOOKBACK => Some("lookback".to_owned()),
        None => Some("unexplained".to_owned()),
    })
}

/// What was changed on purpose between two requests.
fn changed(store: &Store, tab: TabNo, before: &Step, now: &Step) -> Stored<Option<String>> {
    if before.model != now.model {
        return Ok(Some("model".to_owned()));
    }
    if before.prefix != now.prefix {
        let (old, new) = (store.prefix_of(before.prefix)?, store.prefix_of(now.prefix)?);
        return Ok(old.zip(new).map(|(old, new)| prefix_change(&old, &new)));
    }
    if before.since != now.since {
        let row = store.row(tab, now.since)?;
        let data = row.and_then(|row| serde_json::from_str::<SystemData>(&row.data).ok());
        return Ok(data.map(|data| match data.kind.as_str() {
            "compacted" => "compaction".to_owned(),
            "thinking-dropped" => "thinking".to_owned(),
            kind => kind.trim_end_matches("-changed").to_owned(),
        }));
    }
    let word = |shape: &str, at: usize| shape.split(' ').nth(at).unwrap_or_default().to_owned();
    if before.shape != now.shape && !before.shape.is_empty() {
        let effort = word(&before.shape, 0) != word(&now.shape, 0);
        return Ok(Some(if effort { "effort" } else { "thinking" }.to_owned()));
    }
    Ok(None)
}

/// Providers read the tools before the prompt.
fn prefix_change(old: &Prefix, new: &Prefix) -> String {
    if old.tools == new.tools {
        return "prompt".to_owned();
    }
    let (old, new) = (openai::tools(old), openai::tools(new));
    let text = |tool: &openai::Tool<'_>| {
        (tool.name.get().to_owned(), tool.description.get().to_owned(), tool.parameters.get().to_owned())
    };
    let differs = |at: &usize| old.get(*at).map(text) != new.get(*at).map(text);
    let first = (0..old.len().max(new.len())).find(differs);
    let name = first.and_then(|at| new.get(at).or(old.get(at))).map(|tool| tool.name.get());
    format!("tools: {}", name.unwrap_or_default().trim_matches('"'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budget;
    use crate::store::NewTab;
    use crate::testing::Dir;

    /// A request of 10,000 tokens that read `read` of them and wrote the rest.
    fn step(read: u64) -> Step {
        let usage = Usage { input: 10, cache_read: read, cache_write: 9_990 - read, output: 5 };
        let shape = "effort=high thinking=adaptive".into();
        Step {
            at: 1_000_000,
            prefix: 1,
            prefix_blocks: 8,
            usage,
            shape,
            ..Step::new(1, 0, "a/claude-opus-4-8".into())
        }
    }

    #[test]
    fn each_cause_of_a_lost_hit_is_told_and_none_when_nothing_was_lost() {
        let dir = Dir::new();
        let store = Store::open(dir.path(), &Budget::ROUTER).unwrap();
        let tab = store.create_tab(&NewTab::default()).unwrap().no;
        let prefix = |system: &str, text: &str| {
            let tool =
                |name, text| format!(r#"{{"name":"{name}","description":"{text}","parameters":{{}}}}"#);
            Prefix { system: system.into(), tools: format!("[{},{}]", tool("one", ""), tool("two", text)) }
        };
        let first = store.freeze(tab, &prefix("a", "x"), &[]).unwrap();
        let prompt = store.freeze(tab, &prefix("b", "x"), &[]).unwrap();
        let tools = store.freeze(tab, &prefix("b", "y"), &[]).unwrap();
        let data = SystemData { kind: "compacted".into(), ..Default::default() };
        let row = Row {
            seq: 1,
            turn: TurnNo(1),
            step: 1,
            role: Role::System,
            kind: Kind::System,
            data: json(&data),
            opaque: None,
            created_at: 0,
        };
        store.append(tab, &[row]).unwrap();
        let before = Step { prefix: first, ..step(0) };
        let cold = before.clone();
        let of = |before: &Step, now: &Step, changed: Option<Changed>, tail_before: u32| {
            let kind = ApiKind::Anthropic;
            miss(&store, tab, &Pair { before, now, changed, tail_before, kind }).unwrap()
        };
        let told = |now: Step| of(&before, &now, None, 0);
        assert_eq!(told(Step { prefix: first, ..step(9_990) }), None);
        assert_eq!(told(cold.clone()).as_deref(), Some("unexplained"));
        assert_eq!(told(Step { model: "a/claude-x".into(), ..cold.clone() }).as_deref(), Some("model"));
        assert_eq!(told(Step { prefix: prompt, ..cold.clone() }).as_deref(), Some("prompt"));
        assert_eq!(told(Step { prefix: tools, ..cold.clone() }).as_deref(), Some("tools: two"));
        assert_eq!(told(Step { since: 1, ..cold.clone() }).as_deref(), Some("compaction"));
        let shape = |shape: &str| Step { shape: shape.into(), ..cold.clone() };
        assert_eq!(told(shape("effort=low thinking=adaptive")).as_deref(), Some("effort"));
        assert_eq!(told(shape("effort=high thinking=unasked")).as_deref(), Some("thinking"));
        let late = Step { at: before.at + 734_000, ..cold.clone() };
        assert_eq!(told(late).as_deref(), Some("ttl: 734 s"));
        let small = Step { usage: Usage { input: 900, ..Default::default() }, ..before.clone() };
        assert_eq!(of(&small, &small, None, 0).as_deref(), Some("minimum: 1024"));
        let changed = Some(Changed { block: 14, row: 32 });
        assert_eq!(of(&before, &cold, changed, 0).as_deref(), Some("block: 14 (row 32)"));
        assert_eq!(of(&before, &cold, None, 28).as_deref(), Some("lookback"));
        assert_eq!(of(&before, &cold, None, 27).as_deref(), Some("unexplained"));
    }

    #[test]
    fn a_server_that_never_told_of_a_cache_is_not_blamed() {
        let dir = Dir::new();
        let store = Store::open(dir.path(), &Budget::ROUTER).unwrap();
        let tab = store.create_tab(&NewTab::default()).unwrap().no;
        let usage = |cache_read| Usage { input: 9_000 - cache_read, cache_read, ..Usage::default() };
        let of = |before: u64, now: u64| {
            let (before, now) =
                (Step { usage: usage(before), ..step(0) }, Step { usage: usage(now), ..step(0) });
            let (changed, tail_before, kind) = (None, 0, ApiKind::OpenAi);
            let pair = Pair { before: &before, now: &now, changed, tail_before, kind };
            miss(&store, tab, &pair).unwrap()
        };
        assert_eq!(of(0, 0), None);
        assert_eq!(of(8_000, 0).as_deref(), Some("unexplained"));
        assert_eq!(of(0, 8_900), None);
    }
}
