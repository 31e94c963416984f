//! A client's oracle: the changes that were acknowledged to it, which must therefore be in the tables. Changes of a row's value
//! are sums, so that the order of the clients' transactions does not matter, and every row's version and value are known exactly
//! when all transactions have ended.

use crate::client::{Answer, Call};
use crate::message::Op;
use crate::row::{Key, Row, Table, contents};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::ops::Deref;

/// The oracle of one client.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Oracle {
    /// Number of changes of each row, and their sum.
    pub rows: BTreeMap<Key, (u64, i64)>,
    /// Number of entries of each half's history, and their sum.
    pub history: [(u64, i64); 2],
    pub blobs: BTreeMap<Key, Stored>,
    /// Newest version of each row that an answer has shown.
    #[serde(skip)]
    seen: HashMap<Key, u64>,
}

/// Contents of a BLOB; only its client writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stored {
    pub version: u64,
    pub seed: u64,
    /// `None`: the BLOB is deleted.
    pub len: Option<u64>,
}

impl Oracle {
    /// Checks an answer, and records the changes that it acknowledges.
    pub fn note<B: Deref<Target = [u8]>>(
        &mut self,
        call: &Call<B>,
        answer: &Answer<B>,
    ) -> Result<(), String> {
        match call {
            Call::Read(key) => {
                let Some(row) = answer.rows.first() else { return Err("an answer without a row".to_owned()) };
                self.see(*key, row, false)?;
                if key.table == Table::Blobs {
                    self.check_blob(*key, row, answer.blob.as_deref())
                } else {
                    Ok(())
                }
            }
            Call::Steps(ops) => self.changed(ops, &answer.rows, None),
            Call::Run { ops, blob } => self.changed(ops, &answer.rows, blob.as_deref()),
        }
    }

    fn changed(&mut self, ops: &[Op], rows: &[Row], blob: Option<&[u8]>) -> Result<(), String> {
        for (op, row) in ops.iter().zip(rows) {
            match *op {
                Op::Add { key, delta } => {
                    self.see(key, row, true)?;
                    let (count, sum) = self.rows.entry(key).or_default();
                    (*count, *sum) = (*count + 1, sum.wrapping_add(delta));
                }
                Op::Create { key, seed } | Op::Store { key, seed } => {
                    self.see(key, row, true)?;
                    let len = Some(blob.map_or(0, <[u8]>::len) as u64);
                    self.blobs.insert(key, Stored { version: row.version, seed, len });
                }
                Op::Delete { key } => {
                    self.see(key, row, true)?;
                    self.blobs.insert(key, Stored { version: row.version, seed: 0, len: None });
                }
                Op::Insert { half, delta } => {
                    let (count, sum) = &mut self.history[usize::from(half & 1)];
                    (*count, *sum) = (*count + 1, sum.wrapping_add(delta));
                }
            }
        }
        Ok(())
    }

    /// Checks that a row's version never goes back, and grows when the row was changed.
    fn see(&mut self, key: Key, row: &Row, changed: bool) -> Result<(), String> {
        if !row.is_sound(key) {
            return Err(format!("{key:?} was answered with other bytes than were written: {row:?}"));
        }
        let seen = self.seen.entry(key).or_default();
        if row.version < *seen + u64::from(changed) {
            return Err(format!("{key:?} has version {} after version {seen} was acknowledged", row.version));
        }
        *seen = row.version;
        Ok(())
    }

    fn check_blob(&self, key: Key, row: &Row, blob: Option<&[u8]>) -> Result<(), String> {
        let Some(stored) = self.blobs.get(&key) else { return Ok(()) };
        let len = blob.map(|blob| blob.len() as u64);
        let sound = blob.is_none_or(|blob| contents::is_sound(stored.seed, blob));
        if (row.version, row.value as u64, len) == (stored.version, stored.seed, stored.len) && sound {
            return Ok(());
        }
        Err(format!("{key:?} was read with {len:?} bytes of version {}, not {stored:?}", row.version))
    }
}
