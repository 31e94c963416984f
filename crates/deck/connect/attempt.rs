//! One attempt to connect: how often it is repeated, and the meaning of its failure.

use std::io;
use std::time::{Duration, Instant};

use udeck_via::{Deadline, Error as ViaError, Withdrawal};

use crate::error::{Error, Titled};
use crate::exits::check::{Verdict, awaited_launcher, check_exit};
use crate::world_state::WorldState;

/// First and longest interval between requests while the mailbox, or this side, has no place for another
/// connection.
const PLACE_PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(100)];

/// Start and deadline of connecting.
#[derive(Clone, Copy)]
pub(crate) struct Attempt {
    pub start: Instant,
    pub deadline: Deadline,
    /// Whether to wait for a place at the mailbox.
    pub waits: bool,
}

impl Attempt {
    /// Makes a connection, and asks again while there is no place for it: the mailbox's owner has to poll
    /// connections that have ended, or a receiver has to drop what was lent to it. Stops when the attempt is
    /// withdrawn, and returns the last error.
    pub fn persist<T>(
        self,
        withdrawal: Option<&Withdrawal>,
        mut connect: impl FnMut() -> Result<T, ViaError>,
    ) -> Result<T, ViaError> {
        let [mut pause, longest] = PLACE_PAUSES;
        let mut refused = None;
        loop {
            match connect() {
                Err(error) if lacks_place(&error) && self.waits => refused = Some(error),
                // The reason of the refusal says more than that the time was up.
                Err(ViaError::Timeout { .. }) if self.deadline.passed() && refused.is_some() => {}
                made => return made,
            }
            std::thread::sleep(pause.min(self.deadline.remaining()));
            pause = longest.min(pause * 2);
            if (self.deadline.passed() || withdrawal.is_some_and(Withdrawal::ask))
                && let Some(refused) = refused
            {
                return Err(refused);
            }
        }
    }

    /// Translates an error of connecting for the program.
    #[cold]
    pub fn translate(self, world: &WorldState, name: &str, owner: u32, error: ViaError) -> Error {
        let (name, rank) = (name.to_owned(), owner as usize);
        let late = |name: &str, waited, whom| {
            let what = format!("connecting to {}", Titled(name));
            Error::Deadline { what, waited, whom }
        };
        let broken = |how| match check_exit(owner, how, world, self.deadline) {
            Verdict::Finished => Error::MailboxGone { name: name.clone(), rank },
            Verdict::Lost(how) => Error::PeerLost { rank, how },
            Verdict::Pending => late(&name, self.start.elapsed(), awaited_launcher(owner)),
        };
        match (world.exit_log().how_lost(owner), error) {
            (Some(how), _) => Error::PeerLost { rank, how },
            (None, ViaError::Lost(how)) => broken(how),
            // The owner registered the mailbox, and now nobody listens: it has ended.
            (None, ViaError::Os { what, source }) if source.kind() == io::ErrorKind::ConnectionRefused => {
                broken(format!("{what}: {source}"))
            }
            (None, ViaError::NoMatch(_)) => Error::MailboxGone { name, rank },
            (None, ViaError::Timeout { what, waited }) => late(&name, waited, format!("rank {rank}: {what}")),
            (None, error) if error.is_no_place() && !self.waits => {
                Error::WouldBlock { what: "the connection", whom: format!("rank {rank}: {error}") }
            }
            (None, error) if lacks_place(&error) && self.deadline.passed() => {
                late(&name, self.start.elapsed(), format!("rank {rank}: {error}"))
            }
            (None, error) => Error::via(format!("connecting to {} on rank {rank}", Titled(&name)), error),
        }
    }
}

/// Whether there is no place for a connection now, at the mailbox or (`Full`) at this side.
fn lacks_place(error: &ViaError) -> bool {
    error.is_no_place() || matches!(error, ViaError::Full { .. })
}
