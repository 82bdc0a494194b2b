//! Why a provider's cache was of no use to a request: a comparison of two steps.
//!
//! A cause is a short code, some with a detail: `model`, `prompt`, `tools: NAME`, `compaction`, `thinking`,
//! `effort`, `ttl: SECONDS s`, `minimum: TOKENS`, `lookback`, `block: N (row SEQ)`, `unexplained`.

use super::context::asked;
use super::wire::{Plan, openai};
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
    /// what its first pass found
    pub plan: &'a Plan,
    /// whose API
    pub kind: ApiKind,
    /// the fewest tokens that the model caches
    pub minimum: u64,
}

/// Why less was read from the cache than the request before had left there; `None` if nothing was lost.
pub fn miss(store: &Store, tab: TabNo, pair: &Pair<'_>) -> Stored<Option<String>> {
    let Pair { before, now, plan, kind, minimum } = *pair;
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
    Ok(match plan.changed {
        Some(changed) => Some(format!("block: {} (row {})", changed.block, changed.row)),
        None if !told => None,
        None if now.at - before.at > KEPT => Some(format!("ttl: {} s", (now.at - before.at) / 1000)),
        None if plan.tail_before >= before.prefix_blocks + LOOKBACK => Some("lookback".to_owned()),
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
