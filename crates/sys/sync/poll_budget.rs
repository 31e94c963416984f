//! Budget of a loop that takes in what others send.

use crate::Deadline;

/// Budget of a loop that takes in whatever others send, so that a peer that sends without end does not keep it.
///
/// The budget is one round of polls, for calls that do not wait and for those whose caller watches the time; or as many
/// rounds as there is time for. The clock is read only between rounds, so a loop that soon ends never reads it.
#[derive(Clone, Copy, Debug)]
pub struct PollBudget {
    polls: u32,
    deadline: Option<Deadline>,
}

impl PollBudget {
    /// Number of polls of a round.
    pub const ROUND: u32 = 64;

    /// A budget of one round.
    #[inline]
    pub const fn once() -> Self {
        PollBudget { polls: Self::ROUND, deadline: None }
    }

    /// A budget of one round, and of others until the deadline.
    #[inline]
    pub const fn until(deadline: Deadline) -> Self {
        PollBudget { polls: Self::ROUND, deadline: Some(deadline) }
    }

    /// Spends one poll. `false`: there is none left.
    #[inline]
    pub fn take(&mut self) -> bool {
        if self.polls == 0 && !self.begin_round() {
            return false;
        }
        self.polls -= 1;
        true
    }

    #[cold]
    fn begin_round(&mut self) -> bool {
        let has_time = self.deadline.is_some_and(|deadline| !deadline.passed());
        self.polls = if has_time { Self::ROUND } else { 0 };
        has_time
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn polls(mut budget: PollBudget) -> u32 {
        (0..10 * PollBudget::ROUND).take_while(|_| budget.take()).count() as u32
    }

    #[test]
    fn a_round_is_had_whatever_the_time_and_no_more_than_there_is_time_for() {
        assert_eq!(polls(PollBudget::once()), PollBudget::ROUND);
        assert_eq!(polls(PollBudget::until(Deadline::now())), PollBudget::ROUND);
        assert_eq!(
            polls(PollBudget::until(Deadline::after(Duration::from_secs(3600)))),
            10 * PollBudget::ROUND
        );
    }

    #[test]
    fn what_is_spent_stays_spent() {
        for mut budget in [PollBudget::once(), PollBudget::until(Deadline::now())] {
            while budget.take() {}
            assert!(!budget.take() && !budget.take());
        }
    }
}
