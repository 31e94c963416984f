//! Agreements of the ranks that are left: the rules one by one, and all orders of votes, deaths and returns of
//! a few ranks.

use std::collections::HashSet;

use super::*;
use crate::wire::{Agreement, Question};

fn vote(question: Question, value: u64) -> Vote {
    Vote { question, value }
}

impl Bench {
    fn agree(&mut self, rank: u32, round: u64, vote: Vote) -> Vec<Action> {
        self.call(rank, Call::Agree { round, vote, wait: SECOND })
    }
}

fn agreed(actions: &[Action]) -> Vec<(u32, Agreement)> {
    let agreed = |(rank, reply)| match reply {
        Reply::Agreed(agreement) => Some((rank, Arc::unwrap_or_clone(agreement))),
        _ => None,
    };
    replies(actions).into_iter().filter_map(agreed).collect()
}

#[test]
fn the_last_vote_or_the_last_death_ends_the_vote_for_all() {
    let mut bench = Bench::new(4);
    assert_eq!(bench.agree(2, 0, vote(Question::Agree, 0b110)), []);
    assert_eq!(bench.agree(1, 0, vote(Question::Agree, 0b011)), []);
    assert_eq!(agreed(&bench.server.ended(0, "killed")), []);
    let actions = bench.server.ended(3, "killed");
    let agreement = Agreement { round: 0, ranks: vec![1, 2], all: 0b010, first: 0b011 };
    assert_eq!(agreed(&actions), [(1, agreement.clone()), (2, agreement)]);
    // The news of the deaths comes before the agreement without the dead.
    assert!(matches!(actions[0], Action::Close { rank: 3 }), "{actions:?}");
    assert_eq!(events(&actions[..3]).len(), 2, "{actions:?}");
    // The last rank agrees with itself.
    bench.call(1, Call::Done);
    let alone = Agreement { round: 1, ranks: vec![2], all: 7, first: 7 };
    assert_eq!(agreed(&bench.agree(2, 1, vote(Question::Agree, 7))), [(2, alone)]);
}

#[test]
fn a_rank_that_has_not_joined_is_waited_for_and_named_when_the_time_is_up() {
    let mut bench = Bench { server: Server::new(Config::new(3).unwrap()), now: Instant::now(), next_id: 0 };
    bench.call(0, Call::Hello { version: VERSION });
    bench.call(2, Call::Hello { version: VERSION });
    assert_eq!(agreed(&bench.agree(0, 0, vote(Question::Survivors, 0))), []);
    let late = Reply::Failed(RequestError::FenceLate { missing: vec![1, 2] });
    assert_eq!(replies(&bench.pass(SECOND)), [(0, late)]);
    // The vote of a rank that was late does not count.
    assert_eq!(agreed(&bench.agree(2, 0, vote(Question::Survivors, 0))), []);
    bench.server.ended(1, "killed");
    assert_eq!(agreed(&bench.agree(0, 0, vote(Question::Survivors, 0))).len(), 2);
}

#[test]
fn different_questions_are_refused_at_all_ranks_which_may_ask_again() {
    let mut bench = Bench::new(2);
    bench.agree(0, 0, vote(Question::Survivors, 0));
    let refused = replies(&bench.agree(1, 0, vote(Question::Agree, 1)));
    let words =
        "rank 1 called `agree`, and others `survivors`: all ranks that are left have to make the same call";
    let failed = Reply::Failed(RequestError::Refused { why: words.into() });
    assert_eq!(refused, [(0, failed.clone()), (1, failed)]);
    bench.agree(0, 0, vote(Question::Agree, 3));
    assert_eq!(agreed(&bench.agree(1, 0, vote(Question::Agree, 1))).len(), 2);
}

#[test]
fn a_second_thread_and_a_wrong_round_are_refused() {
    let mut bench = Bench::new(2);
    bench.agree(0, 0, vote(Question::Agree, 0));
    bench.agree(1, 0, vote(Question::Agree, 0));
    bench.agree(0, 1, vote(Question::Agree, 0));
    for (rank, round, words) in
        [(0, 1, "another thread"), (1, 7, "round 7"), (1, u64::MAX, "where 1 is next")]
    {
        let actions = bench.agree(rank, round, vote(Question::Agree, 0));
        let Some(Reply::Failed(RequestError::Refused { why })) = reply_to(&actions, rank, bench.next_id)
        else {
            panic!("{actions:?}")
        };
        assert!(why.contains(words), "{why}");
    }
}

/// A rank as the model sees it. `round`: number of agreements that it has taken part in.
#[derive(Clone, Debug)]
enum Rank {
    Computes {
        round: u64,
    },
    Waits {
        round: u64,
        answer: Option<Agreement>,
    },
    Finished,
    /// The rank's connection has closed; the launcher has not yet said how it ended.
    Closed,
    Dead,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Vote,
    /// The rank takes the answer.
    Take,
    Finish,
    /// The rank's wait ends, whether the answer has come or not.
    GiveUp,
    Close,
    Die,
}

impl Step {
    const ALL: [Step; 6] = [Step::Vote, Step::Take, Step::Finish, Step::GiveUp, Step::Close, Step::Die];
}

/// A job of a few ranks, each of which takes part in `rounds` agreements and finishes.
#[derive(Clone)]
struct Model {
    server: Server,
    now: Instant,
    ranks: Vec<Rank>,
    rounds: u64,
    deaths_left: u32,
    returns_left: u32,
    /// The agreements, by round.
    made: Vec<Agreement>,
}

impl Model {
    fn new(size: u32, rounds: u64, deaths: u32, returns: u32) -> Model {
        let mut config = Config::new(size).unwrap();
        config.patience = SECOND;
        let Bench { server, now, .. } = Bench::with(config);
        let ranks = vec![Rank::Computes { round: 0 }; size as usize];
        Model { server, now, ranks, rounds, deaths_left: deaths, returns_left: returns, made: Vec::new() }
    }

    /// Makes a step of a rank; `None` if the rank cannot make it now.
    fn after(&self, rank: u32, step: Step) -> Option<Model> {
        let mut next = self.clone();
        let request = |call| Request { id: u64::from(rank), call };
        let own = &mut next.ranks[rank as usize];
        let actions = match (step, &self.ranks[rank as usize]) {
            (Step::Vote, &Rank::Computes { round }) if round < self.rounds => {
                *own = Rank::Waits { round, answer: None };
                let vote = vote(Question::Agree, !(1 << rank));
                next.server.handle(self.now, rank, request(Call::Agree { round, vote, wait: SECOND }))
            }
            (Step::Take, Rank::Waits { round, answer: Some(answer) }) => {
                assert_eq!(self.made.get(*round as usize), Some(answer), "the others have another answer");
                *own = Rank::Computes { round: round + 1 };
                Vec::new()
            }
            (Step::Finish, &Rank::Computes { round }) if round == self.rounds => {
                *own = Rank::Finished;
                next.server.handle(self.now, rank, request(Call::Done))
            }
            (Step::GiveUp, &Rank::Waits { round, .. }) if self.returns_left > 0 => {
                next.returns_left -= 1;
                *own = Rank::Computes { round };
                next.server.handle(self.now, rank, request(Call::Cancel { id: u64::from(rank) }))
            }
            (Step::Close, Rank::Computes { .. } | Rank::Waits { .. }) if self.deaths_left > 0 => {
                next.deaths_left -= 1;
                *own = Rank::Closed;
                next.server.disconnected(self.now, rank)
            }
            (Step::Die, Rank::Computes { .. } | Rank::Waits { .. }) if self.deaths_left > 0 => {
                next.deaths_left -= 1;
                *own = Rank::Dead;
                next.server.ended(rank, "killed")
            }
            (Step::Die, Rank::Closed) => {
                *own = Rank::Dead;
                next.server.ended(rank, "killed")
            }
            _ => return None,
        };
        next.deliver(&actions);
        Some(next)
    }

    fn deliver(&mut self, actions: &[Action]) {
        for (to, agreement) in agreed(actions) {
            let Rank::Waits { round, answer: answer @ None } = &mut self.ranks[to as usize] else {
                panic!("rank {to} gets an answer that it does not wait for: {agreement:?}")
            };
            if self.made.len() as u64 == *round {
                self.made.push(agreement.clone());
            }
            assert_eq!(self.made.get(*round as usize), Some(&agreement), "the set is split");
            *answer = Some(agreement);
        }
        let failed = replies(actions).into_iter().find(|(_, reply)| matches!(reply, Reply::Failed(_)));
        assert_eq!(failed, None);
    }

    /// Checks the agreement that the step has made, if it has: all that are left, and no others, are in it.
    fn check_new_agreement(&self, before: &Model) {
        let Some(agreement) = self.made.get(before.made.len()) else { return };
        let is_left = |rank: &Rank| matches!(rank, Rank::Computes { .. } | Rank::Waits { .. });
        let left: Vec<u32> =
            (0..).zip(&self.ranks).filter(|(_, rank)| is_left(rank)).map(|(rank, _)| rank).collect();
        assert_eq!(agreement.ranks, left);
        assert_eq!(agreement.all, left.iter().fold(u64::MAX, |all, rank| all & !(1 << rank)));
    }

    /// Text that distinguishes this state from others.
    fn key(&self) -> String {
        let Server { ranks, waiting, closed, agreements, .. } = &self.server;
        let server = (ranks, waiting, closed, agreements);
        format!("{server:?} {:?} {} {} {:?}", self.ranks, self.deaths_left, self.returns_left, self.made)
    }
}

/// Visits all states, and returns their number.
fn explore(start: Model) -> usize {
    let (mut seen, mut left) = (HashSet::from([start.key()]), vec![start]);
    while let Some(model) = left.pop() {
        let mut can_go_on = false;
        for rank in 0..model.ranks.len() as u32 {
            for step in Step::ALL {
                let Some(next) = model.after(rank, step) else { continue };
                next.check_new_agreement(&model);
                can_go_on |= matches!(step, Step::Vote | Step::Take | Step::Finish);
                if seen.insert(next.key()) {
                    left.push(next);
                }
            }
        }
        let waits = |rank: &Rank| matches!(rank, Rank::Waits { .. });
        assert!(can_go_on || !model.ranks.iter().any(waits), "nobody ends the wait: {:?}", model.ranks);
    }
    seen.len()
}

#[test]
fn in_every_order_of_votes_deaths_and_returns_all_get_the_same_answer() {
    for (size, rounds, deaths, returns) in [(3, 2, 2, 1), (4, 1, 3, 1), (2, 3, 1, 2)] {
        let states = explore(Model::new(size, rounds, deaths, returns));
        assert!(states > 500, "{size} ranks: {states} states");
    }
}
