//! Calls to other ranks: requests and their replies, over two mailboxes of each rank.
//!
//! A rank that waits for a reply serves the calls of this service meanwhile, so ranks that call each other by it do
//! not wait in a circle. A request and its reply have the same tag: the number of the call at its caller.

mod answers;
mod calls;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use bytemuck::Pod;
use udeck_via::Deadline;

use self::answers::Answers;
use self::calls::Calls;
use crate::error::{Error, Quoted, Result};
use crate::exits::log::ExitKind;
use crate::exits::rank_exits::RankExits;
use crate::group::Group;
use crate::mailbox::Mailbox;
use crate::postable::WithTag;
use crate::postbox::Postbox;
use crate::protocol::Protocol;
use crate::received::Received;
use crate::select::{Selectable, select_timeout};
use crate::world::World;

/// Requests, and replies, that one poll takes.
const BUDGET: usize = 64;
/// Longest wait for room in one post; then others are served. Also the longest sleep of a rank that has unsent replies.
const ROOM_WAIT: Duration = Duration::from_millis(1);
/// Longest sleep of a rank that waits for the others' end of a service.
const FINISH_PAUSE: Duration = Duration::from_millis(1);
/// Longest wait for rank 0 in [`Service::finish`] before others are served.
const LONGEST_FINISH_PAUSE: Duration = Duration::from_millis(50);
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
/// that computes serves nobody. Requests of one rank are served in the order of its calls. While a handler runs, this
/// service serves no other request: a call in a handler can wait in a circle.
///
/// Replies that were not taken are kept in this rank's memory, up to `DECK_SET_ASIDE` bytes. So are replies for which a
/// caller has no room; while they are more, the rank serves nobody.
pub struct Service<'w, Req: Pod, Rep: Pod> {
    name: String,
    world: &'w World,
    requests: Mailbox<Req>,
    replies: Mailbox<Rep>,
    exits: RankExits,
    handler: RefCell<Handler<'w, Req, Rep>>,
    /// Postboxes of the ranks that this rank has called.
    to: RefCell<BTreeMap<usize, Rc<Postbox<Req>>>>,
    answers: Answers<Rep>,
    calls: RefCell<Calls<Rep>>,
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
            answers: Answers::new(replies_of(name)),
            calls: RefCell::new(Calls::new(replies_of(name))),
        })
    }
}

impl<'w, Req: Pod, Rep: Pod> Service<'w, Req, Rep> {
    /// Sends a request to a rank, which may be this one. Returns at once, with a handle of the reply; while there is
    /// no room for the request, serves others, at most for the world's deadline. The first call to a rank waits until
    /// that rank offers the service, at most `DECK_SETUP_TIMEOUT`.
    ///
    /// # Errors
    /// The errors of [`World::postbox_of`] and [`Postbox::post`]. [`Error::WouldBlock`]: 65,536 calls have no reply, or
    /// one that was not taken; or such replies fill their room (`DECK_SET_ASIDE`).
    pub fn call(&self, server: usize, request: &[Req]) -> Result<Reply<'_, 'w, Req, Rep>> {
        let mut postbox = match self.known(server) {
            Some(known) => known,
            None => self.keep(server, self.world.postbox_of(&self.name, server)?)?,
        };
        let number = self.calls.borrow_mut().begin(&self.world.state, server)?;
        let reply = Reply { service: self, number, server };
        let deadline = Deadline::after(self.world.config().deadline);
        let mut posted = self.post(&postbox, (request, number), deadline);
        if matches!(posted, Err(Error::MailboxGone { .. })) {
            self.to.borrow_mut().remove(&server);
            // The called rank may have made its service anew.
            if let Ok(new) = self.world.try_postbox_of(&self.name, server) {
                postbox = self.keep(server, new)?;
                posted = self.post(&postbox, (request, number), deadline);
            }
        }
        posted.map(|()| reply)
    }

    fn known(&self, server: usize) -> Option<Rc<Postbox<Req>>> {
        self.to.borrow().get(&server).cloned()
    }

    fn keep(&self, server: usize, postbox: Postbox<Req>) -> Result<Rc<Postbox<Req>>> {
        postbox.set_protocol(Protocol::Auto)?; // whatever the program sets for its own messages
        let postbox = Rc::new(postbox);
        self.to.borrow_mut().insert(server, postbox.clone());
        Ok(postbox)
    }

    /// Posts a request; while there is no room, serves others.
    fn post(&self, postbox: &Postbox<Req>, (request, tag): (&[Req], u32), deadline: Deadline) -> Result {
        loop {
            match postbox.post_timeout(request.with_tag(tag), ROOM_WAIT.min(deadline.remaining())) {
                Ok(()) => return Ok(()),
                Err(failed) if matches!(failed.error, Error::Deadline { .. }) && !deadline.passed() => {
                    self.progress(None)?;
                    self.serve_some(None, || deadline.passed())?;
                }
                Err(failed) => return Err(failed.error),
            }
        }
    }

    /// Serves the calls of others: waits until there is one, at most `limit`, and returns the number of those that were
    /// served. 0: none came. A handler that runs at the end of `limit` is waited for.
    ///
    /// # Errors
    /// The errors of [`Postbox::try_post`] for a reply, except that the caller has ended; [`Error::Interrupted`].
    pub fn serve(&self, limit: Duration) -> Result<usize> {
        let deadline = Deadline::after(limit);
        loop {
            self.progress(None)?;
            let served = self.serve_some(None, || deadline.passed())?;
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
        let deadline = Deadline::after(self.world.config().deadline);
        let mut everybody = self.group_of_all(deadline)?.barrier_nonblocking()?;
        while !everybody.is_done() && !deadline.passed() {
            self.progress(None)?;
            self.serve_some(None, || deadline.passed())?;
            self.sleep(FINISH_PAUSE.min(deadline.remaining()))?;
        }
        // Requests whose replies were given up: no more can come, unless the barrier has failed.
        while everybody.is_done() && !deadline.passed() && self.serve_some(None, || deadline.passed())? > 0 {}
        everybody.wait_timeout(Duration::ZERO)
    }

    /// Returns the group of all ranks. The first call makes it, which takes rank 0: serves others until rank 0 has come,
    /// because rank 0 may wait for a reply.
    fn group_of_all(&self, deadline: Deadline) -> Result<&'w Group> {
        let mut limit = FINISH_PAUSE;
        loop {
            match self.world.all_within(limit.min(deadline.remaining())) {
                Err(Error::Deadline { .. }) if !deadline.passed() => {}
                made => return made,
            }
            // Long enough, in the end, for a busy launcher's answer.
            limit = LONGEST_FINISH_PAUSE.min(limit * 2);
            self.progress(None)?;
            self.serve_some(None, || deadline.passed())?;
        }
    }

    /// Takes the replies that have come, and sends those for which there is room. Does not wait. `awaited`: the number of
    /// the call whose reply is taken next.
    fn progress(&self, awaited: Option<u32>) -> Result {
        self.take_replies(awaited)?;
        self.answers.flush(self.world)
    }

    /// Serves the requests that have come, one at least, until `is_enough`. Returns their number.
    fn serve_some(&self, awaited: Option<u32>, is_enough: impl Fn() -> bool) -> Result<usize> {
        let mut served = 0;
        while served < BUDGET && self.serve_next()? {
            served += 1;
            self.progress(awaited)?;
            if is_enough() {
                break;
            }
        }
        Ok(served)
    }

    fn serve_next(&self) -> Result<bool> {
        // A handler that calls this very service runs already.
        let Ok(mut handler) = self.handler.try_borrow_mut() else { return Ok(false) };
        if self.answers.are_too_many(self.world) {
            return Ok(false);
        }
        let request = match self.requests.try_retrieve() {
            Ok(Some(request)) => request,
            Ok(None) => return Ok(false),
            Err(error) => return self.note_loss(error).map(|()| false),
        };
        let (caller, number) = (request.source(), request.tag());
        let reply = handler(caller, &request);
        drop((request, handler));
        self.answers.send(self.world, caller, number, reply).map(|()| true)
    }

    fn take_replies(&self, awaited: Option<u32>) -> Result {
        while let Some(exit) = self.exits.try_next() {
            self.calls.borrow_mut().ended.insert(exit.rank, exit.how);
        }
        for _ in 0..BUDGET {
            if self.calls.borrow_mut().make_room(&self.world.state, awaited.unwrap_or(0)).is_err() {
                break; // reported by a wait
            }
            match self.replies.try_retrieve() {
                Ok(Some(reply)) => self.calls.borrow_mut().accept(&self.world.state, reply, awaited),
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

    /// Sleeps until a request or a reply comes that can be taken, or a rank ends.
    fn sleep(&self, limit: Duration) -> Result {
        let mut sources: Vec<&dyn Selectable> = vec![&self.exits];
        if !self.calls.borrow().is_full() {
            sources.push(&self.replies);
        }
        if self.handler.try_borrow().is_ok() && !self.answers.are_too_many(self.world) {
            sources.push(&self.requests);
        }
        // Room for a reply sends no notification.
        let limit = if self.answers.are_sent() { limit } else { limit.min(ROOM_WAIT) };
        match select_timeout(&sources, limit) {
            Ok(_) | Err(Error::Deadline { .. }) => Ok(()),
            // All others have ended. The calls find that out, and this rank may go on calling itself.
            Err(Error::NobodyLeft { .. }) => {
                std::thread::sleep(limit.min(FINISH_PAUSE));
                Ok(())
            }
            Err(error) => self.note_loss(error),
        }
    }

    /// The reply of a call, if it has come; the error if the called rank has ended, or if replies that were not taken
    /// leave no room.
    fn result_of(&self, number: u32, server: usize) -> Result<Option<Received<Rep>>> {
        let world = &*self.world.state;
        if let Some(reply) = self.calls.borrow_mut().take(number) {
            return Ok(Some(reply));
        }
        self.calls.borrow_mut().make_room(world, number)?;
        let Some(ended) = self.calls.borrow().ended.get(&server).cloned() else { return Ok(None) };
        // The replies that it sent before its end are taken first.
        loop {
            match self.replies.from(server).within(LAST_REPLIES).retrieve() {
                Ok(reply) => {
                    let mut calls = self.calls.borrow_mut();
                    calls.accept(world, reply, Some(number));
                    if let Some(reply) = calls.take(number) {
                        return Ok(Some(reply));
                    }
                    calls.make_room(world, number)?;
                }
                // Another rank's loss, which is reported once.
                Err(Error::PeerLost { rank, how }) if rank != server => {
                    self.calls.borrow_mut().ended.entry(rank).or_insert(ExitKind::Lost(how));
                }
                Err(_) => return Err(self.ended(server, ended)),
            }
        }
    }

    #[cold]
    fn ended(&self, rank: usize, how: ExitKind) -> Error {
        match how {
            ExitKind::Finished => Error::RankFinished { rank, name: self.name.clone() },
            ExitKind::Lost(how) => Error::PeerLost { rank, how },
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

    /// Whether the reply has come, or cannot come any more, or was taken. Until then serves others: up to 64 requests
    /// that have come. Does not wait.
    ///
    /// # Errors
    /// The errors of [`Service::serve`].
    pub fn is_done(&self) -> Result<bool> {
        self.service.progress(None)?;
        if !self.is_over() {
            self.service.serve_some(None, || self.is_over())?;
        }
        Ok(self.is_over())
    }

    fn is_over(&self) -> bool {
        self.service.calls.borrow().is_over(self.number, self.server)
    }

    /// Waits for the reply, at most the world's deadline. Serves others meanwhile. The handle is used up.
    ///
    /// # Errors
    /// [`Error::PeerLost`] or [`Error::RankFinished`] as soon as the called rank has ended without a reply.
    /// [`Error::Deadline`] names the service and the called rank. [`Error::SetAsideFull`]: other replies, which came
    /// before and were not taken, fill their room (`DECK_SET_ASIDE`). [`Error::InvalidArgument`]: the reply was given
    /// already. The errors of [`Service::serve`].
    pub fn wait(self) -> Result<Received<Rep>> {
        self.wait_timeout(self.service.world.config().deadline)
    }

    /// Like [`Reply::wait`], but waits at most `limit`. A handler that runs then is waited for. After
    /// [`Error::Deadline`] and [`Error::SetAsideFull`] the handle can still be used. The reply is returned once.
    ///
    /// # Errors
    /// The errors of [`Reply::wait`].
    pub fn wait_timeout(&self, limit: Duration) -> Result<Received<Rep>> {
        let (began, deadline) = (Deadline::now(), Deadline::after(limit));
        let (service, awaited) = (self.service, Some(self.number));
        if service.calls.borrow().is_taken(self.number) {
            let why = "its reply has been given already: each reply is returned once".into();
            return Err(Error::InvalidArgument { what: self.title(), why });
        }
        let mut is_last = false;
        loop {
            service.progress(awaited)?;
            if let Some(reply) = service.result_of(self.number, self.server)? {
                return Ok(reply);
            }
            if is_last {
                let whom = format!("rank {}", self.server);
                return Err(Error::Deadline { what: self.title(), waited: began.since(), whom });
            }
            let served = service.serve_some(awaited, || deadline.passed() || self.is_over())?;
            if served == 0 && !self.is_over() {
                service.sleep(deadline.remaining())?;
            }
            is_last = deadline.passed();
        }
    }

    fn title(&self) -> String {
        format!("a call of service {}", Quoted(&self.service.name))
    }
}

impl<Req: Pod, Rep: Pod> Drop for Reply<'_, '_, Req, Rep> {
    fn drop(&mut self) {
        self.service.calls.borrow_mut().give_up(self.number);
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
