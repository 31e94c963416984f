//! Replies of one rank by a service on their way to its callers.

use std::cell::{Cell, RefCell};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};

use bytemuck::Pod;

use crate::error::{Error, Result};
use crate::postable::WithTag;
use crate::postbox::Postbox;
use crate::protocol::Protocol;
use crate::world::World;

/// Attempts of a post after news of the caller: of its lost messages, or that its mailbox is gone.
const ATTEMPTS: usize = 3;
/// Bytes that an unsent reply counts besides its length.
const OVERHEAD: usize = 128;

type Unsent<Rep> = VecDeque<(u32, Vec<Rep>)>;

pub(super) struct Answers<Rep: Pod> {
    /// Name of the mailboxes for replies.
    name: String,
    /// Postboxes of the ranks that have called this rank.
    back: RefCell<BTreeMap<usize, Postbox<Rep>>>,
    /// Replies for which a caller had no room, with the numbers of their calls, by caller.
    unsent: RefCell<BTreeMap<usize, Unsent<Rep>>>,
    /// Weight of `unsent` in bytes.
    weight: Cell<usize>,
}

impl<Rep: Pod> Answers<Rep> {
    pub fn new(name: String) -> Self {
        Answers { name, back: RefCell::default(), unsent: RefCell::default(), weight: Cell::default() }
    }

    pub fn are_sent(&self) -> bool {
        self.unsent.borrow().is_empty()
    }

    /// Whether unsent replies fill their room.
    pub fn are_too_many(&self, world: &World) -> bool {
        self.weight.get() > world.config().set_aside
    }

    /// Sends a reply, now or by a later [`Answers::flush`]. Does not wait.
    ///
    /// # Errors
    /// The errors of [`Postbox::try_post`], except that the caller has ended or cannot be reached any more.
    pub fn send(&self, world: &World, caller: usize, number: u32, reply: Vec<Rep>) -> Result {
        let mut unsent = self.unsent.borrow_mut();
        if unsent.contains_key(&caller) || !self.try_send(world, caller, number, &reply)? {
            self.weight.set(self.weight.get() + weight(&reply));
            unsent.entry(caller).or_default().push_back((number, reply));
        }
        Ok(())
    }

    /// Sends the unsent replies for which there is room.
    ///
    /// # Errors
    /// The errors of [`Answers::send`].
    pub fn flush(&self, world: &World) -> Result {
        let mut unsent = self.unsent.borrow_mut();
        let mut flushed = Ok(());
        unsent.retain(|caller, replies| {
            while let Some((number, reply)) = replies.front() {
                match self.try_send(world, *caller, *number, reply) {
                    Ok(false) => return true,
                    Ok(true) => {}
                    Err(error) => flushed = Err(error),
                }
                self.weight.set(self.weight.get() - weight(reply));
                replies.pop_front();
            }
            false
        });
        flushed
    }

    /// Returns whether the reply needs no other attempt: it was sent, or its caller has no more use for it.
    fn try_send(&self, world: &World, caller: usize, number: u32, reply: &[Rep]) -> Result<bool> {
        for _ in 0..ATTEMPTS {
            match self.post(world, caller, number, reply) {
                Ok(()) => return Ok(true),
                Err(Error::PeerLost { .. } | Error::RankFinished { .. } | Error::NoSuchMailbox { .. }) => {
                    return Ok(true);
                }
                Err(Error::WouldBlock { .. }) => return Ok(false),
                // About earlier replies.
                Err(Error::Undelivered { .. }) => {}
                // The caller may have made its service anew.
                Err(Error::MailboxGone { .. }) => {
                    self.back.borrow_mut().remove(&caller);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    fn post(&self, world: &World, caller: usize, number: u32, reply: &[Rep]) -> Result {
        let mut back = self.back.borrow_mut();
        let postbox = match back.entry(caller) {
            Entry::Occupied(made) => made.into_mut(),
            Entry::Vacant(place) => {
                // The caller made that mailbox before it called.
                let postbox = world.try_postbox_of(&self.name, caller)?;
                postbox.set_protocol(Protocol::Auto)?; // whatever the program sets for its own messages
                place.insert(postbox)
            }
        };
        postbox.try_post(reply.with_tag(number)).map_err(|failed| failed.error)
    }
}

fn weight<Rep: Pod>(reply: &[Rep]) -> usize {
    size_of_val(reply) + OVERHEAD
}
