//! Retrieving in async tasks.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use futures_core::Stream;
use udeck_via::Deadline;
use udeck_via::transport::Armed;

use super::Mailbox;
use super::retrieval::or_none;
use crate::error::{Error, Result, Titled};
use crate::matching::Match;
use crate::parcel::Parcel;
use crate::payload::Payload;
use crate::received::Received;
use crate::tasks::{Alarm, POLLS};
use crate::wait_policy::MEMORY_PAUSE;

impl<T: Payload> Mailbox<T> {
    /// Retrieves the next message in a task of any executor. (Feature `async`.)
    ///
    /// ```
    /// # use udeck_deck::{Mailbox, Result};
    /// # async fn step(inbox: &mut Mailbox<f64>) -> Result {
    /// let next = inbox.retrieve_async().await?;                        // any message
    /// let edge = inbox.retrieve_async().from(3).tagged(7).await?;      // of rank 3, with tag 7
    /// # Ok(()) }
    /// ```
    ///
    /// Waits without a deadline, which is the executor's matter. A future that is dropped before it is done, by
    /// a `select!` or a timeout of the executor, has taken no message: those that it has set aside stay with
    /// the mailbox, in their order. The call borrows the mailbox mutably so that the future can be sent to
    /// another thread.
    ///
    /// # Errors
    /// [`Error::PeerLost`] once for each rank that dies; [`Error::NobodyLeft`] when all other ranks have
    /// ended; the errors of [`Retrieval::retrieve`](crate::Retrieval::retrieve) for a choice; [`Error::Via`] if no thread can wake the task (transports other than shared memory, Linux
    /// before 5.16).
    pub fn retrieve_async(&mut self) -> Retrieve<'_, T> {
        Retrieve { mailbox: self, matching: Match::ANY, alarm: Alarm::default() }
    }

    /// Streams messages as they arrive, until nobody is left who could post. (Feature `async`.) Each item is
    /// a [`Mailbox::retrieve_async`].
    pub fn stream(&mut self) -> Messages<'_, T> {
        Messages { mailbox: self, alarm: Alarm::default(), is_over: false }
    }

    fn poll_retrieve(
        &mut self,
        matching: Match,
        alarm: &mut Alarm,
        task: &mut Context<'_>,
    ) -> Poll<Result<Received<T>>> {
        self.world.progress_other_postboxes();
        for _ in 0..POLLS {
            if let Some(received) = self.take_matching(matching)? {
                alarm.rest();
                return Poll::Ready(Ok(received));
            }
            let inbox = self.inbox.get_mut();
            // The chosen rank may have ended since the mailbox was polled.
            inbox.check_exits_for(matching)?;
            if inbox.arm() != Armed::News {
                // Without a progress thread, nobody else progresses messages that were posted here before.
                let unheard = || self.world.lacks_progress().then_some(MEMORY_PAUSE);
                let again = inbox.poll_interval().or_else(unheard).map(|pause| Instant::now() + pause);
                let set = alarm.set(&self.world, || inbox.handles(), task.waker(), again);
                return match set {
                    Ok(()) => Poll::Pending,
                    Err(error) => {
                        let what = format!("retrieving from {} in a task", Titled(&self.name));
                        Poll::Ready(Err(Error::via(what, error)))
                    }
                };
            }
        }
        // The mailbox keeps getting events that are no such messages: yields, since other tasks may want to run.
        task.waker().wake_by_ref();
        Poll::Pending
    }

    /// Takes the next message that matches, if one has arrived.
    fn take_matching(&mut self, matching: Match) -> Result<Option<Received<T>>> {
        if matching != Match::ANY {
            return or_none(self.retrieve_chosen(matching, Deadline::now()));
        }
        let mut received = Received::new(Parcel::NONE);
        let found = self.traced(&mut received, |received| self.take_now(received))?;
        Ok(if found { Some(received) } else { None })
    }
}

/// Future of the next message ([`Mailbox::retrieve_async`]).
#[derive(Debug)]
#[must_use = "futures do nothing unless they are polled"]
pub struct Retrieve<'a, T: Payload> {
    mailbox: &'a mut Mailbox<T>,
    matching: Match,
    alarm: Alarm,
}

impl<T: Payload> Retrieve<'_, T> {
    /// Narrows the choice to messages that `rank` posts.
    pub fn from(self, rank: usize) -> Self {
        Retrieve { matching: self.matching.and_source(rank), ..self }
    }

    /// Narrows the choice to messages with this tag.
    pub fn tagged(self, tag: u32) -> Self {
        Retrieve { matching: self.matching.and_tag(tag), ..self }
    }

    /// Chooses messages that `matching` names, whatever was chosen before.
    pub fn matching(self, matching: Match) -> Self {
        Retrieve { matching, ..self }
    }
}

impl<T: Payload> Future for Retrieve<'_, T> {
    type Output = Result<Received<T>>;

    fn poll(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        this.mailbox.poll_retrieve(this.matching, &mut this.alarm, task)
    }
}

/// Stream of messages as they arrive ([`Mailbox::stream`]).
#[derive(Debug)]
#[must_use = "streams do nothing unless they are polled"]
pub struct Messages<'a, T: Payload> {
    mailbox: &'a mut Mailbox<T>,
    alarm: Alarm,
    is_over: bool,
}

impl<T: Payload> Stream for Messages<'_, T> {
    type Item = Result<Received<T>>;

    fn poll_next(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if this.is_over {
            return Poll::Ready(None);
        }
        this.mailbox
            .poll_retrieve(Match::ANY, &mut this.alarm, task)
            .map(|next| this.mailbox.item(next, &mut this.is_over))
    }
}
