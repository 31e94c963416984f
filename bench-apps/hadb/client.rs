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

impl<B> Call<B> {
    /// Whether the transaction needs rows of each half.
    pub fn halves(&self) -> [bool; 2] {
        let has = |half: u8| match self {
            Call::Read(key) => key.half == half,
            Call::Steps(ops) | Call::Run { ops, .. } => ops.iter().any(|op| op.half() == half),
        };
        [has(0), has(1)]
    }
}

/// The coordinator's acknowledgement of a transaction.
#[derive(Clone, Debug)]
pub struct Answer<B> {
    /// Rows in the order of the operations; for a read, the row that was read.
    pub rows: Vec<Row>,
    pub blob: Option<B>,
    /// Number of deaths of servers and of joins of spares; even: two servers have all data.
    pub view: u32,
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
    /// Living servers and spares, in the order of their ranks. The first one is a server, or will be one.
    servers: Vec<usize>,
    /// Rank of the server that coordinates.
    coordinator: usize,
    /// View of the last answer.
    view: u32,
    /// If the coordinator stands in for the client's own server, which has died: the last view before.
    guest_since: Option<u32>,
    seq: u64,
    /// The transaction under way, and the number of its acknowledged statements.
    call: Option<(Call<B>, usize)>,
}

impl<B: Clone> Session<B> {
    /// A session with this server; `servers` are all servers and spares.
    pub fn new(coordinator: usize, servers: Vec<usize>) -> Self {
        Session { servers, coordinator, view: 0, guest_since: None, seq: 0, call: None }
    }

    /// Whether the client's own server has died, and no spare has its place yet.
    pub fn is_guest(&self) -> bool {
        self.guest_since.is_some()
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
            Body::Committed { seq, view, rows } if seq == current => {
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
                self.done(view);
                Step::Done(Answer { rows, blob: None, view })
            }
            Body::Found { seq, view, row } if seq == current => {
                self.done(view);
                Step::Done(Answer { rows: vec![row], blob, view })
            }
            Body::Refused { why, .. } => Step::Failed(format!("server {from} refused: {why}")),
            _ => Step::Nothing,
        }
    }

    /// Ends the transaction. A client whose own server has died goes to the spare that has the dead one's place, in the first later
    /// view with two servers.
    fn done(&mut self, view: u32) {
        (self.call, self.view) = (None, view);
        if self.guest_since.is_some_and(|since| view > since && view.is_multiple_of(2)) {
            self.guest_since = None;
            let others = || self.servers.iter().filter(|server| **server != self.coordinator);
            self.coordinator = others().next().copied().unwrap_or(self.coordinator);
        }
    }

    /// Handles the death of a server. If it was the coordinator, another server takes its place, and the transaction under way
    /// begins again with the same number. A spare takes the message and answers when it is a server.
    pub fn server_lost(&mut self, server: usize) -> Option<Outgoing<B>> {
        self.servers.retain(|living| *living != server);
        if server != self.coordinator {
            return None;
        }
        self.coordinator = *self.servers.first()?;
        self.guest_since = Some(self.view);
        if let Some((_, noted)) = &mut self.call {
            *noted = 0;
        }
        self.request()
    }
}
