//! Posting in async tasks.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use udeck_via::Deadline;
use udeck_via::transport::Armed;

use super::Postbox;
use crate::error::{Error, PostError, Result, Titled};
use crate::payload::Payload;
use crate::postable::{Postable, unposted};
use crate::protocol::Protocol;
use crate::tasks::{Alarm, POLLS};
use crate::wait_policy::WaitPolicy;

impl<T: Payload> Postbox<T> {
    /// Posts a message like [`Postbox::post`], but waits for room, if it must, without holding the thread.
    /// (Feature `async`.)
    ///
    /// Waits without a deadline, which is the executor's matter. A future that is dropped before it is done
    /// has not posted its message, and drops it; [`Post::into_message`] takes the message out instead. So a
    /// post that a `select!` or a timeout of the executor gives up is never posted by half. The call borrows
    /// the postbox mutably so that the future can be sent to another thread, and so that two posts of one
    /// postbox cannot overtake each other.
    ///
    /// # Errors
    /// The errors of [`Postbox::post`], except the deadline; [`Error::WouldBlockThread`] by
    /// [`Protocol::Handshake`]; [`Error::Via`] if no thread can wake the task (transports other than shared
    /// memory, Linux before 5.16).
    pub fn post_async<M: Postable<T>>(&mut self, message: M) -> Post<'_, T, M> {
        Post { postbox: self, message: Some(message), alarm: Alarm::default() }
    }

    /// Waits until the mailbox's owner has read everything posted here, without holding the thread. (Feature
    /// `async`.)
    ///
    /// # Errors
    /// The errors of [`Postbox::flush`] and [`Postbox::post_async`].
    pub fn flush_async(&mut self) -> Flush<'_, T> {
        Flush { postbox: self, alarm: Alarm::default() }
    }

    /// Calls `attempt` until it is done, fails, or has to wait. `attempt` returns `None` to be called again.
    fn poll_with<R>(
        &self,
        alarm: &mut Alarm,
        task: &mut Context<'_>,
        mut attempt: impl FnMut(&Self) -> Option<R>,
    ) -> Poll<Result<R, udeck_via::Error>> {
        for poll in 0..=POLLS {
            if poll > 0 {
                self.poster.on_channel(|channel| channel.ask_for_room());
            }
            if let Some(done) = attempt(self) {
                alarm.rest();
                return Poll::Ready(Ok(done));
            }
            if poll == 0 {
                continue;
            }
            let (armed, at_latest) = self.poster.on_channel(|channel| channel.arm());
            if armed != Armed::News {
                let handle = || self.poster.on_channel(|channel| [channel.handle()]);
                return match alarm.set(self.poster.world(), handle, task.waker(), at_latest) {
                    Ok(()) => Poll::Pending,
                    Err(error) => Poll::Ready(Err(error)),
                };
            }
        }
        // The postbox keeps getting events but no room: yields, since other tasks may want to run.
        task.waker().wake_by_ref();
        Poll::Pending
    }

    fn no_alarm(&self, what: &str, error: udeck_via::Error) -> Error {
        Error::via(format!("{what} to {} in a task", Titled(self.name())), error)
    }
}

/// Future of a post ([`Postbox::post_async`]).
#[must_use = "futures do nothing unless they are polled"]
pub struct Post<'a, T: Payload, M: Postable<T>> {
    postbox: &'a mut Postbox<T>,
    /// `None` once it is done.
    message: Option<M>,
    alarm: Alarm,
}

impl<T: Payload, M: Postable<T>> Post<'_, T, M> {
    /// Gives up the post, and returns its message; `None` if it was posted, or the future has returned an error.
    pub fn into_message(self) -> Option<M> {
        self.message
    }
}

/// `Unpin` whatever `M` is: the message is never pinned.
impl<T: Payload, M: Postable<T>> Unpin for Post<'_, T, M> {}

impl<T: Payload, M: Postable<T>> Future for Post<'_, T, M> {
    type Output = Result<(), PostError<M::Unposted>>;

    fn poll(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        let Post { postbox, message, alarm } = self.get_mut();
        let attempt = |postbox: &Postbox<T>| {
            if postbox.poster.protocol() == Protocol::Handshake {
                let error = postbox
                    .poster
                    .with_channel(|channel| channel.would_block_thread())
                    .unwrap_or_else(|error| error);
                return Some(Err(PostError { error, message: message.take().map(M::unposted) }));
            }
            let posting = message.take().expect("a future that is done is not polled again");
            match posting.post_to(&postbox.poster, WaitPolicy::None) {
                Err(PostError { error: Error::WouldBlock { .. }, message: Some(back) }) => {
                    *message = Some(back);
                    None
                }
                result => Some(result.map(drop).map_err(unposted)),
            }
        };
        match postbox.poll_with(alarm, task, attempt) {
            Poll::Ready(Ok(result)) => Poll::Ready(result),
            Poll::Ready(Err(error)) => {
                let error = postbox.no_alarm("posting", error);
                Poll::Ready(Err(PostError { error, message: message.take().map(M::unposted) }))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<T: Payload, M: Postable<T>> fmt::Debug for Post<'_, T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Post({:?})", self.postbox)
    }
}

/// Future of a flush ([`Postbox::flush_async`]).
#[derive(Debug)]
#[must_use = "futures do nothing unless they are polled"]
pub struct Flush<'a, T: Payload> {
    postbox: &'a mut Postbox<T>,
    alarm: Alarm,
}

impl<T: Payload> Future for Flush<'_, T> {
    type Output = Result;

    fn poll(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        let Flush { postbox, alarm } = self.get_mut();
        let attempt = |postbox: &Postbox<T>| {
            let flush = || postbox.poster.on_channel(|channel| channel.flush(Deadline::now()));
            match postbox.poster.world().check().and_then(|()| flush()) {
                Err(Error::Deadline { .. }) => None,
                result => Some(result),
            }
        };
        match postbox.poll_with(alarm, task, attempt) {
            Poll::Ready(Ok(result)) => Poll::Ready(result),
            Poll::Ready(Err(error)) => Poll::Ready(Err(postbox.no_alarm("flushing", error))),
            Poll::Pending => Poll::Pending,
        }
    }
}
