//! Barriers: empty messages along a plan ([`plan`]) by which everybody has heard of everybody, directly or not, when it is
//! through.
//!
//! Rank 0 chooses the plan, and tells the others where the launcher keeps what all may read: two plans in one job would
//! wait for each other.

mod plan;

use std::sync::Arc;
use std::time::{Duration, Instant};

use udeck_boot::waits::{Call, Wait};
use udeck_boot::{BootError, Maker, Ranks};
use udeck_via::{Deadline, Error as ViaError, Home, PollBudget};

use self::plan::{BarrierStep, Plan};
use crate::connect::{LookupMode, connect};
use crate::error::{Error, INTERNAL, Result};
use crate::long_wait::LongWait;
use crate::mailbox::Mailbox;
use crate::postbox::Postbox;
use crate::protocol::Protocol;
use crate::received::Received;
use crate::send::Channel;
use crate::wait_policy::WaitPolicy;
use crate::world_state::WorldState;

/// One rank's part. Made at the first barrier; making it is collective, too.
pub(crate) struct Barrier {
    inbox: Mailbox<u8>,
    /// What a barrier consists of, with places in the two tables below instead of ranks.
    steps: Vec<BarrierStep>,
    tell: Vec<Postbox<u8>>,
    hear: Vec<Heard>,
    /// Where ranks take turns on processors: the one that this rank goes to. Neighbours have different ones, so that two that
    /// speak to each other can run at the same time; left where they were started and woken, all may sit on one. And who
    /// waits here yields at once: some of those that it waits for have no other processor than this one.
    home: Option<Home>,
    /// The step at which a wait that ran out of time goes on.
    at: usize,
    /// Barriers that are over.
    generation: u32,
}

/// Whom we hear from, and what of.
struct Heard {
    rank: u32,
    /// How many barriers it has told us of: at most one more than are over.
    tokens: u32,
}

/// How often a rank that waits looks whether those that it waits for have finished. (News of lost ranks wake it at once.)
const LOOK_UP: Duration = Duration::from_millis(500);

/// How often a rank yields, where ranks take turns, before it waits as for any message: then somebody computes.
const TURNS: usize = 100;

impl Barrier {
    pub fn new(world: &Arc<WorldState>) -> Result<Self> {
        let (rank, size) = (world.rank(), world.size());
        let inbox = Mailbox::create(world, &name(rank))?;
        inbox.expect(0..size); // whoever is lost comes to no barrier
        let plan = agree(world)?;
        let mut steps = plan.steps(rank, size);
        let (mut tell, mut hear) = (Vec::new(), Vec::new());
        for step in &mut steps {
            match step {
                BarrierStep::Send(rank) => {
                    let postbox = Postbox::new(world, &name(*rank), meet(world, *rank)?);
                    postbox.set_protocol(Protocol::Auto)?; // whatever the program wants for its own messages
                    tell.push(postbox);
                    *rank = tell.len() - 1;
                }
                BarrierStep::Receive(rank) => {
                    hear.push(Heard { rank: *rank as u32, tokens: 0 });
                    *rank = hear.len() - 1;
                }
            }
        }
        let home = plan.is_by_turns().then(|| Home::nth(rank));
        Ok(Barrier { inbox, steps, tell, hear, home, at: 0, generation: 0 })
    }

    pub fn wait(&mut self, world: &Arc<WorldState>, limit: Duration) -> Result {
        // The mailbox reports a loss once, but no later barrier can be complete either.
        if let Some((rank, how)) = lost(world) {
            return Err(Error::PeerLost { rank, how });
        }
        if let Some(home) = self.home {
            home.go();
        }
        let mut clock = Clock { limit, began: None };
        while let Some(step) = self.steps.get(self.at) {
            match *step {
                BarrierStep::Send(place) => self.send_token(place, world, &mut clock)?,
                BarrierStep::Receive(place) => self.await_token(place, world, &mut clock)?,
            }
            self.at += 1;
        }
        self.at = 0;
        self.generation = self.generation.wrapping_add(1);
        Ok(())
    }

    fn send_token(&self, place: usize, world: &WorldState, clock: &mut Clock) -> Result {
        let postbox = &self.tell[place];
        let posted = match postbox.poster().post_copy(&[], self.generation, WaitPolicy::None) {
            Err(Error::WouldBlock { .. }) => {
                postbox.poster().post_copy(&[], self.generation, WaitPolicy::Until(clock.deadline()))
            }
            posted => posted,
        };
        posted.map(drop).map_err(|error| as_ended(world, error))
    }

    fn await_token(&mut self, place: usize, world: &WorldState, clock: &mut Clock) -> Result {
        let mut budget = PollBudget::once();
        while self.hear[place].tokens == self.generation {
            if !budget.take() {
                // What is no token does not keep it beyond its time.
                let deadline = clock.deadline();
                if deadline.passed() {
                    return Err(self.too_late(clock));
                }
                budget = PollBudget::until(deadline);
            }
            let Some(token) = self.next_token(place, world, clock)? else { continue };
            let heard = self.hear.iter_mut().find(|heard| heard.rank as usize == token.source());
            // What is no token counts for nothing.
            if let Some(heard) = heard.filter(|heard| heard.tokens == token.tag()) {
                heard.tokens = heard.tokens.wrapping_add(1);
            }
        }
        Ok(())
    }

    /// The next token; `None`: not yet.
    fn next_token(
        &self,
        place: usize,
        world: &WorldState,
        clock: &mut Clock,
    ) -> Result<Option<Received<u8>>> {
        let turns = if self.home.is_some() { TURNS } else { 0 };
        for _ in 0..turns {
            if let Some(token) = self.inbox.try_retrieve_in_turn()? {
                return Ok(Some(token));
            }
            std::thread::yield_now();
        }
        match self.inbox.retrieve_soon()? {
            None => self.wait_for_token(place, world, clock),
            token => Ok(token),
        }
    }

    /// `None`: not yet.
    fn wait_for_token(
        &self,
        place: usize,
        world: &WorldState,
        clock: &mut Clock,
    ) -> Result<Option<Received<u8>>> {
        let from = self.hear[place].rank;
        let deadline = clock.deadline();
        // Before: what it has told us by then is found, unless its connection is still being accepted.
        let has_finished = world.exit_log().has_finished(from) && !self.inbox.is_admitting();
        match self.inbox.retrieve_timeout(LOOK_UP.min(deadline.remaining())) {
            Ok(token) => Ok(Some(token)),
            Err(Error::Deadline { .. }) if has_finished => Err(ended(world, from as usize)),
            Err(Error::Deadline { .. }) if deadline.passed() => Err(self.too_late(clock)),
            // Which rank is lost makes no difference: without it nobody comes through.
            Err(Error::Deadline { .. }) => {
                clock.look(world, from);
                lost(world).map_or(Ok(None), |(rank, how)| Err(Error::PeerLost { rank, how }))
            }
            Err(Error::NobodyLeft { .. }) => Err(ended(world, from as usize)),
            Err(error) => Err(error),
        }
    }

    /// Names all that this step and those that could come before the next message of ours wait for.
    #[cold]
    fn too_late(&self, clock: &mut Clock) -> Error {
        let awaited = self.steps[self.at..].iter().map_while(|step| match step {
            BarrierStep::Receive(place) => Some(&self.hear[*place]),
            BarrierStep::Send(_) => None,
        });
        let mut missing: Vec<u32> =
            awaited.filter(|heard| heard.tokens == self.generation).map(|heard| heard.rank).collect();
        missing.sort_unstable();
        let those = if missing.len() == 1 { "one that it waits for" } else { "some that they wait for" };
        let whom = format!("{} (or {those})", Ranks(&missing));
        Error::Deadline { what: "the barrier".into(), waited: clock.elapsed(), whom }
    }
}

/// Read only when there is something to wait for.
struct Clock {
    limit: Duration,
    began: Option<(LongWait, Deadline)>,
}

impl Clock {
    fn elapsed(&mut self) -> Duration {
        self.began().0.elapsed()
    }

    fn deadline(&mut self) -> Deadline {
        self.began().1
    }

    fn began(&mut self) -> &mut (LongWait, Deadline) {
        self.began.get_or_insert_with(|| (LongWait::begin(), Deadline::after(self.limit)))
    }

    /// Waiting for this rank was in vain so far.
    fn look(&mut self, world: &WorldState, rank: u32) {
        let wait = || Wait { call: Call::Barrier, name: String::new(), ranks: vec![rank], open: false };
        self.began().0.look(world, u64::from(rank), wait);
    }
}

/// The plan of this job's barriers.
fn agree(world: &Arc<WorldState>) -> Result<Plan> {
    if world.size() <= 2 {
        return Ok(Plan::best(world.size(), false)); // and there is no other
    }
    let key = format!("{INTERNAL}barrier");
    if world.rank() == 0 {
        let plan = Plan::best(world.size(), world.oversubscribed());
        let deadline = Deadline::after(world.config().setup);
        world.client().put(&key, &plan.encode(), deadline.instant())?;
        return Ok(plan);
    }
    let chosen = patiently(world, 0, |deadline| {
        match world.client().get_of(&key, Maker::Collective(0), deadline.instant()) {
            Ok(chosen) => Ok(Some(chosen)),
            Err(BootError::NoSuchKey { .. }) => Ok(None),
            Err(BootError::PeerDone { .. } | BootError::NobodyLeft { .. }) => Err(ended(world, 0)),
            Err(error) => Err(error.into()),
        }
    })?;
    Plan::decode(&chosen).ok_or_else(|| {
        Error::via(
            "the first barrier",
            ViaError::Rejected("rank 0 has another version of this library".into()),
        )
    })
}

/// Connects to a rank when it comes to its first barrier.
fn meet(world: &Arc<WorldState>, rank: usize) -> Result<Channel> {
    let mode = LookupMode::Of(Maker::Collective(rank as u32));
    patiently(world, rank, |deadline| match connect::<u8>(world, &name(rank), mode, deadline) {
        // Names are for whoever comes first.
        Ok(channel) if channel.owner() as usize != rank => {
            Err(Error::NameTaken { name: name(rank), rank: channel.owner() as usize })
        }
        Ok(channel) => Ok(Some(channel)),
        Err(Error::NoSuchMailbox { .. }) => Ok(None),
        Err(Error::NobodyLeft { .. }) => Err(ended(world, rank)),
        Err(error) => Err(as_ended(world, error)),
    })
}

/// What another rank makes when it comes to its first barrier. That it computes before is no fault of its set-up: it is
/// waited for as at any barrier. It may end instead, and any rank may be lost: the launcher then answers at once.
fn patiently<T>(
    world: &WorldState,
    rank: usize,
    mut attempt: impl FnMut(Deadline) -> Result<Option<T>>,
) -> Result<T> {
    let (start, config) = (Instant::now(), world.config());
    let deadline = Deadline::after(config.deadline);
    loop {
        match attempt(Deadline::after(config.setup).min(deadline)) {
            Ok(Some(made)) => return Ok(made),
            _ if world.exit_log().has_finished(rank as u32) => return Err(ended(world, rank)),
            Ok(None) => {}
            Err(error) => return Err(error),
        }
        if let Some((rank, how)) = lost(world) {
            return Err(Error::PeerLost { rank, how });
        }
        if deadline.passed() {
            let whom = format!("rank {rank}, which has come to no barrier yet");
            return Err(Error::Deadline { what: "the barrier".into(), waited: start.elapsed(), whom });
        }
    }
}

/// A rank that finished will not come to a barrier any more: perhaps because another one was lost.
fn ended(world: &WorldState, rank: usize) -> Error {
    let how = || "it finished without coming to this barrier".into();
    let (rank, how) = lost(world).unwrap_or_else(|| (rank, how()));
    Error::PeerLost { rank, how }
}

/// A lost rank, and what became of it: without it no barrier can be complete.
fn lost(world: &WorldState) -> Option<(usize, String)> {
    world.exit_log().find_lost(|_| true).map(|(rank, how)| (rank as usize, how))
}

/// The mailbox of a rank that has ended is gone: to the program, the rank is.
#[cold]
fn as_ended(world: &WorldState, error: Error) -> Error {
    match error {
        Error::MailboxGone { rank, .. } => ended(world, rank),
        other => other,
    }
}

fn name(rank: usize) -> String {
    format!("{INTERNAL}barrier/{rank}")
}
