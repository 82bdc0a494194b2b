//! Which models there are, and which one a tab uses.

use super::stop::Stop;
use super::{Agent, Model, Models, Refusal, provider};
use crate::chunk::TabNo;
use crate::config::{ApiKind, Provider};
use crate::store::{Tab, TabChange};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// How long a list of models is good.
const CACHED: Duration = Duration::from_secs(60);
/// Once asking has taken this long, the providers that are left are not asked.
const ASKING: Duration = Duration::from_secs(30);

/// The last list of models.
#[derive(Default)]
pub struct Cache {
    at: Option<Instant>,
    models: Arc<Models>,
}

impl Agent {
    /// The models of all providers. Those that do not name theirs in the config are asked, at most once a
    /// minute and by one caller at a time; the others wait for what it finds, for a minute at most.
    pub fn models(&self) -> Arc<Models> {
        let mut cache = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        if cache.at.is_none_or(|at| at.elapsed() > CACHED) {
            let Ok(stop) = Stop::new() else { return cache.models.clone() };
            cache.models = Arc::new(self.ask_all(&stop));
            cache.at = Some(Instant::now());
        }
        cache.models.clone()
    }

    fn ask_all(&self, stop: &Stop) -> Models {
        let begun = Instant::now();
        let mut all = Models::default();
        for provider in &self.config.providers {
            if begun.elapsed() > ASKING {
                let text = "not asked: the others took too long; try again in a minute".to_owned();
                all.errors.push((provider.name.clone(), text));
                continue;
            }
            let names = match self.models_of(provider, stop) {
                Ok(names) => names,
                Err(message) => {
                    all.errors.push((provider.name.clone(), message));
                    continue;
                }
            };
            let room = self.config.budget.models - all.models.len();
            all.models.extend(names.into_iter().take(room).map(|(name, context)| Model {
                id: format!("{}/{name}", provider.name),
                provider: provider.name.clone(),
                name,
                context_tokens: context.or(Some(provider.context_tokens)).filter(|tokens| *tokens > 0),
            }));
        }
        all
    }

    fn models_of(&self, provider: &Provider, stop: &Stop) -> Result<Vec<(String, Option<u64>)>, String> {
        if provider.kind == ApiKind::Demo {
            return Ok(vec![(provider::demo::MODEL.to_owned(), None)]);
        }
        if !provider.models.is_empty() {
            return Ok(provider.models.iter().map(|name| (name.clone(), None)).collect());
        }
        // A TLS handshake needs a turn's stack, and this is asked for by a connection.
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new()
                .name("models".to_owned())
                .stack_size(self.config.budget.turn_stack_bytes)
                .spawn_scoped(scope, || provider::models(provider, self.config.budget, stop));
            match thread.map(std::thread::ScopedJoinHandle::join) {
                Ok(Ok(models)) => models,
                Ok(Err(_)) => Err("a fault in Siskin; the log of the service says where".to_owned()),
                Err(error) => Err(format!("cannot start a thread: {error}")),
            }
        })
    }

    /// The provider and model of a tab's next step. A tab without a model gets the first that there is.
    pub(super) fn provider_of(&self, tab: &Tab, stop: &Stop) -> Result<(&Provider, String), String> {
        let id = if tab.model.is_empty() { self.first_model(tab.no, stop)? } else { tab.model.clone() };
        let (name, model) =
            id.split_once('/').ok_or_else(|| format!("\u{201c}{id}\u{201d} is not provider/model"))?;
        let provider = self.config.providers.iter().find(|provider| provider.name == name);
        let provider = provider.ok_or_else(|| {
            format!("the provider \u{201c}{name}\u{201d} is not in the config; choose another model")
        })?;
        Ok((provider, model.to_owned()))
    }

    fn first_model(&self, tab: TabNo, stop: &Stop) -> Result<String, String> {
        if self.config.providers.is_empty() {
            return Err(
                "no model provider is configured; add a [[provider]] to siskin.toml and restart".to_owned()
            );
        }
        let mut why = Vec::new();
        for provider in &self.config.providers {
            let found = self.models_of(provider, stop).map(|names| names.into_iter().next());
            match found {
                Ok(Some((name, _))) => {
                    let first = format!("{}/{name}", provider.name);
                    let change = TabChange { model: Some(first.clone()), ..Default::default() };
                    self.store.change_tab(tab, &change).map_err(|error| error.to_string())?;
                    self.tell_tab(tab);
                    return Ok(first);
                }
                Ok(None) => why.push(format!("{}: its list is empty", provider.name)),
                Err(text) => why.push(format!("{}: {text}", provider.name)),
            }
        }
        Err(format!("no provider names a model. {}", why.join("; ")))
    }

    /// The model of new tabs: from settings, config, or the first that a provider names; may be empty.
    pub(super) fn default_model(&self) -> Result<String, Refusal> {
        if let Some(model) = self.setting::<String>("defaultModel")?
            && self.check_model(&model).is_ok()
        {
            return Ok(model);
        }
        if !self.config.default_model.is_empty() {
            return Ok(self.config.default_model.clone());
        }
        let named =
            self.config.providers.iter().find_map(|provider| {
                provider.models.first().map(|model| format!("{}/{model}", provider.name))
            });
        Ok(named.unwrap_or_default())
    }

    pub(super) fn check_model(&self, id: &str) -> Result<(), Refusal> {
        let known = |name: &str| self.config.providers.iter().any(|provider| provider.name == name);
        match id.split_once('/') {
            Some((name, model)) if known(name) && !model.is_empty() && id.len() <= 256 => Ok(()),
            _ => Err(Refusal::Bad("model must be provider/model, of a provider in the config".to_owned())),
        }
    }
}
