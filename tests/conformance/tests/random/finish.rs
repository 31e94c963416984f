//! The end of a sequence: living connections deliver everything, broken ones are broken at both ends, every
//! post is reported, and no memory is left.

use std::sync::{Arc, PoisonError};

use udeck_sim::Link;
use udeck_via::{Reliability, State};

use crate::play::{LONG, Play};

/// Length of a receive that has room for every message, in bytes.
const ANY: usize = 512;
/// Number of receives for messages that are still to arrive.
const PLENTY: usize = 32;

impl Play<'_> {
    /// Ends the sequence. Returns its journal.
    pub fn finish(mut self) -> Vec<String> {
        self.coverage.pause();
        self.step += 1;
        self.clear_the_sky();
        self.deliver_the_rest();
        self.ties_hold_or_have_broken();
        self.report_the_rest();
        self.leave_nothing();
        self.journal.into_lines()
    }

    fn clear_the_sky(&mut self) {
        self.note("the end: all links are perfect".into());
        let stations = self.stations.len();
        for link in (0..stations).flat_map(|from| (0..stations).map(move |to| (from, to))) {
            self.set_link(link, Link::default());
        }
        self.fabric.advance(LONG);
    }

    fn deliver_the_rest(&mut self) {
        loop {
            let mut found = 0;
            for who in 0..self.actors.len() {
                let connected = self.actors[who].state() == State::Connected;
                while connected
                    && self.actors[who].state() == State::Connected
                    && self.actors[who].book.receives.len() < PLENTY
                {
                    self.post_receive_of(who, ANY);
                }
                found += self.reap(who);
            }
            self.fabric.advance(LONG);
            if found == 0 {
                return;
            }
        }
    }

    fn ties_hold_or_have_broken(&self) {
        for (number, connection) in self.connections.iter().enumerate() {
            let state = |end: &Option<usize>| end.map(|who| self.actors[who].state());
            match [state(&connection.ends[0]), state(&connection.ends[1])] {
                [Some(State::Connected), Some(State::Connected)] => {
                    let all = connection
                        .directions
                        .iter()
                        .all(|direction| direction.arrived == direction.sent.len());
                    assert!(
                        all || connection.level == Reliability::Unreliable,
                        "connection {number} stands, and not all that was sent has come"
                    );
                }
                ends => assert!(
                    !ends.contains(&Some(State::Connected)),
                    "connection {number} is over, and one end does not know: {ends:?}"
                ),
            }
        }
    }

    fn report_the_rest(&mut self) {
        (0..self.actors.len()).for_each(|who| self.disconnect(who));
        loop {
            self.fabric.advance(LONG);
            if (0..self.actors.len()).map(|who| self.reap(who)).sum::<usize>() == 0 {
                break;
            }
        }
        for (who, actor) in self.actors.iter().enumerate() {
            let left = (actor.book.sends.len(), actor.book.receives.len());
            assert_eq!(left, (0, 0), "sends and receives of {who} that were never reported");
        }
    }

    fn leave_nothing(&mut self) {
        let now = self.step;
        self.actors.iter().filter_map(|actor| actor.target.as_ref()).for_each(|target| target.check(now));
        self.actors.clear();
        for station in &self.stations {
            drop(station.desk.lock().unwrap_or_else(PoisonError::into_inner).kept.take());
        }
        self.fabric.advance(LONG);
        for station in &self.stations {
            for arena in [station.nic.outbox(), station.nic.landing()].map(Arc::clone) {
                let usage = arena.usage();
                assert_eq!((usage.blocks, usage.used), (0, 0), "blocks of {} that nobody has", station.name);
            }
        }
    }
}
