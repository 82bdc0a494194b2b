//! When a failed request is made again: a pure policy, one counter for all causes.

use super::Fault;
use std::time::Duration;

/// A provider that asks for more than this gets no retry; the owner is told when to try instead.
pub const WAIT_MAX: Duration = Duration::from_secs(60);
const FIRST_WAIT: Duration = Duration::from_millis(500);
const BACKOFF_MAX: Duration = Duration::from_secs(8);

/// The tries of one request.
#[derive(Debug)]
pub struct Retry {
    tried: u32,
    attempts: u32,
}

impl Retry {
    /// For a request that may be tried `attempts` times, the first included (`attempts` of the budget).
    pub fn new(attempts: usize) -> Retry {
        Retry { tried: 1, attempts: u32::try_from(attempts).unwrap_or(u32::MAX) }
    }

    /// Which try the last one was, from 1.
    pub fn tried(&self) -> u32 {
        self.tried
    }

    /// How long to wait before the request is made again, or `None` if it is not. `shown`: something of the
    /// answer was shown or run.
    pub fn next(&mut self, fault: &Fault, shown: bool) -> Option<Duration> {
        let mut random = [0; 1];
        // Without randomness the waits are merely the same everywhere.
        let _ = getrandom::fill(&mut random);
        self.next_with(fault, shown, random[0])
    }

    fn next_with(&mut self, fault: &Fault, shown: bool, random: u8) -> Option<Duration> {
        if shown || self.tried >= self.attempts {
            return None;
        }
        let asked = match fault {
            Fault::Refusal { retryable: true, retry_after_ms, .. } => {
                retry_after_ms.map(Duration::from_millis)
            }
            Fault::Cut { .. } => None,
            Fault::Refusal { .. } | Fault::Stopped | Fault::TooBig(_) | Fault::Store(_) => return None,
        };
        if asked.is_some_and(|asked| asked > WAIT_MAX) {
            return None;
        }
        let doubled = FIRST_WAIT.saturating_mul(1 << (self.tried - 1).min(16)).min(BACKOFF_MAX);
        // Up to a quarter less, so that many devices do not come back at the same moment; never less than
        // asked.
        let backoff = doubled - doubled / 1024 * u32::from(random);
        self.tried += 1;
        Some(asked.map_or(backoff, |asked| asked.max(backoff / 2)))
    }
}

/// The fault as it is told at the end: with the time at which to try again, if the provider asked for a long
/// wait.
pub fn explained(fault: Fault) -> Fault {
    match fault {
        Fault::Refusal { status, message, retryable: true, retry_after_ms: Some(ms) }
            if ms > WAIT_MAX.as_millis() as u64 =>
        {
            let seconds = ms.div_ceil(1000);
            let when = match seconds {
                0..=180 => format!("{seconds} s"),
                181..=10_800 => format!("{} minutes", seconds.div_ceil(60)),
                _ => format!("{} hours", seconds.div_ceil(3600)),
            };
            let message = format!("{message}; try again in {when}");
            Fault::Refusal { status, message, retryable: true, retry_after_ms: Some(ms) }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::Usage;

    fn refusal(retryable: bool, retry_after_ms: Option<u64>) -> Fault {
        Fault::Refusal { status: Some(429), message: "slow down".into(), retryable, retry_after_ms }
    }

    #[test]
    fn waits_double_up_to_eight_seconds_and_end_with_the_attempts() {
        let mut retry = Retry::new(7);
        let waits: Vec<u64> = std::iter::from_fn(|| retry.next_with(&refusal(true, None), false, 0))
            .map(|wait| wait.as_millis() as u64)
            .collect();
        assert_eq!(waits, [500, 1000, 2000, 4000, 8000, 8000]);
    }

    #[test]
    fn jitter_takes_at_most_a_quarter() {
        let wait = Retry::new(2).next_with(&refusal(true, None), false, 255).unwrap();
        assert!(wait >= Duration::from_millis(375) && wait < Duration::from_millis(400), "{wait:?}");
    }

    #[test]
    fn all_causes_share_one_counter() {
        let mut retry = Retry::new(3);
        let cut = Fault::Cut { message: "reset".into(), usage: Usage::default() };
        assert!(retry.next(&cut, false).is_some());
        assert!(retry.next(&refusal(true, None), false).is_some());
        assert!(retry.next(&cut, false).is_none());
        assert_eq!(retry.tried(), 3);
    }

    #[test]
    fn nothing_is_tried_again_once_something_was_shown() {
        let cut = Fault::Cut { message: "reset".into(), usage: Usage::default() };
        assert_eq!(Retry::new(5).next(&cut, true), None);
        assert_eq!(Retry::new(5).next(&refusal(true, None), true), None);
    }

    #[test]
    fn a_stop_a_spent_quota_and_a_budget_are_final() {
        for fault in [Fault::Stopped, refusal(false, None), Fault::TooBig("x".into())] {
            assert_eq!(Retry::new(5).next(&fault, false), None);
        }
    }

    #[test]
    fn the_time_that_is_asked_for_is_kept_up_to_a_minute_and_told_beyond() {
        let mut retry = Retry::new(5);
        assert_eq!(retry.next_with(&refusal(true, Some(7000)), false, 9), Some(Duration::from_secs(7)));
        assert_eq!(retry.next_with(&refusal(true, Some(60_000)), false, 9), Some(WAIT_MAX));
        assert_eq!(retry.next_with(&refusal(true, Some(61_000)), false, 9), None);
        let Fault::Refusal { message, .. } = explained(refusal(true, Some(600_000))) else { panic!() };
        assert_eq!(message, "slow down; try again in 10 minutes");
    }
}
