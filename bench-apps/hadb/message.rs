//! Messages between ranks. A BLOB travels beside its message, in place, not inside.

use crate::row::{Key, Row};
use serde::{Deserialize, Serialize};

/// Identifier of a client's transaction: sequence numbers of a client only grow, so that a repeated transaction
/// is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Txn {
    /// Rank of the client.
    pub client: u32,
    pub seq: u64,
}

/// A change of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// Adds to a row's value.
    Add { key: Key, delta: i64 },
    /// Inserts an entry into a half's history.
    Insert { half: u8, delta: i64 },
    /// Inserts a BLOB, whose contents follow from `seed`, where there is none.
    Create { key: Key, seed: u64 },
    /// Updates a BLOB: other contents, which may have another length.
    Store { key: Key, seed: u64 },
    /// Deletes a BLOB.
    Delete { key: Key },
}

impl Op {
    pub fn half(&self) -> u8 {
        match *self {
            Op::Add { key, .. } | Op::Create { key, .. } | Op::Store { key, .. } | Op::Delete { key } => {
                key.half
            }
            Op::Insert { half, .. } => half,
        }
    }

    /// Row that has to be locked. A history's entry belongs to its transaction, so it needs no lock.
    pub fn key(&self) -> Option<Key> {
        match *self {
            Op::Add { key, .. } | Op::Create { key, .. } | Op::Store { key, .. } | Op::Delete { key } => {
                Some(key)
            }
            Op::Insert { .. } => None,
        }
    }

    /// Whether a BLOB travels with the operation.
    pub fn has_blob(&self) -> bool {
        matches!(self, Op::Create { .. } | Op::Store { .. })
    }
}

/// A record of the log: the operation, and the row after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    pub op: Op,
    pub after: Row,
}

/// A piece of the tables, for a spare.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Piece {
    /// Rows; or one row with its BLOB beside the message, or of a BLOB that is deleted.
    Rows(Vec<(Key, Row)>),
    History {
        half: u8,
        entries: Vec<(Txn, i64)>,
    },
    /// Each client's last transaction, with the rows of its answer.
    Answers(Vec<(Txn, Vec<Row>)>),
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
    /// End of a transaction with statements.
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

    // Coordinator to client. `view`: number of deaths of servers and of joins of spares. It is odd while the coordinator is alone,
    // or does not know yet that a spare has joined.
    Noted {
        seq: u64,
        index: u8,
    },
    Committed {
        seq: u64,
        view: u32,
        rows: Vec<Row>,
    },
    Found {
        seq: u64,
        view: u32,
        row: Row,
    },
    Refused {
        seq: u64,
        why: String,
    },

    // Between servers.
    /// Requests the lock and the contents of this row.
    Fetch {
        txn: Txn,
        key: Key,
    },
    Fetched {
        txn: Txn,
        row: Row,
    },
    /// Reports the end of the reading transaction.
    Release {
        txn: Txn,
    },
    Released {
        txn: Txn,
    },
    /// Requests the locks of these rows, which the receiver owns.
    Prepare {
        txn: Txn,
        ops: Vec<Op>,
    },
    /// Confirms the locks, with the rows as they will be: the log of the owner, for its standby.
    Prepared {
        txn: Txn,
        rows: Vec<Row>,
    },
    /// Reports that the transaction is committed: the log of the coordinator, for its standby.
    Log {
        txn: Txn,
        records: Vec<Record>,
    },
    Logged {
        txn: Txn,
    },

    // Between the only server left and a spare (`copy`).
    Piece(Piece),
    /// Confirms a piece, or `Join`.
    Copied,
    /// Makes the spare a server, the primary of this half, in the view that begins.
    Join {
        half: u8,
        view: u32,
    },

    /// A message of the measurement, which is not counted.
    Control(Control),
}

impl Body {
    pub fn is_control(&self) -> bool {
        matches!(self, Body::Control(_))
    }
}

/// Messages by which the first client conducts the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Control {
    /// To a client: run this mix (its number) now.
    Begin {
        mix: u8,
    },
    /// To a server: end by SIGKILL after this number of milliseconds.
    Die {
        after: u64,
    },
    /// To a server: report your usage.
    Ask,
    Usage(Usage),
    /// From a client, at the end of a mix: its measurements, encoded by postcard.
    Measured(Vec<u8>),
    /// To a client: report the changes that were acknowledged to you.
    Recall,
    /// From a client: its oracle, encoded by postcard.
    Recalled(Vec<u8>),
    /// To a server: report your tables.
    Show,
    /// From a server: a [`crate::verdict::Dump`], encoded by postcard; from a spare that has not all data, nothing.
    Shown(Option<Vec<u8>>),
    /// A client's check failed, with the reason.
    Failed(String),
    /// To all: the run is over.
    Quit,
}

/// Resources that a rank has used since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Processor time in microseconds.
    pub user: u64,
    pub system: u64,
    /// Messages sent, without control messages.
    pub sent: u64,
    /// Messages received from each server.
    pub of_servers: [u64; 2],
    /// Datagrams sent, or sends and RDMA writes posted, if the program makes them itself.
    pub packets: u64,
    /// Packets that were sent again.
    pub again: u64,
}

impl Usage {
    /// Sum of both usages.
    pub fn and(&self, other: &Usage) -> Usage {
        Usage {
            user: self.user + other.user,
            system: self.system + other.system,
            sent: self.sent + other.sent,
            of_servers: [0, 1].map(|server| self.of_servers[server] + other.of_servers[server]),
            packets: self.packets + other.packets,
            again: self.again + other.again,
        }
    }

    /// Difference to the usage at `before`.
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

/// A message to be sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Outgoing<B> {
    /// Rank of the receiver.
    pub to: usize,
    pub body: Body,
    pub blob: Option<B>,
}
