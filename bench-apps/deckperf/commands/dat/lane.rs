//! A connected endpoint, and the operations that are timed on it.

use udeck::via::Deadline;
use udeck_dat::{Completion, Ep, Error, Evd, Event, Flags, Lmr, Pz, RemoteMemory, Status};

use crate::{
    experiment::turn::{self, PollBudget, poll},
    failure::{PerfError, Result},
};

/// Operation of a request on its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Sends the memory.
    Send,
    /// Writes the memory to the peer's. An empty message behind it says so: it arrives when the data are in place.
    Write,
    /// Reads the peer's memory into this memory.
    Read,
}

/// All operations; the index is the cookie of a request.
const WORKS: [Work; 3] = [Work::Send, Work::Write, Work::Read];
/// Cookie of the message behind a write.
const NOTICE: u64 = 3;

/// Memory, and the operation of a request on it.
pub struct DatPost {
    pub lmr: Lmr,
    pub work: Work,
}

/// A connected endpoint.
pub struct DatLane {
    ep: Ep,
    pz: Pz,
    requests: Evd,
    receives: Evd,
    /// Place of the peer's memory, as much of it as RDMA moves.
    pub place: RemoteMemory,
    /// Memory of empty messages that are not under way.
    notices: Vec<Lmr>,
    under_way: usize,
    /// Whether a wait for an event is a call that may sleep (`Evd::wait`); otherwise it polls.
    pub blocks: bool,
}

impl DatLane {
    /// Makes a lane of an endpoint; its requests and receives use these dispatchers alone.
    pub fn new(ep: Ep, pz: Pz, requests: Evd, receives: Evd, place: RemoteMemory) -> Self {
        Self { ep, pz, requests, receives, place, notices: Vec::new(), under_way: 0, blocks: false }
    }

    /// Takes an empty message.
    pub fn notice(&mut self) -> Result<Lmr> {
        match self.notices.pop() {
            Some(notice) => Ok(notice),
            None => {
                let mut notice = Lmr::new(&self.pz, 1)?;
                notice.select(0..0)?;
                Ok(notice)
            }
        }
    }

    /// Posts once; returns the post if there is no room.
    #[inline]
    fn try_post(&mut self, DatPost { lmr, work }: DatPost) -> Result<Option<DatPost>> {
        let cookie = work as u64;
        let posted = match work {
            Work::Send => self.ep.post_send(lmr, cookie),
            Work::Write => self.ep.post_rdma_write(lmr, self.place, cookie, Flags::NONE),
            Work::Read => self.ep.post_rdma_read(lmr, self.place, cookie, Flags::NONE),
        };
        match posted {
            Ok(()) => {
                self.under_way += 1;
                Ok(None)
            }
            Err((Error::Full { .. }, back)) => Ok(Some(DatPost { lmr: back.into_lmr(), work })),
            Err((error, _)) => Err(error.into()),
        }
    }

    /// Posts an empty message: the one behind a write, or an acknowledgement. Room was left for it.
    #[inline]
    pub fn post_notice(&mut self) -> Result {
        let notice = self.notice()?;
        self.ep.post_send(notice, NOTICE).map_err(|(error, _)| error)?;
        self.under_way += 1;
        Ok(())
    }

    /// Moves completed requests to `idle`. `looks`: also polls for requests whose completion nobody has seen yet.
    #[inline]
    pub fn collect(&mut self, idle: &mut Vec<DatPost>, looks: bool) -> Result {
        while looks || !self.requests.is_empty() {
            let Some(event) = self.requests.dequeue() else { break };
            self.complete(event, idle)?;
        }
        Ok(())
    }

    /// Moves the request of this event to `idle`.
    #[inline]
    fn complete(&mut self, event: Event, idle: &mut Vec<DatPost>) -> Result {
        let completion = successful(event)?;
        self.under_way -= 1;
        let (cookie, lmr) = (completion.cookie, completion.iov.into_lmr());
        match WORKS.get(cookie as usize) {
            Some(&work) => idle.push(DatPost { lmr, work }),
            None => self.notices.push(lmr),
        }
        Ok(())
    }
}

#[inline]
fn successful(event: Event) -> Result<Completion> {
    match event {
        Event::Dto(completion) if completion.status == Status::Success => Ok(completion),
        other => Err(unexpected(&other)),
    }
}

#[cold]
fn unexpected(event: &Event) -> PerfError {
    PerfError::BadEvent(format!("{event:?}"))
}

impl turn::Lane for DatLane {
    type Post = DatPost;

    #[inline]
    fn post_receive(&mut self, _on: usize, post: DatPost) -> Result {
        Ok(self.ep.post_receive(post.lmr, 0).map_err(|(error, _)| error)?)
    }

    #[inline]
    fn post_send(
        &mut self,
        _on: usize,
        post: DatPost,
        idle: &mut Vec<DatPost>,
        deadline: Deadline,
    ) -> Result {
        let work = post.work;
        if let Some(mut back) = self.try_post(post)? {
            let mut budget = PollBudget::new(deadline, "room to send");
            loop {
                budget.next_poll()?;
                self.collect(idle, true)?;
                match self.try_post(back)? {
                    None => break,
                    Some(again) => back = again,
                }
            }
        }
        if work == Work::Write {
            self.post_notice()?;
        }
        self.collect(idle, false)
    }

    #[inline]
    fn receive(&mut self, size: usize, deadline: Deadline) -> Result<DatPost> {
        let event = match self.blocks {
            true => self.receives.wait(deadline)?,
            false => poll(deadline, "a message", || Ok(self.receives.dequeue()))?,
        };
        let completion = successful(event)?;
        if completion.length != size {
            return Err(PerfError::BadEvent(format!("a receive of {} bytes, not {size}", completion.length)));
        }
        Ok(DatPost { lmr: completion.iov.into_lmr(), work: Work::Send })
    }

    fn reclaim(&mut self, idle: &mut Vec<DatPost>, deadline: Deadline) -> Result<DatPost> {
        while self.blocks && idle.is_empty() {
            let event = self.requests.wait(deadline)?;
            self.complete(event, idle)?;
        }
        poll(deadline, "a request to complete", || {
            if idle.is_empty() {
                self.collect(idle, true)?;
            }
            Ok(idle.pop())
        })
    }

    fn settle(&mut self, idle: &mut Vec<DatPost>, deadline: Deadline) -> Result {
        poll(deadline, "requests to complete", || {
            if self.under_way > 0 {
                self.collect(idle, true)?;
            }
            Ok((self.under_way == 0).then_some(()))
        })
    }
}
