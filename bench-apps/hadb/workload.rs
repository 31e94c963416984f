//! The workload of a client: a random sequence of transactions.

use crate::message::Op;
use crate::options::{Blobs, Mix};
use crate::row::{BLOBS_OF_A_CLIENT, Key, Table};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

/// The next transaction.
#[derive(Clone, Debug, PartialEq)]
pub enum NextOperation {
    Read(Key),
    /// Operations sent statement by statement.
    Steps(Vec<Op>),
    /// Operations sent in one message.
    Run(Vec<Op>),
    /// A BLOB of this length to insert or update.
    Store {
        op: Op,
        seed: u64,
        len: usize,
    },
}

/// Workload of one client.
pub struct Workload {
    random: Xoshiro256PlusPlus,
    /// Number of the client, among the clients.
    client: u32,
    /// Half of the client's own server.
    home: u8,
    /// Share of rows in the other half.
    remote: f64,
    blobs: Blobs,
    /// The client's BLOBs that are in the database, and the number of those that it has inserted.
    present: Vec<Key>,
    inserted: u32,
}

impl Workload {
    pub fn new(seed: u64, client: u32, home: u8, remote: f64, blobs: Blobs) -> Self {
        let random = Xoshiro256PlusPlus::seed_from_u64(seed.wrapping_mul(1000) + u64::from(client));
        Workload { random, client, home, remote, blobs, present: Vec::new(), inserted: 0 }
    }

    /// Chooses the next transaction. `None`: the client has inserted all of its BLOBs, or has none (left).
    pub fn next(&mut self, mix: Mix) -> Option<NextOperation> {
        Some(match mix {
            Mix::OneTupleRead => NextOperation::Read(self.anywhere(Table::Tuples)),
            Mix::FourTupleRun => NextOperation::Steps(self.four_tuples()),
            Mix::TpcB => NextOperation::Run(self.tpc_b()),
            Mix::BlobInsert => {
                let key = self.new_blob()?;
                self.store(|seed| Op::Create { key, seed })
            }
            Mix::BlobRead => {
                let at = self.any_blob()?;
                NextOperation::Read(self.present[at])
            }
            Mix::BlobUpdate => {
                let at = self.any_blob()?;
                let key = self.present[at];
                self.store(|seed| Op::Store { key, seed })
            }
            Mix::BlobDelete => {
                let at = self.any_blob()?;
                NextOperation::Run(vec![Op::Delete { key: self.present.swap_remove(at) }])
            }
        })
    }

    fn half(&mut self) -> u8 {
        if self.random.random_bool(self.remote) { 1 - self.home } else { self.home }
    }

    fn anywhere(&mut self, table: Table) -> Key {
        let half = self.half();
        Key { table, half, index: self.random.random_range(0..table.rows()) }
    }

    fn delta(&mut self) -> i64 {
        self.random.random_range(-99_999..=99_999)
    }

    fn four_tuples(&mut self) -> Vec<Op> {
        let mut ops: Vec<Op> = Vec::new();
        while ops.len() < 4 {
            let key = self.anywhere(Table::Tuples);
            if ops.iter().all(|op| op.key() != Some(key)) {
                ops.push(Op::Add { key, delta: self.delta() });
            }
        }
        ops
    }

    /// A TPC-B transaction: a teller and its branch at home, an account that may be at the other server.
    fn tpc_b(&mut self) -> Vec<Op> {
        let (half, delta) = (self.home, self.delta());
        let teller = self.random.random_range(0..Table::Tellers.rows());
        let branch = teller * Table::Branches.rows() / Table::Tellers.rows();
        vec![
            Op::Add { key: self.anywhere(Table::Accounts), delta },
            Op::Add { key: Key { table: Table::Tellers, half, index: teller }, delta },
            Op::Add { key: Key { table: Table::Branches, half, index: branch }, delta },
            Op::Insert { half, delta },
        ]
    }

    /// Place of a BLOB that is inserted next. Each BLOB is its client's own, so that its contents are known exactly.
    fn new_blob(&mut self) -> Option<Key> {
        if self.inserted == self.blobs.most {
            return None;
        }
        let index = self.client * BLOBS_OF_A_CLIENT + self.inserted;
        let key = Key { table: Table::Blobs, half: self.half(), index };
        self.inserted += 1;
        self.present.push(key);
        Some(key)
    }

    fn any_blob(&mut self) -> Option<usize> {
        (!self.present.is_empty()).then(|| self.random.random_range(0..self.present.len()))
    }

    fn store(&mut self, op: impl FnOnce(u64) -> Op) -> NextOperation {
        let (smallest, largest) = (*self.blobs.lengths.start() as f64, *self.blobs.lengths.end() as f64);
        let len = self.random.random_range(smallest.ln()..=largest.ln()).exp().round() as usize;
        let seed = self.random.random();
        NextOperation::Store { op: op(seed), seed, len }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::RangeInclusive;

    fn workload(seed: u64, home: u8, remote: f64, lengths: RangeInclusive<usize>) -> Workload {
        Workload::new(seed, 1, home, remote, Blobs { lengths, most: 50 })
    }

    fn halves(mix: Mix, remote: f64) -> Vec<u8> {
        let mut workload = workload(1, 1, remote, 8..=8);
        let all = (0..50).filter_map(|_| workload.next(mix)).flat_map(|next| match next {
            NextOperation::Read(key) => vec![key.half],
            NextOperation::Store { op, .. } => vec![op.half()],
            NextOperation::Steps(ops) | NextOperation::Run(ops) => ops.iter().map(Op::half).collect(),
        });
        all.collect()
    }

    #[test]
    fn no_row_or_every_row_is_remote_as_it_is_told() {
        for mix in [Mix::OneTupleRead, Mix::FourTupleRun, Mix::BlobInsert] {
            assert!(halves(mix, 0.0).iter().all(|half| *half == 1), "{mix:?}");
            assert!(halves(mix, 1.0).iter().all(|half| *half == 0), "{mix:?}");
        }
        assert!(halves(Mix::TpcB, 1.0).chunks(4).all(|halves| halves == [0, 1, 1, 1]));
    }

    #[test]
    fn runs_name_no_tuple_twice() {
        let mut workload = workload(2, 0, 0.5, 8..=8);
        for _ in 0..2000 {
            let Some(NextOperation::Steps(ops)) = workload.next(Mix::FourTupleRun) else { panic!() };
            let mut keys: Vec<_> = ops.iter().filter_map(Op::key).collect();
            keys.sort();
            keys.dedup();
            assert_eq!(keys.len(), 4);
        }
    }

    /// Runs `mix` until it is over, or 200 times.
    fn all(workload: &mut Workload, mix: Mix) -> Vec<(Op, usize)> {
        let next = |_| match workload.next(mix)? {
            NextOperation::Store { op, len, .. } => Some((op, len)),
            NextOperation::Run(ops) => Some((ops[0], 0)),
            NextOperation::Read(key) => Some((Op::Store { key, seed: 0 }, 0)),
            NextOperation::Steps(_) => None,
        };
        (0..200).map_while(next).collect()
    }

    #[test]
    fn blobs_are_inserted_once_used_while_they_are_there_and_deleted_once() {
        let mut workload = workload(3, 0, 0.5, 1_000..=100_000);
        let keys = |ops: &[(Op, usize)]| {
            let mut keys: Vec<_> = ops.iter().filter_map(|(op, _)| op.key()).collect();
            keys.sort();
            keys
        };
        assert_eq!(all(&mut workload, Mix::BlobRead), [], "nothing is there");
        let inserted = all(&mut workload, Mix::BlobInsert);
        let mut places = keys(&inserted);
        assert_eq!(places.len(), 50);
        places.dedup();
        assert_eq!(places.len(), 50, "a BLOB each");
        for mix in [Mix::BlobRead, Mix::BlobUpdate] {
            let used = all(&mut workload, mix);
            assert!(used.len() == 200 && keys(&used).iter().all(|key| places.contains(key)), "{mix:?}");
        }
        let lengths = || inserted.iter().map(|(_, len)| *len);
        assert!(lengths().all(|len| (1_000..=100_000).contains(&len)));
        let short = lengths().filter(|len| *len < 10_000).count();
        assert!((10..=40).contains(&short), "each order of magnitude is equally likely: {short} of 50");
        assert_eq!(keys(&all(&mut workload, Mix::BlobDelete)), places);
        assert_eq!(all(&mut workload, Mix::BlobUpdate), [], "nothing is left");
    }
}
