//! What a NIC is opened with, and what its two sides know of a connection that is being made.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::{Proof, RankKey, SealedTicket, Ticket, is_same, mac};

/// In a claim: nobody in particular. No job has so many ranks.
const NOBODY: u32 = u32::MAX;

/// A process's keys, for its NICs. Clones share what they learn.
#[derive(Clone)]
pub struct Keys {
    job: [u8; 32],
    own: Option<Arc<Own>>,
}

struct Own {
    rank: u32,
    key: RankKey,
    /// By the rank that they are for; as many as ranks, at most, because only the launcher's word adds one.
    tickets: RwLock<HashMap<u32, Ticket>>,
}

/// Who calls, and who is called, in the caller's words. Nothing is proven by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    pub(crate) caller: u32,
    pub(crate) callee: u32,
}

/// This process has no ticket for the rank that it wants to call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoTicket {
    /// It has no rank itself.
    #[error("this NIC was opened without a rank's keys, and cannot prove to be any")]
    NoRank,
    /// The launcher gives it with what it knows of a name.
    #[error("this process has not looked up any name of rank {0}, and cannot prove to it who it is")]
    NotLookedUp(u32),
}

/// The one that is called is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it has called another process")]
pub struct NotMe;

/// What both sides of a connection know, if they are who they say.
#[derive(Clone)]
pub struct Pair {
    key: [u8; 32],
    claim: Claim,
}

impl From<[u8; 32]> for Keys {
    /// Those of a process that knows the job's secret, and nothing that shows which of the job's processes it is.
    fn from(secret: [u8; 32]) -> Keys {
        Keys { job: mac(&secret, "udeck job", &[]), own: None }
    }
}

impl Keys {
    /// Those of a rank, as its launcher has given them to it.
    pub fn of_rank(secret: [u8; 32], rank: u32, key: RankKey) -> Keys {
        Keys { own: Some(Arc::new(Own { rank, key, tickets: RwLock::default() })), ..Keys::from(secret) }
    }

    /// Which rank this process can prove to be.
    pub fn rank(&self) -> Option<u32> {
        self.own.as_ref().map(|own| own.rank)
    }

    /// Whether both are of one job, as far as its secret tells.
    pub fn is_same_job(&self, other: &Keys) -> bool {
        is_same(&self.job, &other.job)
    }

    /// The key of what is said, at `address`, of connections that whoever had that address before this process has left: QUIC's
    /// stateless resets. All of the job have it.
    pub fn reset_key(&self, address: &str) -> [u8; 32] {
        mac(&self.job, "udeck reset", &[address.as_bytes()])
    }

    /// The launcher has sent a ticket for rank `callee`.
    pub fn learn(&self, callee: u32, sealed: &SealedTicket) {
        if let Some(own) = &self.own {
            own.tickets.write().insert(callee, sealed.open(&own.key, callee));
        }
    }

    /// For a connection that this process asks for: of rank `callee`, or of anybody of the job.
    ///
    /// # Errors
    /// [`NoTicket`].
    pub fn call(&self, callee: Option<u32>) -> Result<Pair, NoTicket> {
        let Some(callee) = callee else { return Ok(self.anonymous()) };
        let own = self.own.as_ref().ok_or(NoTicket::NoRank)?;
        let known = own.tickets.read().get(&callee).copied();
        let itself = || (callee == own.rank).then(|| own.key.ticket_of(own.rank));
        let Ticket(key) = known.or_else(itself).ok_or(NoTicket::NotLookedUp(callee))?;
        Ok(Pair { key, claim: Claim { caller: own.rank, callee } })
    }

    /// For a connection that this process is asked for, by who claims this.
    ///
    /// # Errors
    /// [`NotMe`].
    pub fn answer(&self, claim: Claim) -> Result<Pair, NotMe> {
        match (&self.own, claim.callee) {
            (_, NOBODY) if claim.caller == NOBODY => Ok(self.anonymous()),
            (Some(own), callee) if callee == own.rank && claim.caller != NOBODY => {
                let Ticket(key) = own.key.ticket_of(claim.caller);
                Ok(Pair { key, claim })
            }
            _ => Err(NotMe),
        }
    }

    fn anonymous(&self) -> Pair {
        Pair { key: self.job, claim: Claim::NOBODY }
    }
}

impl Pair {
    /// What the caller says of both.
    pub fn claim(&self) -> Claim {
        self.claim
    }

    /// Which rank calls; known to be true once its proof was checked. `None`: somebody of the job.
    pub fn caller(&self) -> Option<u32> {
        (self.claim.caller != NOBODY).then_some(self.claim.caller)
    }

    /// Which rank is called; known to be true once its proof was checked. `None`: somebody of the job.
    pub fn callee(&self) -> Option<u32> {
        (self.claim.callee != NOBODY).then_some(self.claim.callee)
    }

    /// Shows, to the other side, knowledge of what only the two know. `protocol`: which hand-shake, in which version;
    /// `role`: which of its messages; `parts`: all that both have said and that the proof is to hold for, a fresh number
    /// of either side among it. A proof of one role, protocol, direction or pair is none of another.
    pub fn prove(&self, protocol: &[u8], role: &[u8], parts: &[&[u8]]) -> Proof {
        let claim = self.claim.encode();
        let all: Vec<&[u8]> = [protocol, role, &claim].into_iter().chain(parts.iter().copied()).collect();
        mac(&self.key, "udeck proof", &all)
    }

    /// Whether the other side has shown it.
    pub fn check(&self, proof: &Proof, protocol: &[u8], role: &[u8], parts: &[&[u8]]) -> bool {
        is_same(proof, &self.prove(protocol, role, parts))
    }

    /// What it means, to a caller, that the proof of who it called is none.
    pub fn why_wrong_callee(&self) -> String {
        match self.callee() {
            Some(rank) => format!("it does not prove to be rank {rank} of this job"),
            None => "it does not know this job's secret".into(),
        }
    }

    /// What it means, to a caller, that who it called takes the caller's proof for none.
    pub fn why_refused(&self) -> String {
        match self.caller() {
            Some(rank) => format!("it says that this process does not prove to be rank {rank} of its job"),
            None => "it says that this process does not know its job's secret".into(),
        }
    }

    /// What it means, to who is called, that the caller's proof is none.
    pub fn why_wrong_caller(&self) -> String {
        match self.caller() {
            Some(rank) => format!("it claims to be rank {rank} of this job, and does not prove it"),
            None => "it does not know this job's secret".into(),
        }
    }
}

impl Claim {
    /// Somebody of the job calls anybody of it.
    pub const NOBODY: Claim = Claim { caller: NOBODY, callee: NOBODY };
    /// Bytes of it.
    pub const LEN: usize = 8;

    /// Caller and callee, little-endian; all ones: nobody in particular.
    pub fn encode(&self) -> [u8; Claim::LEN] {
        (u64::from(self.callee) << 32 | u64::from(self.caller)).to_le_bytes()
    }

    /// Any bytes are one.
    pub fn decode(bytes: [u8; Claim::LEN]) -> Claim {
        let both = u64::from_le_bytes(bytes);
        Claim { caller: both as u32, callee: (both >> 32) as u32 }
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rank() {
            Some(rank) => write!(f, "Keys(of rank {rank})"),
            None => f.write_str("Keys(of no rank)"),
        }
    }
}

impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pair({:?})", self.claim)
    }
}
