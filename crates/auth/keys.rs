//! Keys of a NIC ([`Keys`]), and the key that the two sides of one connection share ([`Pair`]).

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::{Proof, RankKey, SealedTicket, Ticket, is_same, mac};

/// In a [`Claim`]: no particular rank. No job has so many ranks.
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
    /// Tickets by callee rank. At most one per rank of the job, because only the launcher's word adds one.
    tickets: RwLock<HashMap<u32, Ticket>>,
}

/// The caller's statement of which rank calls which. Nothing is proven by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    pub(crate) caller: u32,
    pub(crate) callee: u32,
}

/// This process has no ticket for the rank that it wants to call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoTicket {
    /// This process itself has no rank.
    #[error("this NIC was opened without a rank's keys, and cannot prove to be any")]
    NoRank,
    /// The launcher sends a ticket with the answer to a lookup of a name; no name of this rank was looked up.
    #[error(
        "this process has looked up no name of rank {0}, so it has no ticket to prove its own rank to it"
    )]
    NotLookedUp(u32),
}

/// The claim names another callee than this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the call was for another process")]
pub struct NotMe;

/// The key that both sides of a connection know, if they are who they say, and the caller's claim.
#[derive(Clone)]
pub struct Pair {
    key: [u8; 32],
    claim: Claim,
}

impl From<[u8; 32]> for Keys {
    /// Keys of a process that knows the job's secret, and cannot prove which of the job's processes it is.
    fn from(secret: [u8; 32]) -> Keys {
        Keys { job: mac(&secret, "udeck job", &[]), own: None }
    }
}

impl Keys {
    /// Keys of a rank, as its launcher has given them to it.
    pub fn of_rank(secret: [u8; 32], rank: u32, key: RankKey) -> Keys {
        Keys { own: Some(Arc::new(Own { rank, key, tickets: RwLock::default() })), ..Keys::from(secret) }
    }

    /// The rank that this process can prove to be.
    pub fn rank(&self) -> Option<u32> {
        self.own.as_ref().map(|own| own.rank)
    }

    /// Whether both are of one job, as far as its secret tells.
    pub fn is_same_job(&self, other: &Keys) -> bool {
        is_same(&self.job, &other.job)
    }

    /// The key of QUIC's stateless resets at `address`: they end connections that an earlier process at that address has
    /// left. All processes of the job have this key.
    pub fn reset_key(&self, address: &str) -> [u8; 32] {
        mac(&self.job, "udeck reset", &[address.as_bytes()])
    }

    /// Stores the ticket for rank `callee` that the launcher has sent.
    pub fn learn(&self, callee: u32, sealed: &SealedTicket) {
        if let Some(own) = &self.own {
            own.tickets.write().insert(callee, sealed.open(&own.key, callee));
        }
    }

    /// The pair for a connection that this process asks for: with rank `callee`, or with any process of the job (`None`).
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

    /// The pair for a connection that another process asks this one for, with `claim`.
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
    /// The caller's claim about both sides.
    pub fn claim(&self) -> Claim {
        self.claim
    }

    /// The caller's rank; known to be true once its proof was checked. `None`: some process of the job.
    pub fn caller(&self) -> Option<u32> {
        (self.claim.caller != NOBODY).then_some(self.claim.caller)
    }

    /// The callee's rank; known to be true once its proof was checked. `None`: some process of the job.
    pub fn callee(&self) -> Option<u32> {
        (self.claim.callee != NOBODY).then_some(self.claim.callee)
    }

    /// Proves to the other side that this one knows the key that only the two share. `protocol`: the hand-shake and its
    /// version; `role`: the message of it; `parts`: everything that both have said and that the proof covers, a fresh number
    /// of each side included. A proof of one role, protocol, direction or pair is not valid for another.
    pub fn prove(&self, protocol: &[u8], role: &[u8], parts: &[&[u8]]) -> Proof {
        let claim = self.claim.encode();
        let all: Vec<&[u8]> = [protocol, role, &claim].into_iter().chain(parts.iter().copied()).collect();
        mac(&self.key, "udeck proof", &all)
    }

    /// Checks a proof that the other side made by [`Pair::prove`] with the same arguments.
    pub fn check(&self, proof: &Proof, protocol: &[u8], role: &[u8], parts: &[&[u8]]) -> bool {
        is_same(proof, &self.prove(protocol, role, parts))
    }

    /// The caller's error text when the callee's proof is wrong.
    pub fn why_wrong_callee(&self) -> String {
        match self.callee() {
            Some(rank) => format!("it does not prove to be rank {rank} of this job"),
            None => "it does not know this job's secret".into(),
        }
    }

    /// The caller's error text when the callee has refused the caller's proof.
    pub fn why_refused(&self) -> String {
        match self.caller() {
            Some(rank) => format!("it says that this process does not prove to be rank {rank} of its job"),
            None => "it says that this process does not know its job's secret".into(),
        }
    }

    /// The callee's error text when the caller's proof is wrong.
    pub fn why_wrong_caller(&self) -> String {
        match self.caller() {
            Some(rank) => format!("it claims to be rank {rank} of this job, and does not prove it"),
            None => "it does not know this job's secret".into(),
        }
    }
}

impl Claim {
    /// The claim without ranks: some process of the job calls any other.
    pub const NOBODY: Claim = Claim { caller: NOBODY, callee: NOBODY };
    /// Bytes of an encoded claim.
    pub const LEN: usize = 8;

    /// Caller and callee, little-endian; all ones: no particular rank.
    pub fn encode(&self) -> [u8; Claim::LEN] {
        (u64::from(self.callee) << 32 | u64::from(self.caller)).to_le_bytes()
    }

    /// Decodes a claim. Any bytes are a valid one.
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
