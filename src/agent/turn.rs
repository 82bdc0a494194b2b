//! The turn loop: ask the provider, write down what it says, run the tools it asks for, and ask again.
//!
//! All that a turn knows is in its rows and in a few numbers of its [`Job`], so it can pause between two
//! threads. Each call's row is committed before its tool starts, and the whole turn is sealed by one synced
//! commit at its end.

use super::fold::{Call, Fold, Folded, Pen};
use super::provider::retry::{self, Retry};
use super::provider::{self, Answer, Ask, Fault, Finish, demo};
use super::slots::Job;
use super::{Agent, tools};
use crate::chunk::*;
use crate::config::{ApiKind, Provider};
use crate::store::{SealTurn, Step, StoreError, Tab};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How a turn ends: its last row, its status and the reason.
#[derive(Clone, Debug)]
pub struct Ending {
    stop: StopReason,
    last: Option<Last>,
    /// a fault broke the turn off: the log may lack results
    broken: bool,
}

#[derive(Clone, Debug)]
enum Last {
    Error(ErrorData),
    System(SystemData),
}

/// What becomes of a turn when its thread is done with it.
pub enum Pause {
    /// sealed
    Ended,
    /// to be taken up again after this time
    Later(Duration),
}

enum Next {
    Step,
    End(Ending),
    Later(Duration),
}

/// How long the store may rest before a turn that it could not seal is tried again.
pub const SEAL_AGAIN: Duration = Duration::from_secs(2);
/// An error row's data.
const ERROR_BYTES: usize = 4096;

impl Ending {
    fn clean(stop: StopReason) -> Ending {
        Ending { stop, last: None, broken: false }
    }

    fn system(stop: StopReason, kind: &str, text: &str) -> Ending {
        let data = SystemData { kind: kind.to_owned(), text: text.to_owned(), ..Default::default() };
        Ending { stop, last: Some(Last::System(data)), broken: false }
    }

    fn error(stop: StopReason, message: &str, status: Option<u16>, retryable: bool) -> Ending {
        let room = ERROR_BYTES - 128;
        let message = message.split_at(escaped_fit(message, room)).0.to_owned();
        Ending { stop, last: Some(Last::Error(ErrorData { message, status, retryable })), broken: false }
    }

    /// A fault in Siskin itself.
    pub fn panicked() -> Ending {
        let message =
            "a fault in Siskin ended this turn; the log of the service says where. Send it again to go on";
        Ending { broken: true, ..Ending::error(StopReason::Error, message, None, true) }
    }

    fn stopped(agent: &Agent) -> Ending {
        if agent.closing() {
            return Ending::system(StopReason::Interrupted, "interrupted", "The server stopped.");
        }
        Ending::system(StopReason::Cancelled, "cancelled", "Stopped.")
    }

    fn store(error: &StoreError) -> Ending {
        let text = match error {
            StoreError::Full(what) => format!("the budget {what} is full"),
            StoreError::NoSpace(text) | StoreError::Broken(text) => text.clone(),
        };
        let text = format!("the store failed: {text}");
        Ending { broken: true, ..Ending::error(StopReason::Error, &text, None, true) }
    }

    fn status(&self) -> TurnStatus {
        match self.stop {
            StopReason::Error | StopReason::Cut => TurnStatus::Error,
            StopReason::Interrupted => TurnStatus::Interrupted,
            _ => TurnStatus::Done,
        }
    }
}

/// Goes on with a turn until it is sealed or pauses.
pub fn run(agent: &Arc<Agent>, job: &mut Job) -> Pause {
    let mut turn = Turn { pen: agent.pen(job), agent, job };
    if turn.job.ending.is_none() {
        match turn.steps() {
            Ok(ending) => turn.job.ending = Some(ending),
            Err(Pause::Ended) => return Pause::Ended,
            Err(later) => return later,
        }
    }
    turn.seal()
}

struct Turn<'a> {
    agent: &'a Arc<Agent>,
    job: &'a mut Job,
    pen: Pen,
}

impl Turn<'_> {
    fn steps(&mut self) -> Result<Ending, Pause> {
        let status = self.agent.look(self.job.tab, |live| live.status);
        if !self.stopped() && status != Some(TabStatus::Running) {
            self.agent.set_status(self.job.tab, TabStatus::Running);
            if let Err(error) = self.agent.store.set_turn_status(self.job.turn, TurnStatus::Running) {
                return Ok(Ending::store(&error));
            }
        }
        loop {
            match self.step() {
                Ok(Next::Step) => {}
                Ok(Next::End(ending)) => return Ok(ending),
                Ok(Next::Later(time)) => return Err(Pause::Later(time)),
                Err(error) => return Ok(Ending::store(&error)),
            }
        }
    }

    fn stopped(&self) -> bool {
        self.job.stop.is_raised()
    }

    fn step(&mut self) -> Result<Next, StoreError> {
        if self.stopped() {
            return Ok(Next::End(Ending::stopped(self.agent)));
        }
        if !std::mem::take(&mut self.job.again) {
            self.job.step += 1;
            self.job.retry = Retry::new(self.agent.config.budget.attempts);
        }
        self.pen.step = self.job.step;
        let steps = self.agent.config.budget.steps;
        if self.job.step as usize > steps {
            let text = format!("This turn reached its limit of {steps} requests. Send a message to go on.");
            return Ok(Next::End(Ending::system(StopReason::Limit, "limit", &text)));
        }
        let Some(tab) = self.agent.store.tab(self.job.tab)? else {
            return Ok(Next::End(Ending::clean(StopReason::Cancelled)));
        };
        let found = self.agent.provider_of(&tab, &self.job.stop);
        let (provider, model) = match found {
            Ok(found) => found,
            Err(message) => return Ok(Next::End(Ending::error(StopReason::Error, &message, None, false))),
        };
        self.note_model(&provider.name, &model)?;
        let mut fold = Fold::new(self.pen.clone());
        let asked = self.ask(&tab, provider, &model, &mut fold)?;
        match asked {
            Ok(answer) => self.answered(&answer, fold),
            Err(fault) => self.failed(fault, fold),
        }
    }

    /// Writes a `model-changed` row when this step's model is not that of the step before.
    fn note_model(&mut self, provider: &str, model: &str) -> Result<(), StoreError> {
        let id = format!("{provider}/{model}");
        let before = match self.job.model.replace(id.clone()) {
            Some(before) => Some(before),
            None => self.agent.last_model(self.job.tab)?,
        };
        if before.is_none_or(|before| before == id) {
            return Ok(());
        }
        let data = SystemData {
            kind: "model-changed".to_owned(),
            text: format!("Model changed to {id}."),
            ..Default::default()
        };
        let row = self.pen.row(self.pen.next_seq(), Role::System, Kind::System, json(&data));
        self.pen.write(&[row])
    }

    fn ask(
        &mut self,
        tab: &Tab,
        provider: &Provider,
        model: &str,
        fold: &mut Fold,
    ) -> Result<Result<Answer, Fault>, StoreError> {
        let (agent, upto) = (self.agent, self.pen.next_seq() - 1);
        let mut step = Step {
            step: self.job.step,
            model: format!("{}/{model}", provider.name),
            outcome: StepOutcome::Open,
            usage: Usage::default(),
            prefix_blocks: 0,
            prefix_hash: String::new(),
        };
        if provider.kind == ApiKind::Demo {
            agent.store.begin_step(self.job.turn, &step)?;
            return Ok(demo::answer(&agent.store, tab.no, upto, &self.job.stop, fold));
        }
        let prefix = agent.prefix(tab.no)?;
        let ask = Ask {
            store: &agent.store,
            budget: agent.config.budget,
            provider,
            model,
            facts: agent.facts(provider, model, &self.job.stop),
            effort: tab.effort.as_deref(),
            tab: tab.no,
            prefix: &prefix,
            upto,
        };
        let plan = provider::plan(&ask)?;
        step.prefix_blocks = plan.blocks;
        step.prefix_hash.clone_from(&plan.hash);
        agent.store.begin_step(self.job.turn, &step)?;
        Ok(provider::ask(&ask, &plan, &self.job.stop, fold))
    }

    fn answered(&mut self, answer: &Answer, fold: Fold) -> Result<Next, StoreError> {
        let folded = fold.finish()?;
        let refused = matches!(answer.finish, Finish::Refused(_));
        let outcome = if refused { StepOutcome::Refused } else { StepOutcome::Whole };
        self.agent.store.end_step(self.job.turn, self.job.step, outcome, &answer.usage)?;
        match &answer.finish {
            Finish::Refused(text) => return Ok(Next::End(self.refused(text))),
            Finish::ContextFull => {
                self.not_run(&folded.calls, "not run: the conversation is longer than the model's context")?;
                let message = "the conversation is longer than the model's context; go on in a new tab, \
                               or choose a model with a larger one";
                return Ok(Next::End(Ending::error(StopReason::Error, message, None, false)));
            }
            _ => {}
        }
        if folded.calls.is_empty() {
            return self.said(answer, &folded);
        }
        self.run_calls(answer, folded)
    }

    fn refused(&self, text: &str) -> Ending {
        let why = if text.is_empty() { String::new() } else { format!(" It says: {}", shorten(text, 2048)) };
        let data = SystemData {
            kind: "refused".to_owned(),
            text: format!("The provider refused to answer.{why}"),
            step: Some(self.job.step),
            ..Default::default()
        };
        Ending { stop: StopReason::Refused, last: Some(Last::System(data)), broken: false }
    }

    /// The answer ended without calls.
    fn said(&mut self, answer: &Answer, folded: &Folded) -> Result<Next, StoreError> {
        Ok(Next::End(match &answer.finish {
            Finish::MaxTokens => Ending::clean(StopReason::MaxTokens),
            Finish::Other(word) => {
                let text =
                    format!("The provider ended its answer with \u{201c}{}\u{201d}.", shorten(word, 256));
                Ending::system(StopReason::End, "notice", &text)
            }
            _ if !folded.shown => {
                Ending::system(StopReason::End, "notice", "The model gave an empty answer.")
            }
            _ => Ending::clean(StopReason::End),
        }))
    }

    fn run_calls(&mut self, answer: &Answer, folded: Folded) -> Result<Next, StoreError> {
        let mut calls = folded.calls;
        let truncated = answer.finish == Finish::MaxTokens;
        let cut_off = if truncated && folded.last_was_call { calls.pop() } else { None };
        self.job.calls += calls.len();
        let limit = self.agent.config.budget.calls;
        if self.job.calls > limit {
            self.not_run(&calls, "not run: this turn reached its limit of tool calls")?;
            let text = format!("This turn reached its limit of {limit} tool calls. Send a message to go on.");
            return Ok(Next::End(Ending::system(StopReason::Limit, "limit", &text)));
        }
        self.run_tools(&calls)?;
        if let Some(call) = cut_off {
            let why = "not run: the answer reached its output limit (max_tokens) inside this call; \
                       make the arguments shorter";
            self.not_run(&[call], why)?;
        }
        if truncated && std::mem::replace(&mut self.job.truncated, truncated) {
            return Ok(Next::End(Ending::clean(StopReason::MaxTokens)));
        }
        self.job.truncated = truncated;
        if self.stopped() {
            return Ok(Next::End(Ending::stopped(self.agent)));
        }
        self.agent.steer(&self.pen)?;
        Ok(Next::Step)
    }

    fn run_tools(&mut self, calls: &[Call]) -> Result<(), StoreError> {
        let workdir = self.agent.store.tab(self.job.tab)?.map(|tab| tab.workdir).unwrap_or_default();
        let mut done: Vec<(usize, tools::Output)> = Vec::new();
        for (at, call) in calls.iter().enumerate() {
            if self.stopped() {
                return self.not_run(calls.split_at(at).1, "not run: the turn was stopped before");
            }
            let same = |other: &&(usize, tools::Output)| {
                let other = &calls[other.0];
                other.name == call.name && other.arguments == call.arguments
            };
            let since = Instant::now();
            let output = match done.iter().find(same) {
                Some((_, output)) => output.clone(),
                None => self.run_tool(call, Path::new(&workdir))?,
            };
            let last = ToolResult {
                is_error: Some(output.is_error),
                exit_code: output.exit_code,
                ms: Some(since.elapsed().as_millis() as u64),
                truncated: output.truncated.map(|bytes| Truncated { bytes }),
                ..Default::default()
            };
            self.pen.write(&self.pen.result_rows(call, &output.text, last))?;
            // Only calls that have a twin further on are worth keeping.
            if calls.iter().skip(at + 1).any(|c| c.name == call.name && c.arguments == call.arguments) {
                done.push((at, output));
            }
        }
        Ok(())
    }

    fn run_tool(&self, call: &Call, workdir: &Path) -> Result<tools::Output, StoreError> {
        if !call.good {
            let text = "the arguments are not a JSON object that can be read (no NUL, no half of a \
                        surrogate pair, at most 127 levels); nothing was run"
                .to_owned();
            return Ok(tools::Output { text, is_error: true, ..Default::default() });
        }
        self.agent.store.start_call(self.job.tab, &call.id)?;
        let place = tools::Place { workdir, budget: self.agent.config.budget, stop: &self.job.stop };
        Ok(tools::run(&call.name, &call.arguments, &place))
    }

    /// Gives each call the result that it was not run, and why.
    fn not_run(&self, calls: &[Call], why: &str) -> Result<(), StoreError> {
        for call in calls {
            let last = ToolResult { is_error: Some(true), ..Default::default() };
            self.pen.write(&self.pen.result_rows(call, why, last))?;
        }
        Ok(())
    }

    /// Leaves all thinking so far out of this and every later request, if that is what the provider refused.
    fn drops_thinking(&mut self, fault: &Fault) -> Result<bool, StoreError> {
        let refused = !self.stopped() && provider::cause::thinking_is_refused(fault);
        if !refused || std::mem::replace(&mut self.job.thinking_dropped, true) {
            return Ok(false);
        }
        let seq = self.pen.next_seq();
        let data = SystemData {
            kind: "thinking-dropped".to_owned(),
            text: "The provider no longer takes the model's earlier thinking; it goes on without it."
                .to_owned(),
            upto: Some(seq - 1),
            ..Default::default()
        };
        self.pen.write(&[self.pen.row(seq, Role::System, Kind::System, json(&data))])?;
        self.job.again = true;
        Ok(true)
    }

    fn failed(&mut self, fault: Fault, fold: Fold) -> Result<Next, StoreError> {
        if !fold.shown() && self.drops_thinking(&fault)? {
            return Ok(Next::Step);
        }
        let attempts = self.job.retry.tried();
        if !self.stopped()
            && let Some(delay) = self.job.retry.next(&fault, fold.shown())
        {
            let (tab, ms, why) = (self.job.tab, delay.as_millis(), told(&fault));
            log::info!("tab {tab}: try {attempts} failed, again in {ms} ms: {why}");
            self.job.again = true;
            self.agent.show_retry(self.job.tab, attempts, delay, told(&fault));
            return Ok(Next::Later(delay));
        }
        let folded = fold.cut()?;
        let usage = if let Fault::Cut { usage, .. } = &fault { *usage } else { Usage::default() };
        self.agent.store.end_step(self.job.turn, self.job.step, StepOutcome::Cut, &usage)?;
        let fault = retry::explained(fault);
        let message = told(&fault).to_owned();
        let ending = match fault {
            Fault::Store(error) => return Err(error),
            _ if self.stopped() => Ending::stopped(self.agent),
            Fault::Stopped => Ending::stopped(self.agent),
            Fault::Cut { .. } => Ending::error(StopReason::Cut, &message, None, true),
            Fault::TooBig(_) => Ending::error(StopReason::Error, &message, None, false),
            Fault::Refusal { status, retryable, .. } => {
                Ending::error(StopReason::Error, &message, status, retryable)
            }
        };
        let why = if ending.stop == StopReason::Cut || ending.stop == StopReason::Error {
            "not run: the connection to the provider broke off in this answer"
        } else {
            "not run: the turn was stopped"
        };
        self.not_run(&folded.calls, why)?;
        Ok(Next::End(ending))
    }

    /// Ends the turn durably and tells everyone; if the store cannot, tries again later.
    fn seal(&mut self) -> Pause {
        let Some(ending) = self.job.ending.clone() else { return Pause::Ended };
        let mut sealed = self.try_seal(&ending);
        if matches!(sealed, Err(StoreError::NoSpace(_))) {
            let store = self.agent.store.clone();
            sealed = store.with_last_room(|| self.try_seal(&ending));
        }
        match sealed {
            Ok(()) => Pause::Ended,
            Err(error) => {
                log::error!("turn {} cannot be sealed: {error}", self.job.turn);
                let message = format!("the end of this turn cannot be written: {error}");
                // The turn is not over: only `turn-sealed` says that.
                self.agent.show_retry(self.job.tab, 1, SEAL_AGAIN, &message);
                Pause::Later(SEAL_AGAIN)
            }
        }
    }

    fn try_seal(&mut self, ending: &Ending) -> Result<(), StoreError> {
        if ending.broken {
            self.mend()?;
        }
        let seq = self.pen.next_seq();
        self.pen.step = self.job.step.max(1);
        let last = ending.last.as_ref().map(|last| match last {
            Last::Error(data) => self.pen.row(seq, Role::Assistant, Kind::Error, json(data)),
            Last::System(data) => self.pen.row(seq, Role::System, Kind::System, json(data)),
        });
        let rows = last.as_slice();
        let sealed = self.agent.store.seal_turn(SealTurn {
            tab: self.job.tab,
            turn: self.job.turn,
            rows,
            status: ending.status(),
            stop: ending.stop,
        })?;
        self.pen.show(rows);
        self.agent.turn_sealed(self.job, &sealed, ending.stop);
        Ok(())
    }

    /// After a fault a chunk may still be open, and calls may lack their results: both are mended in the log.
    fn mend(&self) -> Result<(), StoreError> {
        let open = self.pen.lives.look(self.pen.tab, |live| live.open.clone()).flatten();
        if let Some(open) = open {
            let mut row = open.row();
            if row.kind == Kind::ToolCall {
                let super::live::OpenData::Call(data) = open.data else { return Ok(()) };
                let call_id = data.call_id.clone();
                row.data = json(&ToolCall { cut: true, ..data });
                self.pen.store.append_call(self.pen.tab, &row, &call_id, crate::store::CallState::Cut)?;
                self.pen.show(&[row]);
            } else {
                self.pen.write(&[row])?;
            }
        }
        let newest = self.agent.store.answer_calls(self.job.tab, self.job.turn)?;
        self.pen.lives.change(self.pen.tab, |live| live.newest = newest);
        Ok(())
    }
}

/// What a fault tells the owner.
fn told(fault: &Fault) -> &str {
    match fault {
        Fault::Stopped => "stopped",
        Fault::Cut { message, .. } | Fault::Refusal { message, .. } | Fault::TooBig(message) => message,
        Fault::Store(StoreError::NoSpace(text) | StoreError::Broken(text)) => text,
        Fault::Store(StoreError::Full(what)) => what,
    }
}
