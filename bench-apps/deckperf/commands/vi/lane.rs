//! VIs that share a completion queue, and the operations that are timed on them.

use udeck::via::{Completion, Cq, Deadline, Descriptor, Error, Source, Status, Vi};

use super::contender::Detection;
use crate::{
    experiment::turn::{self, PollBudget, poll},
    failure::{PerfError, Result},
};

/// The VIs of one setup. The context of each VI is its index.
pub struct ViLane {
    detection: Detection,
    vis: Vec<Vi>,
    cq: Cq,
    /// Index of the VI that is polled next, where each is polled in turn.
    next: usize,
    /// Sends whose memory the peer may still read.
    under_way: usize,
}

impl ViLane {
    /// Makes a lane of connected VIs with contexts from 0 on, which are attached to `cq`.
    pub fn new(detection: Detection, vis: Vec<Vi>, cq: Cq) -> Self {
        Self { detection, vis, cq, next: 0, under_way: 0 }
    }

    /// Number of VIs.
    pub fn len(&self) -> usize {
        self.vis.len()
    }

    #[cold]
    fn post_into_room(
        &mut self,
        on: usize,
        mut descriptor: Descriptor,
        idle: &mut Vec<Descriptor>,
        deadline: Deadline,
    ) -> Result {
        let mut budget = PollBudget::new(deadline, "room to send");
        loop {
            budget.next_poll()?;
            self.under_way -= collect(&mut self.vis[on], idle);
            match self.vis[on].post_send(descriptor) {
                Ok(()) => return Ok(()),
                Err((Error::Full { .. }, back)) => descriptor = back,
                Err((error, _)) => return Err(error.into()),
            }
        }
    }

    fn collect_all(&mut self, idle: &mut Vec<Descriptor>) {
        self.under_way -= self.vis.iter_mut().map(|vi| collect(vi, idle)).sum::<usize>();
    }
}

impl turn::Lane for ViLane {
    type Post = Descriptor;

    /// Posts a receive on VI `on`.
    #[inline]
    fn post_receive(&mut self, on: usize, descriptor: Descriptor) -> Result {
        Ok(self.vis[on].post_receive(descriptor).map_err(|(error, _)| error)?)
    }

    /// Posts a send or an RDMA write on VI `on`; waits for room until the deadline. Only in that case, completed sends go
    /// to `idle`.
    #[inline]
    fn post_send(
        &mut self,
        on: usize,
        descriptor: Descriptor,
        idle: &mut Vec<Descriptor>,
        deadline: Deadline,
    ) -> Result {
        match self.vis[on].post_send(descriptor) {
            Ok(()) => {}
            Err((Error::Full { .. }, back)) => self.post_into_room(on, back, idle, deadline)?,
            Err((error, _)) => return Err(error.into()),
        }
        self.under_way += 1;
        self.under_way -= collect(&mut self.vis[on], idle);
        Ok(())
    }

    /// Receives the next message, in the way of this lane's detection, and returns its descriptor. The message must be `size`
    /// bytes long.
    #[inline]
    fn receive(&mut self, size: usize, deadline: Deadline) -> Result<Descriptor> {
        let Self { detection, vis, cq, next, .. } = self;
        let completion = match detection {
            Detection::WorkQueue => poll(deadline, "a message", || {
                let asked = *next;
                *next = if asked + 1 == vis.len() { 0 } else { asked + 1 };
                Ok(vis[asked].receive_done())
            })?,
            Detection::CompletionQueue => poll(deadline, "a message", || {
                let entry = cq.poll().filter(|entry| entry.source == Source::Receive);
                Ok(entry.and_then(|entry| vis[entry.context as usize].receive_done()))
            })?,
            Detection::Wait | Detection::Asleep => loop {
                let entry = cq.wait(deadline, || false).ok_or(PerfError::Overdue("a message"))?;
                if entry.source == Source::Receive
                    && let Some(completion) = vis[entry.context as usize].receive_done()
                {
                    break completion;
                }
            },
        };
        checked(completion, size)
    }

    /// Waits until a send on any VI is complete, and returns its descriptor.
    fn reclaim(&mut self, idle: &mut Vec<Descriptor>, deadline: Deadline) -> Result<Descriptor> {
        poll(deadline, "a send to complete", || {
            self.collect_all(idle);
            Ok(idle.pop())
        })
    }

    /// Waits until nobody reads the sent data any more; the descriptors go to `idle`.
    fn settle(&mut self, idle: &mut Vec<Descriptor>, deadline: Deadline) -> Result {
        poll(deadline, "sends to complete", || {
            self.collect_all(idle);
            Ok((self.under_way == 0).then_some(()))
        })
    }
}

/// Moves completed sends of `vi` to `idle`; returns their number.
#[inline]
fn collect(vi: &mut Vi, idle: &mut Vec<Descriptor>) -> usize {
    let before = idle.len();
    idle.extend(std::iter::from_fn(|| vi.send_done()).filter_map(|completion| completion.descriptor.ok()));
    idle.len() - before
}

#[inline]
fn checked(completion: Completion, size: usize) -> Result<Descriptor> {
    match completion {
        Completion { status: Status::Done, length, descriptor: Ok(descriptor), .. } if length == size => {
            Ok(descriptor)
        }
        Completion { status, length, .. } => {
            Err(PerfError::BadCompletion { status, wanted: size, got: length })
        }
    }
}
