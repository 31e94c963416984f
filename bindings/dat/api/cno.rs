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

/// Reports which of several event dispatchers have events (`DAT_CNO`). A clone is the same object.
///
/// A dispatcher that has [been given](super::Evd::set_cno) a CNO notifies it once each time that events have come, not for each event.
/// So a thread that is notified of a dispatcher takes all its events ([`Evd::dequeue`](super::Evd::dequeue)). Several threads may wait;
/// each notification goes to one of them. Instead, an [agent](Cno::set_agent) may be called with the dispatcher, on a thread of the library.
#[derive(Clone)]
pub struct Cno(Arc<Notifier>);

struct Notifier {
    core: Arc<cno::Cno>,
    ia: Ia,
}

impl Cno {
    /// Creates a notification object for dispatchers of this adapter (`dat_cno_create`).
    pub fn new(ia: &Ia) -> Cno {
        Cno::of(ia, cno::Cno::new(id::next() as usize, ia.core().progress.bell().clone()))
    }

    /// Creates one with a file descriptor, which is readable while there is a notification (`dat_cno_fd_create`): for `epoll`, or an async runtime.
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

    /// The descriptor, if it was made [with one](Cno::with_fd). It only serves to wait: [`Cno::poll`] takes the notification.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.core.as_fd()
    }

    /// Waits for a dispatcher that has events, and returns its number (`dat_cno_wait`). The dispatcher that notified first comes first.
    ///
    /// Another thread may have taken the events meanwhile.
    ///
    /// # Errors
    /// [`Error::Timeout`].
    pub fn wait(&self, deadline: Deadline) -> Result<EvdId> {
        let limit = deadline.remaining();
        let found = self.0.ia.core().wait(&self.0.core.spin_history, deadline, |_| self.0.core.take());
        found.map(EvdId::of).ok_or(Error::Timeout { call: "dat_cno_wait", waited: limit })
    }

    /// Like [`Cno::wait`], but polls the adapter once and does not wait (`dat_cno_trigger`).
    pub fn poll(&self) -> Option<EvdId> {
        self.0.ia.core().progress.poll();
        self.0.core.take().map(EvdId::of)
    }

    /// Sets the agent: a function that is called with each dispatcher that has events, on one thread of the library; `None` removes it
    /// (`dat_cno_modify_agent`). Threads may [wait](Cno::wait) besides. Blocks until a running call of the previous agent returns, for ten
    /// seconds at most; inside such a call it does not block. The new agent is called at once with the dispatchers that the previous one had
    /// still to be called with; without a previous agent, with those that no wait has taken.
    ///
    /// An agent that panics ends that call only. The first panic of an agent is reported on stderr. The agent is called again at the next
    /// notification: events that it has not taken stay in their dispatcher.
    ///
    /// Values that the function owns stay until the agent is replaced or the CNO is dropped. So it must not own this CNO. Give it clones of
    /// dispatchers.
    ///
    /// # Errors
    /// [`Error::Unavailable`]: the system has no thread left; the agent is as before. [`Error::InUse`]: a call of the previous agent has not
    /// returned in time; that agent is called no more.
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
