//! The workload of a client: a random sequence of transactions.

use crate::message::Op;
use crate::options::Mix;
use crate::oracle::Oracle;
use crate::row::{BLOBS_OF_A_CLIENT, Key, Table};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

/// Smallest and largest length of a BLOB, in bytes.
const SMALLEST: f64 = 10e3;
const LARGEST: f64 = 1e6;

/// The next transaction.
#[derive(Clone, Debug, PartialEq)]
pub enum NextOperation {
    Read(Key),
    /// Operations sent statement by statement.
    Steps(Vec<Op>),
    /// Operations sent in one message.
    Run(Vec<Op>),
    /// A BLOB of this length to store.
    Store {
        key: Key,
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
}

impl Workload {
    pub fn new(seed: u64, client: u32, home: u8, remote: f64) -> Self {
        let random = Xoshiro256PlusPlus::seed_from_u64(seed.wrapping_mul(1000) + u64::from(client));
        Workload { random, client, home, remote }
    }

    /// Chooses the next transaction. `oracle` knows which BLOBs exist.
    pub fn next(&mut self, mix: Mix, oracle: &Oracle) -> NextOperation {
        match mix {
            Mix::OneTupleRead => NextOperation::Read(self.anywhere(Table::Tuples)),
            Mix::FourTupleRun => NextOperation::Steps(self.four_tuples()),
            Mix::TpcB => NextOperation::Run(self.tpc_b()),
            Mix::Blob => self.blob(oracle),
        }
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

    /// A BLOB transaction: half of them read, half write, each BLOB only by its own client.
    fn blob(&mut self, oracle: &Oracle) -> NextOperation {
        let (half, nth) = (self.half(), self.random.random_range(0..BLOBS_OF_A_CLIENT));
        let key = Key { table: Table::Blobs, half, index: self.client * BLOBS_OF_A_CLIENT + nth };
        if oracle.blobs.contains_key(&key) && self.random.random_bool(0.5) {
            return NextOperation::Read(key);
        }
        // Each order of magnitude is equally likely.
        let len = self.random.random_range(SMALLEST.ln()..LARGEST.ln()).exp();
        NextOperation::Store { key, seed: self.random.random(), len: len as usize }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn halves(mix: Mix, remote: f64) -> Vec<u8> {
        let mut workload = Workload::new(1, 1, 1, remote);
        let all = (0..50).flat_map(|_| match workload.next(mix, &Oracle::default()) {
            NextOperation::Read(key) | NextOperation::Store { key, .. } => vec![key.half],
            NextOperation::Steps(ops) | NextOperation::Run(ops) => ops.iter().map(Op::half).collect(),
        });
        all.collect()
    }

    #[test]
    fn no_row_or_every_row_is_remote_as_it_is_told() {
        for mix in [Mix::OneTupleRead, Mix::FourTupleRun, Mix::Blob] {
            assert!(halves(mix, 0.0).iter().all(|half| *half == 1), "{mix:?}");
            assert!(halves(mix, 1.0).iter().all(|half| *half == 0), "{mix:?}");
        }
        assert!(halves(Mix::TpcB, 1.0).chunks(4).all(|halves| halves == [0, 1, 1, 1]));
    }

    #[test]
    fn runs_name_no_tuple_twice_and_blobs_have_their_length() {
        let mut workload = Workload::new(2, 0, 0, 0.5);
        for _ in 0..2000 {
            let NextOperation::Steps(ops) = workload.next(Mix::FourTupleRun, &Oracle::default()) else {
                panic!()
            };
            let mut keys: Vec<_> = ops.iter().filter_map(Op::key).collect();
            keys.sort();
            keys.dedup();
            assert_eq!(keys.len(), 4);
            let NextOperation::Store { len, .. } = workload.next(Mix::Blob, &Oracle::default()) else {
                panic!()
            };
            assert!((9_999..=1_000_000).contains(&len), "{len}");
        }
    }
}
