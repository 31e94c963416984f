//! One of µDECK's ranks in a group: the same collective operations as those of `collectives.h`, loop for loop.
//!
//! A block is checked in every turn. With the payload written+read, every word is written before and read after. With an
//! untouched payload, only the first and the last word are, except in the first turn of a batch, which is not timed: there it is
//! every word, too.

use std::time::{Duration, Instant};

use udeck::{Group, World, op};

use super::request::{Method, PeerTest, Request};
use crate::{
    experiment::{payload, plan::Payload},
    failure::{PerfError, Result},
    named::Named,
};

const WORD: usize = size_of::<u64>();

/// A rank with its send and receive memory, which it keeps from batch to batch.
pub struct Member<'w> {
    world: &'w World,
    group: &'w Group,
    numbers: Vec<f64>,
    out: Vec<u8>,
    incoming: Vec<u8>,
}

impl<'w> Member<'w> {
    /// Joins the group of all ranks. Blocks until all of them are here.
    pub fn join(world: &'w World) -> Result<Self> {
        let group = world.all()?;
        group.barrier()?;
        Ok(Self { world, group, numbers: Vec::new(), out: Vec::new(), incoming: Vec::new() })
    }

    /// Times a batch from one barrier to another, because one rank may be done long before others. A barrier waits for all
    /// ranks by itself.
    pub fn time(&mut self, request: &Request) -> Result<Duration> {
        let is_fenced = request.test != PeerTest::Barrier;
        self.group.barrier()?; // all ranks are awake
        for turn in 0..request.warm_up {
            self.turn(request, turn)?;
        }
        if is_fenced {
            self.group.barrier()?;
        }
        let started = Instant::now();
        for turn in request.warm_up..request.warm_up + request.iterations {
            self.turn(request, turn)?;
        }
        if is_fenced {
            self.group.barrier()?;
        }
        let elapsed = started.elapsed();
        if !is_fenced {
            self.group.barrier()?; // nobody leaves the library while another is in it
        }
        Ok(elapsed)
    }

    #[inline]
    fn turn(&mut self, request: &Request, turn: u64) -> Result {
        match (request.test, request.way) {
            (PeerTest::Barrier, Method::Group) => Ok(self.group.barrier()?),
            (PeerTest::AllReduce, Method::Group) => self.all_reduce(request, turn),
            (PeerTest::Broadcast, Method::Group) => self.broadcast(request, turn),
            (PeerTest::Broadcast, Method::GroupBuf) => self.broadcast_buf(request, turn),
            (PeerTest::AllToAll, Method::Group) => self.all_to_all(request, turn),
            (PeerTest::AllToAll, Method::GroupBuf) => self.all_to_all_buf(request, turn),
            (test, way) => {
                Err(PerfError::BadOrder(format!("groups have no {} by the method {way}", test.name())))
            }
        }
    }

    /// Reduces small integers, whose sums are exact in whatever order they are added. The numbers between the first and the
    /// last stay zero.
    fn all_reduce(&mut self, request: &Request, turn: u64) -> Result {
        let (rank, ranks) = (self.group.rank() as u64, self.group.size() as u64);
        let count = request.bytes / WORD;
        self.numbers.resize(count, 0.0);
        let step = if is_whole(request, turn) { 1 } else { (count - 1).max(1) };
        for index in (0..count).step_by(step) {
            self.numbers[index] = (turn + index as u64 + rank) as f64;
        }
        self.group.all_reduce(&mut self.numbers[..], op::Sum)?;
        let pairs = (ranks * (ranks - 1) / 2) as f64;
        for index in (0..count).step_by(step) {
            let (wanted, got) = ((turn + index as u64) as f64 * ranks as f64 + pairs, self.numbers[index]);
            if got != wanted {
                return Err(PerfError::WrongNumber { index, wanted, got });
            }
        }
        if turn == 0 {
            self.numbers.fill(0.0);
        }
        Ok(())
    }

    fn broadcast(&mut self, request: &Request, turn: u64) -> Result {
        let root = self.root(turn);
        self.out.resize(request.bytes, 1);
        if self.group.rank() == root {
            fill(request, turn, &mut self.out, turn);
        }
        self.group.broadcast(root, &mut self.out[..])?;
        if self.group.rank() == root { Ok(()) } else { check(request, turn, &self.out, turn) }
    }

    fn broadcast_buf(&mut self, request: &Request, turn: u64) -> Result {
        let root = self.root(turn);
        let leads = self.group.rank() == root;
        let mut block = None;
        if leads {
            let mut buf = self.world.buf_reused::<u8>(request.bytes)?;
            fill(request, turn, &mut buf, turn);
            block = Some(buf);
        }
        let block = self.group.broadcast_buf::<u8>(root, block)?;
        if leads { Ok(()) } else { check(request, turn, &block, turn) }
    }

    fn all_to_all(&mut self, request: &Request, turn: u64) -> Result {
        let all = request.bytes * self.group.size();
        self.out.resize(all, 1);
        self.incoming.resize(all, 2);
        for (to, block) in self.out.chunks_exact_mut(request.bytes).enumerate() {
            let seed = seed(self.group, turn, self.group.rank(), to);
            fill(request, turn, block, seed);
        }
        self.group.all_to_all(&self.out[..], &mut self.incoming[..])?;
        for (from, block) in self.incoming.chunks_exact(request.bytes).enumerate() {
            check(request, turn, block, seed(self.group, turn, from, self.group.rank()))?;
        }
        Ok(())
    }

    fn all_to_all_buf(&mut self, request: &Request, turn: u64) -> Result {
        let mut out = Vec::with_capacity(self.group.size());
        for to in 0..self.group.size() {
            let mut block = self.world.buf_reused::<u8>(request.bytes)?;
            fill(request, turn, &mut block, seed(self.group, turn, self.group.rank(), to));
            out.push(block);
        }
        let incoming = self.group.all_to_all_buf::<u8>(out)?;
        for (from, block) in incoming.iter().enumerate() {
            check(request, turn, block, seed(self.group, turn, from, self.group.rank()))?;
        }
        Ok(())
    }

    /// Root of a turn. Ranks take turns, because a root that is always the same runs ahead of the others.
    fn root(&self, turn: u64) -> usize {
        (turn % self.group.size() as u64) as usize
    }
}

/// Seed of a block, which differs from that of any other block of these turns.
fn seed(group: &Group, turn: u64, from: usize, to: usize) -> u64 {
    (turn * group.size() as u64 + from as u64) * group.size() as u64 + to as u64
}

fn is_whole(request: &Request, turn: u64) -> bool {
    request.payload == Payload::WrittenRead || turn == 0
}

/// Fills a block; the first and the last word are those that [`payload::write`] would write there.
fn fill(request: &Request, turn: u64, data: &mut [u8], seed: u64) {
    if is_whole(request, turn) {
        return payload::write(data, seed);
    }
    let last = data.len() - WORD;
    data[..WORD].copy_from_slice(&seed.to_ne_bytes());
    data[last..].copy_from_slice(&(seed + (last / WORD) as u64).to_ne_bytes());
}

fn check(request: &Request, turn: u64, data: &[u8], seed: u64) -> Result {
    let (wanted, got) = if is_whole(request, turn) {
        (payload::expected_sum(request.bytes, seed), payload::sum(data))
    } else {
        let word = |at: usize| data.get(at..at + WORD).map_or(0, payload::sum);
        let last = request.bytes - WORD;
        (2 * seed + (last / WORD) as u64, word(0) + word(last))
    };
    if got == wanted && data.len() == request.bytes {
        return Ok(());
    }
    Err(PerfError::WrongBlock { operation: request.test.name(), size: request.bytes, wanted, got })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(test: PeerTest, way: Method, payload: Payload, bytes: usize) -> Request {
        Request { test, payload, bytes, warm_up: 1, iterations: 4, way }
    }

    #[test]
    fn every_operation_finds_what_it_expects() {
        udeck::run_local(3, |world| {
            let run = || -> Result {
                let mut member = Member::join(&world)?;
                for payload in [Payload::Untouched, Payload::WrittenRead] {
                    for (test, way) in [
                        (PeerTest::Barrier, Method::Group),
                        (PeerTest::AllReduce, Method::Group),
                        (PeerTest::Broadcast, Method::Group),
                        (PeerTest::Broadcast, Method::GroupBuf),
                        (PeerTest::AllToAll, Method::Group),
                        (PeerTest::AllToAll, Method::GroupBuf),
                    ] {
                        for bytes in [8, 40_000] {
                            member.time(&request(test, way, payload, bytes))?;
                        }
                    }
                }
                let odd = request(PeerTest::Stream, Method::Group, Payload::Untouched, 8);
                assert!(matches!(member.time(&odd), Err(PerfError::BadOrder(_))));
                Ok(())
            };
            run().expect("three ranks agree");
            world.finish()
        })
        .expect("three ranks");
    }

    #[test]
    fn a_wrong_word_is_found_wherever_it_is_looked_for() {
        let bytes = 4096;
        let request = |payload| request(PeerTest::Broadcast, Method::Group, payload, bytes);
        for (payload, turn, seen) in [
            (Payload::WrittenRead, 3, &[0, 2000, 4095][..]),
            (Payload::Untouched, 0, &[0, 2000, 4095][..]),
            (Payload::Untouched, 3, &[0, 4095][..]),
        ] {
            let (request, mut data) = (request(payload), vec![0; bytes]);
            fill(&request, turn, &mut data, 77);
            assert!(check(&request, turn, &data, 77).is_ok());
            assert!(check(&request, turn, &data[..bytes - 8], 77).is_err(), "too short");
            for &at in seen {
                data[at] ^= 1;
                assert!(check(&request, turn, &data, 77).is_err(), "byte {at}, {payload:?}");
                data[at] ^= 1;
            }
        }
    }
}
