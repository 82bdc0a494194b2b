//! Settings that the owner stores: checked here, kept by the store under the names that the protocol gives
//! them.
//!
//! A value is stored as JSON text would hold it, without quotes around strings: `sendTime` is `true` or
//! `false`, the limits are digits, `permissions` is a JSON array.

use super::respond::Fault;
use super::routes::store_fault;
use super::window::Limits;
use super::{Shared, json};
use crate::budget::{Budget, WINDOW_BYTES_MIN, WINDOW_ROWS_MIN};
use crate::config::Config;
use crate::store::Store;
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
            changes.push(("chunkLimit", limit.map(|limit| limit.to_string())));
        }
        if let Some(limit) = self.byte_limit {
            range("byteLimit", limit, WINDOW_BYTES_MIN, budget.window_bytes_max)?;
            changes.push(("byteLimit", limit.map(|limit| limit.to_string())));
        }
        if let Some(prompt) = self.system_prompt {
            check_prompt(prompt.as_deref(), budget)?;
            changes.push(("systemPrompt", prompt));
        }
        if let Some(model) = self.default_model {
            check_model(model.as_deref(), config)?;
            changes.push(("defaultModel", model));
        }
        if let Some(send) = self.send_time {
            changes.push(("sendTime", send.map(|send| send.to_string())));
        }
        if let Some(rules) = self.permissions {
            check_rules(rules.as_deref().unwrap_or_default(), budget)?;
            changes.push(("permissions", rules.map(|rules| crate::chunk::json(&rules))));
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
    let stored = |key: &str| shared.store.setting(key).map_err(store_fault);
    let limits = limits(&shared.store, config.budget)?;
    let rules = stored("permissions")?.and_then(|text| serde_json::from_str(&text).ok());
    Ok(crate::chunk::json(&Out {
        chunk_limit: limits.rows,
        byte_limit: limits.bytes,
        system_prompt: stored("systemPrompt")?.or_else(|| config.system_prompt.clone()).unwrap_or_default(),
        default_model: stored("defaultModel")?.unwrap_or_else(|| config.default_model.clone()),
        send_time: stored("sendTime")?.map_or(config.send_time, |text| text == "true"),
        permissions: rules.unwrap_or_default(),
    }))
}

/// The limits of a window by the settings, within the server's.
pub fn limits(store: &Store, budget: &Budget) -> Result<Limits, Fault> {
    let stored = |key: &str| -> Result<Option<usize>, Fault> {
        Ok(store.setting(key).map_err(store_fault)?.and_then(|text| text.parse().ok()))
    };
    // A stored value may be older than a smaller budget.
    Ok(Limits {
        rows: stored("chunkLimit")?
            .unwrap_or(budget.window_rows)
            .clamp(WINDOW_ROWS_MIN, budget.window_rows_max),
        bytes: stored("byteLimit")?
            .unwrap_or(budget.window_bytes)
            .clamp(WINDOW_BYTES_MIN, budget.window_bytes_max),
    })
}

/// The limits of one client: the smaller of its own and the settings', never below the least.
pub fn client_limits(settings: Limits, rows: Option<u64>, bytes: Option<u64>) -> Limits {
    let smaller = |own: Option<u64>, limit: usize| own.map_or(limit, |own| own.min(limit as u64) as usize);
    Limits {
        rows: smaller(rows, settings.rows).max(WINDOW_ROWS_MIN),
        bytes: smaller(bytes, settings.bytes).max(WINDOW_BYTES_MIN),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_gets_the_smaller_limit_but_never_less_than_the_least() {
        let settings = Limits { rows: 200, bytes: 1 << 20 };
        let check = |rows, bytes, expected: (usize, usize)| {
            let limits = client_limits(settings, rows, bytes);
            assert_eq!((limits.rows, limits.bytes), expected, "{rows:?} {bytes:?}");
        };
        check(None, None, (200, 1 << 20));
        check(Some(40), Some(300_000), (40, 300_000));
        check(Some(1), Some(1), (20, WINDOW_BYTES_MIN));
        check(Some(u64::MAX), Some(u64::MAX), (200, 1 << 20));
        check(Some(0), None, (20, 1 << 20));
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
