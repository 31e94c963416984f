//! Collective calls on slices that return when this member's part is over.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::task::Poll;
use std::time::Duration;

use bytemuck::Pod;

use super::Group;
use super::algorithm;
use super::call::{Call, Held};
use super::engine::{Engine, Unfinished};
use super::kind::{Elements, Kind, SYNCHRONIZE, Signature};
use super::op::{Operator, OperatorCode};
use super::plan::BarrierStep;
use super::state::GroupState;
use super::waiting::{Clock, drive};
use crate::error::{Error, Result};
use crate::payload::check_payload;
use crate::stats::trace;

impl Group {
    /// Waits until all members have called `barrier`. After [`Error::Deadline`] the next call goes on waiting
    /// at the same barrier.
    ///
    /// # Errors
    /// The errors of all calls ([`Group`]).
    #[doc(alias = "deck_barrier")]
    pub fn barrier(&self) -> Result {
        self.barrier_timeout(self.limit)
    }

    /// Like [`Group::barrier`], but waits at most `limit`.
    ///
    /// # Errors
    /// The errors of [`Group::barrier`].
    #[inline]
    pub fn barrier_timeout(&self, limit: Duration) -> Result {
        self.wait_for_all(Kind::Barrier, limit)
    }

    /// Waits at the first barrier of a group that is being made.
    pub(super) fn first_barrier(&self) -> Result {
        self.wait_for_all(Kind::Create, self.limit)
    }

    fn wait_for_all(&self, kind: Kind, limit: Duration) -> Result {
        let state = &self.member.state;
        if state.layout().size() == 1 {
            return state.world().check();
        }
        let _call = self.traced(kind);
        let mut clock = Clock::new(limit);
        let engine = self.member.enter(Signature::plain(kind), &mut clock)?;
        let engine = &mut *engine.borrow_mut();
        let Some(unfinished) = engine.unfinished.take() else {
            let call = begin(state, engine, Signature::plain(kind), &mut clock)?;
            return pass_barrier(state, engine, Unfinished::new(call), &mut clock);
        };
        let checked = state.check_members().and_then(|()| engine.check_call(state, unfinished.call));
        checked.and_then(|()| pass_barrier(state, engine, unfinished, &mut clock))?;
        if !unfinished.synchronizes {
            return Ok(());
        }
        engine.unsynchronized = None;
        engine.check_call(state, Signature::plain(kind).numbered(engine.number))?;
        let call = engine.begin(state, Signature::plain(kind))?;
        pass_barrier(state, engine, Unfinished::new(call), &mut clock)
    }

    /// Copies the root's data to all members. `data` has the same length at all members.
    ///
    /// # Errors
    /// The errors of all calls ([`Group`]).
    #[doc(alias = "MPI_Bcast")]
    pub fn broadcast<T: Pod>(&self, root: usize, data: &mut [T]) -> Result {
        let signature = self.rooted::<T>(Kind::Broadcast, root);
        self.member.state.check_root(root, signature)?;
        self.run::<T, _>(signature, async |call| algorithm::broadcast(call, root, data).await)
    }

    /// Combines the elements at the same indices of all members. The root's `data` become the result; the
    /// others' stay unchanged.
    ///
    /// # Errors
    /// The errors of all calls ([`Group`]).
    #[doc(alias = "MPI_Reduce")]
    pub fn reduce<T: Pod, O: Operator<T>>(&self, root: usize, data: &mut [T], op: O) -> Result {
        let signature = Signature::new(Kind::Reduce, root, op.code(), Elements::reduced_by(&op));
        self.member.state.check_root(root, signature)?;
        self.run::<T, _>(signature, async |call| algorithm::reduce(call, root, data, &op).await)
    }

    /// Combines the elements at the same indices of all members. All members' `data` become the result, the
    /// same to the last bit.
    ///
    /// # Errors
    /// The errors of all calls ([`Group`]).
    #[doc(alias = "MPI_Allreduce")]
    pub fn all_reduce<T: Pod, O: Operator<T>>(&self, data: &mut [T], op: O) -> Result {
        let signature = reducing(Kind::AllReduce, &op);
        self.run::<T, _>(signature, async |call| algorithm::all_reduce(call, data, &op).await)
    }

    /// Copies the data of all members to the root, one after another. `all` is `size` times as long as `mine`
    /// at the root; elsewhere it is not used, and may be empty.
    ///
    /// # Errors
    /// The errors of all calls ([`Group`]).
    #[doc(alias = "MPI_Gather")]
    pub fn gather<T: Pod>(&self, root: usize, mine: &[T], all: &mut [T]) -> Result {
        let signature = self.rooted::<T>(Kind::Gather, root);
        self.member.state.check_root(root, signature)?;
        self.check_whole(signature, root, mine.len(), all.len())?;
        let all = if root == self.rank() { all } else { &mut [] };
        self.run::<T, _>(signature, async |call| algorithm::gather(call, root, mine, all).await)
    }

    /// Copies to each member its part of the root's data. `all` is `size` times as long as `mine` at the
    /// root; elsewhere it is not used, and may be empty.
    ///
    /// # Errors
    /// The errors of all calls ([`Group`]).
    #[doc(alias = "MPI_Scatter")]
    pub fn scatter<T: Pod>(&self, root: usize, all: &[T], mine: &mut [T]) -> Result {
        let signature = self.rooted::<T>(Kind::Scatter, root);
        self.member.state.check_root(root, signature)?;
        self.check_whole(signature, root, mine.len(), all.len())?;
        let all = if root == self.rank() { all } else { &[] };
        self.run::<T, _>(signature, async |call| algorithm::scatter(call, root, all, mine).await)
    }

    /// Copies the data of all members to all members, one after another. `all` is `size` times as long as
    /// `mine`.
    ///
    /// # Errors
    /// The errors of all calls ([`Group`]).
    #[doc(alias = "MPI_Allgather")]
    pub fn all_gather<T: Pod>(&self, mine: &[T], all: &mut [T]) -> Result {
        self.all_gather_for(Kind::AllGather, mine, all)
    }

    pub(super) fn all_gather_for<T: Pod>(&self, kind: Kind, mine: &[T], all: &mut [T]) -> Result {
        let signature = self.plain::<T>(kind);
        self.check_whole(signature, self.rank(), mine.len(), all.len())?;
        self.run::<T, _>(signature, async |call| algorithm::all_gather(call, mine, all).await)
    }

    /// Exchanges parts: member k gets the k-th part of every member's `from`; the k-th part of `to` comes
    /// from member k. Both have the same length at all members, a multiple of `size`.
    ///
    /// # Errors
    /// The errors of all calls ([`Group`]).
    #[doc(alias = "MPI_Alltoall")]
    pub fn all_to_all<T: Pod>(&self, from: &[T], to: &mut [T]) -> Result {
        let signature = self.plain::<T>(Kind::AllToAll);
        self.check_exchange(signature, from.len(), to.len())?;
        self.run::<T, _>(signature, async |call| algorithm::all_to_all(call, from, to).await)
    }

    /// Combines the elements at the same indices of all members' `from`; member k gets the k-th part of the
    /// result. `from` is `size` times as long as `mine`.
    ///
    /// # Errors
    /// The errors of all calls ([`Group`]).
    #[doc(alias = "MPI_Reduce_scatter_block")]
    pub fn reduce_scatter<T: Pod, O: Operator<T>>(&self, from: &[T], mine: &mut [T], op: O) -> Result {
        let signature = reducing(Kind::ReduceScatter, &op);
        self.check_whole(signature, self.rank(), mine.len(), from.len())?;
        let each = mine.len();
        let parts: Vec<&[T]> = (0..self.size()).map(|nth| &from[nth * each..(nth + 1) * each]).collect();
        self.run::<T, _>(signature, async |call| algorithm::reduce_scatter(call, &parts, mine, &op).await)
    }

    /// Combines the elements of members 0 to k, at each member k.
    ///
    /// # Errors
    /// The errors of all calls ([`Group`]).
    #[doc(alias = "MPI_Scan")]
    pub fn scan<T: Pod, O: Operator<T>>(&self, data: &mut [T], op: O) -> Result {
        let signature = reducing(Kind::Scan, &op);
        self.run::<T, _>(signature, async |call| algorithm::scan(call, data, &op, true).await)
    }

    /// Combines the elements of members 0 to k − 1, at each member k; member 0 keeps its data.
    ///
    /// # Errors
    /// The errors of all calls ([`Group`]).
    #[doc(alias = "MPI_Exscan")]
    pub fn exscan<T: Pod, O: Operator<T>>(&self, data: &mut [T], op: O) -> Result {
        let signature = reducing(Kind::Exscan, &op);
        self.run::<T, _>(signature, async |call| algorithm::scan(call, data, &op, false).await)
    }

    /// Sends to some members and receives from some: a halo exchange. For each part that one member lists for
    /// another in `to`, the other lists a part of the same length in `from`; several parts for one member
    /// match in the order of the lists. A member may have no neighbours, and may be its own neighbour.
    ///
    /// # Errors
    /// The errors of all calls ([`Group`]).
    #[doc(alias = "MPI_Neighbor_alltoallv")]
    pub fn neighbours<T: Pod>(&self, to: &[(usize, &[T])], from: &mut [(usize, &mut [T])]) -> Result {
        let signature = self.plain::<T>(Kind::Neighbours);
        for member in to.iter().map(|(member, _)| member).chain(from.iter().map(|(member, _)| member)) {
            self.member.state.check_root(*member, signature)?;
        }
        self.run::<T, _>(signature, async |call| algorithm::direct::neighbours(call, to, from).await)
    }

    /// The signature of a call that moves data.
    #[inline]
    pub(super) fn plain<T: Pod>(&self, kind: Kind) -> Signature {
        self.rooted::<T>(kind, 0)
    }

    /// The signature of a call that moves data from or to a root.
    #[inline]
    pub(super) fn rooted<T: Pod>(&self, kind: Kind, root: usize) -> Signature {
        let elements = self.elements.unwrap_or_else(Elements::of::<T>);
        Signature::new(kind, root, OperatorCode::NONE, elements)
    }

    /// Runs this member's part of a call, and waits as long as it has to.
    pub(super) fn run<T: Pod, R>(
        &self,
        signature: Signature,
        part: impl AsyncFnOnce(&Call<Held<'_>>) -> Result<R>,
    ) -> Result<R> {
        check_payload::<T>()?;
        self.run_any(signature, part)
    }

    pub(super) fn run_any<R>(
        &self,
        signature: Signature,
        part: impl AsyncFnOnce(&Call<Held<'_>>) -> Result<R>,
    ) -> Result<R> {
        let state = &self.member.state;
        let _call = self.traced(signature.kind().unwrap_or(Kind::Barrier));
        let mut clock = Clock::new(self.limit);
        let engine = self.member.enter(signature, &mut clock)?;
        let signature = begin(state, &mut engine.borrow_mut(), signature, &mut clock)?;
        let call = Call::new(Held { state, engine: &engine }, signature);
        let fail = |error: &Error| engine.borrow_mut().fail(state, signature, error);
        let carry_out = || drive(state, signature, &mut clock, part(&call), &engine);
        let result = catch_unwind(AssertUnwindSafe(carry_out)).unwrap_or_else(|panic| {
            fail(&state.panicked(signature, &*panic));
            resume_unwind(panic)
        });
        result.inspect_err(fail)
    }

    /// Traces a call until the returned span is dropped.
    #[inline]
    fn traced(&self, kind: Kind) -> Option<tracing::span::EnteredSpan> {
        let state = &self.member.state;
        trace::call(kind.name(), state.world().rank(), state.name(), state.layout().size())
    }

    pub(super) fn check_exchange(&self, call: Signature, from: usize, to: usize) -> Result {
        if from == to && from.is_multiple_of(self.size()) {
            return Ok(());
        }
        let why = format!(
            "{from} elements to send and room for {to}: both should be the same multiple of {}, the number of members",
            self.size()
        );
        Err(self.member.state.invalid(call, why))
    }

    /// Checks that `all` is `size` times as long as `each`, at the member where it matters.
    pub(super) fn check_whole(&self, call: Signature, at: usize, each: usize, all: usize) -> Result {
        if self.rank() != at || each.checked_mul(self.size()) == Some(all) {
            return Ok(());
        }
        let why = format!(
            "the whole has {all} elements: {} members of {each} each need {}",
            self.size(),
            each.saturating_mul(self.size())
        );
        Err(self.member.state.invalid(call, why))
    }
}

pub(super) fn reducing<T: Pod, O: Operator<T>>(kind: Kind, op: &O) -> Signature {
    Signature::new(kind, 0, op.code(), Elements::reduced_by(op))
}

/// Begins the group's next call. Every [`SYNCHRONIZE`](super::kind::SYNCHRONIZE) calls, all members wait for
/// each other first.
#[inline]
fn begin(
    state: &GroupState,
    engine: &mut Engine,
    signature: Signature,
    clock: &mut Clock,
) -> Result<Signature> {
    state.check_members()?;
    engine.check(state)?;
    if let Some(home) = engine.home {
        home.go();
    }
    if engine.number % SYNCHRONIZE == SYNCHRONIZE - 1 && state.layout().size() > 1 {
        synchronize(state, engine, signature, clock)?;
    }
    engine.begin(state, signature)
}

#[cold]
fn synchronize(state: &GroupState, engine: &mut Engine, signature: Signature, clock: &mut Clock) -> Result {
    let call = engine.begin(state, Signature::plain(Kind::Barrier))?;
    let barrier = Unfinished { synchronizes: true, ..Unfinished::new(call) };
    pass_barrier(state, engine, barrier, clock).inspect_err(|error| {
        // A barrier can be called again, and then goes on.
        if !matches!(signature.kind(), Some(Kind::Barrier | Kind::Create)) {
            engine.fail(state, signature.numbered(engine.number), error);
        }
    })?;
    engine.unsynchronized = None;
    // Checked here, because a call that only sends would not notice a failure that was heard meanwhile.
    engine.check_call(state, signature.numbered(engine.number))
}

#[inline]
fn pass_barrier(state: &GroupState, engine: &mut Engine, barrier: Unfinished, clock: &mut Clock) -> Result {
    let (call, mut at) = (barrier.call, barrier.at);
    loop {
        let waited = match algorithm::barrier::advance(engine, state, call, &mut at, clock.may_spin()) {
            Poll::Ready(Ok(())) => return Ok(()),
            Poll::Ready(Err(error)) => Err(error),
            Poll::Pending => engine.wait(state, call, clock, &|engine| missing_at(state, engine, call, at)),
        };
        match waited {
            Ok(()) => {}
            Err(error @ Error::Deadline { .. }) => {
                engine.unfinished = Some(Unfinished { at, ..barrier });
                return Err(error);
            }
            Err(error) => {
                engine.fail(state, call, &error);
                return Err(error);
            }
        }
    }
}

/// The members that a barrier waits for at a step, including those whose messages could come before this
/// member's next send.
fn missing_at(state: &GroupState, engine: &Engine, call: Signature, at: usize) -> Vec<usize> {
    let awaited = state.steps()[at..].iter().map_while(|step| match step {
        BarrierStep::Receive(from) => Some(*from),
        BarrierStep::Send(_) => None,
    });
    awaited.filter(|from| !engine.has_early(*from, call)).collect()
}
