//! Collective calls that return at once, and the handles that wait for their results.

use std::fmt;
use std::future::Future;
use std::ops::DerefMut;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytemuck::Pod;

use super::Group;
use super::algorithm;
use super::blocking::reducing;
use super::call::{Call, Shared};
use super::engine::Awaited;
#[cfg(feature = "async")]
use super::engine::Engine;
use super::kind::{Elements, Kind, NUMBERS, SYNCHRONIZE, Signature};
use super::membership::{Membership, TakenEngine};
use super::op::Operator;
use super::waiting::Clock;
use crate::error::{Error, Result};
use crate::payload::check_payload;
use crate::stats::trace;

/// Maximum number of a group's requests whose end this member has not seen.
const MAX_PENDING: usize = 64;

/// How long a call that does not wait still waits for another thread's step.
const ENGINE_WAIT: Duration = Duration::from_secs(1);

/// Number of unrelated events that one poll of a request takes before it yields.
const POLLS: usize = 16;

type Part<'a, R> = Pin<Box<dyn Future<Output = Result<R>> + Send + 'a>>;

/// Handle of a collective call that may not be over ([`Group::all_reduce_nonblocking`] and others): this
/// member's part. It owns the data that were given to the call, and returns them with the result.
///
/// A request moves on only when it is polled ([`Request::is_done`], [`Request::wait`], or a task that awaits
/// it). Messages that other members wait for may not be sent before. Several requests may be under way at a
/// time, in one group or in several. Members start them in the same order and wait for them in the same
/// order; or they poll all of them in turn, as [`wait_all`](super::wait_all) and [`wait_any`](super::wait_any)
/// do, and then the order does not matter.
///
/// Dropping a request before its end leaves the group without this member's part: the call fails at the other
/// members, and so does every later one ([`crate::Error::GroupFailed`]). If this member had other requests
/// under way, the calls from the oldest of them on fail. The drop waits for no other thread. A thread that is
/// in a call of the group tells the other members within half a second, and its call fails.
#[must_use = "a call that is dropped before its end leaves the other members waiting"]
pub struct Request<'a, R> {
    member: Arc<Membership>,
    call: Signature,
    limit: Duration,
    stage: Stage<'a, R>,
    /// Start time for the trace; 0 without a trace.
    traced: u64,
    #[cfg(feature = "async")]
    alarm: crate::tasks::Alarm,
}

enum Stage<'a, R> {
    Running(Part<'a, R>),
    /// Over; the result has not been taken.
    Over(Result<R>),
    Taken,
}

impl Group {
    /// Starts a barrier like [`Group::barrier`], without waiting.
    ///
    /// # Errors
    /// The errors of all calls ([`Group`]); [`Error::WouldBlock`] while 64 requests of the group are under
    /// way; while a request is under way that began 127 calls before; while one is that began 64 calls before
    /// and that not all members are known to have made; or while another thread is in a blocking call of the
    /// group. A request that began 127 calls before makes blocking calls fail, too.
    #[doc(alias = "MPI_Ibarrier")]
    pub fn barrier_nonblocking(&self) -> Result<Request<'static, ()>> {
        self.start(Signature::plain(Kind::Barrier), |call| {
            Box::pin(async move { algorithm::barrier::barrier(&call).await })
        })
    }

    /// Starts a broadcast like [`Group::broadcast`], without waiting.
    ///
    /// # Errors
    /// The errors of [`Group::barrier_nonblocking`].
    #[doc(alias = "MPI_Ibcast")]
    pub fn broadcast_nonblocking<'a, T: Pod + Send + Sync, D>(
        &self,
        root: usize,
        mut data: D,
    ) -> Result<Request<'a, D>>
    where
        D: DerefMut<Target = [T]> + Send + 'a,
    {
        let signature = self.rooted::<T>(Kind::Broadcast, root);
        self.member.state.check_root(root, signature)?;
        check_payload::<T>()?;
        self.start(signature, move |call| {
            Box::pin(async move {
                algorithm::broadcast(&call, root, &mut data).await?;
                Ok(data)
            })
        })
    }

    /// Starts a reduction like [`Group::reduce`], without waiting.
    ///
    /// # Errors
    /// The errors of [`Group::barrier_nonblocking`].
    #[doc(alias = "MPI_Ireduce")]
    pub fn reduce_nonblocking<'a, T: Pod + Send + Sync, D, O>(
        &self,
        root: usize,
        mut data: D,
        op: O,
    ) -> Result<Request<'a, D>>
    where
        D: DerefMut<Target = [T]> + Send + 'a,
        O: Operator<T> + Send + Sync + 'a,
    {
        let signature = Signature::new(Kind::Reduce, root, op.code(), Elements::reduced_by(&op));
        self.member.state.check_root(root, signature)?;
        check_payload::<T>()?;
        self.start(signature, move |call| {
            Box::pin(async move {
                algorithm::reduce(&call, root, &mut data, &op).await?;
                Ok(data)
            })
        })
    }

    /// Starts a reduction like [`Group::all_reduce`], without waiting.
    ///
    /// # Errors
    /// The errors of [`Group::barrier_nonblocking`].
    #[doc(alias = "MPI_Iallreduce")]
    pub fn all_reduce_nonblocking<'a, T: Pod + Send + Sync, D, O>(
        &self,
        mut data: D,
        op: O,
    ) -> Result<Request<'a, D>>
    where
        D: DerefMut<Target = [T]> + Send + 'a,
        O: Operator<T> + Send + Sync + 'a,
    {
        check_payload::<T>()?;
        self.start(reducing(Kind::AllReduce, &op), move |call| {
            Box::pin(async move {
                algorithm::all_reduce(&call, &mut data, &op).await?;
                Ok(data)
            })
        })
    }

    /// Starts a gathering like [`Group::all_gather`], without waiting. The result is `all`.
    ///
    /// # Errors
    /// The errors of [`Group::barrier_nonblocking`].
    #[doc(alias = "MPI_Iallgather")]
    pub fn all_gather_nonblocking<'a, T: Pod + Send + Sync, S, D>(
        &self,
        mine: S,
        mut all: D,
    ) -> Result<Request<'a, D>>
    where
        S: AsRef<[T]> + Send + Sync + 'a,
        D: DerefMut<Target = [T]> + Send + 'a,
    {
        let signature = self.plain::<T>(Kind::AllGather);
        check_payload::<T>()?;
        self.check_whole(signature, self.rank(), mine.as_ref().len(), all.len())?;
        self.start(signature, move |call| {
            Box::pin(async move {
                algorithm::all_gather(&call, mine.as_ref(), &mut all).await?;
                Ok(all)
            })
        })
    }

    /// Starts an exchange like [`Group::all_to_all`], without waiting. The result is `to`.
    ///
    /// # Errors
    /// The errors of [`Group::barrier_nonblocking`].
    #[doc(alias = "MPI_Ialltoall")]
    pub fn all_to_all_nonblocking<'a, T: Pod + Send + Sync, S, D>(
        &self,
        from: S,
        mut to: D,
    ) -> Result<Request<'a, D>>
    where
        S: AsRef<[T]> + Send + Sync + 'a,
        D: DerefMut<Target = [T]> + Send + 'a,
    {
        let signature = self.plain::<T>(Kind::AllToAll);
        check_payload::<T>()?;
        self.check_exchange(signature, from.as_ref().len(), to.len())?;
        self.start(signature, move |call| {
            Box::pin(async move {
                algorithm::all_to_all(&call, from.as_ref(), &mut to).await?;
                Ok(to)
            })
        })
    }

    /// Begins this member's part of a call, and runs it as far as possible without waiting. Every
    /// [`SYNCHRONIZE`] calls, all members wait for each other first, as part of the call.
    fn start<'a, R>(
        &self,
        signature: Signature,
        part: impl FnOnce(Call<Shared>) -> Part<'a, R>,
    ) -> Result<Request<'a, R>>
    where
        R: Send + 'a,
    {
        let traced = trace::begin();
        let (member, state) = (&self.member, &self.member.state);
        state.world().check()?;
        state.check_members()?;
        let (barrier, call) = {
            let engine = self.enter_briefly(signature)?;
            let mut engine = engine.borrow_mut();
            engine.check(state)?;
            if engine.pending.len() >= MAX_PENDING {
                let whom = format!("one of the {MAX_PENDING} requests of the group that are under way");
                return Err(Error::WouldBlock { what: "a collective call", whom });
            }
            let synchronizes = engine.number % SYNCHRONIZE == SYNCHRONIZE - 1 && state.layout().size() > 1;
            if synchronizes && engine.unsynchronized.is_some() {
                let whom = format!("a request of the group that began {SYNCHRONIZE} calls before");
                return Err(Error::WouldBlock { what: "a collective call", whom });
            }
            // Listed as pending from now on: the request is under way when the call itself begins.
            let number = (engine.number.wrapping_add(u32::from(synchronizes))) % NUMBERS;
            engine.pending.push(number as usize);
            let barrier = synchronizes.then(|| engine.begin(state, Signature::plain(Kind::Barrier)));
            let begun =
                barrier.transpose().and_then(|barrier| Ok((barrier, engine.begin(state, signature)?)));
            let (barrier, call) = begun.inspect_err(|_| {
                engine.pending.pop();
            })?;
            engine.unsynchronized = barrier.map(Signature::number).or(engine.unsynchronized);
            (barrier, call)
        };
        let part = part(Call::new(Shared(member.clone()), call));
        let part = match barrier {
            None => part,
            Some(barrier) => {
                let barrier = Call::new(Shared(member.clone()), barrier);
                Box::pin(async move {
                    algorithm::barrier::barrier(&barrier).await?;
                    let number = barrier.signature().number();
                    barrier.with(|engine| {
                        engine.unsynchronized =
                            engine.unsynchronized.filter(|unsynchronized| *unsynchronized != number);
                        // Checked here, because a call that only sends would not notice a failure that was
                        // heard meanwhile.
                        engine.check_call(barrier.state(), call)
                    })?;
                    part.await
                })
            }
        };
        let mut request = Request {
            member: member.clone(),
            call,
            limit: self.limit,
            stage: Stage::Running(part),
            traced,
            #[cfg(feature = "async")]
            alarm: crate::tasks::Alarm::default(),
        };
        request.poll_once(&mut Context::from_waker(Waker::noop()));
        Ok(request)
    }

    /// Takes the group's engine, unless another thread has it for longer than a moment.
    fn enter_briefly(&self, call: Signature) -> Result<TakenEngine<'_>> {
        self.member.enter(call, &mut Clock::new(ENGINE_WAIT)).map_err(|error| match error {
            Error::Deadline { whom, .. } => Error::WouldBlock { what: "a collective call", whom },
            other => other,
        })
    }
}

impl<R> Request<'_, R> {
    /// Whether the request is over, successfully or not. Moves it on, and does not block.
    pub fn is_done(&mut self) -> bool {
        self.poll_once(&mut Context::from_waker(Waker::noop()))
    }

    /// Waits until the request is over, at most the group's limit. Returns what was given to the call, with
    /// the result.
    ///
    /// # Errors
    /// The errors of all calls ([`Group`]).
    pub fn wait(mut self) -> Result<R> {
        self.wait_timeout(self.limit)
    }

    /// Like [`Request::wait`], but waits at most `limit`. After [`Error::Deadline`] and [`Error::Interrupted`] the
    /// handle can still be used. The result is returned once.
    ///
    /// # Errors
    /// The errors of all calls ([`Group`]).
    pub fn wait_timeout(&mut self, limit: Duration) -> Result<R> {
        self.check()?;
        let mut clock = Clock::new(limit);
        let member = self.member.clone();
        let call = self.call;
        while matches!(self.stage, Stage::Running(_)) {
            let engine = member.enter(call, &mut clock)?;
            if self.advance(&mut Context::from_waker(Waker::noop())) {
                break;
            }
            let waited =
                engine.borrow_mut().wait(&member.state, call, &mut clock, &super::waiting::one_missing);
            match waited {
                Ok(()) => {}
                Err(error @ (Error::Deadline { .. } | Error::Interrupted)) => return Err(error),
                Err(error) => self.end(Err(error)),
            }
        }
        self.take()
    }

    /// Checks that the request may go on: an unfinished part has to send and to take locks. A finished one
    /// can be taken whatever happened to the world.
    fn check(&self) -> Result {
        if matches!(self.stage, Stage::Running(_)) { self.member.state.world().check() } else { Ok(()) }
    }

    /// Moves the part on as far as possible without waiting, also not for another thread. Returns whether it
    /// is over.
    fn advance(&mut self, context: &mut Context<'_>) -> bool {
        let member = self.member.clone();
        let Stage::Running(part) = &mut self.stage else { return true };
        // Held until the end is noted: another thread's call would delay that.
        let Ok(Some(_engine)) = member.try_enter(self.call) else { return false };
        match catch_unwind(AssertUnwindSafe(|| part.as_mut().poll(context))) {
            Ok(Poll::Pending) => return false,
            Ok(Poll::Ready(result)) => self.end(result),
            Err(panic) => {
                self.end(Err(self.member.state.panicked(self.call, &*panic)));
                resume_unwind(panic);
            }
        }
        true
    }

    /// Like [`Request::advance`], but also connects to members, and ends the request if members that it waits
    /// for have ended.
    fn poll_once(&mut self, context: &mut Context<'_>) -> bool {
        if self.check().is_err() {
            return true; // reported by the call that takes the result
        }
        let member = self.member.clone();
        for _ in 0..POLLS {
            if self.advance(context) {
                return true;
            }
            let Ok(Some(engine)) = member.try_enter(self.call) else { return false };
            let news = engine.borrow_mut().poll_news(&member.state, self.call);
            match news {
                Ok(true) => {}
                Ok(false) => return false,
                Err(error) => {
                    self.end(Err(error));
                    return true;
                }
            }
        }
        false // endless events that do not end the request
    }

    pub(super) fn member(&self) -> &Arc<Membership> {
        &self.member
    }

    pub(super) fn call(&self) -> Signature {
        self.call
    }

    /// Longest wait of [`Request::wait`]: the limit of the group by which the call was started.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    pub(super) fn is_taken(&self) -> bool {
        matches!(self.stage, Stage::Taken)
    }

    pub(super) fn has_failed(&self) -> bool {
        matches!(self.stage, Stage::Over(Err(_)))
    }

    /// The event that the last step waits for, right after a poll. `None`: another thread has the group.
    pub(super) fn awaited(&self) -> Option<Awaited> {
        let engine = self.member.try_enter(self.call).ok()??;
        let awaited = engine.borrow().awaited;
        Some(awaited)
    }

    fn end(&mut self, result: Result<R>) {
        let engine = self.member.lock();
        if let Err(error) = &result {
            engine.borrow_mut().fail(&self.member.state, self.call, error);
        }
        engine.borrow_mut().pending.retain(|number| *number != self.call.number());
        drop(engine);
        if self.traced != 0 {
            let (state, kind) = (&self.member.state, self.call.kind().unwrap_or(Kind::Barrier));
            let group = (state.name(), state.layout().size());
            trace::call_over(self.traced, kind.name(), state.world().rank(), group);
        }
        self.stage = Stage::Over(result);
    }

    fn take(&mut self) -> Result<R> {
        self.check()?;
        match std::mem::replace(&mut self.stage, Stage::Taken) {
            Stage::Over(result) => result,
            _ => Err(self
                .member
                .state
                .invalid(self.call, "its result has been given already: wait for a request once".into())),
        }
    }
}

#[cfg(feature = "async")]
mod tasks {
    use std::cell::RefCell;
    use std::time::Instant;

    use udeck_via::transport::Armed;

    use super::{Context, Engine, Future, POLLS, Pin, Poll, Request, Result, Stage};
    use crate::wait_policy::MEMORY_PAUSE;

    // `Unpin` for any `R`: the contents are in a box, or never pinned.
    impl<R> Unpin for Request<'_, R> {}

    /// Waits without a deadline, which is the executor's matter.
    impl<R> Future for Request<'_, R> {
        type Output = Result<R>;

        fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
            let this = self.get_mut();
            if matches!(this.stage, Stage::Running(_)) {
                this.member.try_enter(this.call)?;
            }
            for _ in 0..POLLS {
                if this.poll_once(context) {
                    this.alarm.rest();
                    return Poll::Ready(this.take());
                }
                // Held until an end is noted, like in `advance`.
                let member = this.member.clone();
                let Some(engine) = member.try_enter(this.call)? else {
                    member.wake_later(this.call, context.waker());
                    return Poll::Pending;
                };
                match this.arm(&engine, context) {
                    Ok(Armed::News) => {}
                    Ok(_) => return Poll::Pending,
                    Err(error) => this.end(Err(error)),
                }
            }
            // The group keeps getting events that do not end the request: yields, since other tasks may want to
            // run.
            context.waker().wake_by_ref();
            Poll::Pending
        }
    }

    impl<R> Request<'_, R> {
        /// Prepares to be woken by a message.
        fn arm(&mut self, engine: &RefCell<Engine>, context: &Context<'_>) -> Result<Armed> {
            let engine = engine.borrow();
            let mut inbox = engine.inbox.inbox().borrow_mut();
            inbox.check_exits()?;
            let armed = inbox.arm();
            if armed != Armed::News {
                // Another request may take the message, and room sends no notification: polls again later.
                let again = Some(Instant::now() + MEMORY_PAUSE);
                let world = self.member.state.world();
                let set = self.alarm.set(world, || inbox.handles(), context.waker(), again);
                set.map_err(|error| crate::Error::via(self.member.state.title(self.call), error))?;
            }
            Ok(armed)
        }
    }
}

impl<R> Drop for Request<'_, R> {
    fn drop(&mut self) {
        if !matches!(self.stage, Stage::Running(_)) || self.member.state.world().check().is_err() {
            return;
        }
        self.member.drop_request(self.call);
    }
}

impl<R> fmt::Debug for Request<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = match self.stage {
            Stage::Running(_) => "under way",
            Stage::Over(_) => "done",
            Stage::Taken => "taken",
        };
        write!(f, "Request({}, {stage})", self.call)
    }
}
