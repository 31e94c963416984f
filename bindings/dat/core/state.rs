//! An end point's states, and what may be done in each: uDAPL 2.0's table, without I/O.

use super::code::{Code, Result, Sub};

/// States of an end point (`DAT_EP_STATE`). (States of several paths are not served.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(dead_code, reason = "all of dat.h; some last no longer than a call here")]
pub enum EpState {
    /// Without a connection.
    Unconnected = 0,
    /// Without a connection and without a protection zone.
    Unconfigured = 1,
    /// Reserved by a service point.
    Reserved = 2,
    /// [`Reserved`](EpState::Reserved), without a protection zone.
    UnconfiguredReserved = 3,
    /// The end point has accepted, and the connection is not there yet.
    PassivePending = 4,
    /// [`PassivePending`](EpState::PassivePending), without a protection zone.
    UnconfiguredPassive = 5,
    /// The end point asks for a connection.
    ActivePending = 6,
    /// A request has come to the reserved service point of this end point.
    TentativePending = 7,
    /// [`TentativePending`](EpState::TentativePending), without a protection zone.
    UnconfiguredTentative = 8,
    /// Connected.
    Connected = 9,
    /// The connection ends in order: what was posted is sent first.
    DisconnectPending = 10,
    /// The connection is over; also after errors.
    Disconnected = 11,
    /// The connection is over, and a DTO is still in the hands of the provider.
    CompletionPending = 12,
}

use EpState as S;

/// A call of the program's on an end point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EpCall {
    /// `dat_ep_connect`, `dat_ep_dup_connect`.
    Connect,
    /// `dat_cr_accept` with an end point of the program's.
    Accept,
    /// `dat_cr_accept` with the end point of the reserved service point.
    AcceptReserved,
    /// `dat_rsp_create`.
    Reserve,
    /// `dat_ep_disconnect`.
    Disconnect,
    /// `dat_ep_post_recv`.
    PostRecv,
    /// Sends, RDMA and binds.
    PostRequest,
    /// `dat_ep_reset`.
    Reset,
    /// `dat_ep_modify` of what a connection depends on.
    Modify,
    /// `dat_ep_free`.
    Free,
}

/// An event of an end point's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EpEvent {
    /// The end point asks for a connection.
    Asks,
    /// A reserved service point reserves the end point.
    Reserved,
    /// Its reserved service point is gone. (A request that has come stays.)
    Unreserved,
    /// A request came to its reserved service point.
    RequestCame,
    /// The request to its reserved service point was refused.
    Refused,
    /// The end point has not asked after all, for want of a thread.
    NotAsked,
    /// The end point accepts a request.
    Accepts,
    /// Connected.
    Established,
    /// There will be no connection: refused, timed out, unreachable.
    Failed,
    /// The connection ends in order.
    Closes,
    /// The connection is over, by either side, or broken.
    Ended,
    /// `dat_ep_reset`.
    Reset,
    /// The end point has got a protection zone.
    Configured,
}

impl EpState {
    /// Whether the call is allowed.
    ///
    /// # Errors
    /// `DAT_INVALID_STATE` with the state that forbids it.
    #[inline]
    pub fn check(self, call: EpCall) -> Result {
        use EpCall as C;
        let allowed = match call {
            C::PostRequest => matches!(self, S::Connected | S::Disconnected),
            // A receive that is posted to an ended end point is flushed at once.
            C::PostRecv => !matches!(
                self,
                S::Unconfigured | S::UnconfiguredReserved | S::UnconfiguredPassive | S::UnconfiguredTentative
            ),
            C::Connect | C::Accept | C::Reserve => self == S::Unconnected,
            C::AcceptReserved => self == S::TentativePending,
            C::Disconnect => matches!(
                self,
                S::Connected
                    | S::ActivePending
                    | S::PassivePending
                    | S::CompletionPending
                    | S::DisconnectPending
                    | S::Disconnected
            ),
            C::Reset => matches!(self, S::Disconnected | S::Unconnected | S::Unconfigured),
            C::Modify => matches!(
                self,
                S::Unconnected
                    | S::Unconfigured
                    | S::Reserved
                    | S::UnconfiguredReserved
                    | S::TentativePending
                    | S::UnconfiguredTentative
            ),
            C::Free => !matches!(
                self,
                S::Reserved
                    | S::UnconfiguredReserved
                    | S::PassivePending
                    | S::UnconfiguredPassive
                    | S::TentativePending
                    | S::UnconfiguredTentative
            ),
        };
        if allowed { Ok(()) } else { Err(self.refusal()) }
    }

    /// `DAT_INVALID_STATE`, with this state.
    #[cold]
    pub fn refusal(self) -> Code {
        Code::INVALID_STATE.of(match self {
            S::Unconnected => Sub::EpUnconnected,
            S::Unconfigured => Sub::EpUnconfigured,
            S::Reserved => Sub::EpReserved,
            S::UnconfiguredReserved => Sub::EpUnconfReserved,
            S::PassivePending => Sub::EpPassConnPending,
            S::UnconfiguredPassive => Sub::EpUnconfPassive,
            S::ActivePending => Sub::EpActConnPending,
            S::TentativePending => Sub::EpTentConnPending,
            S::UnconfiguredTentative => Sub::EpUnconfTentative,
            S::Connected => Sub::EpConnected,
            S::DisconnectPending => Sub::EpDiscPending,
            S::Disconnected => Sub::EpDisconnected,
            S::CompletionPending => Sub::EpComplPending,
        })
    }

    /// The state after the event; `None`: the event does not happen in this state, and changes nothing.
    pub fn after(self, event: EpEvent) -> Option<EpState> {
        use EpEvent as E;
        Some(match (self, event) {
            (S::Unconnected, E::Asks) => S::ActivePending,
            (S::Unconnected, E::Reserved) => S::Reserved,
            (S::Reserved, E::Unreserved) => S::Unconnected,
            (S::Reserved, E::RequestCame) => S::TentativePending,
            (S::TentativePending, E::Refused) => S::Reserved,
            (S::Unconnected | S::TentativePending, E::Accepts) => S::PassivePending,
            (S::ActivePending | S::PassivePending, E::Established) => S::Connected,
            (S::ActivePending, E::NotAsked) => S::Unconnected,
            (S::ActivePending | S::PassivePending, E::Failed | E::Ended) => S::Disconnected,
            (S::Connected, E::Closes) => S::DisconnectPending,
            (S::Connected | S::DisconnectPending | S::CompletionPending, E::Ended) => S::Disconnected,
            (S::Disconnected | S::Unconnected, E::Reset) => S::Unconnected,
            (S::Unconfigured, E::Reset) => S::Unconfigured,
            (S::Unconfigured, E::Configured) => S::Unconnected,
            (S::UnconfiguredReserved, E::Configured) => S::Reserved,
            (S::UnconfiguredTentative, E::Configured) => S::TentativePending,
            (S::UnconfiguredPassive, E::Configured) => S::PassivePending,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [EpState; 13] = [
        S::Unconnected,
        S::Unconfigured,
        S::Reserved,
        S::UnconfiguredReserved,
        S::PassivePending,
        S::UnconfiguredPassive,
        S::ActivePending,
        S::TentativePending,
        S::UnconfiguredTentative,
        S::Connected,
        S::DisconnectPending,
        S::Disconnected,
        S::CompletionPending,
    ];

    fn allowed(call: EpCall) -> Vec<EpState> {
        ALL.into_iter().filter(|state| state.check(call).is_ok()).collect()
    }

    #[test]
    fn numbers_are_those_of_the_header() {
        for (nth, state) in ALL.into_iter().enumerate() {
            assert_eq!(state as usize, nth);
        }
    }

    #[test]
    fn requests_are_posted_to_what_is_or_was_connected() {
        assert_eq!(allowed(EpCall::PostRequest), [S::Connected, S::Disconnected]);
        assert_eq!(allowed(EpCall::PostRecv).len(), 9, "all that are configured");
        assert_eq!(allowed(EpCall::Connect), [S::Unconnected]);
        assert_eq!(allowed(EpCall::AcceptReserved), [S::TentativePending]);
        assert_eq!(allowed(EpCall::Reset), [S::Unconnected, S::Unconfigured, S::Disconnected]);
    }

    #[test]
    fn each_refusal_names_the_state() {
        let mut seen: Vec<u32> = ALL.into_iter().map(|state| state.refusal().0).collect();
        assert!(seen.iter().all(|code| code & 0xffff_0000 == Code::INVALID_STATE.0));
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), ALL.len());
        // The C compiler has the same number: DAT_INVALID_STATE_EP_UNCONNECTED is 47.
        assert_eq!(S::Unconnected.check(EpCall::PostRequest), Err(Code(0x8007_0000 | 47)));
    }

    #[test]
    fn a_connection_goes_through_its_states_and_back() {
        let way = [
            (EpEvent::Asks, S::ActivePending),
            (EpEvent::Established, S::Connected),
            (EpEvent::Closes, S::DisconnectPending),
            (EpEvent::Ended, S::Disconnected),
            (EpEvent::Reset, S::Unconnected),
            (EpEvent::Reserved, S::Reserved),
            (EpEvent::RequestCame, S::TentativePending),
            (EpEvent::Accepts, S::PassivePending),
            (EpEvent::Established, S::Connected),
            (EpEvent::Ended, S::Disconnected),
        ];
        let mut state = S::Unconfigured.after(EpEvent::Configured).unwrap();
        for (event, then) in way {
            state = state.after(event).unwrap_or_else(|| panic!("{event:?} in {state:?}"));
            assert_eq!(state, then);
        }
        assert_eq!(S::ActivePending.after(EpEvent::NotAsked), Some(S::Unconnected));
        assert_eq!(S::Disconnected.after(EpEvent::Ended), None, "an end is told once");
        assert_eq!(S::Disconnected.after(EpEvent::Established), None, "a late answer connects nothing");
    }
}
