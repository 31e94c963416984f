//! Calls that a correct program does not make: each is refused, and changes nothing.

use udeck_via::{Descriptor, Error, State};

use crate::fleet::Actor;
use crate::image::segments;
use crate::play::Play;

impl Play<'_> {
    /// Makes one of the mistakes.
    pub fn mistake(&mut self) {
        match self.dice.below(6) {
            0 => self.foreign_memory(),
            1 => self.too_many_segments(),
            2 => self.post_in_a_wrong_state(),
            3 => self.connect_a_connected_one(),
            _ => self.forbidden(),
        }
    }

    fn descriptor(&mut self, who: usize, tag_of_vi: bool, pieces: &[usize]) -> Descriptor {
        let id = self.number();
        let station = &self.stations[self.actors[who].home];
        let ptag = if tag_of_vi { station.ptag } else { station.foreign };
        Descriptor::new(segments(&station.nic, ptag, id, pieces, &[]))
    }

    /// Posts, expects a refusal, and checks that nothing has changed.
    fn refused(
        &mut self,
        who: usize,
        kind: &'static str,
        what: Descriptor,
        send: bool,
        right: impl Fn(&Error) -> bool,
    ) {
        let state = self.actors[who].state();
        let count = what.segments().len();
        let result =
            self.with_vi(who, kind, |vi| if send { vi.post_send(what) } else { vi.post_receive(what) });
        let Err((error, back)) = result else { panic!("{kind} on {who} ({state:?}) was taken") };
        assert!(right(&error), "{kind} on {who} ({state:?}): {error}");
        assert_eq!(back.segments().len(), count, "the descriptor comes back");
        assert_eq!(self.actors[who].state(), state, "a refusal changes nothing");
        self.tried(kind, &format!("on {who}"), &Err(error));
    }

    fn foreign_memory(&mut self) {
        let Some(who) = self.somebody(|actor| actor.state() == State::Connected) else { return };
        let (descriptor, send) = (self.descriptor(who, false, &[8]), self.dice.percent(50));
        self.refused(who, "post of foreign memory", descriptor, send, |e| matches!(e, Error::InvalidPtag));
        self.coverage.refused("PROTECTION_ERROR");
    }

    fn too_many_segments(&mut self) {
        let Some(who) = self.somebody(|actor| actor.state() == State::Connected) else { return };
        let pieces = vec![1; self.stations[0].nic.attributes().max_segments + 1];
        let (descriptor, send) = (self.descriptor(who, true, &pieces), self.dice.percent(50));
        let right = |error: &Error| matches!(error, Error::InvalidParameter(_));
        self.refused(who, "post of too many segments", descriptor, send, right);
        self.coverage.refused("FORMAT_ERROR");
    }

    /// Posts a send while not connected, or anything in the Error state.
    fn post_in_a_wrong_state(&mut self) {
        let wrong = |actor: &Actor| actor.state() != State::Connected;
        let broken = |actor: &Actor| actor.state() == State::Error;
        let Some(who) = self.somebody(broken).or_else(|| self.somebody(wrong)) else { return };
        let is_broken = broken(&self.actors[who]);
        for send in if is_broken { &[true, false][..] } else { &[true] } {
            let descriptor = self.descriptor(who, true, &[8]);
            let right = |error: &Error| matches!(error, Error::InvalidState { .. });
            self.refused(who, "post in a wrong state", descriptor, *send, right);
        }
    }

    fn connect_a_connected_one(&mut self) {
        let Some(who) = self.somebody(|actor| actor.state() != State::Idle) else { return };
        let others: Vec<_> = (0..self.actors.len()).filter(|&other| other != who).collect();
        let other = self.dice.pick(&others).expect("there are two VIs at least");
        self.connect(who, other, crate::fleet::Answer::Accept);
    }
}
