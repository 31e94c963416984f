//! What the sequences have met, and whether it was enough of everything.

use std::collections::BTreeMap;
use std::fmt;

use udeck_via::{Caps, Error, State, Status};

/// How often each state transition, each status and each fault is to be met.
const ENOUGH: u64 = 20;

/// Every change of state that VIA has, and how it comes about.
const TRANSITIONS: [&str; 9] = [
    "Idle -> Connected, by connect",
    "Idle -> Connected, by accept",
    "Idle -> ConnectPending, by peer_request",
    "ConnectPending -> Connected, by peer_wait",
    "ConnectPending -> Idle, by peer_wait",
    "ConnectPending -> Idle, by disconnect",
    "Connected -> Idle, by disconnect",
    "Connected -> Error, by itself",
    "Error -> Idle, by disconnect",
];

/// VIA's status bits, as completion or, where that is known at the post, as error; and the abilities that they need.
const STATUSES: [(&str, &[Caps]); 8] = [
    ("DONE", &[]),
    ("FORMAT_ERROR", &[]),
    ("PROTECTION_ERROR", &[]),
    ("LENGTH_ERROR", &[]),
    ("DESC_FLUSHED_ERROR", &[]),
    ("TRANSPORT_ERROR", &[]),
    ("RDMA_PROT_ERROR", &[Caps::RDMA_WRITE]),
    ("REMOTE_DESC_ERROR", &[Caps::RELIABLE_RECEPTION]),
];

const FAULTS: [&str; 9] = [
    "a frame is lost",
    "a frame arrives corrupt, and is noticed",
    "a frame comes twice",
    "a frame is held back",
    "a frame waits on a stalled link",
    "a link changes",
    "a link stalls",
    "a NIC dies",
    "a connection breaks",
];

/// What programs do with the library that no operation, transition or status tells.
const USES: [&str; 3] = [
    "a message came into memory of the program's own",
    "a message left memory of the program's own",
    "completions were taken where a completion queue named them",
];

/// Counts of everything that was met.
#[derive(Default)]
pub struct Coverage {
    sequences: u64,
    /// What follows is the end of a sequence, which always succeeds: counted, it would hide what does not.
    paused: bool,
    /// Operations by kind: how many, and how many of them succeeded.
    operations: BTreeMap<&'static str, (u64, u64)>,
    transitions: BTreeMap<String, u64>,
    statuses: BTreeMap<&'static str, u64>,
    errors: BTreeMap<&'static str, u64>,
    faults: BTreeMap<&'static str, u64>,
    uses: BTreeMap<&'static str, u64>,
}

impl Coverage {
    /// A sequence begins.
    pub fn begin(&mut self) {
        self.sequences += 1;
        self.paused = false;
    }

    /// Its operations are over.
    pub fn pause(&mut self) {
        self.paused = true;
    }

    fn count(&self) -> u64 {
        u64::from(!self.paused)
    }

    /// An operation was tried.
    pub fn operation(&mut self, kind: &'static str, succeeded: bool) {
        let count = self.count();
        let (tried, done) = self.operations.entry(kind).or_default();
        *tried += count;
        *done += count * u64::from(succeeded);
    }

    /// A VI changed its state.
    ///
    /// # Panics
    /// When VIA has no such transition.
    pub fn transition(&mut self, from: State, to: State, by: &str) {
        let name = format!("{from:?} -> {to:?}, by {by}");
        assert!(TRANSITIONS.contains(&name.as_str()), "VIA has no {name}");
        let count = self.count();
        *self.transitions.entry(name).or_default() += count;
    }

    /// A descriptor was reported.
    pub fn status(&mut self, status: Status) {
        let count = self.count();
        *self.statuses.entry(bit(status)).or_default() += count;
    }

    /// A call was refused.
    pub fn error(&mut self, error: &Error) {
        let count = self.count();
        *self.errors.entry(name(error)).or_default() += count;
    }

    /// A post was refused for what is a status bit in VIA.
    pub fn refused(&mut self, bit: &'static str) {
        let count = self.count();
        *self.statuses.entry(bit).or_default() += count;
    }

    /// The fabric did something.
    pub fn fault(&mut self, what: &'static str) {
        *self.faults.entry(what).or_default() += 1;
    }

    /// One of [`USES`].
    pub fn used(&mut self, what: &'static str) {
        let count = self.count();
        *self.uses.entry(what).or_default() += count;
    }

    /// What was not met often enough by NICs of these abilities.
    pub fn gaps(&self, caps: Caps) -> Vec<String> {
        let mut gaps = Vec::new();
        let (tried, done) = self.total();
        if 2 * done < tried {
            gaps.push(format!("{done} of {tried} operations succeeded, which is less than half"));
        }
        let transitions = TRANSITIONS.map(|name| ("transition", name, self.transitions.get(name)));
        let faults = FAULTS.map(|name| ("fault", name, self.faults.get(name)));
        let uses = USES.map(|name| ("use", name, self.uses.get(name)));
        for (what, name, met) in transitions.into_iter().chain(faults).chain(uses) {
            let met = met.copied().unwrap_or_default();
            if met < ENOUGH {
                gaps.push(format!("{what} {name}: met {met} times, not {ENOUGH}"));
            }
        }
        for (name, needs) in STATUSES {
            let met = self.statuses.get(name).copied().unwrap_or_default();
            if met < ENOUGH && needs.iter().all(|cap| caps.has(*cap)) {
                gaps.push(format!("status {name}: met {met} times, not {ENOUGH}"));
            }
        }
        gaps
    }

    fn total(&self) -> (u64, u64) {
        self.operations.values().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (tried, done) = self.total();
        writeln!(f, "{} sequences, {tried} operations, {done} of them succeeded", self.sequences)?;
        for (kind, (tried, done)) in &self.operations {
            writeln!(f, "  operation {kind}: {tried}, {done} succeeded")?;
        }
        for name in TRANSITIONS {
            writeln!(f, "  transition {name}: {}", self.transitions.get(name).copied().unwrap_or_default())?;
        }
        for (name, _) in STATUSES {
            writeln!(f, "  status {name}: {}", self.statuses.get(name).copied().unwrap_or_default())?;
        }
        self.errors.iter().try_for_each(|(name, count)| writeln!(f, "  error {name}: {count}"))?;
        self.faults.iter().try_for_each(|(name, count)| writeln!(f, "  fault {name}: {count}"))?;
        self.uses.iter().try_for_each(|(name, count)| writeln!(f, "  use {name}: {count}"))
    }
}

/// VIA's name of a completion's status.
fn bit(status: Status) -> &'static str {
    match status {
        Status::Done => "DONE",
        Status::LengthError => "LENGTH_ERROR",
        Status::RemoteDescriptorError => "REMOTE_DESC_ERROR",
        Status::RdmaProtectionError => "RDMA_PROT_ERROR",
        Status::TransportError => "TRANSPORT_ERROR",
        Status::Flushed => "DESC_FLUSHED_ERROR",
        other => panic!("{other:?} is new: it needs a row in STATUSES"),
    }
}

/// Which error it is.
pub fn name(error: &Error) -> &'static str {
    match error {
        Error::Unsupported { .. } => "Unsupported",
        Error::InvalidState { .. } => "InvalidState",
        Error::InvalidParameter(_) => "InvalidParameter",
        Error::InvalidPtag => "InvalidPtag",
        Error::InvalidReliability => "InvalidReliability",
        Error::Full { .. } => "Full",
        Error::NoMemory { .. } => "NoMemory",
        Error::Timeout { .. } => "Timeout",
        Error::NoMatch(_) => "NoMatch",
        Error::Rejected(_) => "Rejected",
        Error::Closed => "Closed",
        Error::Lost(_) => "Lost",
        Error::RdmaProtection { .. } => "RdmaProtection",
        Error::Os { .. } => "Os",
        _ => "another",
    }
}
