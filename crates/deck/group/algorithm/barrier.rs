//! Barriers: empty messages along a [`Plan`](super::super::plan::Plan). A member that has passed has heard of
//! all members, directly or not.

use std::future::poll_fn;
use std::task::Poll;

use super::super::call::{Call, Link};
use super::super::engine::Engine;
use super::super::kind::Signature;
use super::super::plan::BarrierStep;
use super::super::state::GroupState;
use crate::error::Result;
use crate::wait_policy::WaitPolicy;

/// Runs a barrier, for a request.
pub async fn barrier<L: Link>(call: &Call<L>) -> Result {
    let mut at = 0;
    poll_fn(|_| call.with(|engine| advance(engine, call.state(), call.signature(), &mut at, L::MAY_SPIN)))
        .await
}

/// Takes the steps from `at` on, as far as possible without waiting, and updates `at`: a wait that ran out of
/// time can go on there. `may_spin`: the call may spin for the moment in which an answer comes.
#[inline]
pub fn advance(
    engine: &mut Engine,
    state: &GroupState,
    call: Signature,
    at: &mut usize,
    may_spin: bool,
) -> Poll<Result> {
    let post_token =
        |poster: &crate::send::poster::Poster| poster.post_copy(&[], call.tag(), WaitPolicy::None).map(drop);
    while let Some(step) = state.steps().get(*at) {
        let taken = match *step {
            BarrierStep::Send(to) => engine.try_send(state, to, call, post_token),
            BarrierStep::Receive(from) => engine.try_receive(state, from, call, may_spin, |_| ()),
        };
        match taken {
            Poll::Ready(Ok(())) => *at += 1,
            unfinished => return unfinished,
        }
    }
    Poll::Ready(Ok(()))
}
