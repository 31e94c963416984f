//! The calls of one rank by a service, and their replies until they are taken.

use std::collections::BTreeMap;

use bytemuck::Pod;
use udeck_via::mem::Fill;

use crate::error::{Error, Result};
use crate::exits::log::ExitKind;
use crate::matching::Match;
use crate::parcel::{Parcel, Stored};
use crate::received::Received;
use crate::world_state::WorldState;

/// Maximum number of a service's calls without a reply, and of replies that were not taken.
const MAX_CALLS: usize = 1 << 16;
/// Bytes that a reply that is kept counts besides its length.
const OVERHEAD: usize = 128;

pub(super) struct Calls<Rep: Pod> {
    /// Name of the mailboxes for replies.
    name: String,
    /// The called rank of each call without a reply, by number.
    pub waiting: BTreeMap<u32, usize>,
    /// Replies that were not taken, by number.
    kept: BTreeMap<u32, Received<Rep>>,
    /// Weight of `kept` in bytes.
    weight: usize,
    /// A reply for which `kept` has no room. While there is one, no others are received.
    next: Option<Received<Rep>>,
    /// Ranks that have ended.
    pub ended: BTreeMap<usize, ExitKind>,
}

impl<Rep: Pod> Calls<Rep> {
    pub fn new(name: String) -> Self {
        Calls {
            name,
            waiting: BTreeMap::new(),
            kept: BTreeMap::new(),
            weight: 0,
            next: None,
            ended: BTreeMap::new(),
        }
    }

    /// Begins a call, and returns its number, which no other service of this world has now.
    ///
    /// # Errors
    /// [`Error::WouldBlock`]: too many calls have no reply, or replies that were not taken fill their room.
    pub fn begin(&mut self, world: &WorldState, server: usize) -> Result<u32> {
        let full = |whom| Err(Error::WouldBlock { what: "a call", whom });
        if self.waiting.len() + self.kept.len() >= MAX_CALLS {
            return full(format!("replies to {MAX_CALLS} calls"));
        }
        if self.is_full() {
            let (count, bytes) = (self.kept.len(), self.weight);
            return full(format!("this rank, to take {count} replies of {bytes} bytes (DECK_SET_ASIDE)"));
        }
        // A number in use belongs to a call that began 2^32 calls before.
        let number = loop {
            let number = world.next_call();
            if !self.waiting.contains_key(&number) && !self.kept.contains_key(&number) {
                break number;
            }
        };
        self.waiting.insert(number, server);
        Ok(number)
    }

    /// Whether the call has its reply or will not get one any more.
    pub fn is_over(&self, number: u32, server: usize) -> bool {
        !self.waiting.contains_key(&number) || self.is_next(number) || self.ended.contains_key(&server)
    }

    /// Whether the reply was taken.
    pub fn is_taken(&self, number: u32) -> bool {
        !self.waiting.contains_key(&number) && !self.kept.contains_key(&number)
    }

    /// Whether a reply has come for which there is no room.
    pub fn is_full(&self) -> bool {
        self.next.is_some()
    }

    fn is_next(&self, number: u32) -> bool {
        self.next.as_ref().is_some_and(|next| next.tag() == number)
    }

    /// Keeps a reply until it is taken. A reply that nobody waits for is dropped.
    ///
    /// A reply that is not the awaited one is copied to this rank's memory: where it lies, it would hold one of the
    /// few places that its sender has for messages under way.
    pub fn accept(&mut self, world: &WorldState, reply: Received<Rep>, awaited: Option<u32>) {
        let number = reply.tag();
        if self.waiting.get(&number) != Some(&reply.source()) {
            return;
        }
        if awaited == Some(number) {
            self.keep(reply);
        } else {
            self.next = Some(reply);
            let _ = self.make_room(world, number); // reported by a wait
        }
    }

    /// Keeps the reply for which there was no room, if there is room now. `awaited`: the number of the call whose
    /// reply is awaited.
    ///
    /// # Errors
    /// [`Error::SetAsideFull`]: replies that were not taken fill their room. [`Error::Via`]: no memory is left.
    pub fn make_room(&mut self, world: &WorldState, awaited: u32) -> Result {
        let Some(reply) = self.next.take() else { return Ok(()) };
        let limit = world.config().set_aside;
        let copied =
            if self.weight > limit { Err(self.full(&reply, limit, awaited)) } else { copy(world, &reply) };
        match copied {
            Ok(None) => self.keep(reply),
            Ok(Some(copy)) => self.keep(copy),
            Err(error) => {
                self.next = Some(reply);
                return Err(error);
            }
        }
        Ok(())
    }

    #[cold]
    fn full(&self, next: &Received<Rep>, limit: usize, awaited: u32) -> Error {
        let mut ranks: BTreeMap<usize, usize> = BTreeMap::new();
        for reply in self.kept.values() {
            *ranks.entry(reply.source()).or_default() += 1;
        }
        let wanted = Match::tag(awaited).and_source(*self.waiting.get(&awaited).unwrap_or(&next.source()));
        Error::SetAsideFull { name: self.name.clone(), wanted, limit, messages: ranks.into_iter().collect() }
    }

    fn keep(&mut self, reply: Received<Rep>) {
        self.waiting.remove(&reply.tag());
        self.weight += weight(&reply);
        self.kept.insert(reply.tag(), reply);
    }

    /// Takes the reply of a call, if it has come.
    pub fn take(&mut self, number: u32) -> Option<Received<Rep>> {
        if self.is_next(number) {
            self.waiting.remove(&number);
            return self.next.take();
        }
        let reply = self.kept.remove(&number)?;
        self.weight -= weight(&reply);
        Some(reply)
    }

    /// Forgets a call.
    pub fn give_up(&mut self, number: u32) {
        drop(self.take(number));
        self.waiting.remove(&number);
    }
}

fn weight<Rep: Pod>(reply: &Received<Rep>) -> usize {
    reply.len_bytes() + OVERHEAD
}

/// Copies a reply that does not lie in this rank's memory. `None`: it does.
fn copy<Rep: Pod>(world: &WorldState, reply: &Received<Rep>) -> Result<Option<Received<Rep>>> {
    let parcel = reply.parcel();
    if matches!(parcel.stored, Stored::Inline(_) | Stored::Owned(_)) {
        return Ok(None);
    }
    let mut block = world
        .allocate(parcel.bytes().len(), Fill::Keep)
        .map_err(|error| Error::via("keeping a reply that is taken later", error))?;
    block.bytes_mut().copy_from_slice(parcel.bytes());
    let Parcel { rank, postbox, tag, number, .. } = *parcel;
    Ok(Some(Received::new(Parcel { rank, postbox, tag, number, stored: Stored::Owned(block) })))
}
