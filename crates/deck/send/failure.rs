//! What an error means to the program that posts: whether waiting helps, and whether the mailbox's owner is lost or has
//! finished in order, which the launcher knows.

use std::time::Instant;

use udeck_via::mem::Fill;
use udeck_via::{Deadline, Error as ViaError};

use super::Channel;
use crate::error::{Error, Result, Titled};
use crate::exit_check::{ExitCheck, Verdict, awaited_launcher};
use crate::recv::memory_quota::Memory;
use crate::wait_policy::WaitPolicy;

impl Channel {
    /// Until when a post may wait because of `error`, or why it may not.
    #[cold]
    pub(super) fn may_wait(
        &self,
        until: Option<Deadline>,
        start: Instant,
        error: &ViaError,
    ) -> Result<Deadline> {
        #[cfg(feature = "async")]
        self.has_to_look.set(matches!(error, ViaError::NoMemory { .. }));
        match until {
            None => Err(Error::WouldBlock { what: "the post", whom: self.awaited_by(error) }),
            Some(deadline) if deadline.passed() => Err(self.too_late("posting", start, error)),
            Some(deadline) => self.is_awaited().map(|()| deadline),
        }
    }

    /// As [`Channel::may_wait`], of a post that holds `held` bytes itself and may have to copy them.
    #[cold]
    pub(super) fn may_wait_beside(
        &self,
        held: usize,
        until: Option<Deadline>,
        start: Instant,
        error: &ViaError,
    ) -> Result<Deadline> {
        self.in_vain(held, error).map_or_else(|| self.may_wait(until, start, error), Err)
    }

    /// Why waiting for memory would be in vain, if it would: the message itself, of `held` bytes, leaves no room for the copy
    /// of it that `error` speaks of, whatever others give back.
    #[cold]
    pub(super) fn in_vain(&self, held: usize, error: &ViaError) -> Option<Error> {
        let &ViaError::NoMemory { asked, limit, .. } = error else { return None };
        if held.saturating_add(asked) <= limit {
            return None;
        }
        let holders = self.side.world.holders(Memory::Outbox).to_string();
        let source = Box::new(self.side.world.allocate(asked, Fill::Keep).err()?);
        let what = format!("copying {asked} bytes of a message of {held} for {}", Titled(&self.mailbox));
        Some(Error::NoMemory { what, holders, source })
    }

    /// The launcher may know that the mailbox's owner is lost before the connection does: then there is nothing to wait for.
    #[cold]
    pub(super) fn is_awaited(&self) -> Result {
        let rank = self.owner as usize;
        self.lost().map_or(Ok(()), |how| Err(Error::PeerLost { rank, how }))
    }

    /// What became of the mailbox's owner, if it is lost.
    pub(super) fn lost(&self) -> Option<String> {
        let exits = self.side.world.exit_log();
        if exits.version() == 0 { None } else { exits.how_lost(self.owner) }
    }

    /// What happened to earlier messages, told once.
    #[cold]
    pub(super) fn undelivered(&self) -> Result {
        self.side.world.take_undelivered(self.number)
    }

    pub(super) fn too_late(&self, what: &str, start: Instant, cause: &ViaError) -> Error {
        let what = format!("{what} to {}", Titled(&self.mailbox));
        Error::Deadline { what, waited: start.elapsed(), whom: self.awaited_by(cause) }
    }

    /// Who should act first, where a post cannot go on because of `cause`: this rank's own memory may be full, and the mailbox be empty.
    fn awaited_by(&self, cause: &ViaError) -> String {
        match cause {
            ViaError::NoMemory { .. } => {
                format!("memory: {cause}; {}", self.side.world.holders(Memory::Outbox))
            }
            _ => format!("rank {} to retrieve from {}", self.owner, Titled(&self.mailbox)),
        }
    }

    /// What an error of posting means to a program. May wait for the launcher's word of what became of the mailbox's owner.
    #[cold]
    pub(super) fn translate(&self, error: ViaError, policy: WaitPolicy) -> Error {
        self.meaning("posting", error, policy)
    }

    /// As [`Channel::translate`], of a call that does what `verb` says.
    #[cold]
    pub(super) fn meaning(&self, verb: &str, error: ViaError, policy: WaitPolicy) -> Error {
        let (rank, name) = (self.owner as usize, self.mailbox.clone());
        match error {
            ViaError::Closed => Error::MailboxGone { name, rank },
            ViaError::Lost(how) => self.broken(verb, how, policy),
            ViaError::InvalidState { .. } => {
                if let Some(how) = self.broken_connection() {
                    return self.broken(verb, how, policy);
                }
                let gone = Error::MailboxGone { name, rank };
                let lost = self.side.world.exit_log().how_lost(self.owner);
                lost.map_or(gone, |how| Error::PeerLost { rank, how })
            }
            other => Error::via(format!("{verb} to {} on rank {rank}", Titled(&name)), other),
        }
    }

    // ---- a connection that broke ----

    /// What became of the connection, while what became of the mailbox's owner is not known.
    pub(super) fn broken_connection(&self) -> Option<String> {
        self.exit_check.borrow().as_ref().map(|exit_check| exit_check.how().to_owned())
    }

    /// What became of the owner, or that this is not known: the launcher is asked, and its answer waited for as long as the
    /// call may wait. A later call finds it. `verb`: what it does.
    #[cold]
    pub(super) fn broken(&self, verb: &str, how: String, policy: WaitPolicy) -> Error {
        let (start, until, rank) = (Instant::now(), self.until(policy), self.owner as usize);
        let mut exit_check = self.exit_check.borrow_mut();
        let exit_check = exit_check.get_or_insert_with(|| Box::new(ExitCheck::new(self.owner, how)));
        loop {
            match (exit_check.verdict(&self.side.world), until) {
                (Verdict::Finished, _) => {
                    return Error::MailboxGone { name: self.mailbox.clone(), rank };
                }
                (Verdict::Lost(how), _) => return Error::PeerLost { rank, how },
                (Verdict::Pending, Some(deadline)) if !deadline.passed() => exit_check.wait(deadline),
                (Verdict::Pending, _) => return self.undecided(verb, start, until.is_some()),
            }
        }
    }

    /// As [`broken`](Channel::broken), for who asks later: the loss that it may turn out to be.
    pub(super) fn loss_so_far(&self, how: &str) -> Error {
        match self.broken("posting", how.to_owned(), WaitPolicy::None) {
            Error::WouldBlock { .. } => Error::PeerLost { rank: self.owner as usize, how: how.to_owned() },
            known => known,
        }
    }

    fn undecided(&self, verb: &str, start: Instant, has_waited: bool) -> Error {
        self.looks_for_more();
        let whom = awaited_launcher(self.owner);
        if has_waited {
            let what = format!("{verb} to {}", Titled(&self.mailbox));
            Error::Deadline { what, waited: start.elapsed(), whom }
        } else {
            Error::WouldBlock { what: "the post", whom }
        }
    }
}
