//! Tabs: made, changed, archived and erased.

use super::live::Live;
use super::{Agent, Refusal, TabView, frames, no_tab};
use crate::chunk::*;
use crate::store::{NewTab, StoreError, Tab, TabChange};
use std::path::Path;
use std::time::{Duration, Instant};

/// A tab's title.
const TITLE_BYTES_MAX: usize = 256;
/// Longest that a purge waits for the turn it stopped.
const STOP_WAIT: Duration = Duration::from_secs(5);

impl Agent {
    /// The numbers of the tabs in the list's order, without or with the archived ones; see [`Agent::tab`] for
    /// each.
    pub fn tabs(&self, archived: bool) -> Result<Vec<TabNo>, Refusal> {
        Ok(self.store.tabs(archived)?)
    }

    /// One tab.
    pub fn tab(&self, tab: TabNo) -> Result<TabView, Refusal> {
        self.known_tab(tab).map(|tab| self.view(tab))
    }

    fn view(&self, tab: Tab) -> TabView {
        let (status, newest) =
            self.look(tab.no, |live| (live.status, live.newest)).unwrap_or((TabStatus::Idle, 0));
        TabView { tab: Tab { total: tab.total.max(newest), ..tab }, status }
    }

    /// Makes a tab; what is missing comes from settings and config.
    pub fn create_tab(&self, mut new: NewTab) -> Result<TabView, Refusal> {
        check_title(&new.title)?;
        if new.model.is_empty() {
            new.model = self.default_model()?;
        } else {
            self.check_model(&new.model)?;
        }
        if let Some(effort) = &new.effort {
            self.check_effort(effort, &new.model)?;
        }
        if new.workdir.is_empty() {
            new.workdir = self.config.default_workdir().to_string_lossy().into_owned();
        } else {
            self.check_workdir(&new.workdir)?;
        }
        let tab = self.store.create_tab(&new)?;
        self.lives.set(tab.no, Some(live(&tab)));
        let view = self.view(tab);
        self.lives.tell(Some(view.tab.no), frames::tab_changed(&view));
        Ok(view)
    }

    /// Changes a tab. A model that is changed while a turn runs is used from its next step on; an effort that
    /// the new model does not take stays with the tab, and is left out of its requests.
    pub fn change_tab(&self, tab: TabNo, change: TabChange) -> Result<TabView, Refusal> {
        if let Some(title) = &change.title {
            check_title(title)?;
        }
        if let Some(model) = &change.model {
            self.check_model(model)?;
        }
        if let Some(Some(effort)) = &change.effort {
            let model = match &change.model {
                Some(model) => model.clone(),
                None => self.known_tab(tab)?.model,
            };
            self.check_effort(effort, &model)?;
        }
        if let Some(workdir) = &change.workdir {
            self.check_workdir(workdir)?;
        }
        let archives = change.archived == Some(true);
        // A tab that is being archived must not begin a turn between being stopped and being marked.
        let deciding = archives.then(|| self.decide());
        let changed = self.store.change_tab(tab, &change)?.ok_or_else(|| no_tab(tab))?;
        if archives {
            self.stop(tab)?;
        }
        drop(deciding);
        let view = self.view(changed);
        self.lives.tell(Some(tab), frames::tab_changed(&view));
        Ok(view)
    }

    /// Stops and archives a tab; with `purge` also erases its rows.
    pub fn remove_tab(&self, tab: TabNo, purge: bool) -> Result<(), Refusal> {
        self.change_tab(tab, TabChange { archived: Some(true), ..Default::default() })?;
        if !purge {
            return Ok(());
        }
        let end = Instant::now() + STOP_WAIT;
        while self.look(tab, |live| live.turn.is_some()) == Some(true) {
            if Instant::now() >= end {
                return Err(Refusal::Conflict("the tab's turn has not ended yet; try again".to_owned()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.forget_tab(tab)?;
        // Beside the turns of other tabs: this takes as long as the tab is long.
        Ok(self.store.erase_purged(tab)?)
    }

    /// From here on the tab is gone for everyone; its rows still lie in the store.
    fn forget_tab(&self, tab: TabNo) -> Result<(), Refusal> {
        let _deciding = self.decide();
        if self.look(tab, |live| live.turn.is_some()) == Some(true) {
            return Err(Refusal::Conflict("the tab was brought back meanwhile and runs a turn".to_owned()));
        }
        if !self.store.purge_tab(tab)? {
            return Err(no_tab(tab));
        }
        self.lives.tell(Some(tab), frames::tab_removed(tab));
        self.lives.set(tab, None);
        Ok(())
    }

    pub(super) fn load_tabs(&self) -> Result<(), StoreError> {
        for no in self.store.tabs(true)? {
            if let Some(tab) = self.store.tab(no)? {
                self.lives.set(no, Some(live(&tab)));
            }
        }
        Ok(())
    }

    fn check_workdir(&self, workdir: &str) -> Result<(), Refusal> {
        let path = Path::new(workdir);
        if !path.is_absolute() || workdir.len() > 4096 {
            return Err(Refusal::Bad("workdir must be an absolute path".to_owned()));
        }
        if !path.is_dir() {
            return Err(Refusal::Bad(format!("there is no directory {workdir}")));
        }
        self.config.check_workdir(path).map_err(Refusal::Bad)
    }
}

pub(super) fn live(tab: &Tab) -> Live {
    let failed = matches!(tab.last_stop, Some(StopReason::Error | StopReason::Cut));
    let status = if failed { TabStatus::Error } else { TabStatus::Idle };
    Live { newest: tab.total, turn: None, open: None, status }
}

fn check_title(title: &str) -> Result<(), Refusal> {
    if title.len() > TITLE_BYTES_MAX || title.chars().any(char::is_control) {
        let text = format!("a title may have {TITLE_BYTES_MAX} bytes at most and no control characters");
        return Err(Refusal::Bad(text));
    }
    Ok(())
}
