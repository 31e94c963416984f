//! Both sides prove who they are, by what both know and over this very TLS session: nothing else of a side is heard before.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use quinn_proto::{ConnectionError, Dir, TransportErrorCode, VarInt};
use udeck_via::auth::is_same;

use super::{Peer, State};
use crate::tls::exporter;
use crate::wire::{Close, Hello, OURS, Versions};

/// How far a connection is.
#[derive(Clone, Debug)]
pub enum Standing {
    /// Not known yet who is there.
    Shaking,
    /// Both have proved who they are.
    Stands,
    /// Closed in order, by either NIC.
    Closed,
    /// Nobody is at that address.
    Nobody,
    /// A side does not prove who it is.
    Stranger(String),
    /// The other side is another process than was called.
    OtherProcess,
    /// The other side speaks another version; `None`: it does not say which.
    OtherVersion(Option<Versions>),
    /// It broke.
    Lost(String),
}

pub const CALLER: &[u8] = b"caller";
pub const CALLEE: &[u8] = b"callee";

impl Peer {
    /// The TLS hand-shake is over.
    pub(super) fn connected(self: &Arc<Self>, state: &mut State) {
        // If it has ended already, QUIC says next why.
        if !self.called || state.quic.is_closed() {
            return;
        }
        let Some(pair) = &state.pair else { return };
        let Some(stream) = state.quic.streams().open(Dir::Bi) else {
            return self.close(state, Close::Broken, Standing::Lost("it takes no stream".into()));
        };
        let process = self.core.process;
        let mut hello = Hello { versions: OURS, process, claim: Some(pair.claim()), proof: [0; 32] };
        hello.proof = pair.prove(b"udp", CALLER, &[&said(&hello), &exporter(&state.quic)]);
        state.control.stream = Some(stream);
        self.say(state, &hello.encode());
    }

    /// Bytes came on the control stream of a connection that does not stand. Whether it does now.
    pub(super) fn hear_hello(self: &Arc<Self>, state: &mut State) {
        let len = Hello::len(!self.called);
        if state.control.incoming.len() < len {
            return;
        }
        let bytes: Vec<u8> = state.control.incoming.drain(..len).collect();
        let Some(hello) = Hello::decode(&bytes, !self.called) else { return };
        if self.called { self.answered(state, &hello) } else { self.called_by(state, &hello) }
    }

    /// The side that was called.
    fn called_by(self: &Arc<Self>, state: &mut State, theirs: &Hello) {
        let mut ours = Hello { versions: OURS, process: self.core.process, claim: None, proof: [0; 32] };
        if theirs.versions != OURS {
            // Who speaks another version is told that, so that it can say so, and no proof.
            state.standing = Standing::OtherVersion(Some(theirs.versions));
            return self.say(state, &ours.encode());
        }
        let claim = theirs.claim.unwrap_or(udeck_via::auth::Claim::NOBODY);
        let Ok(pair) = self.core.keys.answer(claim) else {
            return self.close(state, Close::OtherProcess, Standing::OtherProcess);
        };
        let exporter = exporter(&state.quic);
        if !pair.check(&theirs.proof, b"udp", CALLER, &[&said(theirs), &exporter]) {
            let why = pair.why_wrong_caller();
            self.core.tell_stranger(self.at.ip(), &why);
            return self.close(state, Close::Stranger, Standing::Stranger(why));
        }
        ours.proof = pair.prove(b"udp", CALLEE, &[&said(&ours), &exporter]);
        state.pair = Some(pair);
        self.say(state, &ours.encode());
        self.stand(state, theirs);
    }

    /// The side that has called.
    fn answered(self: &Arc<Self>, state: &mut State, theirs: &Hello) {
        if theirs.versions != OURS {
            let why = Standing::OtherVersion(Some(theirs.versions));
            return self.close(state, Close::Done, why);
        }
        let Some(pair) = &state.pair else { return };
        let exporter = exporter(&state.quic);
        let expected = pair.prove(b"udp", CALLEE, &[&said(theirs), &exporter]);
        if !is_same(&theirs.proof, &expected) {
            let why = Standing::Stranger(pair.why_wrong_callee());
            return self.close(state, Close::Stranger, why);
        }
        self.stand(state, theirs);
    }

    fn stand(self: &Arc<Self>, state: &mut State, theirs: &Hello) {
        state.standing = Standing::Stands;
        self.stands.store(true, Ordering::Release);
        self.watch_over(state, theirs.process);
        let grant = self.core.grant();
        state.quic.set_max_concurrent_streams(Dir::Bi, grant.streams);
        state.quic.set_receive_window(grant.window);
        if !self.called {
            self.core.note_caller(self, self.rank(state));
        }
        state.bells.drain(..).for_each(|bell| bell.ring());
    }

    /// Why QUIC has ended it.
    pub(super) fn broken(&self, state: &State, reason: &ConnectionError) -> Standing {
        match reason {
            ConnectionError::ApplicationClosed(close) => {
                self.closed_by_peer(state, Close::of(close.error_code.into_inner()))
            }
            ConnectionError::VersionMismatch => Standing::OtherVersion(None),
            ConnectionError::TransportError(error)
                if error.code == TransportErrorCode::crypto(NO_APPLICATION_PROTOCOL) =>
            {
                Standing::OtherVersion(None)
            }
            ConnectionError::ConnectionClosed(close)
                if close.error_code == TransportErrorCode::crypto(NO_APPLICATION_PROTOCOL) =>
            {
                Standing::OtherVersion(None)
            }
            // It was sent away, and that was lost; or what follows.
            ConnectionError::Reset if matches!(state.standing, Standing::Shaking) => Standing::Closed,
            // During the TLS hand-shake, QUIC does not carry our codes.
            ConnectionError::ConnectionClosed(close)
                if close.error_code == TransportErrorCode::APPLICATION_ERROR =>
            {
                Standing::Closed
            }
            // It was not admitted, until the token of the Retry had become too old.
            ConnectionError::ConnectionClosed(close)
                if close.error_code == TransportErrorCode::INVALID_TOKEN =>
            {
                Standing::Closed
            }
            ConnectionError::Reset => Standing::Lost(format!(
                "the process at {} does not know this connection: it has taken the address of one that has died or closed its NIC",
                self.at
            )),
            other => Standing::Lost(format!("its QUIC connection with {} broke: {other}", self.at)),
        }
    }

    fn closed_by_peer(&self, state: &State, close: Close) -> Standing {
        match close {
            Close::Done => Standing::Closed,
            Close::Stranger => {
                let why = state.pair.as_ref().map(udeck_via::auth::Pair::why_refused);
                Standing::Stranger(why.unwrap_or_default())
            }
            Close::OtherProcess => Standing::OtherProcess,
            Close::Broken => Standing::Lost(format!("{} says that this side broke the protocol", self.at)),
        }
    }
}

/// The TLS alert of a side that does not speak what it is asked for.
const NO_APPLICATION_PROTOCOL: u8 = 120;

/// What a proof holds for, besides the session.
pub fn said(hello: &Hello) -> Vec<u8> {
    [&hello.versions.encode()[..], &hello.process.encode()].concat()
}

impl Standing {
    /// What is said of VIs whose connection it ends; `None`: in order, as far as this side knows.
    pub fn why(&self) -> Option<String> {
        match self {
            Standing::Shaking | Standing::Stands | Standing::Closed => None,
            Standing::Lost(why) | Standing::Stranger(why) => Some(why.clone()),
            Standing::Nobody => Some("nobody is there any more".into()),
            Standing::OtherProcess => Some("another process is there now".into()),
            Standing::OtherVersion(_) => Some("it speaks another version".into()),
        }
    }
}

/// The code as QUIC carries it.
pub fn code(number: u32) -> VarInt {
    VarInt::from_u32(number)
}
