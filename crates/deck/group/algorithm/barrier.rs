//! Barriers: empty messages along a plan ([`Plan`](super::super::plan::Plan)) by which everybody has heard of everybody,
//! directly or not, when it is through.

use std::future::poll_fn;
use std::task::Poll;

use super::super::call::{Call, Link};
use super::super::engine::Engine;
use super::super::kind::Signature;
use super::super::plan::BarrierStep;
use super::super::state::GroupState;
use crate::error::Result;
use crate::wait_policy::WaitPolicy;

/// A barrier, for a request.
pub async fn barrier<L: Link>(call: &Call<L>) -> Result {
    let mut at = 0;
    poll_fn(|_| call.with(|engine| advance(engine, call.state(), call.signature(), &mut at, L::PATIENT)))
        .await
}

/// Takes the steps from `at` on, as far as they go without waiting, and keeps there at which one it is: a wait that ran out of
/// time goes on there. `patient`: it may spin for the moment in which an answer comes.
#[inline]
pub fn advance(
    engine: &mut Engine,
    state: &GroupState,
    call: Signature,
    at: &mut usize,
    patient: bool,
) -> Poll<Result> {
    let post_token =
        |poster: &crate::send::poster::Poster| poster.post_copy(&[], call.tag(), WaitPolicy::None).map(drop);
    while let Some(step) = state.steps().get(*at) {
        let taken = match *step {
            BarrierStep::Send(to) => engine.try_send(state, to, call, post_token),
            BarrierStep::Receive(from) => engine.try_receive(state, from, call, patient, |_| ()),
        };
        match taken {
            Poll::Ready(Ok(())) => *at += 1,
            unfinished => return unfinished,
        }
    }
    Poll::Ready(Ok(()))
}
