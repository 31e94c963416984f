//! Consumer notification objects: one wait for several event dispatchers.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use udeck::via::{Deadline, is_forked};

use super::error::{Error, Result};
use super::ia::Ia;
use super::id::{self, EvdId};
use crate::core::agent::Agent;
use crate::core::cno;

/// Tells which of several event dispatchers have events (`DAT_CNO`). A clone is the same object.
///
/// A dispatcher tells it while it has [been given it](super::Evd::set_cno): once for each time that events have come, not for each event.
/// So who is told of a dispatcher takes all that it has ([`Evd::dequeue`](super::Evd::dequeue)). Several threads may wait; each dispatcher is told to one of
/// them. Or a function is called with it, on a thread of the library: an [agent](Cno::set_agent).
#[derive(Clone)]
pub struct Cno(Arc<Notifier>);

struct Notifier {
    core: Arc<cno::Cno>,
    ia: Ia,
}

impl Cno {
    /// For dispatchers of that adapter (`dat_cno_create`).
    pub fn new(ia: &Ia) -> Cno {
        Cno::of(ia, cno::Cno::new(id::next() as usize, ia.core().progress.bell().clone()))
    }

    /// One with a file descriptor, which is readable while there is news (`dat_cno_fd_create`): for `epoll`, or an async runtime.
    ///
    /// # Errors
    /// [`Error::Unavailable`]: the system has no descriptor.
    pub fn with_fd(ia: &Ia) -> Result<Cno> {
        let made = cno::Cno::with_fd(id::next() as usize, ia.core().progress.bell().clone());
        made.map(|core| Cno::of(ia, core)).map_err(|why| Error::unavailable("dat_cno_fd_create", why))
    }

    fn of(ia: &Ia, core: cno::Cno) -> Cno {
        Cno(Arc::new(Notifier { core: Arc::new(core), ia: ia.clone() }))
    }

    /// Its adapter.
    pub fn ia(&self) -> &Ia {
        &self.0.ia
    }

    /// The descriptor, if it was made [with one](Cno::with_fd). It is for waiting: [`Cno::poll`] takes the news.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.core.as_fd()
    }

    /// Waits for a dispatcher that has events, and names it (`dat_cno_wait`). The one that has waited longest comes first.
    ///
    /// Another thread may have taken the events meanwhile.
    ///
    /// # Errors
    /// [`Error::Timeout`].
    pub fn wait(&self, deadline: Deadline) -> Result<EvdId> {
        let limit = deadline.remaining();
        let found = self.0.ia.core().wait(deadline, |_| self.0.core.take());
        found.map(EvdId::of).ok_or(Error::Timeout { call: "dat_cno_wait", waited: limit })
    }

    /// The same, after a look at the adapter and without waiting (`dat_cno_trigger`).
    pub fn poll(&self) -> Option<EvdId> {
        self.0.ia.core().progress.poll();
        self.0.core.take().map(EvdId::of)
    }

    /// From now on calls this function with each dispatcher that has events, on one thread of the library, or none any more
    /// (`dat_cno_modify_agent`). It comes beside those who wait. Waits for a call of the agent before, unless it is called in that, ten
    /// seconds at most. What that one had yet to be called with the new one is called with at once; without an agent before, what nobody
    /// has taken by a wait.
    ///
    /// A call that panics is over. The first of an agent's is told on stderr, and the agent is called again with the next news: what it has
    /// not taken of a dispatcher stays there.
    ///
    /// What the function owns stays until there is another one or the CNO goes: not this CNO, then. Give it clones of dispatchers.
    ///
    /// # Errors
    /// [`Error::Unavailable`]: there is no thread to be had; the agent is as before. [`Error::InUse`]: a call of the one before has not
    /// returned in time; it is called no more.
    pub fn set_agent(&self, agent: Option<Box<dyn Fn(EvdId) + Send>>) -> Result {
        const CALL: &str = "dat_cno_modify_agent";
        let agent = agent.map(|agent| -> Agent { Box::new(move |evd| agent(EvdId::of(evd))) });
        match self.0.core.set_agent(agent) {
            Ok(true) => Ok(()),
            Ok(false) => {
                Err(Error::InUse { call: CALL, what: "a call of its agent has not returned for ten seconds" })
            }
            Err(why) => Err(Error::unavailable(CALL, format!("no thread to be had for an agent: {why}"))),
        }
    }

    pub(super) fn core(&self) -> &Arc<cno::Cno> {
        &self.0.core
    }
}

impl EvdId {
    fn of(handle: usize) -> EvdId {
        EvdId(handle as u64)
    }
}

impl Drop for Notifier {
    fn drop(&mut self) {
        if !is_forked() {
            self.core.end();
        }
    }
}

impl fmt::Debug for Cno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cno({:?})", self.ia())
    }
}
