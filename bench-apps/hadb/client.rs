//! A client's session: transactions one after the other, as a state machine without I/O.

use crate::message::{Body, Op, Outgoing};
use crate::row::{Key, Row};

/// A transaction that a client requests.
#[derive(Clone, Debug)]
pub enum Call<B> {
    /// Reads a row.
    Read(Key),
    /// Sends statement by statement, and then the end.
    Steps(Vec<Op>),
    /// Sends all operations in one message.
    Run { ops: Vec<Op>, blob: Option<B> },
}

/// The coordinator's acknowledgement of a transaction.
#[derive(Clone, Debug)]
pub struct Answer<B> {
    /// Rows in the order of the operations; for a read, the row that was read.
    pub rows: Vec<Row>,
    pub blob: Option<B>,
    /// Whether the answer came from the only server left.
    pub solo: bool,
}

/// Reaction to a message.
#[derive(Debug)]
pub enum Step<B> {
    /// No reaction: the message belonged to an earlier transaction, or came from a dead server.
    Nothing,
    Send(Outgoing<B>),
    Done(Answer<B>),
    Failed(String),
}

/// The client's side of a session.
#[derive(Clone, Debug)]
pub struct Session<B> {
    /// Rank of the server that coordinates.
    coordinator: usize,
    seq: u64,
    /// The transaction under way, and the number of its acknowledged statements.
    call: Option<(Call<B>, usize)>,
}

impl<B: Clone> Session<B> {
    pub fn new(coordinator: usize) -> Self {
        Session { coordinator, seq: 0, call: None }
    }

    pub fn coordinator(&self) -> usize {
        self.coordinator
    }

    /// Begins the next transaction. The previous one must have ended.
    pub fn begin(&mut self, call: Call<B>) -> Outgoing<B> {
        self.seq += 1;
        self.call = Some((call, 0));
        self.request().expect("it has just begun")
    }

    /// The next message of the transaction.
    fn request(&self) -> Option<Outgoing<B>> {
        let (call, noted) = self.call.as_ref()?;
        let seq = self.seq;
        let (body, blob) = match call {
            Call::Read(key) => (Body::Read { seq, key: *key }, None),
            Call::Run { ops, blob } => (Body::Run { seq, ops: ops.clone() }, blob.clone()),
            Call::Steps(ops) => match ops.get(*noted) {
                Some(op) => (Body::Statement { seq, index: *noted as u8, op: *op }, None),
                None => (Body::Commit { seq, statements: ops.len() as u8 }, None),
            },
        };
        Some(Outgoing { to: self.coordinator, body, blob })
    }

    pub fn handle(&mut self, from: usize, body: Body, blob: Option<B>) -> Step<B> {
        let Some((call, noted)) = self.call.as_mut().filter(|_| from == self.coordinator) else {
            return Step::Nothing;
        };
        let current = self.seq;
        match body {
            Body::Noted { seq, index } if seq == current && usize::from(index) == *noted => {
                *noted += 1;
                self.request().map_or(Step::Nothing, Step::Send)
            }
            Body::Committed { seq, solo, rows } if seq == current => {
                let due = match call {
                    Call::Steps(ops) | Call::Run { ops, .. } => ops.len(),
                    Call::Read(_) => 0,
                };
                if rows.len() != due {
                    return Step::Failed(format!(
                        "{} rows were answered where {due} were changed",
                        rows.len()
                    ));
                }
                self.call = None;
                Step::Done(Answer { rows, blob: None, solo })
            }
            Body::Found { seq, solo, row } if seq == current => {
                self.call = None;
                Step::Done(Answer { rows: vec![row], blob, solo })
            }
            Body::Refused { why, .. } => Step::Failed(format!("server {from} refused: {why}")),
            _ => Step::Nothing,
        }
    }

    /// Handles the death of a server. If it was the coordinator, the other server takes its place, and the transaction under way
    /// begins again with the same number.
    pub fn server_lost(&mut self, server: usize) -> Option<Outgoing<B>> {
        if server != self.coordinator {
            return None;
        }
        self.coordinator = 1 - self.coordinator;
        if let Some((_, noted)) = &mut self.call {
            *noted = 0;
        }
        self.request()
    }
}
