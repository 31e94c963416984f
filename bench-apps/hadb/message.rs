//! What ranks say to each other. A BLOB travels beside its message, as it lies in memory, and not in it.

use crate::row::{Key, Row};
use serde::{Deserialize, Serialize};

/// A client's transaction: the numbers of a client only grow, so that one that is tried again is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Txn {
    /// Its rank.
    pub client: u32,
    pub seq: u64,
}

/// A change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// To a row's value.
    Add { key: Key, delta: i64 },
    /// Of a history's entry.
    Insert { half: u8, delta: i64 },
    /// Of a BLOB, whose contents follow from `seed`.
    Store { key: Key, seed: u64 },
}

impl Op {
    pub fn half(&self) -> u8 {
        match *self {
            Op::Add { key, .. } | Op::Store { key, .. } => key.half,
            Op::Insert { half, .. } => half,
        }
    }

    /// What has to be locked. An entry of a history is its transaction's own.
    pub fn key(&self) -> Option<Key> {
        match *self {
            Op::Add { key, .. } | Op::Store { key, .. } => Some(key),
            Op::Insert { .. } => None,
        }
    }
}

/// A record of the log: what was done, and the row after that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    pub op: Op,
    pub after: Row,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Body {
    // Client to coordinator.
    /// A statement of a transaction that has several.
    Statement {
        seq: u64,
        index: u8,
        op: Op,
    },
    /// Its end.
    Commit {
        seq: u64,
        statements: u8,
    },
    /// A transaction in one message.
    Run {
        seq: u64,
        ops: Vec<Op>,
    },
    /// A transaction that reads one row.
    Read {
        seq: u64,
        key: Key,
    },

    // Coordinator to client. `solo`: it is the only server left.
    Noted {
        seq: u64,
        index: u8,
    },
    Committed {
        seq: u64,
        solo: bool,
        rows: Vec<Row>,
    },
    Found {
        seq: u64,
        solo: bool,
        row: Row,
    },
    Refused {
        seq: u64,
        why: String,
    },

    // Between servers.
    /// Lock this row, and say what it is.
    Fetch {
        txn: Txn,
        key: Key,
    },
    Fetched {
        txn: Txn,
        row: Row,
    },
    /// The reading transaction has ended.
    Release {
        txn: Txn,
    },
    Released {
        txn: Txn,
    },
    /// Lock these rows, which are yours.
    Prepare {
        txn: Txn,
        ops: Vec<Op>,
    },
    /// They are locked. The rows as they will be: the log of the owner, for its standby.
    Prepared {
        txn: Txn,
        rows: Vec<Row>,
    },
    /// The transaction is committed: the log of the coordinator, for its standby.
    Log {
        txn: Txn,
        records: Vec<Record>,
    },
    Logged {
        txn: Txn,
    },

    /// The measurement's own, which is not counted.
    Control(Control),
}

impl Body {
    pub fn is_control(&self) -> bool {
        matches!(self, Body::Control(_))
    }
}

/// How the first client conducts the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Control {
    /// To a client: run this mix (its number) now.
    Begin {
        mix: u8,
    },
    /// To a server: end by SIGKILL after so many milliseconds.
    Die {
        after: u64,
    },
    /// To a server: say what you have used.
    Ask,
    Usage(Usage),
    /// Of a client, at the end of a mix; postcard's bytes of what it measured.
    Measured(Vec<u8>),
    /// To a client: say what was acknowledged to you.
    Recall,
    /// Postcard's bytes of its oracle.
    Recalled(Vec<u8>),
    /// To a server: show your tables.
    Show,
    /// Postcard's bytes of a [`crate::verdict::Dump`].
    Shown(Vec<u8>),
    /// A client's check failed, and why.
    Failed(String),
    /// To all: the run is over.
    Quit,
}

/// What a rank has used since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Microseconds of processor time.
    pub user: u64,
    pub system: u64,
    /// Messages sent, without control.
    pub sent: u64,
    /// Messages received of each server.
    pub of_servers: [u64; 2],
    /// Datagrams sent, or sends and RDMA writes posted, where the program makes them itself.
    pub packets: u64,
    /// Of these, such as had been sent before.
    pub again: u64,
}

impl Usage {
    /// What was used since `before`.
    pub fn since(&self, before: &Usage) -> Usage {
        Usage {
            user: self.user - before.user,
            system: self.system - before.system,
            sent: self.sent - before.sent,
            of_servers: [0, 1].map(|server| self.of_servers[server] - before.of_servers[server]),
            packets: self.packets - before.packets,
            again: self.again - before.again,
        }
    }
}

/// A message on its way.
#[derive(Clone, Debug, PartialEq)]
pub struct Outgoing<B> {
    /// A rank.
    pub to: usize,
    pub body: Body,
    pub blob: Option<B>,
}
