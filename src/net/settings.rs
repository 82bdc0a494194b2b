//! Settings that the owner stores: checked here, kept by the store under the names that the protocol gives
//! them.
//!
//! Each value is stored as JSON text, so that whoever reads one needs only its name and type.

use super::respond::Fault;
use super::routes::store_fault;
use super::window::Limits;
use super::{Shared, json};
use crate::budget::{Budget, WINDOW_BYTES_MIN, WINDOW_ROWS_MIN};
use crate::chunk::json as text;
use crate::config::Config;
use crate::store::Store;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Longest pattern of a rule.
const MATCH_MAX: usize = 1024;

/// One rule.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
pub struct Rule {
    tool: String,
    #[serde(rename = "match")]
    pattern: String,
    #[serde(rename = "do")]
    action: Action,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Action {
    Allow,
    Ask,
    Deny,
}

/// What a client may change; `Some(None)` goes back to the config.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Change {
    #[serde(deserialize_with = "json::nullable")]
    chunk_limit: Option<Option<u64>>,
    #[serde(deserialize_with = "json::nullable")]
    byte_limit: Option<Option<u64>>,
    #[serde(deserialize_with = "json::nullable")]
    system_prompt: Option<Option<String>>,
    #[serde(deserialize_with = "json::nullable")]
    default_model: Option<Option<String>>,
    #[serde(deserialize_with = "json::nullable")]
    send_time: Option<Option<bool>>,
    #[serde(deserialize_with = "json::nullable")]
    permissions: Option<Option<Vec<Rule>>>,
}

impl Change {
    /// Checks it; gives keys and values for the store.
    pub fn checked(self, config: &Config) -> Result<Vec<(&'static str, Option<String>)>, Fault> {
        let budget = config.budget;
        let mut changes = Vec::new();
        if let Some(limit) = self.chunk_limit {
            range("chunkLimit", limit, WINDOW_ROWS_MIN, budget.window_rows_max)?;
            changes.push(("chunkLimit", limit.map(|limit| text(&limit))));
        }
        if let Some(limit) = self.byte_limit {
            range("byteLimit", limit, WINDOW_BYTES_MIN, budget.window_bytes_max)?;
            changes.push(("byteLimit", limit.map(|limit| text(&limit))));
        }
        if let Some(prompt) = self.system_prompt {
            check_prompt(prompt.as_deref(), budget)?;
            changes.push(("systemPrompt", prompt.map(|prompt| text(&prompt))));
        }
        if let Some(model) = self.default_model {
            check_model(model.as_deref(), config)?;
            changes.push(("defaultModel", model.map(|model| text(&model))));
        }
        if let Some(send) = self.send_time {
            changes.push(("sendTime", send.map(|send| text(&send))));
        }
        if let Some(rules) = self.permissions {
            check_rules(rules.as_deref().unwrap_or_default(), budget)?;
            changes.push(("permissions", rules.map(|rules| text(&rules))));
        }
        Ok(changes)
    }
}

fn range(name: &str, value: Option<u64>, least: usize, most: usize) -> Result<(), Fault> {
    match value {
        Some(value) if !(least as u64..=most as u64).contains(&value) => {
            Err(Fault::bad(format!("{name} must be {least} to {most}")))
        }
        _ => Ok(()),
    }
}

fn check_prompt(prompt: Option<&str>, budget: &Budget) -> Result<(), Fault> {
    match prompt {
        Some(text) if text.len() > budget.system_prompt_bytes => {
            Err(Fault::bad(format!("systemPrompt must be at most {} bytes", budget.system_prompt_bytes)))
        }
        _ => Ok(()),
    }
}

fn check_model(model: Option<&str>, config: &Config) -> Result<(), Fault> {
    let Some(model) = model.filter(|model| !model.is_empty()) else { return Ok(()) };
    let Some((provider, name)) = model.split_once('/').filter(|_| model.len() <= 256) else {
        return Err(Fault::bad("defaultModel must be provider/model, at most 256 bytes"));
    };
    if name.is_empty() || !config.providers.iter().any(|known| known.name == provider) {
        return Err(Fault::bad(format!(
            "defaultModel names the provider {provider}, which is not in the config"
        )));
    }
    Ok(())
}

fn check_rules(rules: &[Rule], budget: &Budget) -> Result<(), Fault> {
    if rules.len() > budget.rules {
        return Err(Fault::full("rules", budget.rules));
    }
    let fits = |rule: &Rule| (1..=64).contains(&rule.tool.len()) && rule.pattern.len() <= MATCH_MAX;
    match rules.iter().position(|rule| !fits(rule)) {
        Some(at) => Err(Fault::bad(format!(
            "permissions[{at}]: tool must be 1 to 64 bytes, match at most {MATCH_MAX}"
        ))),
        None => Ok(()),
    }
}

/// All settings as they hold now.
pub fn whole(shared: &Shared) -> Result<String, Fault> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Out {
        chunk_limit: usize,
        byte_limit: usize,
        system_prompt: String,
        default_model: String,
        send_time: bool,
        permissions: Vec<Rule>,
    }
    let config = &shared.config;
    let store = &shared.store;
    let limits = limits(store)?.of_client(config.budget, None, None);
    Ok(text(&Out {
        chunk_limit: limits.rows,
        byte_limit: limits.bytes,
        system_prompt: stored(store, "systemPrompt")?
            .or_else(|| config.system_prompt.clone())
            .unwrap_or_default(),
        default_model: stored(store, "defaultModel")?.unwrap_or_else(|| config.default_model.clone()),
        send_time: stored(store, "sendTime")?.unwrap_or(config.send_time),
        permissions: stored(store, "permissions")?.unwrap_or_default(),
    }))
}

/// A stored setting. One that cannot be read, from a newer version perhaps, counts as absent.
fn stored<T: DeserializeOwned>(store: &Store, key: &str) -> Result<Option<T>, Fault> {
    Ok(store.setting(key).map_err(store_fault)?.and_then(|json| serde_json::from_str(&json).ok()))
}

/// The stored limits of windows, where the owner set any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredLimits {
    rows: Option<u64>,
    bytes: Option<u64>,
}

/// Reads the stored limits.
pub fn limits(store: &Store) -> Result<StoredLimits, Fault> {
    Ok(StoredLimits { rows: stored(store, "chunkLimit")?, bytes: stored(store, "byteLimit")? })
}

impl StoredLimits {
    /// The limits of one client: the smaller of its own, the owner's and the server's, never below the
    /// least. Who does not say gets the owner's, or the default.
    pub fn of_client(self, budget: &Budget, rows: Option<u64>, bytes: Option<u64>) -> Limits {
        let smaller = |own: Option<u64>, stored: Option<u64>, default: usize, least: usize, most: usize| {
            let own = own.or(stored).unwrap_or(default as u64);
            // A stored value may be older than a smaller budget.
            own.min(stored.unwrap_or(u64::MAX)).clamp(least as u64, most.max(least) as u64) as usize
        };
        Limits {
            rows: smaller(rows, self.rows, budget.window_rows, WINDOW_ROWS_MIN, budget.window_rows_max),
            bytes: smaller(bytes, self.bytes, budget.window_bytes, WINDOW_BYTES_MIN, budget.window_bytes_max),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_gets_the_smaller_limit_but_never_less_than_the_least() {
        let check = |stored: Option<u64>, own: Option<u64>, expected: usize| {
            let stored = StoredLimits { rows: stored, bytes: None };
            let limits = stored.of_client(&Budget::ROUTER, own, None);
            assert_eq!((limits.rows, limits.bytes), (expected, 1 << 20), "{stored:?} {own:?}");
        };
        check(None, None, 200);
        check(None, Some(40), 40);
        check(None, Some(u64::MAX), 1000);
        check(None, Some(0), WINDOW_ROWS_MIN);
        check(Some(500), None, 500);
        check(Some(500), Some(600), 500);
        check(Some(500), Some(400), 400);
        check(Some(5000), None, 1000);
        check(Some(1), Some(400), WINDOW_ROWS_MIN);
    }

    #[test]
    fn rules_are_checked() {
        let rules = |text: &str| json::parse::<Vec<Rule>>(text.as_bytes());
        let budget = &Budget::ROUTER;
        let good = rules(r#"[{"tool":"shell","match":"uci show *","do":"allow"}]"#).unwrap();
        assert!(check_rules(&good, budget).is_ok());
        assert!(rules(r#"[{"tool":"shell","match":"x","do":"maybe"}]"#).is_err());
        assert_eq!(check_rules(&vec![good[0].clone(); 129], budget).unwrap_err().status, 409);
        let long = Rule { pattern: "x".repeat(MATCH_MAX + 1), ..good[0].clone() };
        assert_eq!(check_rules(&[long], budget).unwrap_err().status, 400);
    }

    #[test]
    fn a_limit_out_of_range_is_named() {
        let fault = range("chunkLimit", Some(19), 20, 1000).unwrap_err();
        assert_eq!(fault.message, "chunkLimit must be 20 to 1000");
        assert!(
            range("chunkLimit", None, 20, 1000).is_ok() && range("chunkLimit", Some(20), 20, 1000).is_ok()
        );
    }
}
