//! Attributes that `ibv_modify_qp` requires and allows, by transition: InfiniBand Architecture Specification, volume 1,
//! tables 91 and following (release 1.4), as the Linux kernel checks them.

use crate::abi::*;
use crate::objects::{Kind, State};

struct Transition {
    from: State,
    to: State,
    /// Required of any pair.
    required: i32,
    /// Required of a reliable pair in addition.
    reliable: i32,
    optional: i32,
}

const TRANSITIONS: &[Transition] = &[
    Transition {
        from: State::Reset,
        to: State::Init,
        required: IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
        reliable: 0,
        optional: 0,
    },
    Transition {
        from: State::Init,
        to: State::Init,
        required: 0,
        reliable: 0,
        optional: IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
    },
    Transition {
        from: State::Init,
        to: State::ReadyToReceive,
        required: IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN,
        reliable: IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
        optional: IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX,
    },
    Transition {
        from: State::ReadyToReceive,
        to: State::ReadyToSend,
        required: IBV_QP_SQ_PSN,
        reliable: IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC,
        optional: IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER,
    },
    Transition {
        from: State::ReadyToSend,
        to: State::ReadyToSend,
        required: 0,
        reliable: 0,
        optional: IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER,
    },
    Transition {
        from: State::SendError,
        to: State::ReadyToSend,
        required: 0,
        reliable: 0,
        optional: IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS,
    },
];

/// Attributes that only reliable pairs have.
const RELIABLE_ONLY: i32 = IBV_QP_MAX_DEST_RD_ATOMIC
    | IBV_QP_MIN_RNR_TIMER
    | IBV_QP_TIMEOUT
    | IBV_QP_RETRY_CNT
    | IBV_QP_RNR_RETRY
    | IBV_QP_MAX_QP_RD_ATOMIC;

/// Whether a pair may go from `from` to `to` with these attributes (`mask` without `IBV_QP_STATE`).
pub fn allowed(kind: Kind, from: State, to: State, mask: i32) -> bool {
    if matches!(to, State::Reset | State::Error) {
        return mask & !IBV_QP_CUR_STATE == 0;
    }
    TRANSITIONS.iter().any(|known| {
        let reliable = kind == Kind::Reliable;
        let required = known.required | if reliable { known.reliable } else { 0 };
        let banned = if reliable { 0 } else { RELIABLE_ONLY };
        let may = (required | known.optional) & !banned;
        (known.from, known.to) == (from, to) && mask & required == required && mask & !may == 0
    })
}

/// Whether an iWARP pair may go from `from` to `to`: TCP has the attributes of the path, and only a connection
/// allows a pair to send.
pub fn allowed_by_iwarp(from: State, to: State, mask: i32) -> bool {
    if matches!(to, State::Reset | State::Error) {
        return mask & !IBV_QP_CUR_STATE == 0;
    }
    let known = mask & !(IBV_QP_ACCESS_FLAGS | IBV_QP_PORT) == 0;
    known
        && (from == to
            || matches!((from, to), (State::Reset, State::Init) | (State::Init, State::ReadyToReceive)))
}

pub fn state(number: u32) -> Option<State> {
    Some(match number {
        IBV_QPS_RESET => State::Reset,
        IBV_QPS_INIT => State::Init,
        IBV_QPS_RTR => State::ReadyToReceive,
        IBV_QPS_RTS => State::ReadyToSend,
        IBV_QPS_SQE => State::SendError,
        IBV_QPS_ERR => State::Error,
        _ => return None,
    })
}

pub fn state_number(state: State) -> u32 {
    match state {
        State::Reset => IBV_QPS_RESET,
        State::Init => IBV_QPS_INIT,
        State::ReadyToReceive => IBV_QPS_RTR,
        State::ReadyToSend => IBV_QPS_RTS,
        State::SendError => IBV_QPS_SQE,
        State::Error => IBV_QPS_ERR,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TO_RTR: i32 = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    const RTR_RELIABLE: i32 = IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;

    #[test]
    fn a_reliable_pair_needs_what_an_unreliable_one_must_not_have() {
        let rtr = |kind, mask| allowed(kind, State::Init, State::ReadyToReceive, mask);
        assert!(rtr(Kind::Reliable, TO_RTR | RTR_RELIABLE) && rtr(Kind::Unreliable, TO_RTR));
        assert!(!rtr(Kind::Reliable, TO_RTR) && !rtr(Kind::Unreliable, TO_RTR | RTR_RELIABLE));
    }

    #[test]
    fn no_required_attribute_may_be_missing() {
        for bit in (0..21).map(|bit| 1 << bit).filter(|bit| (TO_RTR | RTR_RELIABLE) & bit != 0) {
            let mask = (TO_RTR | RTR_RELIABLE) & !bit;
            assert!(!allowed(Kind::Reliable, State::Init, State::ReadyToReceive, mask), "{bit:#x}");
        }
    }

    #[test]
    fn states_are_not_skipped_but_reset_and_error_are_always_near() {
        assert!(!allowed(Kind::Reliable, State::Reset, State::ReadyToReceive, TO_RTR | RTR_RELIABLE));
        assert!(!allowed(Kind::Reliable, State::Error, State::Init, 0));
        for from in [State::Reset, State::Init, State::ReadyToReceive, State::ReadyToSend, State::Error] {
            assert!(allowed(Kind::Reliable, from, State::Error, 0));
            assert!(allowed(Kind::Reliable, from, State::Reset, 0));
        }
    }
}
