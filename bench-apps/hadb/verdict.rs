//! The verdict of a run: the tables of all living servers, compared with each other and with the clients'
//! oracles.

use crate::oracle::Oracle;
use crate::row::{Key, Table, contents};
use crate::table::Tables;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;

/// Largest number of findings that are shown one by one.
const SHOWN: usize = 10;

/// Contents of a server's tables.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Dump {
    /// Version and value of every row that was changed.
    pub rows: BTreeMap<Key, (u64, i64)>,
    /// Rows and BLOBs whose bytes do not follow from version and value.
    pub unsound: Vec<Key>,
    /// Lengths of the BLOBs in bytes.
    pub blobs: BTreeMap<Key, u64>,
    /// Number of entries of each half's history, and their sum.
    pub history: [(u64, i64); 2],
}

impl Dump {
    pub fn of<B: Clone + Deref<Target = [u8]>>(tables: &Tables<B>) -> Dump {
        let mut dump = Dump { history: [0, 1].map(|half| tables.history(half)), ..Dump::default() };
        for (key, row) in tables.changed() {
            dump.rows.insert(key, (row.version, row.value));
            let blob = tables.blob(key);
            if let Some(blob) = blob {
                dump.blobs.insert(key, blob.len() as u64);
            }
            let whole = blob.is_none_or(|blob| contents::is_sound(row.value as u64, blob));
            if !row.is_sound(key) || !whole {
                dump.unsound.push(key);
            }
        }
        dump
    }

    fn sum(&self, table: Table) -> i64 {
        let rows = self.rows.iter().filter(|(key, _)| key.table == table);
        rows.fold(0, |sum, (_, (_, value))| sum.wrapping_add(*value))
    }
}

/// Extent of the comparison, and its findings.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Verdict {
    /// Number of rows and BLOBs that were compared, on each server.
    pub rows: usize,
    pub servers: Vec<usize>,
    /// Number of acknowledged changes of rows.
    pub changes: u64,
    pub findings: Vec<String>,
}

impl Verdict {
    /// Compares the clients' oracles with the tables of each living server (given with its rank).
    pub fn of(oracles: &[Oracle], dumps: &[(usize, Dump)]) -> Verdict {
        let expected = expected(oracles);
        let mut verdict = Verdict {
            rows: expected.rows.len(),
            servers: dumps.iter().map(|(server, _)| *server).collect(),
            changes: expected.rows.values().map(|(version, _)| version).sum(),
            findings: Vec::new(),
        };
        for (server, dump) in dumps {
            verdict.compare(*server, dump, &expected);
        }
        if let [(first, one), (second, other)] = dumps
            && one != other
        {
            verdict.findings.push(format!("servers {first} and {second} differ: primary and standby"));
        }
        if dumps.is_empty() {
            verdict.findings.push("no server is left whose tables could be looked at".to_owned());
        }
        verdict
    }

    fn compare(&mut self, server: usize, dump: &Dump, expected: &Dump) {
        let mut found: Vec<String> =
            dump.unsound.iter().map(|key| format!("{key:?} has other bytes than were written")).collect();
        let keys: BTreeSet<&Key> = dump.rows.keys().chain(expected.rows.keys()).collect();
        for key in keys {
            let [is, due] = [dump, expected].map(|one| one.rows.get(key).copied().unwrap_or_default());
            if is != due {
                let what = if is.0 < due.0 { "lost" } else { "doubled, or damaged" };
                found
                    .push(format!("{key:?} has version and value {is:?}, acknowledged were {due:?}: {what}"));
            }
        }
        if dump.blobs != expected.blobs {
            found.push("BLOBs have other lengths than were acknowledged".to_owned());
        }
        if dump.history != expected.history {
            let (is, due) = (dump.history, expected.history);
            found.push(format!("the histories have {is:?} entries and sums, acknowledged were {due:?}"));
        }
        let [accounts, tellers, branches] =
            [Table::Accounts, Table::Tellers, Table::Branches].map(|table| dump.sum(table));
        let history = dump.history[0].1.wrapping_add(dump.history[1].1);
        if [tellers, branches, history] != [accounts; 3] {
            let sums = format!("{accounts}, {tellers}, {branches} and {history}");
            found.push(format!(
                "accounts, tellers, branches and history add up to {sums}, which should be equal"
            ));
        }
        let more = found.len().saturating_sub(SHOWN);
        found.truncate(SHOWN);
        if more > 0 {
            found.push(format!("and {more} more"));
        }
        self.findings.extend(found.into_iter().map(|what| format!("server {server}: {what}")));
    }
}

/// Tables that follow from the clients' transactions.
fn expected(oracles: &[Oracle]) -> Dump {
    let mut dump = Dump::default();
    for oracle in oracles {
        for (key, (count, sum)) in &oracle.rows {
            let row = dump.rows.entry(*key).or_default();
            *row = (row.0 + count, row.1.wrapping_add(*sum));
        }
        for (key, stored) in &oracle.blobs {
            dump.rows.insert(*key, (stored.version, stored.seed as i64));
            if let Some(len) = stored.len {
                dump.blobs.insert(*key, len);
            }
        }
        for (all, own) in dump.history.iter_mut().zip(oracle.history) {
            *all = (all.0 + own.0, all.1.wrapping_add(own.1));
        }
    }
    dump
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::Stored;

    const TUPLE: Key = Key { table: Table::Tuples, half: 0, index: 3 };
    type Damage = (fn(&mut Dump), &'static str);

    const BLOB: Key = Key { table: Table::Blobs, half: 1, index: 0 };

    fn oracle() -> Oracle {
        let mut oracle = Oracle::default();
        oracle.rows.insert(TUPLE, (2, 30));
        oracle.blobs.insert(BLOB, Stored { version: 1, seed: 5, len: Some(100) });
        oracle.history[1] = (1, 0);
        oracle
    }

    /// Tables that two such clients produce, with the BLOB of one.
    fn dump() -> Dump {
        let rows = BTreeMap::from([(TUPLE, (4, 60)), (BLOB, (1, 5))]);
        let blobs = BTreeMap::from([(BLOB, 100)]);
        Dump { rows, unsound: Vec::new(), blobs, history: [(0, 0), (2, 0)] }
    }

    fn findings(change: impl Fn(&mut Dump)) -> String {
        let mut other = dump();
        change(&mut other);
        let found = Verdict::of(&[oracle(), oracle()], &[(0, dump()), (1, other)]).findings;
        assert!(found.iter().all(|what| !what.starts_with("server 0:")), "{found:?}");
        found.join("\n")
    }

    #[test]
    fn every_kind_of_damage_is_found() {
        assert_eq!(findings(|_| {}), "");
        let kinds: [Damage; 7] = [
            (|dump| _ = dump.rows.insert(TUPLE, (3, 45)), "lost"),
            (|dump| _ = dump.rows.insert(TUPLE, (5, 75)), "doubled"),
            (|dump| _ = dump.rows.remove(&TUPLE), "lost"),
            (|dump| dump.unsound.push(TUPLE), "other bytes"),
            (|dump| _ = dump.blobs.insert(BLOB, 99), "other lengths"),
            (|dump| dump.history[0] = (1, 0), "histories"),
            (
                |dump| _ = dump.rows.insert(Key { table: Table::Tellers, ..TUPLE }, (1, 9)),
                "add up to 0, 9, 0 and 0",
            ),
        ];
        for (change, what) in kinds {
            let found = findings(change);
            assert!(found.contains(what) && found.contains("primary and standby"), "{what}: {found}");
        }
        assert!(!Verdict::of(&[oracle()], &[]).findings.is_empty(), "nothing to look at");
    }
}
