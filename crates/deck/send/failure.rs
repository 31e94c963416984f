//! Errors of posting, translated for the program: whether waiting helps, and whether the mailbox's owner is
//! lost or has finished in order, which the launcher knows.

use std::time::Instant;

use udeck_via::mem::Fill;
use udeck_via::{Deadline, Error as ViaError};

use super::Channel;
use crate::error::{Error, Result, Titled};
use crate::exits::check::{ExitCheck, Verdict, awaited_launcher};
use crate::memory::accounting::Memory;
use crate::wait_policy::WaitPolicy;

impl Channel {
    /// Returns until when a post may wait because of `error`, or the error if it may not.
    #[cold]
    pub(super) fn may_wait(
        &self,
        until: Option<Deadline>,
        start: Instant,
        error: &ViaError,
    ) -> Result<Deadline> {
        #[cfg(feature = "async")]
        self.needs_polling.set(matches!(error, ViaError::NoMemory { .. }));
        match until {
            None => Err(Error::WouldBlock { what: "the post", whom: self.awaited_by(error) }),
            Some(deadline) if deadline.passed() => Err(self.too_late("posting", start, error)),
            Some(deadline) => self.check_owner_alive().map(|()| deadline),
        }
    }

    /// Like [`Channel::may_wait`], for a post that holds `held` bytes itself and may have to copy them.
    #[cold]
    pub(super) fn may_wait_holding(
        &self,
        held: usize,
        until: Option<Deadline>,
        start: Instant,
        error: &ViaError,
    ) -> Result<Deadline> {
        self.futile_wait(held, error).map_or_else(|| self.may_wait(until, start, error), Err)
    }

    /// The error if waiting for memory is in vain: the message of `held` bytes itself leaves no room for the
    /// copy that `error` is about, whatever others give back.
    #[cold]
    pub(super) fn futile_wait(&self, held: usize, error: &ViaError) -> Option<Error> {
        let &ViaError::NoMemory { asked, limit, .. } = error else { return None };
        if held.saturating_add(asked) <= limit {
            return None;
        }
        let holders = self.side.world.holders(Memory::Outbox).to_string();
        let source = Box::new(self.side.world.allocate(asked, Fill::Keep).err()?);
        let what = format!("copying {asked} bytes of a message of {held} for {}", Titled(&self.mailbox));
        Some(Error::NoMemory { what, holders, source })
    }

    /// Checks that the mailbox's owner is not lost. The launcher may know of a loss before the connection
    /// breaks; then waiting is in vain.
    #[cold]
    pub(super) fn check_owner_alive(&self) -> Result {
        let rank = self.owner as usize;
        self.lost().map_or(Ok(()), |how| Err(Error::PeerLost { rank, how }))
    }

    /// How the mailbox's owner was lost, if it was.
    pub(super) fn lost(&self) -> Option<String> {
        let exits = self.side.world.exit_log();
        if exits.version() == 0 { None } else { exits.how_lost(self.owner) }
    }

    /// Reports the failures of earlier messages, once.
    #[cold]
    pub(super) fn undelivered(&self) -> Result {
        self.side.world.take_undelivered(self.number)
    }

    pub(super) fn too_late(&self, what: &str, start: Instant, cause: &ViaError) -> Error {
        let what = format!("{what} to {}", Titled(&self.mailbox));
        Error::Deadline { what, waited: start.elapsed(), whom: self.awaited_by(cause) }
    }

    /// Names in words who has to act before a post can go on after `cause`: this rank's own memory may be
    /// full, and the mailbox be empty.
    fn awaited_by(&self, cause: &ViaError) -> String {
        match cause {
            ViaError::NoMemory { .. } => {
                format!("memory: {cause}; {}", self.side.world.holders(Memory::Outbox))
            }
            _ => format!("rank {} to retrieve from {}", self.owner, Titled(&self.mailbox)),
        }
    }

    /// Translates an error of posting for the program. May wait for the launcher to say how the mailbox's
    /// owner ended.
    #[cold]
    pub(super) fn translate(&self, error: ViaError, policy: WaitPolicy) -> Error {
        self.translate_for("posting", error, policy)
    }

    /// Like [`Channel::translate`], for a call that does what `verb` says.
    #[cold]
    pub(super) fn translate_for(&self, verb: &str, error: ViaError, policy: WaitPolicy) -> Error {
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

    /// How the connection broke, while it is not known how the mailbox's owner ended.
    pub(super) fn broken_connection(&self) -> Option<String> {
        self.exit_check.borrow().as_ref().map(|exit_check| exit_check.how().to_owned())
    }

    /// The error of a broken connection: how the owner ended, or that this is not known yet. Asks the
    /// launcher, and waits for its answer as long as the call may wait; a later call finds the answer. `verb`
    /// says what the call does.
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

    /// Like [`broken`](Channel::broken), for a caller that asks again later: an undecided case counts as a
    /// loss.
    pub(super) fn loss_so_far(&self, how: &str) -> Error {
        match self.broken("posting", how.to_owned(), WaitPolicy::None) {
            Error::WouldBlock { .. } => Error::PeerLost { rank: self.owner as usize, how: how.to_owned() },
            known => known,
        }
    }

    fn undecided(&self, verb: &str, start: Instant, has_waited: bool) -> Error {
        self.require_polling();
        let whom = awaited_launcher(self.owner);
        if has_waited {
            let what = format!("{verb} to {}", Titled(&self.mailbox));
            Error::Deadline { what, waited: start.elapsed(), whom }
        } else {
            Error::WouldBlock { what: "the post", whom }
        }
    }
}
