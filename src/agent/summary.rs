//! Shortening a conversation: its beginning is replaced by a summary that the model writes.
//!
//! The request for it is the conversation up to the cut, with its own frozen prefix, so that the provider's
//! cache serves it, and one more text that asks. The answer becomes a `compacted` row; the log keeps all. At
//! most [`ATTEMPTS`] are made for one step, each has to make the conversation shorter, and after them the
//! turn ends with a clear error.

use super::context::{self, Cut};
use super::ending::Ending;
use super::provider::{self, Answer, Delta, Fault, Finish, Sink};
use super::turn::{Basis, Next, Target, Turn};
use super::wire::Part;
use super::{Agent, Refusal};
use crate::chunk::*;
use crate::config::ApiKind;
use crate::store::{BeginTurn, Step, StoreError};

/// Summaries that one step may ask for.
pub const ATTEMPTS: u32 = 2;
/// Of the context, or of what is sent where that is not known: so much stays as it is after the summary.
const KEPT: u64 = 5;

impl Turn<'_> {
    /// Asks for a summary; the step goes on after it. `bytes`: those of the request that is too long.
    pub(super) fn shorten(
        &mut self,
        target: &Target<'_>,
        basis: &Basis,
        bytes: u64,
    ) -> Result<Next, StoreError> {
        if self.job.summaries >= ATTEMPTS {
            return Ok(Next::End(self.too_long(basis)));
        }
        let Some(cut) = self.cut(basis, bytes)? else {
            // Nothing can be replaced: the provider decides, or has decided.
            let ending = if self.job.by_hand.is_some() { nothing() } else { self.too_long(basis) };
            let sends = self.job.overflow.is_none() && self.job.by_hand.is_none();
            self.job.summaries = ATTEMPTS;
            self.job.again = sends;
            return Ok(if sends { Next::Step } else { Next::End(ending) });
        };
        self.job.summaries += 1;
        self.agent.show_working(self.job.tab, "shortening the conversation");
        let mut text = Text::new(self.agent.config.budget.chunk_bytes);
        match self.summary_of(target, basis, cut, &mut text)? {
            Ok(answer) => self.summarised(&answer, &text.text, cut, basis),
            Err(fault) => self.no_summary(fault, target),
        }
    }

    /// The conversation does not fit, whatever was tried.
    fn too_long(&self, basis: &Basis) -> Ending {
        let size = basis.context.map(|tokens| format!(" of {tokens} tokens")).unwrap_or_default();
        let message = match &self.job.overflow {
            Some(told) => format!("{told}; it could not be shortened enough"),
            None => format!(
                "the conversation is longer than the model's context{size}, and could not be shortened \
                 enough; go on in a new tab, or choose a model with a larger context"
            ),
        };
        Ending::error(StopReason::Error, &message, None, false)
    }

    fn useless(&self, basis: &Basis) -> Ending {
        let size = basis.context.map(|tokens| format!(" of {tokens} tokens")).unwrap_or_default();
        let message = if self.job.by_hand.is_some() {
            "the conversation was not shortened, since the model wrote no usable summary; try again, or \
             choose another model"
                .to_owned()
        } else {
            format!(
                "the conversation has to be shortened to fit the model's context{size}, but the model wrote \
                 no usable summary; try again, choose another model, or go on in a new tab"
            )
        };
        Ending::error(StopReason::Error, &message, None, true)
    }

    fn cut(&self, basis: &Basis, bytes: u64) -> Result<Option<Cut>, StoreError> {
        let after = basis.generation.summary.map_or(0, |summary| summary.upto);
        let all = basis.context.map_or(bytes, |context| context::bytes_of(context, basis.last.as_ref()));
        let keep = if self.job.summaries == 0 { all.min(bytes) / KEPT } else { 0 };
        // The request for the summary has to fit, too; if that is not known, the second try is smaller.
        let most = match basis.context {
            Some(_) => all / 5 * 4,
            None => bytes / 5 * if self.job.summaries == 0 { 4 } else { 2 },
        };
        let most = if self.job.by_hand.is_some() && basis.context.is_none() { u64::MAX } else { most };
        context::cut(&self.agent.store, self.job.tab, after, self.pen.next_seq() - 1, keep, most)
    }

    fn summary_of(
        &mut self,
        target: &Target<'_>,
        basis: &Basis,
        cut: Cut,
        text: &mut Text,
    ) -> Result<Result<Answer, Fault>, StoreError> {
        let store = &self.agent.store;
        let model = format!("{}/{}", target.provider.name, target.model);
        let attempt = self.job.summaries;
        if target.provider.kind == ApiKind::Demo {
            store.begin_step(self.job.turn, &Step::new(self.job.step, attempt, model))?;
            let said = format!("A demo does not read; {} rows stood here.", cut.upto);
            return Ok(text
                .delta(Delta::Text(&said))
                .map(|()| Answer { finish: Finish::End, usage: Usage::default() }));
        }
        let closing = asks(basis.context);
        let part =
            Part { tab: self.job.tab, upto: cut.upto, generation: basis.generation, closing: Some(&closing) };
        let ask = self.ask_of(target, basis, part);
        let (plan, shape) = provider::plan(&ask)?;
        let mut step = self.made_of(target, basis, &plan, shape, attempt);
        store.begin_step(self.job.turn, &step)?;
        let asked = provider::ask(&ask, &plan, &self.job.stop, text);
        step.outcome = if asked.is_ok() { StepOutcome::Whole } else { StepOutcome::Cut };
        step.usage = match &asked {
            Ok(answer) => answer.usage,
            Err(Fault::Cut { usage, .. }) => *usage,
            Err(_) => Usage::default(),
        };
        store.end_step(self.job.turn, &step)?;
        Ok(asked)
    }

    fn summarised(
        &mut self,
        answer: &Answer,
        text: &str,
        cut: Cut,
        basis: &Basis,
    ) -> Result<Next, StoreError> {
        if self.stopped() {
            return Ok(Next::End(Ending::stopped(self.agent)));
        }
        let text = text.trim();
        let whole = matches!(answer.finish, Finish::End | Finish::MaxTokens | Finish::Calls);
        if !whole || text.is_empty() || text.len() as u64 >= cut.bytes {
            log::info!("tab {}: the summary of rows up to {} is of no use", self.job.tab, cut.upto);
            self.job.again = true;
            // What nobody refused yet is sent as it is, rather than not at all.
            let last = self.job.summaries >= ATTEMPTS;
            let ends = last && (self.job.overflow.is_some() || self.job.by_hand.is_some());
            return Ok(if ends { Next::End(self.useless(basis)) } else { Next::Step });
        }
        let seq = self.pen.next_seq();
        let data = SystemData {
            kind: "compacted".to_owned(),
            text: text.to_owned(),
            upto: Some(cut.upto),
            ..Default::default()
        };
        self.pen.write(&[self.pen.row(seq, Role::System, Kind::System, json(&data))])?;
        self.agent.refreeze(&self.pen)?;
        self.job.overflow = None;
        self.job.again = true;
        if self.job.by_hand.is_some() {
            return Ok(Next::End(Ending::clean(StopReason::End)));
        }
        self.agent.set_status(self.job.tab, TabStatus::Running);
        Ok(Next::Step)
    }

    fn no_summary(&mut self, fault: Fault, target: &Target<'_>) -> Result<Next, StoreError> {
        if let Fault::Store(error) = fault {
            return Err(error);
        }
        if self.stopped() {
            return Ok(Next::End(Ending::stopped(self.agent)));
        }
        if self.drops_thinking(&fault)? {
            self.job.summaries -= 1;
            return Ok(Next::Step);
        }
        if self.overflows(&fault, target) {
            return Ok(Next::Step);
        }
        if let Some(later) = self.again_later(&fault, false) {
            self.job.summaries -= 1;
            return Ok(later);
        }
        Ok(Next::End(Ending::fault(self.agent, &provider::retry::explained(fault))))
    }
}

impl Agent {
    /// Shortens a tab's conversation now, in a turn of its own without a message.
    pub fn compact(&self, tab: TabNo) -> Result<(), Refusal> {
        // Beside what other tabs decide: this reads the log up to the first such place.
        let stored = self.known_tab(tab)?;
        let after = self.store.generation(tab)?.summary.map_or(0, |summary| summary.upto);
        if !context::has_cut(&self.store, tab, after, stored.total)? {
            return Err(Refusal::Conflict("there is nothing to shorten yet".to_owned()));
        }
        let _deciding = self.decide();
        self.check_open(&self.known_tab(tab)?)?;
        if self.look(tab, |live| live.turn.is_some()) == Some(true) {
            return Err(Refusal::Conflict("a turn runs; stop it, or wait for its end".to_owned()));
        }
        let left = self.store.queue(tab)?.last().map_or(MessageNo(0), |queued| queued.no);
        let status = self.first_status();
        let begin = BeginTurn { tab, rows: &mut [], consumed: &[], sent: None, status };
        self.start_turn(begin, Some(left), || {}).map(drop)
    }
}

/// What the model is asked for. Its length is a share of the context.
fn asks(context: Option<u64>) -> String {
    let words = context.map_or(1000, |context| context / 16).clamp(60, 1000);
    format!(
        "Write a summary of this whole conversation from its beginning. It will take the place of \
         everything above, and you will go on from it alone. Keep what is still needed: what the owner \
         wants and prefers; what was done and found, with exact names, paths, commands, addresses, \
         numbers and errors; what was decided, and why; what is still open. Call no tools. Answer with \
         nothing but the summary, in the conversation's language, in {words} words at most."
    )
}

fn nothing() -> Ending {
    Ending::system(StopReason::End, "notice", "There is nothing to shorten.")
}

/// Collects the text of an answer, as much as a row holds.
struct Text {
    text: String,
    room: usize,
}

/// What a `compacted` row holds beside its text.
const ROW_BYTES: usize = 128;

impl Text {
    fn new(chunk_bytes: usize) -> Text {
        Text { text: String::new(), room: chunk_bytes - ROW_BYTES }
    }
}

impl Sink for Text {
    fn delta(&mut self, delta: Delta<'_>) -> Result<(), Fault> {
        if let Delta::Text(more) = delta {
            let fits = more.split_at(escaped_fit(more, self.room)).0;
            self.text.push_str(fits);
            // What does not fit ends the summary: no later piece may follow a gap.
            self.room = if fits.len() < more.len() { 0 } else { self.room - escaped_len(fits) };
        }
        Ok(())
    }
}
