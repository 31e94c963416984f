//! The tables of one server, with both halves, because the server is the primary of one and the hot standby of the
//! other.
//!
//! A row's bytes follow from its place and value (`Row::is_sound`), so that damage shows wherever the row is examined. Every
//! change is a [`Record`] with the row after it (an *after-image*): the standby does not compute, it writes. The tables record
//! the applied transactions, so that a repeated one is answered and not applied again.

use crate::message::{Op, Piece, Record, Txn};
use crate::row::{Key, Row, history_key};
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

/// Answer to a client's last transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    pub seq: u64,
    pub rows: Vec<Row>,
}

/// All tables of both halves.
#[derive(Clone, Debug, PartialEq)]
pub struct Tables<B> {
    /// Rows that were changed at least once.
    rows: HashMap<Key, Row>,
    blobs: HashMap<Key, B>,
    /// Values that each transaction has inserted, by half.
    history: [BTreeMap<Txn, i64>; 2],
    answered: HashMap<u32, Answered>,
}

impl<B: Clone> Tables<B> {
    pub fn new() -> Self {
        let (rows, blobs, answered) = (HashMap::new(), HashMap::new(), HashMap::new());
        Tables { rows, blobs, history: Default::default(), answered }
    }

    /// The row at this key. `None`: there is no such row.
    pub fn row(&self, key: Key) -> Option<Row> {
        let exists = key.half < 2 && key.index < key.table.rows();
        exists.then(|| self.rows.get(&key).copied().unwrap_or_else(|| Row::new(key, 0, 0)))
    }

    pub fn blob(&self, key: Key) -> Option<&B> {
        self.blobs.get(&key)
    }

    /// The row that `op` would produce. `None`: there is no such row.
    pub fn after(&self, op: &Op) -> Option<Row> {
        let (key, value) = match *op {
            Op::Add { key, delta } => (key, self.row(key)?.value.wrapping_add(delta)),
            Op::Create { key, seed } | Op::Store { key, seed } => (key, seed as i64),
            Op::Delete { key } => (key, 0),
            // A history has no row of its own; the answer is the branch's first row, as a placeholder.
            Op::Insert { half, delta } => return (half < 2).then(|| Row::new(history_key(half), 1, delta)),
        };
        Some(Row::new(key, self.row(key)?.version + 1, value))
    }

    /// Reason why `op` cannot be done.
    pub fn objection(&self, op: &Op) -> Option<&'static str> {
        match op {
            _ if self.after(op).is_none() => Some("there is no such row"),
            Op::Create { key, .. } if self.blobs.contains_key(key) => Some("there is such a BLOB already"),
            Op::Store { key, .. } | Op::Delete { key } if !self.blobs.contains_key(key) => {
                Some("there is no such BLOB")
            }
            _ => None,
        }
    }

    /// Applies the records, and records that the transaction is done.
    pub fn apply(&mut self, txn: Txn, records: &[Record], blob: Option<B>) {
        let mut blob = blob;
        for Record { op, after } in records {
            match *op {
                Op::Add { key, .. } => drop(self.rows.insert(key, *after)),
                Op::Create { key, .. } | Op::Store { key, .. } => {
                    self.rows.insert(key, *after);
                    if let Some(blob) = blob.take() {
                        self.blobs.insert(key, blob);
                    }
                }
                Op::Delete { key } => {
                    self.rows.insert(key, *after);
                    self.blobs.remove(&key);
                }
                Op::Insert { half, delta } => {
                    self.history[usize::from(half & 1)].insert(txn, delta);
                }
            }
        }
        let rows = records.iter().map(|record| record.after).collect();
        self.answered.insert(txn.client, Answered { seq: txn.seq, rows });
    }

    pub fn answered(&self, client: u32) -> Option<&Answered> {
        self.answered.get(&client)
    }

    /// Writes a piece of another server's tables, with the BLOB of its row.
    pub fn write(&mut self, piece: Piece, blob: Option<B>) {
        match piece {
            Piece::Rows(rows) => {
                let mut blob = blob;
                for (key, row) in rows {
                    self.rows.insert(key, row);
                    match blob.take() {
                        Some(blob) => drop(self.blobs.insert(key, blob)),
                        None => drop(self.blobs.remove(&key)),
                    }
                }
            }
            Piece::History { half, entries } => self.history[usize::from(half & 1)].extend(entries),
            Piece::Answers(answers) => {
                let answers = answers.into_iter();
                self.answered
                    .extend(answers.map(|(txn, rows)| (txn.client, Answered { seq: txn.seq, rows })));
            }
        }
    }

    /// Entries of this half's history behind that of the transaction `after`, in order.
    pub fn entries(&self, half: u8, after: Option<Txn>) -> impl Iterator<Item = (Txn, i64)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let entries = self.history[usize::from(half & 1)].range((from, Bound::Unbounded));
        entries.map(|(txn, delta)| (*txn, *delta))
    }

    /// Each client's last transaction, and the rows of its answer.
    pub fn answers(&self) -> impl Iterator<Item = (Txn, &[Row])> {
        let answers = self.answered.iter();
        answers.map(|(client, answered)| (Txn { client: *client, seq: answered.seq }, &answered.rows[..]))
    }

    /// Every row that was changed at least once, with its place.
    pub fn changed(&self) -> impl Iterator<Item = (Key, &Row)> {
        self.rows.iter().map(|(key, row)| (*key, row))
    }

    /// Number of insertions into this half's history, and their sum.
    pub fn history(&self, half: u8) -> (u64, i64) {
        let inserted = &self.history[usize::from(half & 1)];
        (inserted.len() as u64, inserted.values().sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Table;

    const KEY: Key = Key { table: Table::Tuples, half: 1, index: 7 };

    #[test]
    fn what_is_applied_is_in_the_row_the_history_and_the_answers() {
        let mut tables = Tables::<()>::new();
        let txn = Txn { client: 2, seq: 9 };
        let ops = [Op::Add { key: KEY, delta: 4 }, Op::Insert { half: 1, delta: 4 }];
        let records: Vec<Record> =
            ops.into_iter().map(|op| Record { after: tables.after(&op).expect("a row"), op }).collect();
        tables.apply(txn, &records, None);
        assert_eq!(tables.row(KEY), Some(Row::new(KEY, 1, 4)));
        assert_eq!((tables.history(0), tables.history(1)), ((0, 0), (1, 4)));
        assert_eq!(tables.answered(2).map(|answered| answered.seq), Some(9));
        assert_eq!(tables.changed().collect::<Vec<_>>(), [(KEY, &Row::new(KEY, 1, 4))]);
    }

    #[test]
    fn a_blob_is_created_once_and_updated_or_deleted_only_while_it_is_there() {
        let key = Key { table: Table::Blobs, ..KEY };
        let [create, store, delete] =
            [Op::Create { key, seed: 1 }, Op::Store { key, seed: 2 }, Op::Delete { key }];
        let mut tables = Tables::new();
        let refused = |tables: &Tables<u8>| [create, store, delete].map(|op| tables.objection(&op).is_some());
        for (seq, op) in (1..).zip([create, store, delete, create, delete]) {
            assert_eq!(
                refused(&tables),
                if op == create { [false, true, true] } else { [true, false, false] }
            );
            let record = Record { op, after: tables.after(&op).expect("a row") };
            tables.apply(Txn { client: 2, seq }, &[record], op.has_blob().then_some(7));
            assert_eq!(tables.blob(key).is_some(), op != delete, "{op:?}");
            assert_eq!(tables.row(key).map(|row| row.version), Some(seq));
        }
    }

    #[test]
    fn there_is_no_row_behind_the_last() {
        let key = Key { index: Table::Tuples.rows(), ..KEY };
        assert_eq!(Tables::<()>::new().after(&Op::Add { key, delta: 1 }), None);
    }
}
