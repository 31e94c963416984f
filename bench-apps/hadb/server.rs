//! A server as a state machine: messages in, messages out, and no I/O.
//!
//! A client sends to one server, its *coordinator*. A row's *owner* is the server whose half it is in; the other one is the row's
//! hot standby. A transaction locks its rows at their owners, those of half 0 before those of half 1, so that two transactions
//! never wait for each other. The owner's changes travel to the standby before anything is acknowledged:
//!
//! ```text
//!  client      coordinator                   the other server
//!    │ Commit       │                              │
//!    ├─────────────►│ Prepare (rows that it owns)  │
//!    │              ├─────────────────────────────►│ locks them
//!    │              │ Prepared (their after-images)│
//!    │              │◄─────────────────────────────┤
//!    │              │ Log (all after-images)       │
//!    │              ├─────────────────────────────►│ writes all: it is committed
//!    │              │ Logged                       │
//!    │ Committed    │◄─────────────────────────────┤
//!    │◄─────────────┤ writes all                   │
//! ```
//!
//! `Log` is the point of commitment: one message, which a server has or has not. If the coordinator dies before it, the
//! transaction has not happened, and the other server drops its locks. If it dies afterwards, the other server has the complete
//! transaction, and the answer, too. If the other server dies, the coordinator begins its transactions again, alone. So no
//! transaction is in doubt while one of the two servers lives.
//!
//! A server that is alone ends each transaction at once, and copies its data to a spare, if there is one (`copy`). The spare then
//! takes the dead server's place.

use crate::copy::{Copier, Limits};
use crate::locks::{Holder, Locks};
use crate::message::{Body, Op, Outgoing, Record, Txn};
use crate::ranks::Servers;
use crate::row::{Key, Row};
use crate::table::Tables;
use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::ops::Deref;

/// One of the two servers at a time.
#[derive(Clone, Debug)]
pub struct Server<B> {
    /// The half that is this server's.
    me: u8,
    /// Rank of the other server; `None`: this one is alone.
    peer: Option<usize>,
    /// Number of deaths of servers and of joins of spares.
    view: u32,
    /// Whether the other server is a spare that has not confirmed its `Join`: it may die, or this server, before it has all data.
    joining: bool,
    servers: Servers,
    /// Spares that live and have not been used.
    spares: Vec<usize>,
    limits: Limits,
    /// The copy to a spare, while one is under way.
    copier: Option<Copier>,
    /// Transactions that wait until the spare has confirmed log records: at most one of each client.
    held: VecDeque<(u32, u64, Work<B>)>,
    tables: Tables<B>,
    locks: Locks,
    /// Statements of transactions whose end has not come, by client.
    noted: BTreeMap<u32, (u64, Vec<Op>)>,
    /// Transactions that are coordinated here: at most one of each client.
    jobs: BTreeMap<u32, Job<B>>,
    /// Transactions that the other server coordinates and that need rows of this one.
    remote: BTreeMap<u32, RemoteTransaction<B>>,
    out: Vec<Outgoing<B>>,
}

/// A transaction at its coordinator.
#[derive(Clone, Debug)]
struct Job<B> {
    seq: u64,
    work: Work<B>,
    /// After-images of the other server's rows, as soon as it has prepared them.
    theirs: Option<Vec<Row>>,
    /// Records for the log.
    records: Vec<Record>,
    /// A read's answer, until the other server has released the row.
    found: Option<(Row, Option<B>)>,
}

#[derive(Clone, Debug)]
enum Work<B> {
    Read(Key),
    Update { ops: Vec<Op>, blob: Option<B> },
}

/// A transaction of the other server that needs rows of this one.
#[derive(Clone, Debug)]
struct RemoteTransaction<B> {
    txn: Txn,
    work: Work<B>,
}

impl<B: Clone + Deref<Target = [u8]>> Server<B> {
    /// Makes the server of the half `me`, with empty tables. `peer` is the rank of the other one.
    pub fn new(me: u8, peer: usize, servers: Servers, spares: Vec<usize>, limits: Limits) -> Self {
        let (jobs, remote, held) = (BTreeMap::new(), BTreeMap::new(), VecDeque::new());
        let (tables, locks, noted) = (Tables::new(), Locks::default(), BTreeMap::new());
        let (peer, view, joining, copier, out) = (Some(peer), 0, false, None, Vec::new());
        Server {
            me,
            peer,
            view,
            joining,
            servers,
            spares,
            limits,
            copier,
            held,
            tables,
            locks,
            noted,
            jobs,
            remote,
            out,
        }
    }

    /// The same server in this view, with these tables.
    pub fn joined(self, view: u32, tables: Tables<B>) -> Self {
        Server { view, tables, ..self }
    }

    pub fn tables(&self) -> &Tables<B> {
        &self.tables
    }

    /// Handles a message of a client or of the other server, and returns the messages to be sent.
    pub fn handle(&mut self, from: usize, body: Body, blob: Option<B>) -> Vec<Outgoing<B>> {
        // A dead server's message that had not been read does not count.
        if self.peer == Some(from) {
            self.of_server(body, blob);
        } else if let Some(copier) = self.copier.as_mut().filter(|copier| copier.to() == from) {
            copier.confirmed(&body);
            self.copy();
        } else if self.servers.has(from) {
            // Nothing else is expected from there.
        } else if let Ok(client) = u32::try_from(from) {
            self.of_client(client, body, blob);
        }
        mem::take(&mut self.out)
    }

    /// Handles the death of another server or of a spare. The caller sends the answers, and then calls [`Server::begin_copy`].
    pub fn lost(&mut self, dead: usize) -> Vec<Outgoing<B>> {
        self.spares.retain(|spare| *spare != dead);
        if self.peer == Some(dead) {
            self.take_over();
        }
        if self.copier.take_if(|copier| copier.to() == dead).is_some() {
            // Nothing waits for that spare any more.
            self.copy();
        }
        mem::take(&mut self.out)
    }

    /// Begins a copy, if this server is alone and a spare is left. To list the rows of the copy takes time.
    pub fn begin_copy(&mut self) -> Vec<Outgoing<B>> {
        if self.peer.is_none() && self.copier.is_none() && !self.spares.is_empty() {
            self.copier = Some(Copier::new(self.spares.remove(0), &self.tables, self.limits));
            self.copy();
        }
        mem::take(&mut self.out)
    }

    /// Takes over after the other server's death: from now on this server owns all rows.
    fn take_over(&mut self) {
        (self.peer, self.joining) = (None, false);
        self.view += 1;
        self.locks = Locks::default();
        self.remote.clear();
        for (client, job) in mem::take(&mut self.jobs) {
            self.start(client, job.seq, job.work);
        }
    }

    /// Sends the spare what it may be sent now. The spare becomes the other server when it has all.
    fn copy(&mut self) {
        if let Some(copier) = self.copier.as_mut() {
            let to = copier.to();
            while let Some((piece, blob)) = copier.piece(&self.tables) {
                self.out.push(Outgoing { to, body: Body::Piece(piece), blob });
            }
            if copier.is_complete() {
                (self.copier, self.peer, self.view) = (None, Some(to), self.view + 1);
                self.joining = true;
                self.send_server(Body::Join { half: 1 - self.me, view: self.view }, None);
            }
        }
        while !self.has_to_wait()
            && let Some((client, seq, work)) = self.held.pop_front()
        {
            self.start(client, seq, work);
        }
    }

    fn has_to_wait(&self) -> bool {
        self.copier.as_ref().is_some_and(Copier::is_full)
    }

    /// The spare to which this server copies its data, if it does, and the number of confirmations from there.
    pub fn copy_progress(&self) -> Option<(usize, u64)> {
        self.copier.as_ref().map(|copier| (copier.to(), copier.progress()))
    }

    /// The view that clients are told. It has two servers only when both are known to have all data.
    fn shown_view(&self) -> u32 {
        self.view - u32::from(self.joining)
    }

    fn is_alone(&self) -> bool {
        self.peer.is_none()
    }

    fn of_client(&mut self, client: u32, body: Body, blob: Option<B>) {
        match body {
            Body::Statement { seq, index, op } => self.note(client, seq, index, op),
            Body::Commit { seq, statements } => match self.noted.remove(&client) {
                Some((noted, ops)) if noted == seq && ops.len() == usize::from(statements) => {
                    self.start(client, seq, Work::Update { ops, blob });
                }
                _ => self.refuse(client, seq, "its statements did not come"),
            },
            Body::Run { seq, ops } => self.start(client, seq, Work::Update { ops, blob }),
            Body::Read { seq, key } => self.start(client, seq, Work::Read(key)),
            other => self.refuse(client, 0, &format!("unexpected message from a client: {other:?}")),
        }
    }

    fn note(&mut self, client: u32, seq: u64, index: u8, op: Op) {
        let (noted, ops) = self.noted.entry(client).or_default();
        if *noted != seq {
            (*noted, *ops) = (seq, Vec::new());
        }
        if ops.len() == usize::from(index) {
            ops.push(op);
        }
        self.send_client(client, Body::Noted { seq, index }, None);
    }

    fn of_server(&mut self, body: Body, blob: Option<B>) {
        match body {
            Body::Fetch { txn, key } => self.lock_for_peer(txn, Work::Read(key)),
            Body::Prepare { txn, ops } => self.lock_for_peer(txn, Work::Update { ops, blob }),
            Body::Release { txn } => {
                self.remote.remove(&txn.client);
                self.send_server(Body::Released { txn }, None);
                self.release(Holder::Peer(txn.client));
            }
            Body::Log { txn, records } => {
                let kept = match self.remote.remove(&txn.client).map(|remote| remote.work) {
                    Some(Work::Update { blob, .. }) => blob,
                    _ => None,
                };
                self.tables.apply(txn, &records, blob.or(kept));
                self.send_server(Body::Logged { txn }, None);
                self.release(Holder::Peer(txn.client));
            }
            Body::Fetched { txn, row } => {
                if let Some(job) = self.job(txn) {
                    job.found = Some((row, blob));
                    self.send_server(Body::Release { txn }, None);
                }
            }
            Body::Released { txn } => {
                if let Some((row, blob)) = self.job(txn).and_then(|job| job.found.take()) {
                    self.jobs.remove(&txn.client);
                    self.send_found(txn, row, blob);
                }
            }
            Body::Prepared { txn, rows } => {
                if let Some(job) = self.job(txn) {
                    job.theirs = Some(rows);
                    // The server of half 0 has already locked its own rows.
                    if self.me == 0 { self.log(txn.client) } else { self.lock_own(txn.client) }
                }
            }
            Body::Logged { txn } if self.job(txn).is_some() => self.commit(txn.client),
            // All pieces were confirmed before `Join` was sent. (Log records of the copy need not have been.)
            Body::Copied => self.joining = false,
            // A server sends no other messages; the waiting transaction will be overdue, and its client reports
            // this.
            _ => {}
        }
    }

    fn job(&mut self, txn: Txn) -> Option<&mut Job<B>> {
        self.jobs.get_mut(&txn.client).filter(|job| job.seq == txn.seq)
    }

    fn owns(&self, half: u8) -> bool {
        self.is_alone() || half == self.me
    }

    /// Begins a transaction, unless it has already been done.
    fn start(&mut self, client: u32, seq: u64, work: Work<B>) {
        match self.tables.answered(client) {
            Some(answered) if answered.seq == seq => {
                let rows = answered.rows.clone();
                return self.send_client(
                    client,
                    Body::Committed { seq, view: self.shown_view(), rows },
                    None,
                );
            }
            Some(answered) if answered.seq > seq => return,
            _ => {}
        }
        if self.has_to_wait() && matches!(work, Work::Update { .. }) {
            return self.held.push_back((client, seq, work));
        }
        if let Some(why) = self.objection(&work) {
            return self.refuse(client, seq, why);
        }
        let txn = Txn { client, seq };
        let (here, there) = match &work {
            Work::Read(key) => (self.owns(key.half), !self.owns(key.half)),
            Work::Update { ops, .. } => {
                (ops.iter().any(|op| self.owns(op.half())), ops.iter().any(|op| !self.owns(op.half())))
            }
        };
        let fetch = match work {
            Work::Read(key) if there => Some(key),
            _ => None,
        };
        self.jobs.insert(client, Job { seq, work, theirs: None, records: Vec::new(), found: None });
        match fetch {
            Some(key) => self.send_server(Body::Fetch { txn, key }, None),
            None if there && (self.me == 1 || !here) => self.prepare(client),
            None => self.lock_own(client),
        }
    }

    fn objection(&self, work: &Work<B>) -> Option<&'static str> {
        match work {
            Work::Read(key) => self.tables.row(*key).is_none().then_some("there is no such row"),
            Work::Update { ops, .. } => {
                let twice = (1..ops.len()).any(|at| {
                    ops[at].key().is_some_and(|key| ops[..at].iter().any(|op| op.key() == Some(key)))
                });
                let objection = ops.iter().find_map(|op| self.tables.objection(op));
                objection.or_else(|| twice.then_some("it names a row twice"))
            }
        }
    }

    fn lock_own(&mut self, client: u32) {
        let Some(job) = self.jobs.get(&client) else { return };
        let keys: Vec<Key> = match &job.work {
            Work::Read(key) => vec![*key],
            Work::Update { ops, .. } => {
                ops.iter().filter(|op| self.owns(op.half())).filter_map(Op::key).collect()
            }
        };
        if self.locks.acquire(Holder::Own(client), keys) {
            self.locked(client);
        }
    }

    /// Continues after the locks of the coordinator's own rows.
    fn locked(&mut self, client: u32) {
        let Some(job) = self.jobs.get(&client) else { return };
        let txn = Txn { client, seq: job.seq };
        match &job.work {
            Work::Read(key) => {
                let (row, blob) = (self.tables.row(*key), self.tables.blob(*key).cloned());
                self.jobs.remove(&client);
                if let Some(row) = row {
                    self.send_found(txn, row, blob);
                }
                self.release(Holder::Own(client));
            }
            Work::Update { ops, .. } => {
                let there = ops.iter().any(|op| !self.owns(op.half()));
                if there && job.theirs.is_none() { self.prepare(client) } else { self.log(client) }
            }
        }
    }

    fn prepare(&mut self, client: u32) {
        let Some(job) = self.jobs.get(&client) else { return };
        let Work::Update { ops, blob } = &job.work else { return };
        let theirs: Vec<Op> = ops.iter().filter(|op| !self.owns(op.half())).copied().collect();
        let blob = blob.clone().filter(|_| theirs.iter().any(Op::has_blob));
        let txn = Txn { client, seq: job.seq };
        self.send_server(Body::Prepare { txn, ops: theirs }, blob);
    }

    /// Continues after the locks of all rows: the log goes to the standby, if there is one.
    fn log(&mut self, client: u32) {
        let Some(job) = self.jobs.get(&client) else { return };
        let Work::Update { ops, blob } = &job.work else { return };
        let mut theirs = job.theirs.iter().flatten().copied();
        let records: Option<Vec<Record>> = ops
            .iter()
            .map(|op| {
                let after = if self.owns(op.half()) { self.tables.after(op) } else { theirs.next() };
                Some(Record { op: *op, after: after? })
            })
            .collect();
        let txn = Txn { client, seq: job.seq };
        let Some(records) = records else {
            return self.refuse(client, txn.seq, "the other server has prepared other rows");
        };
        // For a row of the other server, that server has had the BLOB since it prepared the row.
        let new = records.iter().any(|record| record.op.has_blob() && self.owns(record.op.half()));
        let blob = blob.clone().filter(|_| new);
        if let Some(job) = self.jobs.get_mut(&client) {
            job.records.clone_from(&records);
        }
        if self.is_alone() {
            self.commit(client);
        } else {
            self.send_server(Body::Log { txn, records }, blob);
        }
    }

    fn commit(&mut self, client: u32) {
        let Some(job) = self.jobs.remove(&client) else { return };
        let blob = match job.work {
            Work::Update { blob, .. } => blob,
            Work::Read(_) => None,
        };
        let txn = Txn { client, seq: job.seq };
        if let Some(copier) = self.copier.as_mut() {
            copier.logged(blob.as_deref().map_or(0, <[u8]>::len));
            let body = Body::Log { txn, records: job.records.clone() };
            self.out.push(Outgoing { to: copier.to(), body, blob: blob.clone() });
        }
        self.tables.apply(txn, &job.records, blob);
        let rows = job.records.iter().map(|record| record.after).collect();
        self.send_client(client, Body::Committed { seq: job.seq, view: self.shown_view(), rows }, None);
        self.release(Holder::Own(client));
    }

    /// Handles a transaction of the other server that needs rows of this one.
    fn lock_for_peer(&mut self, txn: Txn, work: Work<B>) {
        let keys = match &work {
            Work::Read(key) => vec![*key],
            Work::Update { ops, .. } => ops.iter().filter_map(Op::key).collect(),
        };
        self.remote.insert(txn.client, RemoteTransaction { txn, work });
        if self.locks.acquire(Holder::Peer(txn.client), keys) {
            self.prepared_for_peer(txn.client);
        }
    }

    /// Continues a transaction of the other server after its locks were granted.
    fn prepared_for_peer(&mut self, client: u32) {
        let Some(RemoteTransaction { txn, work }) = self.remote.get(&client) else { return };
        let txn = *txn;
        match work {
            Work::Read(key) => {
                if let Some(row) = self.tables.row(*key) {
                    let blob = self.tables.blob(*key).cloned();
                    self.send_server(Body::Fetched { txn, row }, blob);
                }
            }
            Work::Update { ops, .. } => {
                let rows = ops.iter().filter_map(|op| self.tables.after(op)).collect();
                self.send_server(Body::Prepared { txn, rows }, None);
            }
        }
    }

    fn release(&mut self, holder: Holder) {
        for granted in self.locks.release(holder) {
            match granted {
                Holder::Own(client) => self.locked(client),
                Holder::Peer(client) => self.prepared_for_peer(client),
            }
        }
    }

    fn refuse(&mut self, client: u32, seq: u64, why: &str) {
        self.send_client(client, Body::Refused { seq, why: why.to_owned() }, None);
    }

    fn send_found(&mut self, txn: Txn, row: Row, blob: Option<B>) {
        self.send_client(txn.client, Body::Found { seq: txn.seq, view: self.shown_view(), row }, blob);
    }

    fn send_client(&mut self, client: u32, body: Body, blob: Option<B>) {
        self.out.push(Outgoing { to: client as usize, body, blob });
    }

    fn send_server(&mut self, body: Body, blob: Option<B>) {
        if let Some(to) = self.peer {
            self.out.push(Outgoing { to, body, blob });
        }
    }
}
