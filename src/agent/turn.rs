//! The turn loop: ask the provider, write down what it says, run the tools it asks for, and ask again.
//!
//! All that a turn knows is in its rows and in a few numbers of its [`Job`], so it can pause between two
//! threads. Each call's row is committed before its tool starts, and the whole turn is sealed by one synced
//! commit at its end.

use super::ending::{Ending, Last, told};
use super::fold::{Call, Fold, Folded, Pen};
use super::provider::retry::{self, Retry};
use super::provider::{self, Answer, Ask, Facts, Fault, Finish, demo, quirks};
use super::slots::Job;
use super::wire::{Part, Plan};
use super::{Agent, cache, context, tools};
use crate::chunk::*;
use crate::config::{ApiKind, Provider};
use crate::store::{Generation, Prefix, SealTurn, Step, StoreError, Tab, now};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What becomes of a turn when its thread is done with it.
pub enum Pause {
    /// sealed
    Ended,
    /// to be taken up again after this time
    Later(Duration),
}

pub(super) enum Next {
    Step,
    End(Ending),
    Later(Duration),
}

/// How long the store may rest before a turn that it could not seal is tried again.
pub const SEAL_AGAIN: Duration = Duration::from_secs(2);
/// What is kept of the words with which a provider refuses a conversation that is too long.
const OVERFLOW_BYTES: usize = 1024;
/// Tokens are counted over so long for `tokens_per_day`.
const DAY: Millis = 24 * 3600 * 1000;

/// Goes on with a turn until it is sealed or pauses.
pub fn run(agent: &Arc<Agent>, job: &mut Job) -> Pause {
    let mut turn = Turn { pen: agent.pen(job), agent, job, made: None };
    if turn.job.ending.is_none() {
        match turn.steps() {
            Ok(ending) => turn.job.ending = Some(ending),
            Err(Pause::Ended) => return Pause::Ended,
            Err(later) => return later,
        }
    }
    turn.seal()
}

pub(super) struct Turn<'a> {
    pub(super) agent: &'a Arc<Agent>,
    pub(super) job: &'a mut Job,
    pub(super) pen: Pen,
    made: Option<Made>,
}

/// Whom a step asks.
pub(super) struct Target<'a> {
    pub(super) tab: &'a Tab,
    pub(super) provider: &'a Provider,
    pub(super) model: &'a str,
    pub(super) facts: Facts,
}

/// What a request is made of besides the rows.
pub(super) struct Basis {
    pub(super) prefix_no: u32,
    pub(super) prefix: Prefix,
    pub(super) generation: Generation,
    /// the newest request that was answered
    pub(super) last: Option<Step>,
    /// tokens of the model's context, if known
    pub(super) context: Option<u64>,
}

/// A request that was made, for when it has ended.
struct Made {
    step: Step,
    plan: Plan,
    last: Option<Step>,
    kind: ApiKind,
}

enum Asked {
    /// the conversation has to be shortened first
    Full(Box<Basis>, u64),
    Done(Result<Answer, Fault>),
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

    pub(super) fn stopped(&self) -> bool {
        self.job.stop.is_raised()
    }

    fn step(&mut self) -> Result<Next, StoreError> {
        if self.stopped() {
            return Ok(Next::End(Ending::stopped(self.agent)));
        }
        if !std::mem::take(&mut self.job.again) {
            self.job.step += 1;
            self.job.retry = Retry::new(self.agent.config.budget.attempts);
            self.job.summaries = 0;
        }
        self.pen.step = self.job.step;
        if let Some(ending) = self.limit()? {
            return Ok(Next::End(ending));
        }
        let Some(tab) = self.agent.store.tab(self.job.tab)? else {
            return Ok(Next::End(Ending::clean(StopReason::Cancelled)));
        };
        let found = self.agent.provider_of(&tab, &self.job.stop);
        let (provider, model) = match found {
            Ok(found) => found,
            Err(_) if self.stopped() => return Ok(Next::End(Ending::stopped(self.agent))),
            Err(message) => return Ok(Next::End(Ending::error(StopReason::Error, &message, None, false))),
        };
        self.note_model(&provider.name, &model)?;
        let facts = self.agent.facts(provider, &model, &self.job.stop);
        let target = Target { tab: &tab, provider, model: &model, facts };
        let mut fold = Fold::new(self.pen.clone());
        match self.ask(&target, &mut fold)? {
            Asked::Full(basis, bytes) => self.shorten(&target, &basis, bytes),
            Asked::Done(Ok(answer)) => self.answered(&answer, fold, &target),
            Asked::Done(Err(fault)) => self.failed(fault, fold, &target),
        }
    }

    /// Which limit the turn or the day has reached.
    fn limit(&mut self) -> Result<Option<Ending>, StoreError> {
        let (steps, requests) = (self.agent.config.budget.steps, self.agent.config.budget.requests);
        self.job.requests += 1;
        if self.job.step as usize > steps || self.job.requests > requests {
            let most = if self.job.step as usize > steps { steps } else { requests };
            let text = format!("This turn reached its limit of {most} requests. Send a message to go on.");
            return Ok(Some(Ending::system(StopReason::Limit, "limit", &text)));
        }
        let most = self.agent.config.tokens_per_day;
        let used = if most > 0 { self.agent.store.tokens_since(now() - DAY)? } else { 0 };
        if most > 0 && used >= most {
            let text = format!(
                "{used} tokens were used within the last 24 hours; the limit is {most} (tokens_per_day). \
                 Raise it, or go on later."
            );
            return Ok(Some(Ending::system(StopReason::Limit, "limit", &text)));
        }
        Ok(None)
    }

    /// Writes a `model-changed` row when this step's model is not that of the step before; what else is new
    /// begins with it.
    fn note_model(&mut self, provider: &str, model: &str) -> Result<(), StoreError> {
        let id = format!("{provider}/{model}");
        let before = match self.job.model.replace(id.clone()) {
            Some(before) => Some(before),
            None => self.agent.store.last_model(self.job.tab)?,
        };
        if before.is_none_or(|before| before == id) {
            return Ok(());
        }
        self.note("model-changed", &format!("Model changed to {id}."))?;
        self.agent.refreeze(&self.pen)
    }

    /// Writes a line for the owner.
    pub(super) fn note(&self, kind: &str, text: &str) -> Result<(), StoreError> {
        let data = SystemData { kind: kind.to_owned(), text: text.to_owned(), ..Default::default() };
        self.pen.write(&[self.pen.row(self.pen.next_seq(), Role::System, Kind::System, json(&data))])
    }

    fn ask(&mut self, target: &Target<'_>, fold: &mut Fold) -> Result<Asked, StoreError> {
        let (agent, upto) = (self.agent, self.pen.next_seq() - 1);
        let &Target { tab, provider, .. } = target;
        let basis = self.basis(target)?;
        // The model may have been changed to the demo, whose requests leave nothing here.
        self.made = None;
        if provider.kind == ApiKind::Demo {
            if self.job.by_hand {
                return Ok(Asked::Full(Box::new(basis), 0));
            }
            agent.store.begin_step(self.job.turn, &Step::new(self.job.step, 0, id_of(target)))?;
            return Ok(Asked::Done(demo::answer(&agent.store, tab.no, upto, &self.job.stop, fold)));
        }
        let part = Part { tab: tab.no, upto, generation: basis.generation, closing: None };
        let ask = self.ask_of(target, &basis, part);
        let (plan, shape) = provider::plan(&ask)?;
        if self.is_full(&basis, plan.bytes, provider) {
            return Ok(Asked::Full(Box::new(basis), plan.bytes));
        }
        let step = self.made_of(target, &basis, &plan, shape, 0);
        agent.store.begin_step(self.job.turn, &step)?;
        let asked = provider::ask(&ask, &plan, &self.job.stop, fold);
        self.made = Some(Made { step, plan, last: basis.last, kind: provider.kind });
        Ok(Asked::Done(asked))
    }

    pub(super) fn ask_of<'b>(&'b self, target: &'b Target<'_>, basis: &'b Basis, part: Part<'b>) -> Ask<'b> {
        Ask {
            store: &self.agent.store,
            budget: self.agent.config.budget,
            provider: target.provider,
            model: target.model,
            facts: target.facts,
            effort: target.tab.effort.as_deref(),
            part,
            prefix: &basis.prefix,
        }
    }

    pub(super) fn made_of(
        &self,
        target: &Target<'_>,
        basis: &Basis,
        plan: &Plan,
        shape: String,
        attempt: u32,
    ) -> Step {
        Step {
            prefix: basis.prefix_no,
            since: basis.generation.since,
            shape,
            bytes: plan.bytes,
            prefix_blocks: plan.blocks,
            prefix_hash: plan.hash.clone(),
            ..Step::new(self.job.step, attempt, id_of(target))
        }
    }

    fn basis(&self, target: &Target<'_>) -> Result<Basis, StoreError> {
        let agent = self.agent;
        let (prefix_no, prefix) = agent.prefix(self.job.tab)?;
        Ok(Basis {
            prefix_no,
            prefix,
            generation: agent.store.generation(self.job.tab)?,
            last: agent.store.last_step(self.job.tab)?,
            context: target.facts.context_tokens,
        })
    }

    /// Whether the conversation has to be shortened before it is sent.
    fn is_full(&self, basis: &Basis, bytes: u64, provider: &Provider) -> bool {
        if self.job.by_hand || self.job.overflow.is_some() {
            return true;
        }
        let near = |context| {
            context::estimate(bytes, basis.last.as_ref()) > context::room(context, provider.max_tokens)
        };
        self.job.summaries < super::summary::ATTEMPTS && basis.context.is_some_and(near)
    }

    fn answered(&mut self, answer: &Answer, fold: Fold, target: &Target<'_>) -> Result<Next, StoreError> {
        let folded = fold.finish()?;
        let refused = matches!(answer.finish, Finish::Refused(_));
        let outcome = if refused { StepOutcome::Refused } else { StepOutcome::Whole };
        self.end_step(outcome, &answer.usage)?;
        self.note_truncation(&answer.usage, target)?;
        match &answer.finish {
            Finish::Refused(text) => {
                self.not_run(&folded.calls, "not run: the provider refused to give this answer")?;
                return Ok(Next::End(self.refused(text)));
            }
            Finish::ContextFull => return self.context_full(answer, &folded, target),
            _ => {}
        }
        if folded.calls.is_empty() {
            return self.said(answer, &folded);
        }
        self.run_calls(answer, folded)
    }

    /// Notes what became of the request, and why a cache was of no use to it.
    fn end_step(&mut self, outcome: StepOutcome, usage: &Usage) -> Result<(), StoreError> {
        let store = &self.agent.store;
        let Some(made) = &mut self.made else {
            let step = Step { outcome, usage: *usage, ..Step::new(self.job.step, 0, String::new()) };
            return store.end_step(self.job.turn, &step);
        };
        (made.step.outcome, made.step.usage) = (outcome, *usage);
        if let Some(before) = &made.last {
            let (changed, tail_before) = (made.plan.changed, made.plan.tail_before);
            let pair = cache::Pair { before, now: &made.step, changed, tail_before, kind: made.kind };
            made.step.miss = cache::miss(store, self.job.tab, &pair)?;
        }
        store.end_step(self.job.turn, &made.step)
    }

    /// Some servers leave the beginning of a long conversation out and say nothing. What they counted is
    /// their context then.
    fn note_truncation(&mut self, usage: &Usage, target: &Target<'_>) -> Result<(), StoreError> {
        let Some(made) = self.made.as_ref().filter(|made| made.kind == ApiKind::OpenAi) else {
            return Ok(());
        };
        let same = |last: &&Step| last.since == made.step.since && last.model == made.step.model;
        let before = made.last.as_ref().filter(same).filter(|last| last.attempt == 0);
        let (told, bytes) = (context::asked(usage), made.step.bytes);
        if !context::is_truncated(told, bytes, before)
            || std::mem::replace(&mut self.job.told_truncated, true)
        {
            return Ok(());
        }
        if target.provider.context_tokens == 0 {
            quirks::learn_context(target.provider, target.model, told);
        }
        let name = &target.provider.name;
        self.note(
            "notice",
            &format!(
                "The provider counted {told} tokens for a request of {} KiB. Its context seems to be full, \
                 and the beginning of the conversation was probably left out. Tell its size with \
                 context_tokens of provider {name}, so that the conversation is shortened in time.",
                bytes / 1024
            ),
        )
    }

    /// The answer ended where the model's context does.
    fn context_full(
        &mut self,
        answer: &Answer,
        folded: &Folded,
        target: &Target<'_>,
    ) -> Result<Next, StoreError> {
        let size = context::asked(&answer.usage) + answer.usage.output;
        quirks::learn_context(target.provider, target.model, size);
        self.not_run(&folded.calls, "not run: the conversation is longer than the model's context")?;
        if !folded.calls.is_empty() || !folded.shown {
            let name = &target.provider.name;
            self.job.overflow = Some(format!("the answer of provider {name} ended where its context does"));
            self.job.again = folded.calls.is_empty();
            return Ok(Next::Step);
        }
        let message = "the answer ended where the model's context does; send a message to go on, and the \
                       conversation is shortened first";
        Ok(Next::End(Ending::error(StopReason::Error, message, None, false)))
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
            Finish::MaxTokens if !folded.shown => {
                let text = "The model reached its output limit (max_tokens) before it said anything.";
                Ending::system(StopReason::MaxTokens, "notice", text)
            }
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
    pub(super) fn drops_thinking(&mut self, fault: &Fault) -> Result<bool, StoreError> {
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

    fn failed(&mut self, fault: Fault, fold: Fold, target: &Target<'_>) -> Result<Next, StoreError> {
        if !fold.shown() && (self.drops_thinking(&fault)? || self.overflows(&fault, target)) {
            return Ok(Next::Step);
        }
        if let Some(later) = self.again_later(&fault, fold.shown()) {
            return Ok(later);
        }
        let folded = fold.cut()?;
        let usage = if let Fault::Cut { usage, .. } = &fault { *usage } else { Usage::default() };
        self.end_step(StepOutcome::Cut, &usage)?;
        if let Fault::Store(error) = fault {
            return Err(error);
        }
        let fault = retry::explained(fault);
        let ending =
            if self.stopped() { Ending::stopped(self.agent) } else { Ending::fault(self.agent, &fault) };
        let why = if ending.stop == StopReason::Cut || ending.stop == StopReason::Error {
            "not run: the connection to the provider broke off in this answer"
        } else {
            "not run: the turn was stopped"
        };
        self.not_run(&folded.calls, why)?;
        Ok(Next::End(ending))
    }

    /// The wait until the request is made again, if that may help.
    pub(super) fn again_later(&mut self, fault: &Fault, shown: bool) -> Option<Next> {
        if self.stopped() {
            return None;
        }
        let attempts = self.job.retry.tried();
        let delay = self.job.retry.next(fault, shown)?;
        let (tab, ms, why) = (self.job.tab, delay.as_millis(), told(fault));
        log::info!("tab {tab}: try {attempts} failed, again in {ms} ms: {why}");
        self.job.again = true;
        self.agent.show_retry(self.job.tab, attempts, delay, told(fault));
        Some(Next::Later(delay))
    }

    /// The provider says that the conversation is too long: it is to be shortened, if that was not tried.
    pub(super) fn overflows(&mut self, fault: &Fault, target: &Target<'_>) -> bool {
        let Some(told) = provider::cause::overflow(fault) else { return false };
        if let Some(tokens) = told {
            quirks::learn_context(target.provider, target.model, tokens);
        }
        if self.stopped() || self.job.summaries >= super::summary::ATTEMPTS {
            return false;
        }
        self.job.overflow = Some(shorten(super::ending::told(fault), OVERFLOW_BYTES).to_owned());
        self.job.again = true;
        true
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

fn id_of(target: &Target<'_>) -> String {
    format!("{}/{}", target.provider.name, target.model)
}
