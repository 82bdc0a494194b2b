//! Which models there are, what they take, and which one a tab uses.
//!
//! One list per provider is kept, at most `models` of the budget over all of them. It is asked for when
//! somebody wants to know and it is too old; who comes meanwhile waits for what that finds. A list that fails
//! hinders no turn: the failure is remembered for a minute, and the model's name decides.

use super::provider::facts::{EFFORTS, Facts};
use super::provider::models::{Listed, find};
use super::stop::Stop;
use super::{Agent, Refusal, provider};
use crate::chunk::TabNo;
use crate::config::{ApiKind, Config, Provider};
use crate::store::{Tab, TabChange};
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a list is good for the page, where a model that was just added is looked for.
const SHOWN_AGE: Duration = Duration::from_secs(60);
/// How long it is good for turns.
const FACTS_AGE: Duration = Duration::from_secs(3600);
/// How long a failure is remembered.
const FAILED_AGE: Duration = Duration::from_secs(60);
/// Longest wait for one list.
const LIST_WAIT: Duration = Duration::from_secs(20);
/// Longest wait where the list is not needed: in a turn, and for models that the config names.
const FACTS_WAIT: Duration = Duration::from_secs(5);
/// Once asking has taken this long, the providers that are left are not asked.
const ASKING: Duration = Duration::from_secs(30);

/// A model that can be chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// `provider/model`
    pub id: String,
    /// the provider's name
    pub provider: String,
    /// shown
    pub name: String,
    /// what it takes, as far as known
    pub facts: Facts,
}

/// The models of all providers, and what went wrong while asking. Holds the lists themselves, not copies.
#[derive(Clone, Debug)]
pub struct Models {
    config: Arc<Config>,
    /// by the provider's place in the config
    lists: Vec<(usize, List)>,
    /// provider and message
    pub errors: Vec<(String, String)>,
}

impl Models {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.lists.iter().map(|(at, list)| count(&self.config.providers[*at], list)).sum()
    }

    /// There is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The model at a place.
    pub fn get(&self, at: usize) -> Option<Model> {
        let mut left = at;
        for (at, list) in &self.lists {
            let provider = &self.config.providers[*at];
            let count = count(provider, list);
            if left < count {
                let name = name(provider, list, left)?;
                return Some(Model {
                    id: format!("{}/{name}", provider.name),
                    provider: provider.name.clone(),
                    facts: facts(provider, &name, list),
                    name,
                });
            }
            left -= count;
        }
        None
    }
}

fn count(provider: &Provider, list: &[Listed]) -> usize {
    match provider.kind {
        ApiKind::Demo => 1,
        _ if provider.models.is_empty() => list.len(),
        _ => provider.models.len(),
    }
}

fn name(provider: &Provider, list: &[Listed], at: usize) -> Option<String> {
    match provider.kind {
        ApiKind::Demo => Some(provider::demo::MODEL.to_owned()),
        _ if provider.models.is_empty() => list.get(at).map(|listed| listed.name.to_string()),
        _ => provider.models.get(at).cloned(),
    }
}

/// What a model takes: as the list tells, else by its name; the context as configured, or as a refusal named
/// it, if that is smaller.
fn facts(provider: &Provider, model: &str, list: &[Listed]) -> Facts {
    if provider.kind == ApiKind::Demo {
        return Facts::default();
    }
    let told = find(list, model).map(|listed| listed.facts).unwrap_or_default();
    let mut facts = told.or(Facts::by_name(model, &provider.base_url));
    if provider.context_tokens > 0 {
        facts.context_tokens = Some(provider.context_tokens);
    }
    provider::quirks::known(provider, model).facts(facts)
}

type List = Arc<[Listed]>;

/// What is known of one provider's list.
#[derive(Default)]
struct Known {
    /// when it was asked for last, and how long that was waited for
    asked: Option<(Instant, Duration)>,
    asking: bool,
    /// the last list that came
    list: List,
    /// why none came the last time
    error: Option<String>,
}

impl Known {
    fn is_fresh(&self, age: Duration, wait: Duration) -> bool {
        let Some((at, waited)) = self.asked else { return false };
        match self.error {
            None => at.elapsed() <= age,
            // Who would wait longer than the one who failed may succeed.
            Some(_) => at.elapsed() <= FAILED_AGE && wait <= waited,
        }
    }
}

/// The lists of all providers, by name.
#[derive(Default)]
pub struct Cache {
    known: Mutex<BTreeMap<String, Known>>,
    /// a list came, or did not
    told: Condvar,
    /// held by the connection that asks
    page: Mutex<()>,
}

impl Cache {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known without asking.
    fn now(&self, provider: &str) -> (List, Option<String>) {
        self.lock()
            .get(provider)
            .map_or_else(Default::default, |known| (known.list.clone(), known.error.clone()))
    }

    fn is_fresh(&self, provider: &str, age: Duration, wait: Duration) -> bool {
        self.lock().get(provider).is_some_and(|known| known.is_fresh(age, wait))
    }

    /// The list that is kept, if it is no older than `age`; else what `ask` finds, whose argument is how many
    /// models it may give. Of several callers one asks, and the others wait for it, for at most `wait`.
    fn list(
        &self,
        provider: &str,
        (age, wait): (Duration, Duration),
        most: usize,
        stop: &Stop,
        ask: impl FnOnce(usize) -> Result<Vec<Listed>, String>,
    ) -> (List, Option<String>) {
        let until = Instant::now() + wait;
        let mut all = self.lock();
        loop {
            let known = all.entry(provider.to_owned()).or_default();
            let late = Instant::now() >= until || stop.is_raised();
            if known.is_fresh(age, wait) || (known.asking && late) {
                return (known.list.clone(), known.error.clone());
            }
            if !known.asking {
                known.asking = true;
                break;
            }
            // Short, since a stop is not told of here.
            let slice = Duration::from_millis(100);
            all = self.told.wait_timeout(all, slice).map_or_else(|all| all.into_inner().0, |(all, _)| all);
        }
        let others: usize =
            all.iter().filter(|(name, _)| *name != provider).map(|(_, known)| known.list.len()).sum();
        drop(all);
        let asking = Asking { cache: self, provider };
        let found = ask(most.saturating_sub(others));
        let mut all = self.lock();
        let known = all.entry(provider.to_owned()).or_default();
        if found.is_ok() || !stop.is_raised() {
            known.asked = Some((Instant::now(), wait));
        }
        match found {
            Ok(list) => (known.list, known.error) = (list.into(), None),
            Err(error) => known.error = Some(error),
        }
        let told = (known.list.clone(), known.error.clone());
        drop(all);
        drop(asking);
        told
    }
}

/// Lets the next one ask, also after a panic.
struct Asking<'a> {
    cache: &'a Cache,
    provider: &'a str,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if let Some(known) = self.cache.lock().get_mut(self.provider) {
            known.asking = false;
        }
        self.cache.told.notify_all();
    }
}

impl Agent {
    /// The models of all providers. Lists older than a minute are asked for anew, one after the other and by
    /// one caller at a time; the others wait for what it finds.
    pub fn models(&self) -> Models {
        let page = self.models.page.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = Instant::now();
        let mut all = Models { config: self.config.clone(), lists: Vec::new(), errors: Vec::new() };
        for (at, provider) in self.config.providers.iter().enumerate() {
            let (list, error) = if begun.elapsed() > ASKING {
                let text = "not asked: the others took too long; try again in a minute".to_owned();
                (self.models.now(&provider.name).0, Some(text))
            } else {
                self.shown_list(provider)
            };
            // Where the config names the models, nobody needs the list.
            if let Some(message) = error.filter(|_| provider.models.is_empty()) {
                all.errors.push((provider.name.clone(), message));
            }
            all.lists.push((at, list));
        }
        drop(page);
        all
    }

    /// A list for a connection, whose stack is too small for a TLS handshake.
    fn shown_list(&self, provider: &Provider) -> (List, Option<String>) {
        let wait = if provider.models.is_empty() { LIST_WAIT } else { FACTS_WAIT };
        if provider.kind == ApiKind::Demo || self.models.is_fresh(&provider.name, SHOWN_AGE, wait) {
            return self.models.now(&provider.name);
        }
        let failed = |text: String| (self.models.now(&provider.name).0, Some(text));
        let stop = match Stop::new() {
            Ok(stop) => stop,
            Err(error) => return failed(format!("no descriptor is left: {error}")),
        };
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new()
                .name("models".to_owned())
                .stack_size(self.config.budget.turn_stack_bytes)
                .spawn_scoped(scope, || self.list(provider, (SHOWN_AGE, wait), &stop));
            match thread.map(std::thread::ScopedJoinHandle::join) {
                Ok(Ok(found)) => found,
                Ok(Err(_)) => failed("a fault in Siskin; the log of the service says where".to_owned()),
                Err(error) => failed(format!("cannot start a thread: {error}")),
            }
        })
    }

    fn list(&self, provider: &Provider, times: (Duration, Duration), stop: &Stop) -> (List, Option<String>) {
        if provider.kind == ApiKind::Demo {
            return Default::default();
        }
        let ask = |most| {
            let found = provider::models(provider, most, times.1, stop);
            if let Err(error) = &found {
                log::debug!("the models of provider {} are not known: {error}", provider.name);
            }
            found
        };
        self.models.list(&provider.name, times, self.config.budget.models, stop, ask)
    }

    /// What a model takes. Asks the provider's list at most once an hour (once a minute, while that fails)
    /// and for at most 5 s; what the list does not tell is known by the model's name, or not at all.
    pub(super) fn facts(&self, provider: &Provider, model: &str, stop: &Stop) -> Facts {
        let (list, _) = self.list(provider, (FACTS_AGE, FACTS_WAIT), stop);
        facts(provider, model, &list)
    }

    /// Refuses an effort that no provider knows, or that the model is known not to take. Asks nobody.
    pub(super) fn check_effort(&self, effort: &str, model: &str) -> Result<(), Refusal> {
        if !EFFORTS.contains(&effort) {
            return Err(Refusal::Bad(format!("effort must be null or one of {}", EFFORTS.join(", "))));
        }
        let found = model.split_once('/').and_then(|(name, model)| {
            let provider = self.config.providers.iter().find(|provider| provider.name == name)?;
            facts(provider, model, &self.models.now(name).0).efforts
        });
        let Some(efforts) = found.filter(|efforts| !efforts.has(effort)) else { return Ok(()) };
        let words: Vec<&str> = efforts.words().collect();
        Err(Refusal::Bad(if words.is_empty() {
            format!("model {model} takes no effort: effort must be null")
        } else {
            format!("effort must be null or one that model {model} takes: {}", words.join(", "))
        }))
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
            let (list, error) = match provider.models.is_empty() {
                true => self.list(provider, (FACTS_AGE, LIST_WAIT), stop),
                false => Default::default(),
            };
            match (name(provider, &list, 0), error) {
                (Some(name), _) => {
                    let first = format!("{}/{name}", provider.name);
                    let change = TabChange { model: Some(first.clone()), ..Default::default() };
                    self.store.change_tab(tab, &change).map_err(|error| error.to_string())?;
                    self.tell_tab(tab);
                    return Ok(first);
                }
                (None, None) => why.push(format!("{}: its list is empty", provider.name)),
                (None, Some(text)) => why.push(format!("{}: {text}", provider.name)),
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

#[cfg(test)]
mod tests;
