//! Connecting and disconnecting, in order and otherwise.

use std::sync::PoisonError;
use std::time::Duration;

use udeck_via::{Deadline, Error, State};

use crate::book::Connection;
use crate::coverage::name;
use crate::fleet::{Answer, DOOR, WELCOME};
use crate::play::{LONG, Play};
use crate::transfers::SOON;

/// Real-time limit of requests that will not be answered. Nothing is under way when it passes, so it changes
/// nothing.
const BRIEF: Duration = Duration::from_millis(1);

impl Play<'_> {
    // ---- choice of VIs ----

    /// Two idle VIs of one level on living NICs.
    fn couple(&mut self) -> Option<(usize, usize)> {
        let fit = |play: &Self, who: usize| {
            let actor = &play.actors[who];
            actor.state() == State::Idle && play.stations[actor.home].alive
        };
        let all = 0..self.actors.len();
        let couples: Vec<_> = all
            .clone()
            .flat_map(|a| all.clone().map(move |b| (a, b)))
            .filter(|&(a, b)| a != b && self.actors[a].level == self.actors[b].level)
            .filter(|&(a, b)| fit(self, a) && fit(self, b))
            .collect();
        self.dice.pick(&couples)
    }

    pub fn connect_somebody(&mut self) {
        match self.couple() {
            Some((asker, answerer)) => self.connect(asker, answerer, Answer::Accept),
            None => self.disconnect_somebody(),
        }
    }

    pub fn meet_somebody(&mut self) {
        match self.couple() {
            Some((a, b)) if self.dice.percent(70) => self.meet(a, b),
            Some((a, _)) => self.wait_in_vain(a),
            None => self.disconnect_somebody(),
        }
    }

    /// Disconnects a broken VI if there is one, otherwise any.
    pub fn disconnect_somebody(&mut self) {
        let broken = self.somebody(|actor| actor.state() == State::Error);
        let who = match broken {
            Some(who) => who,
            None if self.dice.percent(30) => self.dice.below(self.actors.len()),
            None => return self.post_receive_anywhere(),
        };
        self.disconnect(who);
    }

    fn post_receive_anywhere(&mut self) {
        if let Some(who) = self.somebody(|actor| actor.state() != State::Error) {
            let room = self.dice.between(0, 300);
            self.post_receive_of(who, room);
        }
    }

    pub fn disconnect(&mut self, who: usize) {
        self.with_vi(who, "disconnect", |vi| vi.disconnect());
        assert_eq!(self.actors[who].state(), State::Idle, "disconnect leads to idle");
        self.actors[who].book.ends();
        if let Some((connection, side)) = self.actors[who].connection {
            self.connections[connection].ends[side] = None;
        }
        self.tried("disconnect", &format!("{who}"), &Ok(()));
    }

    /// Drops a VI with all its posts, which nobody hears of again, and makes another one.
    pub fn replace(&mut self) {
        let who = self.dice.below(self.actors.len());
        if let Some((connection, side)) = self.actors[who].connection {
            self.connections[connection].ends[side] = None;
        }
        let home = self.actors[who].home;
        self.actors[who].replace(&self.stations[home], who);
        self.tried("drop and make a VI", &format!("{who}"), &Ok(()));
    }

    // ---- client and server ----

    /// Lets everything under way happen, so that a wait in real time finds nothing left to do.
    fn quiesce(&mut self) {
        self.fabric.advance(LONG);
    }

    pub fn connect(&mut self, asker: usize, answerer: usize, answer: Answer) {
        let (from, to) = (self.actors[asker].home, self.actors[answerer].home);
        let before = (self.actors[asker].state(), self.actors[answerer].state());
        let expected = self.expected_of_connect(asker, answerer, answer);
        let unanswered = expected.0 == "Timeout";
        if unanswered {
            self.quiesce();
        }
        let question = (self.connections.len() as u32).to_le_bytes();
        let desk = self.stations[to].desk.clone();
        let desk = || desk.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let mut desk = desk();
            desk.answer = answer;
            desk.vi = self.actors[answerer].vi.take();
            (desk.accepted, desk.heard) = (None, Vec::new());
        }
        let address = self.stations[to].address(DOOR);
        let deadline = Deadline::after(if unanswered { BRIEF } else { SOON });
        let cq = self.stations[from].cq.handle();
        let result = self.actors[asker].vi().connect(&address, &cq, &cq, &question, deadline);
        // The advance waits until the listener's thread has nothing left to do.
        self.fabric.advance(Duration::ZERO);
        let (accepted, heard) = {
            let mut desk = desk();
            self.actors[answerer].vi = desk.vi.take();
            (desk.accepted.take(), std::mem::take(&mut desk.heard))
        };
        self.follow(asker, before.0, "connect");
        self.follow(answerer, before.1, "accept");
        let was_accepted = accepted.is_some_and(|accepted| accepted.is_ok());
        let found = (result.as_ref().map_or_else(name, |_| "Ok"), was_accepted);
        assert_eq!(found, expected, "connect from {asker} to {answerer}, answered by {answer:?}");
        assert!(heard.is_empty() || heard == question, "private data of the request");
        if let Ok(answered) = &result {
            assert_eq!(answered, WELCOME, "private data of the answer");
        }
        if was_accepted {
            self.record_connection([result.is_ok().then_some(asker), Some(answerer)]);
        }
        let (kind, details) = (kind_of(answer), format!("from {asker} to {answerer}"));
        self.tried(kind, &details, &result.map(drop));
    }

    /// Expected result of the requester, and whether the other VI is connected then.
    fn expected_of_connect(&self, asker: usize, answerer: usize, answer: Answer) -> (&'static str, bool) {
        let (a, b) = (&self.actors[asker], &self.actors[answerer]);
        let idle = b.state() == State::Idle;
        if a.state() != State::Idle {
            return ("InvalidState", false);
        }
        if !self.stations[b.home].alive {
            return ("Os", false);
        }
        if !self.stations[a.home].alive {
            return ("Lost", false);
        }
        if self.stalled.contains(&(a.home, b.home)) {
            return ("Timeout", false);
        }
        let answers = !self.stalled.contains(&(b.home, a.home));
        let told = |error| if answers { error } else { "Timeout" };
        match answer {
            Answer::Keep => ("Timeout", false),
            Answer::Reject | Answer::Drop => (told("Rejected"), false),
            Answer::Accept if !idle => (told("Rejected"), false),
            Answer::Accept if a.level != b.level => (told("InvalidReliability"), false),
            Answer::Accept => (told("Ok"), true),
        }
    }

    fn record_connection(&mut self, ends: [Option<usize>; 2]) {
        let level = self.actors[ends[1].expect("who accepted")].level;
        for (side, end) in ends.iter().enumerate() {
            if let Some(who) = *end {
                self.actors[who].joined(self.connections.len(), side);
            }
        }
        self.connections.push(Connection::new(level, ends));
    }

    /// Makes a request that meets something else than an acceptance.
    pub fn refusal(&mut self) {
        let Some(asker) = self.somebody(|actor| actor.state() == State::Idle) else { return };
        let others: Vec<_> = (0..self.actors.len()).filter(|&who| who != asker).collect();
        let answerer = self.dice.pick(&others).expect("there are two VIs at least");
        match self.dice.below(6) {
            0 => self.connect(asker, answerer, Answer::Reject),
            1 => self.connect(asker, answerer, Answer::Drop),
            // The other VI stays as it is: of another level, busy, dead, or unreachable.
            2 | 3 => self.connect(asker, answerer, Answer::Accept),
            4 => self.connect(asker, answerer, Answer::Keep),
            _ => self.nobody_there(asker, answerer),
        }
        self.answer_too_late(answerer);
    }

    fn nobody_there(&mut self, asker: usize, other: usize) {
        let (from, to) = (self.actors[asker].home, self.actors[other].home);
        if !self.stations[from].alive || !self.stations[to].alive || self.is_stalled(from, to) {
            return;
        }
        let address = self.stations[to].address(b"no door");
        let cq = self.cq(asker).handle();
        let connect = |vi: &mut udeck_via::Vi| vi.connect(&address, &cq, &cq, b"", Deadline::after(SOON));
        let result = self.with_vi(asker, "connect", connect);
        assert!(matches!(result, Err(Error::NoMatch(_))), "nobody listens there: {result:?}");
        self.tried("connect (nobody there)", &format!("from {asker}"), &result.map(drop));
    }

    /// Accepts a request whose requester has given up: the VI is connected to nobody, until this is noticed.
    fn answer_too_late(&mut self, who: usize) {
        let desk = self.stations[self.actors[who].home].desk.clone();
        let kept = desk.lock().unwrap_or_else(PoisonError::into_inner).kept.take();
        let (Some(request), State::Idle) = (kept, self.actors[who].state()) else { return };
        let cq = self.cq(who).handle();
        let result = self.with_vi(who, "accept", |vi| request.accept(vi, &cq, &cq, WELCOME));
        match &result {
            Ok(()) => self.record_connection([None, Some(who)]),
            Err(Error::InvalidReliability) => {}
            Err(error) => panic!("accepting too late: {error}"),
        }
        self.tried("accept (too late)", &format!("on {who}"), &result);
    }

    // ---- peer to peer ----

    /// Whether `a` is the one that answers: the one with the higher address, which starts no thread of its own.
    fn listens(&self, a: usize, b: usize) -> bool {
        self.stations[self.actors[a].home].name >= self.stations[self.actors[b].home].name
    }

    /// Both request each other, over links that are undisturbed for that long.
    fn meet(&mut self, a: usize, b: usize) {
        let (listener, asker) = if self.listens(a, b) { (a, b) } else { (b, a) };
        let homes = (self.actors[asker].home, self.actors[listener].home);
        if self.is_stalled(homes.0, homes.1) {
            return self.wait_in_vain(listener);
        }
        self.quiesce();
        for link in [homes, (homes.1, homes.0)] {
            self.set_link(link, udeck_sim::Link::default());
        }
        for (who, other) in [(listener, homes.0), (asker, homes.1)] {
            let (address, cq) = (self.stations[other].address(b"meeting"), self.cq(who).handle());
            let deadline = Deadline::after(SOON);
            let request = |vi: &mut udeck_via::Vi| vi.peer_request(&address, &cq, &cq, WELCOME, deadline);
            let result = self.with_vi(who, "peer_request", request);
            self.tried("peer_request", &format!("of {who}"), &result);
            assert!(result.is_ok(), "peer request of {who}: {result:?}");
            assert!(matches!(self.actors[who].state(), State::ConnectPending));
        }
        for who in [listener, asker] {
            let result = self.with_vi(who, "peer_wait", |vi| vi.peer_wait());
            assert_eq!(result.as_deref().ok(), Some(WELCOME), "peer_wait of {who}: {result:?}");
            self.tried("peer_wait", &format!("of {who}"), &result.map(drop));
        }
        self.record_connection([Some(asker), Some(listener)]);
    }

    /// Makes a peer request that nobody returns: it is withdrawn, or times out.
    fn wait_in_vain(&mut self, who: usize) {
        let home = self.actors[who].home;
        let own = self.stations[home].name.clone();
        // The other station's address is lower, so that this VI listens, and no thread connects on its behalf.
        let Some(other) = (0..self.stations.len()).find(|&at| self.stations[at].name < own) else { return };
        let (address, cq) = (self.stations[other].address(b"in vain"), self.cq(who).handle());
        let withdrawn = self.dice.percent(50);
        let deadline = Deadline::after(if withdrawn { SOON } else { BRIEF });
        self.quiesce();
        let request = |vi: &mut udeck_via::Vi| vi.peer_request(&address, &cq, &cq, WELCOME, deadline);
        let result = self.with_vi(who, "peer_request", request);
        self.tried("peer_request", &format!("of {who}, in vain"), &result);
        assert!(result.is_ok(), "peer request of {who}: {result:?}");
        if withdrawn {
            return self.disconnect(who);
        }
        let result = self.with_vi(who, "peer_wait", |vi| vi.peer_wait()).map(drop);
        assert!(matches!(result, Err(Error::Timeout { .. })), "nobody came: {result:?}");
        // A time-out withdraws the request in the same way.
        self.actors[who].book.ends();
        self.tried("peer_wait", &format!("of {who}, in vain"), &result);
    }
}

fn kind_of(answer: Answer) -> &'static str {
    match answer {
        Answer::Accept => "connect",
        Answer::Reject => "connect (rejected)",
        Answer::Drop => "connect (request dropped)",
        Answer::Keep => "connect (unanswered)",
    }
}
