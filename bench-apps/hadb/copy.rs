//! The copy of all data to a spare node, while transactions go on: two state machines without I/O, [`Copier`] at the only server
//! left and [`Spare`] at the spare.
//!
//! ```text
//!  the only server left                       the spare
//!    │ Piece (rows, or one BLOB's row, ...)      │
//!    ├──────────────────────────────────────────►│ writes it
//!    │                                   Copied  │
//!    │◄──────────────────────────────────────────┤
//!    │ Log (a transaction done meanwhile)        │
//!    ├──────────────────────────────────────────►│ writes it
//!    │                                   Logged  │
//!    │◄──────────────────────────────────────────┤
//!    │ Join (the last piece has been copied)     │
//!    ├──────────────────────────────────────────►│ is a server
//!    │                                   Copied  │
//!    │◄──────────────────────────────────────────┤
//! ```
//!
//! Pieces and log records go one way, in order, and both hold rows as they are after a change. So the spare's row is always
//! the newest one that was sent, whether its piece or its log record came first.
//!
//! A server that is alone ends each transaction at once, so no transaction is under way when it sends `Join`. From then on it
//! acknowledges nothing before the spare's `Logged`. A spare that has `Join` therefore has all that was acknowledged. A spare
//! without it has not, and says so if the only server left dies. That server tells clients of two servers once the spare has
//! confirmed `Join`.

use crate::message::{Body, Outgoing, Piece, Txn};
use crate::ranks::Servers;
use crate::row::{Key, Table};
use crate::table::Tables;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Deref;
use std::{mem, vec};

/// Upper bounds of a copy.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Rows in a piece. A BLOB is alone in its piece.
    pub rows: usize,
    /// Entries of a history in a piece.
    pub entries: usize,
    /// Pieces under way.
    pub pieces: usize,
    /// Log records under way; then transactions that change something wait for the spare.
    pub records: usize,
    /// Bytes of BLOBs beside pieces under way, and bytes of BLOBs beside log records under way. The last BLOB may exceed it.
    ///
    /// Both together fit into a postbox's queue (`DECK_QUEUE`, 4 MB) if no BLOB has more than 1 MB. A server that waited for room
    /// in a post would not notice that the spare confirms nothing.
    pub bytes: usize,
}

impl Limits {
    pub const USUAL: Limits = Limits { rows: 32, entries: 128, pieces: 4, records: 64, bytes: 512 << 10 };
}

/// Messages of one kind that were sent and not confirmed: lengths of their BLOBs in bytes, in order.
#[derive(Clone, Debug, Default)]
struct Unconfirmed(VecDeque<usize>);

impl Unconfirmed {
    fn is_full(&self, messages: usize, bytes: usize) -> bool {
        self.0.len() >= messages || self.0.iter().sum::<usize>() >= bytes
    }
}

/// The copy at its source.
#[derive(Clone, Debug)]
pub struct Copier {
    to: usize,
    limits: Limits,
    /// Rows that were changed before the copy began, as far as they have not been sent. Later changes are in the log.
    keys: vec::IntoIter<Key>,
    /// Newest sequence number before the copy began. Later entries of the histories are in the log.
    newest: u64,
    part: Part,
    pieces: Unconfirmed,
    records: Unconfirmed,
    /// Number of confirmations.
    confirmed: u64,
}

/// The part of the tables that is sent next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Rows,
    History {
        half: u8,
        after: Option<Txn>,
    },
    /// Answers to the clients' last transactions.
    Answers,
    End,
}

impl Copier {
    /// Begins a copy of the tables to the spare `to`.
    pub fn new<B: Clone>(to: usize, tables: &Tables<B>, limits: Limits) -> Copier {
        let mut keys: Vec<Key> = tables.changed().map(|(key, _)| key).collect();
        keys.sort_unstable();
        let newest = tables.answers().map(|(txn, _)| txn.seq).max().unwrap_or(0);
        let (keys, part, confirmed) = (keys.into_iter(), Part::Rows, 0);
        let (pieces, records) = Default::default();
        Copier { to, limits, keys, newest, part, pieces, records, confirmed }
    }

    pub fn to(&self) -> usize {
        self.to
    }

    /// The next piece, with its BLOB. `None`: enough pieces are under way, or all have been sent.
    pub fn piece<B: Clone + Deref<Target = [u8]>>(
        &mut self,
        tables: &Tables<B>,
    ) -> Option<(Piece, Option<B>)> {
        if self.pieces.is_full(self.limits.pieces, self.limits.bytes) {
            return None;
        }
        let (piece, blob) = self.next(tables)?;
        self.pieces.0.push_back(blob.as_deref().map_or(0, <[u8]>::len));
        Some((piece, blob))
    }

    fn next<B: Clone>(&mut self, tables: &Tables<B>) -> Option<(Piece, Option<B>)> {
        loop {
            match self.part {
                Part::Rows => match self.rows(tables) {
                    Some(piece) => return Some(piece),
                    None => self.part = Part::History { half: 0, after: None },
                },
                Part::History { half, after } => {
                    let entries = tables.entries(half, after).filter(|(txn, _)| txn.seq <= self.newest);
                    let entries: Vec<(Txn, i64)> = entries.take(self.limits.entries).collect();
                    if let Some((last, _)) = entries.last() {
                        self.part = Part::History { half, after: Some(*last) };
                        return Some((Piece::History { half, entries }, None));
                    }
                    self.part =
                        if half == 0 { Part::History { half: 1, after: None } } else { Part::Answers };
                }
                Part::Answers => {
                    self.part = Part::End;
                    let answers = tables.answers().map(|(txn, rows)| (txn, rows.to_vec())).collect();
                    return Some((Piece::Answers(answers), None));
                }
                Part::End => return None,
            }
        }
    }

    fn rows<B: Clone>(&mut self, tables: &Tables<B>) -> Option<(Piece, Option<B>)> {
        let mut rows = Vec::new();
        while rows.len() < self.limits.rows
            && let Some(key) = self.keys.as_slice().first().copied()
        {
            let is_blob = key.table == Table::Blobs;
            if is_blob && !rows.is_empty() {
                break;
            }
            self.keys.next();
            rows.extend(tables.row(key).map(|row| (key, row)));
            if is_blob {
                return Some((Piece::Rows(rows), tables.blob(key).cloned()));
            }
        }
        (!rows.is_empty()).then_some((Piece::Rows(rows), None))
    }

    /// Counts a log record that is sent with a BLOB of this number of bytes.
    pub fn logged(&mut self, bytes: usize) {
        self.records.0.push_back(bytes);
    }

    /// Counts what the spare has confirmed.
    pub fn confirmed(&mut self, body: &Body) {
        self.confirmed += 1;
        // Each kind is confirmed in the order in which it was sent.
        match body {
            Body::Copied => _ = self.pieces.0.pop_front(),
            Body::Logged { .. } => _ = self.records.0.pop_front(),
            _ => {}
        }
    }

    /// Number of pieces and log records that the spare has confirmed.
    pub fn progress(&self) -> u64 {
        self.confirmed
    }

    /// Whether changes have to wait until the spare has confirmed log records.
    pub fn is_full(&self) -> bool {
        self.records.is_full(self.limits.records, self.limits.bytes)
    }

    /// Whether the spare has confirmed all pieces.
    pub fn is_complete(&self) -> bool {
        self.part == Part::End && self.pieces.0.is_empty()
    }
}

/// A spare node, until it is a server.
#[derive(Clone, Debug)]
pub struct Spare<B> {
    pub rank: usize,
    servers: Servers,
    dead: BTreeSet<usize>,
    /// Server that copies its data to here.
    source: Option<usize>,
    pub tables: Tables<B>,
    /// Messages of clients that came before `Join`: at most one of each client, because it waits for the answer.
    waiting: BTreeMap<u32, (Body, Option<B>)>,
    /// Whether the data have died with the last server that had all of them.
    is_lost: bool,
    out: Vec<Outgoing<B>>,
}

/// A spare's reaction to a message.
pub enum Reaction<B> {
    Send(Vec<Outgoing<B>>),
    /// The spare has all data, and is a server from now on.
    Join {
        half: u8,
        view: u32,
        peer: usize,
    },
}

impl<B: Clone> Spare<B> {
    pub fn new(rank: usize, servers: Servers) -> Self {
        let (dead, waiting) = (BTreeSet::new(), BTreeMap::new());
        let (source, is_lost, out) = (None, false, Vec::new());
        Spare { rank, servers, dead, source, tables: Tables::new(), waiting, is_lost, out }
    }

    pub fn handle(&mut self, from: usize, body: Body, blob: Option<B>) -> Reaction<B> {
        if !self.servers.has(from) {
            if let Ok(client) = u32::try_from(from) {
                self.waiting.insert(client, (body, blob));
            }
            self.refuse_if_lost();
        } else if !self.dead.contains(&from) {
            // A dead server's message that had not been read does not count.
            self.source = Some(from);
            match body {
                Body::Piece(piece) => {
                    self.tables.write(piece, blob);
                    self.out.push(Outgoing { to: from, body: Body::Copied, blob: None });
                }
                Body::Log { txn, records } => {
                    self.tables.apply(txn, &records, blob);
                    self.out.push(Outgoing { to: from, body: Body::Logged { txn }, blob: None });
                }
                Body::Join { half, view } => return Reaction::Join { half, view, peer: from },
                // A server sends a spare no other messages.
                _ => {}
            }
        }
        Reaction::Send(mem::take(&mut self.out))
    }

    /// Handles the death of another server or spare.
    pub fn lost(&mut self, dead: usize) -> Vec<Outgoing<B>> {
        self.dead.insert(dead);
        // Only ranks before this one can have data: spares are used in the order of their ranks.
        let mut others = self.servers.all().filter(|rank| *rank < self.rank);
        self.is_lost |= self.source == Some(dead) || others.all(|rank| self.dead.contains(&rank));
        self.refuse_if_lost();
        mem::take(&mut self.out)
    }

    fn refuse_if_lost(&mut self) {
        if self.is_lost {
            for client in mem::take(&mut self.waiting).into_keys() {
                let why = "the data are lost: the last server that had all of them died before they were copied to this spare";
                let body = Body::Refused { seq: 0, why: why.to_owned() };
                self.out.push(Outgoing { to: client as usize, body, blob: None });
            }
        }
    }

    /// Spares that live and have not been used.
    pub fn further_spares(&self) -> Vec<usize> {
        self.servers.spares().filter(|rank| *rank > self.rank && !self.dead.contains(rank)).collect()
    }

    /// Messages of clients that are to be handled now, because this spare has become a server.
    pub fn take_waiting(&mut self) -> BTreeMap<u32, (Body, Option<B>)> {
        mem::take(&mut self.waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Op, Record};

    fn tables(rows: u32) -> Tables<Vec<u8>> {
        let mut tables = Tables::new();
        for index in 0..rows {
            let key = Key { table: Table::Tuples, half: (index % 2) as u8, index };
            let op = Op::Add { key, delta: 1 };
            let insert = Op::Insert { half: key.half, delta: 1 };
            let records = [op, insert].map(|op| Record { op, after: tables.after(&op).expect("a row") });
            tables.apply(Txn { client: 2, seq: u64::from(index) + 1 }, &records, None);
        }
        let op = Op::Store { key: Key { table: Table::Blobs, half: 0, index: 1 }, seed: 4 };
        let record = Record { op, after: tables.after(&op).expect("a row") };
        tables.apply(Txn { client: 3, seq: 1 }, &[record], Some(vec![7]));
        tables
    }

    fn logged() -> Body {
        Body::Logged { txn: Txn { client: 2, seq: 1 } }
    }

    #[test]
    fn pieces_are_bounded_and_hold_all() {
        let tables = tables(10);
        let limits = Limits { rows: 3, entries: 2, pieces: 2, records: 1, bytes: 100 };
        let mut copier = Copier::new(4, &tables, limits);
        let mut copy = Tables::new();
        let (mut sent, mut blobs) = (0, Vec::new());
        while !copier.is_complete() {
            let pieces: Vec<_> = std::iter::from_fn(|| copier.piece(&tables)).collect();
            assert!((1..=2).contains(&pieces.len()), "at most two under way");
            for (piece, blob) in pieces {
                let len = match &piece {
                    Piece::Rows(rows) => rows.len(),
                    Piece::History { entries, .. } => entries.len() + 1,
                    Piece::Answers(_) => 0,
                };
                assert!(len <= 3, "{piece:?}");
                blobs.extend(blob.clone());
                copy.write(piece, blob);
                copier.confirmed(&Body::Copied);
                sent += 1;
            }
        }
        // Four pieces of ten rows and a BLOB's row, three of each history, one of answers.
        assert_eq!((sent, blobs), (4 + 1 + 2 * 3 + 1, vec![vec![7]]));
        assert_eq!(copy, tables);
    }

    #[test]
    fn log_records_are_bounded() {
        let mut copier = Copier::new(4, &tables(1), Limits { records: 2, ..Limits::USUAL });
        copier.logged(0);
        assert!(!copier.is_full());
        copier.logged(0);
        assert!(copier.is_full());
        copier.confirmed(&Body::Copied);
        assert!(copier.is_full(), "a piece is no record");
        copier.confirmed(&logged());
        assert!(!copier.is_full());
    }

    #[test]
    fn bytes_of_blobs_beside_log_records_are_bounded() {
        let mut copier = Copier::new(4, &tables(1), Limits { bytes: 100, ..Limits::USUAL });
        for (bytes, is_full) in [(10, false), (60, false), (60, true), (0, true)] {
            copier.logged(bytes);
            assert_eq!(copier.is_full(), is_full, "{bytes}");
        }
        copier.confirmed(&logged());
        assert!(copier.is_full(), "the shortest one was confirmed");
        copier.confirmed(&logged());
        assert!(!copier.is_full());
    }

    #[test]
    fn bytes_of_blobs_beside_pieces_are_bounded() {
        let mut tables = Tables::new();
        for index in 0..4 {
            let op = Op::Store { key: Key { table: Table::Blobs, half: 0, index }, seed: 4 };
            let record = Record { op, after: tables.after(&op).expect("a row") };
            tables.apply(Txn { client: 3, seq: u64::from(index) + 1 }, &[record], Some(vec![7; 60]));
        }
        let mut copier = Copier::new(4, &tables, Limits { bytes: 100, ..Limits::USUAL });
        assert_eq!(std::iter::from_fn(|| copier.piece(&tables)).count(), 2);
        copier.confirmed(&Body::Copied);
        assert_eq!(std::iter::from_fn(|| copier.piece(&tables)).count(), 1);
    }

    /// A spare waits with a client's message, and refuses it when nobody has the data any more.
    #[test]
    fn a_spare_that_has_not_all_data_says_that_they_are_lost() {
        let read = Body::Read { seq: 1, key: Key { table: Table::Tuples, half: 0, index: 0 } };
        let mut spare = Spare::<()>::new(4, Servers::of_job(5, 1));
        let Reaction::Send(out) = spare.handle(2, read.clone(), None) else { panic!("it has not joined") };
        assert_eq!(out, []);
        assert_eq!(spare.lost(1), [], "server 0 lives");
        let out = spare.lost(0);
        assert!(
            matches!(&out[..], [Outgoing { to: 2, body: Body::Refused { why, .. }, .. }] if why.contains("lost"))
        );
        let Reaction::Send(out) = spare.handle(3, read, None) else { panic!("it has not joined") };
        assert!(matches!(&out[..], [Outgoing { to: 3, body: Body::Refused { .. }, .. }]), "{out:?}");
    }
}
