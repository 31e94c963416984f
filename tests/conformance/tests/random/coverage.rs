//! Coverage of the sequences: counts of what they met, and whether these suffice.

use std::collections::BTreeMap;
use std::fmt;

use udeck_via::{Caps, Error, State, Status};

/// Required count of each state transition, each status and each fault.
const ENOUGH: u64 = 20;

/// All state changes of VIA, with their causes.
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

/// VIA's status bits, as completion or, if the post can detect it, as error; and the abilities that they need.
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

/// Uses of the library that no operation, transition or status shows.
const USES: [&str; 3] = [
    "a message came into memory of the program's own",
    "a message left memory of the program's own",
    "completions were taken where a completion queue named them",
];

/// Counts of everything that the sequences met.
#[derive(Default)]
pub struct Coverage {
    sequences: u64,
    /// Whether a sequence is ending: its end always succeeds, and would hide failures if counted.
    paused: bool,
    /// By kind of operation: number of attempts, and number of successes.
    operations: BTreeMap<&'static str, (u64, u64)>,
    transitions: BTreeMap<String, u64>,
    statuses: BTreeMap<&'static str, u64>,
    errors: BTreeMap<&'static str, u64>,
    faults: BTreeMap<&'static str, u64>,
    uses: BTreeMap<&'static str, u64>,
}

impl Coverage {
    /// Counts a new sequence.
    pub fn begin(&mut self) {
        self.sequences += 1;
        self.paused = false;
    }

    /// Stops counting at the end of a sequence's operations.
    pub fn pause(&mut self) {
        self.paused = true;
    }

    fn count(&self) -> u64 {
        u64::from(!self.paused)
    }

    /// Counts an attempted operation.
    pub fn operation(&mut self, kind: &'static str, succeeded: bool) {
        let count = self.count();
        let (tried, done) = self.operations.entry(kind).or_default();
        *tried += count;
        *done += count * u64::from(succeeded);
    }

    /// Counts a state change of a VI.
    ///
    /// # Panics
    /// Panics if VIA has no such transition.
    pub fn transition(&mut self, from: State, to: State, by: &str) {
        let name = format!("{from:?} -> {to:?}, by {by}");
        assert!(TRANSITIONS.contains(&name.as_str()), "VIA has no {name}");
        let count = self.count();
        *self.transitions.entry(name).or_default() += count;
    }

    /// Counts a reported descriptor.
    pub fn status(&mut self, status: Status) {
        let count = self.count();
        *self.statuses.entry(bit(status)).or_default() += count;
    }

    /// Counts a refused call.
    pub fn error(&mut self, error: &Error) {
        let count = self.count();
        *self.errors.entry(name(error)).or_default() += count;
    }

    /// Counts a refused post that corresponds to a status bit in VIA.
    pub fn refused(&mut self, bit: &'static str) {
        let count = self.count();
        *self.statuses.entry(bit).or_default() += count;
    }

    /// Counts a fault of the fabric.
    pub fn fault(&mut self, what: &'static str) {
        *self.faults.entry(what).or_default() += 1;
    }

    /// Counts one of [`USES`].
    pub fn used(&mut self, what: &'static str) {
        let count = self.count();
        *self.uses.entry(what).or_default() += count;
    }

    /// Events that were met too rarely by NICs with these abilities.
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

/// Name of the error's variant.
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
