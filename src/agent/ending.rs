//! How a turn ends: its status, its reason and its last row.

use super::Agent;
use super::provider::Fault;
use crate::chunk::*;
use crate::store::StoreError;

/// An error row's data.
const ERROR_BYTES: usize = 4096;

/// How a turn ends.
#[derive(Clone, Debug)]
pub struct Ending {
    /// why
    pub stop: StopReason,
    /// its last row, if it needs one
    pub last: Option<Last>,
    /// a fault broke the turn off: the log may lack results
    pub broken: bool,
}

/// The last row of a turn.
#[derive(Clone, Debug)]
pub enum Last {
    /// what went wrong
    Error(ErrorData),
    /// what else is to be said
    System(SystemData),
}

impl Ending {
    /// There is nothing more to say.
    pub fn clean(stop: StopReason) -> Ending {
        Ending { stop, last: None, broken: false }
    }

    /// With a line for the owner.
    pub fn system(stop: StopReason, kind: &str, text: &str) -> Ending {
        let data = SystemData { kind: kind.to_owned(), text: text.to_owned(), ..Default::default() };
        Ending { stop, last: Some(Last::System(data)), broken: false }
    }

    /// With an error.
    pub fn error(stop: StopReason, message: &str, status: Option<u16>, retryable: bool) -> Ending {
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

    /// Stopped by the owner, or with the server.
    pub fn stopped(agent: &Agent) -> Ending {
        if agent.closing() {
            return Ending::system(StopReason::Interrupted, "interrupted", "The server stopped.");
        }
        Ending::system(StopReason::Cancelled, "cancelled", "Stopped.")
    }

    /// The store failed.
    pub fn store(error: &StoreError) -> Ending {
        let text = match error {
            StoreError::Full(what) => format!("the budget {what} is full"),
            StoreError::NoSpace(text) | StoreError::Broken(text) => text.clone(),
        };
        let text = format!("the store failed: {text}");
        Ending { broken: true, ..Ending::error(StopReason::Error, &text, None, true) }
    }

    /// The provider did not give a whole answer.
    pub fn fault(agent: &Agent, fault: &Fault) -> Ending {
        let message = told(fault);
        match fault {
            Fault::Stopped => Ending::stopped(agent),
            Fault::Cut { .. } => Ending::error(StopReason::Cut, message, None, true),
            Fault::TooBig(_) | Fault::Store(_) => Ending::error(StopReason::Error, message, None, false),
            Fault::Refusal { status, retryable, .. } => {
                Ending::error(StopReason::Error, message, *status, *retryable)
            }
        }
    }

    /// How the turn stands then.
    pub fn status(&self) -> TurnStatus {
        match self.stop {
            StopReason::Error | StopReason::Cut => TurnStatus::Error,
            StopReason::Interrupted => TurnStatus::Interrupted,
            _ => TurnStatus::Done,
        }
    }
}

/// What a fault tells the owner.
pub fn told(fault: &Fault) -> &str {
    match fault {
        Fault::Stopped => "stopped",
        Fault::Cut { message, .. } | Fault::Refusal { message, .. } | Fault::TooBig(message) => message,
        Fault::Store(StoreError::NoSpace(text) | StoreError::Broken(text)) => text,
        Fault::Store(StoreError::Full(what)) => what,
    }
}
