//! Calls to other ranks: requests and their replies, over two mailboxes of each rank.
//!
//! A rank that waits for a reply serves the calls of this service meanwhile, so ranks that call each other by it do
//! not wait in a circle. A request and its reply have the same tag: the number of the call at its caller.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use bytemuck::Pod;
use udeck_via::Deadline;

use crate::error::{Error, Quoted, Result};
use crate::exits::log::ExitKind;
use crate::exits::rank_exits::RankExits;
use crate::mailbox::Mailbox;
use crate::postable::WithTag;
use crate::postbox::Postbox;
use crate::received::Received;
use crate::select::select_timeout;
use crate::world::World;

/// Maximum number of a service's calls without a reply, and of replies that were not taken.
const MAX_CALLS: usize = 1 << 16;
/// Requests, and replies, that one poll takes.
const BUDGET: usize = 64;
/// Longest wait for room in one post; then others are served.
const ROOM_WAIT: Duration = Duration::from_millis(1);
/// Longest sleep before the next look at the mailboxes, in case a wake-up is missed: four ranks on two processors wait
/// for each other until their deadline about once in 50 runs of a test, for a cause that is not known yet.
const LONGEST_SLEEP: Duration = Duration::from_millis(20);
/// Longest sleep of a rank that waits for the others' end of a service.
const FINISH_PAUSE: Duration = Duration::from_millis(1);
/// Longest wait for the last replies of a rank that has ended.
const LAST_REPLIES: Duration = Duration::from_secs(1);

type Handler<'w, Req, Rep> = Box<dyn FnMut(usize, &[Req]) -> Vec<Rep> + 'w>;

/// A service that each rank offers to the others ([`World::service`]): a rank calls another one with a request, and
/// gets its reply.
///
#[cfg_attr(not(doctest), doc = include_str!("examples/service.md"))]
///
/// # Use
///
/// A handler runs in the calls of this service only, in the thread that makes them: [`Reply::wait`],
/// [`Reply::is_done`], [`Service::serve`], [`Service::finish`], and a [`Service::call`] that finds no room. A rank
/// that computes serves nobody. Requests of one rank are served in the order of its calls.
pub struct Service<'w, Req: Pod, Rep: Pod> {
    name: String,
    world: &'w World,
    requests: Mailbox<Req>,
    replies: Mailbox<Rep>,
    exits: RankExits,
    handler: RefCell<Handler<'w, Req, Rep>>,
    /// Postboxes of the ranks that this rank has called.
    to: RefCell<BTreeMap<usize, Postbox<Req>>>,
    /// Postboxes of the ranks that have called this rank.
    back: RefCell<BTreeMap<usize, Postbox<Rep>>>,
    calls: RefCell<Calls<Rep>>,
}

/// The calls of this rank.
struct Calls<Rep: Pod> {
    /// Number of the next call.
    next: u32,
    /// The called rank of each call without a reply, by number.
    waiting: BTreeMap<u32, usize>,
    /// Replies that were not taken, by number.
    answered: BTreeMap<u32, Received<Rep>>,
    /// Ranks that have ended.
    ended: BTreeMap<usize, ExitKind>,
}

impl World {
    /// Offers a service to the other ranks, and makes this rank able to call theirs. Each rank that takes part makes
    /// the call with the same name and types. `handler` gets the caller's rank and its request, and returns the
    /// reply.
    ///
    /// # Errors
    /// The errors of [`World::mailboxes`]: the service takes the names `name` and `name/replies`. [`Error::Via`] if
    /// the NIC has no more completion queues.
    pub fn service<'w, Req: Pod, Rep: Pod>(
        &'w self,
        name: &str,
        handler: impl FnMut(usize, &[Req]) -> Vec<Rep> + 'w,
    ) -> Result<Service<'w, Req, Rep>> {
        Ok(Service {
            name: name.to_owned(),
            world: self,
            // The replies' mailbox first: a rank that finds the other one may call, and be answered.
            replies: self.mailboxes(&replies_of(name))?,
            requests: self.mailboxes(name)?,
            exits: self.rank_exits()?,
            handler: RefCell::new(Box::new(handler)),
            to: RefCell::default(),
            back: RefCell::default(),
            calls: RefCell::new(Calls {
                next: 0,
                waiting: BTreeMap::new(),
                answered: BTreeMap::new(),
                ended: BTreeMap::new(),
            }),
        })
    }
}

impl<'w, Req: Pod, Rep: Pod> Service<'w, Req, Rep> {
    /// Sends a request to a rank, which may be this one. Returns at once, with a handle of the reply; while there is
    /// no room for the request, serves others, at most for the world's deadline. The first call to a rank waits until
    /// that rank offers the service, at most `DECK_SETUP_TIMEOUT`.
    ///
    /// # Errors
    /// The errors of [`World::postbox_of`] and [`Postbox::post`]. [`Error::WouldBlock`]: 65,536 calls have no reply,
    /// or one that was not taken.
    pub fn call(&self, server: usize, request: &[Req]) -> Result<Reply<'_, 'w, Req, Rep>> {
        if !self.to.borrow().contains_key(&server) {
            let postbox = self.world.postbox_of(&self.name, server)?;
            self.to.borrow_mut().insert(server, postbox);
        }
        let number = self.calls.borrow_mut().begin(server)?;
        let reply = Reply { service: self, number, server };
        let deadline = Deadline::after(self.world.config().deadline);
        let to = self.to.borrow();
        let Some(postbox) = to.get(&server) else {
            return Err(Error::NoSuchRank { rank: server, size: self.world.size() });
        };
        self.post(postbox, (request, number), deadline, || self.poll().map(drop))?;
        Ok(reply)
    }

    /// Serves the calls of others: waits until there is one, at most `limit`, and returns the number of those that were
    /// served. 0: none came.
    ///
    /// # Errors
    /// The errors of [`Postbox::post`] for a reply, except that the caller has ended; [`Error::Interrupted`].
    pub fn serve(&self, limit: Duration) -> Result<usize> {
        let deadline = Deadline::after(limit);
        loop {
            let served = self.poll()?;
            if served > 0 || deadline.passed() {
                return Ok(served);
            }
            self.sleep(deadline.remaining())?;
        }
    }

    /// Ends the service: serves the calls of others until all ranks of the world have called `finish`, at most for the
    /// world's deadline.
    ///
    /// # Errors
    /// The errors of [`crate::Group::barrier`].
    pub fn finish(self) -> Result {
        let mut everybody = self.world.all()?.barrier_nonblocking()?;
        let deadline = Deadline::after(self.world.config().deadline);
        while !everybody.is_done() && !deadline.passed() {
            self.poll()?;
            self.sleep(FINISH_PAUSE.min(deadline.remaining()))?;
        }
        // Requests whose replies were given up: no more can come.
        while everybody.is_done() && self.poll()? > 0 {}
        everybody.wait_timeout(Duration::ZERO)
    }

    /// Takes replies, and serves requests, as far as they have come. Returns the number of requests.
    fn poll(&self) -> Result<usize> {
        self.take_replies()?;
        let mut served = 0;
        while served < BUDGET && self.serve_next()? {
            served += 1;
        }
        Ok(served)
    }

    fn serve_next(&self) -> Result<bool> {
        let request = match self.requests.try_retrieve() {
            Ok(Some(request)) => request,
            Ok(None) => return Ok(false),
            Err(error) => return self.note_loss(error).map(|()| false),
        };
        let (caller, number) = (request.source(), request.tag());
        let reply = (self.handler.borrow_mut())(caller, &request);
        drop(request);
        match self.answer(caller, &reply, number) {
            // The caller has ended, or has no more use for a reply.
            Err(Error::PeerLost { .. } | Error::MailboxGone { .. } | Error::NoSuchMailbox { .. }) => {}
            answered => answered?,
        }
        Ok(true)
    }

    fn answer(&self, caller: usize, reply: &[Rep], number: u32) -> Result {
        if !self.back.borrow().contains_key(&caller) {
            let postbox = self.world.postbox_of(&replies_of(&self.name), caller)?;
            self.back.borrow_mut().insert(caller, postbox);
        }
        let back = self.back.borrow();
        let Some(postbox) = back.get(&caller) else { return Ok(()) };
        // While there is no room, replies are taken, so that the caller finds room if it answers this rank.
        let deadline = Deadline::after(self.world.config().deadline);
        self.post(postbox, (reply, number), deadline, || self.take_replies())
    }

    /// Posts; while there is no room, calls `meanwhile` now and then.
    fn post<T: Pod>(
        &self,
        postbox: &Postbox<T>,
        (elements, tag): (&[T], u32),
        deadline: Deadline,
        meanwhile: impl Fn() -> Result,
    ) -> Result {
        loop {
            match postbox.post_timeout(elements.with_tag(tag), ROOM_WAIT.min(deadline.remaining())) {
                Ok(()) => return Ok(()),
                Err(failed) if matches!(failed.error, Error::Deadline { .. }) && !deadline.passed() => {
                    meanwhile()?
                }
                Err(failed) => return Err(failed.error),
            }
        }
    }

    fn take_replies(&self) -> Result {
        while let Some(exit) = self.exits.try_next() {
            self.calls.borrow_mut().ended.insert(exit.rank, exit.how);
        }
        for _ in 0..BUDGET {
            match self.replies.try_retrieve() {
                Ok(Some(reply)) => self.calls.borrow_mut().accept(reply),
                Ok(None) => break,
                Err(error) => self.note_loss(error)?,
            }
        }
        Ok(())
    }

    /// Notes that a rank is lost; other errors are returned.
    fn note_loss(&self, error: Error) -> Result {
        let Error::PeerLost { rank, how } = error else { return Err(error) };
        self.calls.borrow_mut().ended.entry(rank).or_insert(ExitKind::Lost(how));
        Ok(())
    }

    /// Sleeps until a request or a reply comes, or a rank ends.
    fn sleep(&self, limit: Duration) -> Result {
        match select_timeout(&[&self.replies, &self.requests, &self.exits], limit.min(LONGEST_SLEEP)) {
            Ok(_) | Err(Error::Deadline { .. }) => Ok(()),
            // All others have ended. The calls find that out, and this rank may go on calling itself.
            Err(Error::NobodyLeft { .. }) => {
                std::thread::sleep(limit.min(FINISH_PAUSE));
                Ok(())
            }
            Err(error) => self.note_loss(error),
        }
    }

    /// The reply of a call, if it has come; the error if the called rank has ended.
    fn result_of(&self, number: u32, server: usize) -> Option<Result<Received<Rep>>> {
        let taken = || self.calls.borrow_mut().answered.remove(&number);
        if let Some(reply) = taken() {
            return Some(Ok(reply));
        }
        let ended = self.calls.borrow().ended.get(&server).cloned()?;
        // The replies that it sent before its end are taken first.
        loop {
            match self.replies.from(server).within(LAST_REPLIES).retrieve() {
                Ok(reply) => self.calls.borrow_mut().accept(reply),
                // Another rank's loss, which is reported once.
                Err(Error::PeerLost { rank, how }) if rank != server => {
                    self.calls.borrow_mut().ended.entry(rank).or_insert(ExitKind::Lost(how));
                }
                Err(_) => break,
            }
        }
        Some(taken().ok_or_else(|| self.ended(server, ended)))
    }

    #[cold]
    fn ended(&self, rank: usize, how: ExitKind) -> Error {
        match how {
            ExitKind::Finished => Error::RankFinished { rank, name: self.name.clone() },
            ExitKind::Lost(how) => Error::PeerLost { rank, how },
        }
    }
}

impl<Rep: Pod> Calls<Rep> {
    fn begin(&mut self, server: usize) -> Result<u32> {
        if self.waiting.len() + self.answered.len() >= MAX_CALLS {
            return Err(Error::WouldBlock { what: "a call", whom: format!("replies to {MAX_CALLS} calls") });
        }
        // A number in use belongs to a call that began 2^32 calls before.
        while self.waiting.contains_key(&self.next) || self.answered.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let number = self.next;
        self.next = number.wrapping_add(1);
        self.waiting.insert(number, server);
        Ok(number)
    }

    /// Keeps a reply until it is taken. A reply that nobody waits for is dropped.
    fn accept(&mut self, reply: Received<Rep>) {
        let number = reply.tag();
        if self.waiting.get(&number) == Some(&reply.source()) {
            self.waiting.remove(&number);
            self.answered.insert(number, reply);
        }
    }
}

/// Handle of a call's reply ([`Service::call`]). Dropping it gives the reply up.
#[must_use = "a handle that is dropped gives the reply up"]
pub struct Reply<'s, 'w, Req: Pod, Rep: Pod> {
    service: &'s Service<'w, Req, Rep>,
    number: u32,
    server: usize,
}

impl<Req: Pod, Rep: Pod> Reply<'_, '_, Req, Rep> {
    /// The rank that was called.
    pub fn server(&self) -> usize {
        self.server
    }

    /// Whether the reply has come, or cannot come any more. Serves others, and does not wait.
    ///
    /// # Errors
    /// The errors of [`Service::serve`].
    pub fn is_done(&self) -> Result<bool> {
        self.service.poll()?;
        let calls = self.service.calls.borrow();
        Ok(calls.answered.contains_key(&self.number) || calls.ended.contains_key(&self.server))
    }

    /// Waits for the reply, at most the world's deadline. Serves others meanwhile.
    ///
    /// # Errors
    /// [`Error::PeerLost`] or [`Error::RankFinished`] as soon as the called rank has ended without a reply.
    /// [`Error::Deadline`] names the service and the called rank. The errors of [`Service::serve`].
    pub fn wait(self) -> Result<Received<Rep>> {
        self.wait_timeout(self.service.world.config().deadline)
    }

    /// Like [`Reply::wait`], but waits at most `limit`. After [`Error::Deadline`] the handle can still be used. The
    /// reply is returned once.
    ///
    /// # Errors
    /// The errors of [`Reply::wait`].
    pub fn wait_timeout(&self, limit: Duration) -> Result<Received<Rep>> {
        let (began, deadline) = (Deadline::now(), Deadline::after(limit));
        loop {
            self.service.poll()?;
            if let Some(result) = self.service.result_of(self.number, self.server) {
                return result;
            }
            if deadline.passed() {
                let what = format!("a call of service {}", Quoted(&self.service.name));
                return Err(Error::Deadline {
                    what,
                    waited: began.since(),
                    whom: format!("rank {}", self.server),
                });
            }
            self.service.sleep(deadline.remaining())?;
        }
    }
}

impl<Req: Pod, Rep: Pod> Drop for Reply<'_, '_, Req, Rep> {
    fn drop(&mut self) {
        let mut calls = self.service.calls.borrow_mut();
        calls.waiting.remove(&self.number);
        calls.answered.remove(&self.number);
    }
}

impl<Req: Pod, Rep: Pod> fmt::Debug for Service<'_, Req, Rep> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Service({}, {} calls without a reply)",
            Quoted(&self.name),
            self.calls.borrow().waiting.len()
        )
    }
}

impl<Req: Pod, Rep: Pod> fmt::Debug for Reply<'_, '_, Req, Rep> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reply(of rank {}, call {} of {})", self.server, self.number, Quoted(&self.service.name))
    }
}

/// Name of the mailboxes for a service's replies.
fn replies_of(name: &str) -> String {
    format!("{name}/replies")
}
