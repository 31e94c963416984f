//! A thread that posts: the messages of its streams in turn.

use std::thread;
use std::time::Duration;

use udeck::{Buf, Error, ExternalBuf, PostError, Postbox, Protocol};
use udeck_jobs::soak::content;
use udeck_jobs::soak::facts::{COMPLETE, Fact};
use udeck_jobs::soak::plan::{MessagePlan, PostCall, Round};

use crate::watch::Patience;
use crate::{PATIENCE, Rank, mailbox_name};

/// Posts all messages of these streams.
pub fn all(rank: &Rank<'_>, round: Round, streams: &[usize]) {
    let mut outgoing: Vec<Outgoing<'_>> =
        streams.iter().filter_map(|stream| Outgoing::new(rank, round, *stream)).collect();
    while !outgoing.is_empty() {
        outgoing.retain_mut(|one| match one.step() {
            None => true,
            Some(end) => {
                one.end(&end);
                false
            }
        });
    }
}

struct Outgoing<'a> {
    rank: &'a Rank<'a>,
    round: Round,
    stream: usize,
    postbox: Postbox<u8>,
    count: u32,
    accepted: u32,
    tried: u32,
    patience: Patience<'a>,
}

/// Result of an attempt to post.
enum Attempt {
    Accepted,
    /// The time was up while the message was under way by `handshake`: whether it will be received is unknown.
    InDoubt,
    /// The post can be repeated.
    Again(Error),
    /// Nothing can be posted any more.
    Over(Error),
}

impl<'a> Outgoing<'a> {
    fn new(rank: &'a Rank<'a>, round: Round, stream: usize) -> Option<Self> {
        let name = mailbox_name(round, rank.plan.streams[stream].to);
        let what = format!("postbox of stream {stream}");
        // If a stream may fail, its reader waits longer: a poster that gives up records this, and the reader relies on it.
        // Several such streams, one after another, do not keep a thread from its sound ones for as long as the readers of those
        // wait.
        let patience = if rank.plan.is_sound(stream) { PATIENCE } else { PATIENCE / 12 };
        match rank.watch.call(&what, patience, || rank.world.postbox_timeout(&name, patience)) {
            Ok(postbox) => {
                let count = rank.plan.count(stream, round);
                let patience = rank.watch.patience(patience);
                Some(Outgoing { rank, round, stream, postbox, count, accepted: 0, tried: 0, patience })
            }
            Err(error) => {
                if rank.plan.is_sound(stream) {
                    rank.wrong(format!("{what}: {error}"));
                }
                rank.folder.end_stream(round, stream, 0);
                rank.tell(round, &Fact::Sent { stream, accepted: 0, tried: 0, end: error.to_string() });
                None
            }
        }
    }

    /// Tries to post the next message. `Some`: the stream has ended for this reason.
    fn step(&mut self) -> Option<String> {
        if self.accepted == self.count {
            return Some(self.last_flush());
        }
        let number = self.accepted;
        let message = self.rank.plan.message(self.stream, number);
        self.tried = number + 1;
        match self.attempt(number, message) {
            attempt @ (Attempt::Accepted | Attempt::InDoubt) => {
                if matches!(attempt, Attempt::InDoubt) {
                    self.rank.folder.doubt(self.round, self.stream, number);
                }
                self.accepted += 1;
                self.patience.renew();
                self.rank.moved(self.round);
                None
            }
            Attempt::Again(error) if self.patience.is_over() => Some(format!("gave up: {error}")),
            Attempt::Again(_) => {
                thread::sleep(Duration::from_micros(200));
                None
            }
            Attempt::Over(error) => Some(error.to_string()),
        }
    }

    fn attempt(&self, number: u32, message: MessagePlan) -> Attempt {
        let limit = self.rank.plan.streams[self.stream].limit;
        if let Err(error) = self.postbox.set_protocol(message.protocol)
            && let Err(_unsupported) = self.postbox.set_protocol(Protocol::Auto)
        {
            return Attempt::Over(error);
        }
        // A message by handshake comes back by value only if its receiver has not seen it.
        let post_call =
            if message.protocol == Protocol::Handshake { PostCall::Buf } else { message.post_call };
        let what = format!("posting message {number} of stream {}: {message:?}", self.stream);
        let world = self.rank.world;
        let seen =
            |limit: Duration, post: &mut dyn FnMut() -> Attempt| self.rank.watch.call(&what, limit, post);
        match post_call {
            PostCall::Buf => seen(2 * limit, &mut || match world.buf_timeout(message.len, limit) {
                Ok(buf) => outcome(self.postbox.post_timeout(self.filled(buf, number), limit)),
                Err(error) => memory(error),
            }),
            PostCall::Try => seen(Duration::ZERO, &mut || match world.try_buf(message.len) {
                Ok(buf) => outcome(self.postbox.try_post(self.filled(buf, number))),
                Err(error) => memory(error),
            }),
            PostCall::Shared => seen(2 * limit, &mut || match world.buf_reused_timeout(message.len, limit) {
                Ok(buf) => outcome(self.postbox.post_timeout(self.filled(buf, number).share(), limit)),
                Err(error) => memory(error),
            }),
            PostCall::Slice => {
                let bytes = self.bytes(number, message.len);
                seen(limit, &mut || copied(self.postbox.post_timeout(&bytes[..], limit)))
            }
            PostCall::ExternalBuf => {
                while self.postbox.take_returned().is_some() {}
                let adopted = ExternalBuf::new(self.bytes(number, message.len));
                let mut adopted = Some(adopted.with_tag(content::tag(self.stream, number)));
                seen(limit, &mut || match adopted.take() {
                    Some(adopted) => copied(self.postbox.post_timeout(adopted, limit)),
                    None => unreachable!("called once"),
                })
            }
            PostCall::Start => self.start(number, message, &what),
        }
    }

    /// Posts without waiting, and afterwards waits or not.
    fn start(&self, number: u32, message: MessagePlan, what: &str) -> Attempt {
        let watch = &self.rank.watch;
        let buf = match watch.call(what, Duration::ZERO, || self.rank.world.try_buf(message.len)) {
            Ok(buf) => self.filled(buf, number),
            Err(error) => return memory(error),
        };
        let mut posting = match watch.call(what, Duration::ZERO, || self.postbox.post_nonblocking(buf)) {
            Ok(posting) => posting,
            Err(failed) => return outcome::<Buf<u8>>(Err(failed)),
        };
        if number.is_multiple_of(3) {
            return Attempt::Accepted;
        }
        let limit = self.rank.plan.streams[self.stream].limit;
        let patience = watch.patience(PATIENCE);
        loop {
            match watch.call(what, limit, || posting.wait_timeout(limit)) {
                Ok(()) => return Attempt::Accepted,
                Err(Error::Deadline { .. }) if !patience.is_over() => {}
                Err(error) => return Attempt::Over(error),
            }
        }
    }

    fn filled(&self, mut buf: Buf<u8>, number: u32) -> Buf<u8> {
        content::fill(&mut buf, self.rank.plan.seed, self.round, self.stream, number);
        buf.with_tag(content::tag(self.stream, number))
    }

    fn bytes(&self, number: u32, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        content::fill(&mut bytes, self.rank.plan.seed, self.round, self.stream, number);
        bytes
    }

    /// Ends the stream after the last post: a poster that flushes waits until all was read.
    fn last_flush(&self) -> String {
        if !self.rank.plan.streams[self.stream].flushes {
            return COMPLETE.into();
        }
        let what = format!("flushing stream {}", self.stream);
        match self.rank.watch.call(&what, PATIENCE, || self.postbox.flush_timeout(PATIENCE)) {
            Ok(()) => COMPLETE.into(),
            Err(error) => format!("flush: {error}"),
        }
    }

    fn end(&self, end: &str) {
        let Outgoing { rank, round, stream, accepted, tried, .. } = *self;
        if end != COMPLETE {
            if rank.plan.is_sound(stream) {
                rank.wrong(format!("stream {stream} ended after {accepted} messages: {end}"));
            }
            rank.folder.end_stream(round, stream, tried);
        }
        rank.tell(round, &Fact::Sent { stream, accepted, tried, end: end.into() });
    }
}

/// Whether an error that posted nothing may pass.
fn passes(error: &Error) -> bool {
    matches!(
        error,
        Error::Deadline { .. }
            | Error::WouldBlock { .. }
            | Error::NoMemory { .. }
            | Error::ReturnQueueFull { .. }
    )
}

fn memory(error: Error) -> Attempt {
    if passes(&error) { Attempt::Again(error) } else { Attempt::Over(error) }
}

/// Result of a post whose message comes back unless it is under way.
fn outcome<M>(posted: Result<(), PostError<M>>) -> Attempt {
    match posted {
        Ok(()) => Attempt::Accepted,
        Err(PostError { error, message: Some(_) }) if passes(&error) => Attempt::Again(error),
        Err(PostError { error: Error::Deadline { .. }, message: None }) => Attempt::InDoubt,
        Err(PostError { error, .. }) => Attempt::Over(error),
    }
}

/// Result of a post of a copied message.
fn copied<M>(posted: Result<(), PostError<M>>) -> Attempt {
    match posted {
        Ok(()) => Attempt::Accepted,
        Err(PostError { error, .. }) => memory(error),
    }
}
