//! The trace of a job: begun by every rank, gathered by rank 0.
//!
//! Each process writes a part ([`udeck_trace::Part`]). In the end every rank tells rank 0 that its part is
//! complete; ranks of other hosts also send their part. Rank 0 merges all parts into the job's file. It waits
//! for all ranks that are neither lost nor finished, at most until the deadline of its
//! [`crate::World::finish`]. Ranks of other hosts wait for rank 0 to read what they send.
//!
//! Clocks: the ranks of one host share a clock. A rank of another host asks rank 0 for the time, at the
//! beginning and at the end, and takes the answer with the shortest round trip.
//!
//! Work in this file is not recorded in the trace itself.

use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use udeck_boot::{Maker, family};
use udeck_trace::{Clock, ClockSample, Lane, MAX_BYTES, Opening, Part, VARIABLE, now, received_path};
use udeck_via::{Deadline, say};

use crate::connect::{LookupMode, connect};
use crate::error::{Error, INTERNAL, Result};
use crate::mailbox::Mailbox;
use crate::mailbox_options::MailboxOptions;
use crate::postable::WithTag;
use crate::postbox::Postbox;
use crate::protocol::Protocol;
use crate::received::Received;
use crate::stats::trace;
use crate::world_state::WorldState;

/// Number of round trips for a comparison of clocks; the shortest counts.
const ROUNDS: usize = 32;
/// Interval at which rank 0 checks which ranks have ended.
const EXIT_CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// Bytes of a part that are sent at once.
const PIECE: usize = 128 << 10;

/// Tags of messages: their kinds.
mod tag {
    /// Request for the time. Contains the time of asking, which the answer repeats behind the time.
    pub const ASK: u32 = 1;
    pub const ANSWER: u32 = 2;
    /// Result of comparing clocks: one sample.
    pub const COMPARED: u32 = 3;
    /// A piece of the sender's part.
    pub const PIECE: u32 = 4;
    /// The sender is done. Contains the rank that its part is named after, which several ranks of one process
    /// share, and whether the part is complete. It contains no path: rank 0 reads and removes only files that
    /// it names itself.
    pub const DONE: u32 = 5;
}

/// One rank's part in tracing its job.
pub(crate) struct TracingJob {
    path: PathBuf,
    part: Part,
    job: u64,
    /// Mailbox of rank 0, and of ranks on other hosts.
    inbox: Option<Mailbox<u8>>,
    /// Postbox to rank 0, at other ranks.
    to_first: Option<Postbox<u8>>,
    /// Rank 0's knowledge of the other ranks' clocks.
    clocks: BTreeMap<u32, Clock>,
    /// Parts of ranks of other hosts, as far as they have arrived.
    received: BTreeMap<u32, ReceivedPart>,
    /// Ranks that have reported that they are done.
    done: BTreeSet<u32>,
    /// Ranks whose parts are incomplete: there was no room.
    cut: BTreeSet<u32>,
}

impl TracingJob {
    /// Begins tracing, if a trace is wanted. Ranks of other hosts wait for rank 0, and rank 0 for them.
    pub fn begin(world: &Arc<WorldState>) -> Result<Option<Self>> {
        let Some(path) = world.config().trace.clone() else { return Ok(None) };
        // Made absolute, since the program may change its folder later.
        let path = std::path::absolute(&path).unwrap_or(path);
        let start = now();
        if !udeck_trace::install() {
            say!(
                "{VARIABLE} is set, but this program has a tracing subscriber without udeck::trace::layer(): add that, or the \
                 trace stays empty"
            );
        }
        let paused = udeck_trace::pause_recording();
        let welcome = world.client().welcome();
        let host = host_name(world, welcome.rank);
        let opening = Opening { path: path.clone(), rank: welcome.rank, job: welcome.job, host };
        if welcome.rank == 0 {
            udeck_trace::check_place(&path).map_err(|error| unwritable(&path, &error))?;
        }
        let part = Part::open(&opening).map_err(|error| unwritable(&path, &error))?;
        let (clocks, received) = (BTreeMap::new(), BTreeMap::new());
        let (cut, done) = (BTreeSet::new(), BTreeSet::new());
        let (inbox, to_first, job) = (None, None, welcome.job);
        let mut tracing = TracingJob { path, part, job, inbox, to_first, clocks, received, cut, done };
        let far: BTreeSet<u32> = (0..welcome.size).filter(|rank| !is_on_first_host(world, *rank)).collect();
        let deadline = Deadline::after(world.config().setup);
        if welcome.rank == 0 && welcome.size > 1 {
            tracing.inbox = Some(open_inbox(world)?);
            tracing.serve(world, far, tag::COMPARED, deadline)?;
        } else if far.contains(&welcome.rank) {
            tracing.inbox = Some(open_inbox(world)?);
            let sample = tracing.compare(world, deadline)?;
            tracing.first_postbox(world, deadline)?.post(sample.with_tag(tag::COMPARED))?;
        }
        drop(paused);
        trace::began(start, world.rank(), world.size());
        Ok(Some(tracing))
    }

    /// Ends this rank's part; at rank 0, the trace is complete afterwards. Errors are printed and not
    /// returned: they are no concern of the program.
    pub fn finish(mut self, world: &Arc<WorldState>, deadline: Deadline) {
        let _paused = udeck_trace::pause_recording();
        if let Err(error) = self.part.write() {
            say!("rank {}: its part of the trace ends early: {error}", world.rank());
            self.cut.insert(world.rank() as u32);
        }
        let result = match world.rank() {
            0 => self.gather(world, deadline),
            _ => self.submit_part(world, deadline),
        };
        if let Err(error) = result {
            say!("rank {}: the trace {} is not complete: {error}", world.rank(), self.path.display());
        }
    }

    // ---- other ranks ----

    fn first_postbox(&mut self, world: &Arc<WorldState>, deadline: Deadline) -> Result<&Postbox<u8>> {
        if self.to_first.is_none() {
            self.to_first = Some(postbox_of(world, 0, deadline)?);
        }
        self.to_first.as_ref().ok_or_else(|| Error::WouldBlock { what: "a postbox", whom: String::new() })
    }

    /// Compares this host's clock with rank 0's. Returns the encoded sample: three numbers.
    fn compare(&mut self, world: &Arc<WorldState>, deadline: Deadline) -> Result<[u8; 24]> {
        let mut best = ClockSample { at: 0, offset: 0, error: u64::MAX };
        for _ in 0..ROUNDS {
            let asked = now();
            self.first_postbox(world, deadline)?.post(asked.to_le_bytes().with_tag(tag::ASK))?;
            let Some(inbox) = &self.inbox else { break };
            let answer = loop {
                let answer = inbox.retrieve_timeout(deadline.remaining())?;
                if answer.tag() == tag::ANSWER && number(&answer, 1) == Some(asked) {
                    break number(&answer, 0).unwrap_or(0);
                }
            };
            let came = now();
            let (error, at) = ((came - asked).div_ceil(2), asked + (came - asked) / 2);
            if error < best.error {
                best = ClockSample { at, offset: answer.wrapping_sub(at) as i64, error };
            }
        }
        let mut sample = [0; 24];
        sample[..8].copy_from_slice(&best.at.to_le_bytes());
        sample[8..16].copy_from_slice(&best.offset.to_le_bytes());
        sample[16..].copy_from_slice(&best.error.to_le_bytes());
        Ok(sample)
    }

    /// Tells rank 0 where the part is, or sends it.
    fn submit_part(&mut self, world: &Arc<WorldState>, deadline: Deadline) -> Result {
        let part = self.part.path().to_owned();
        let [a, b, c, d] = self.part.rank().to_le_bytes();
        let last_word = [a, b, c, d, u8::from(self.cut.is_empty())];
        if is_on_first_host(world, world.rank() as u32) {
            // Rank 0 may read the part after this rank has gone.
            return Ok(self.first_postbox(world, deadline)?.post(last_word.with_tag(tag::DONE))?);
        }
        let sample = self.compare(world, deadline)?;
        let failed = |source| unwritable(&part, &udeck_trace::PartError { path: part.clone(), source });
        let to = self.first_postbox(world, deadline)?;
        to.post(sample.with_tag(tag::COMPARED))?;
        let mut file = udeck_trace::open_own(&part).map_err(failed)?;
        let mut piece = vec![0; PIECE];
        loop {
            let length = file.read(&mut piece).map_err(failed)?;
            if length == 0 {
                break;
            }
            to.post(piece[..length].with_tag(tag::PIECE))?;
        }
        to.post(last_word.with_tag(tag::DONE))?;
        to.flush_timeout(deadline.remaining())?;
        let _ = fs::remove_file(&part);
        Ok(())
    }

    // ---- rank 0 ----

    /// Waits until all ranks are done, and merges the parts.
    fn gather(&mut self, world: &Arc<WorldState>, deadline: Deadline) -> Result {
        let others = (1..world.size() as u32).collect();
        // Leaves time for merging.
        let left = deadline.remaining();
        let mut parts = self.serve(world, others, tag::DONE, Deadline::after(left - left / 4))?;
        parts.insert(0, self.part.path().to_owned());
        parts.extend(std::mem::take(&mut self.received).into_iter().map(|(rank, part)| (rank, part.path)));
        // Writes events that other threads recorded meanwhile.
        if self.part.write().is_err() {
            self.cut.insert(0);
        }
        self.done.insert(0);
        // Adds parts of ranks of this host that could not report theirs.
        for (rank, part) in udeck_trace::parts_beside(&self.path, self.job) {
            parts.entry(rank).or_insert(part);
        }
        let lanes: Vec<Lane> = (0..world.size() as u32)
            .map(|rank| Lane {
                rank,
                host: host_name(world, rank),
                part: parts.get(&rank).cloned(),
                clock: self.clocks.remove(&rank).unwrap_or_default(),
                is_complete: self.done.contains(&rank) && !self.cut.contains(&rank),
            })
            .collect();
        let merged = udeck_trace::merge(&self.path, &lanes, self.job, &|| !deadline.passed());
        let merged = merged.map_err(|error| {
            let parts: Vec<String> = parts.values().map(|part| part.display().to_string()).collect();
            say!("the trace stays in parts: {}", parts.join(" "));
            unwritable(&self.path, &error)
        })?;
        let merged_parts = parts.values().filter(|part| !merged.left_out.contains(part));
        merged_parts.for_each(|part| _ = fs::remove_file(part));
        if merged.dropped > 0 {
            say!(
                "the trace {} lacks {} events: a process writes {} at most",
                self.path.display(),
                merged.dropped,
                udeck_trace::MAX_EVENTS
            );
        }
        Ok(())
    }

    /// Answers other ranks until those in `awaited` have sent `last`, are lost or have finished. Returns the
    /// parts on this host.
    fn serve(
        &mut self,
        world: &Arc<WorldState>,
        mut awaited: BTreeSet<u32>,
        last: u32,
        deadline: Deadline,
    ) -> Result<BTreeMap<u32, PathBuf>> {
        let mut parts = BTreeMap::new();
        let Some(inbox) = self.inbox.take() else { return Ok(parts) };
        inbox.expect(0..world.size());
        let mut answers = BTreeMap::new();
        while !awaited.is_empty() {
            // Read before receiving: whatever a rank sent before its end is found.
            let log = world.exit_log();
            let ended: Vec<u32> = awaited
                .iter()
                .copied()
                .filter(|rank| log.has_finished(*rank) || log.how_lost(*rank).is_some())
                .collect();
            match inbox.retrieve_timeout(EXIT_CHECK_INTERVAL.min(deadline.remaining())) {
                Ok(message) => {
                    let rank = message.source() as u32;
                    self.take(world, &message, &mut answers, &mut parts, deadline)?;
                    if message.tag() == last {
                        awaited.remove(&rank);
                    }
                }
                Err(Error::Deadline { .. }) if deadline.passed() => break,
                Err(Error::Deadline { .. }) => awaited.retain(|rank| !ended.contains(rank)),
                Err(Error::PeerLost { rank, .. }) => _ = awaited.remove(&(rank as u32)),
                Err(Error::NobodyLeft { .. }) => break,
                Err(error) => return Err(error),
            }
        }
        self.inbox = Some(inbox);
        Ok(parts)
    }

    /// Writes a piece of the part of a rank of another host.
    fn keep_piece(&mut self, rank: u32, piece: &[u8]) -> io::Result<()> {
        let part = match self.received.entry(rank) {
            Entry::Occupied(part) => part.into_mut(),
            Entry::Vacant(place) => {
                place.insert(ReceivedPart::create(received_path(&self.path, self.job, rank))?)
            }
        };
        part.append(piece)
    }

    fn take(
        &mut self,
        world: &Arc<WorldState>,
        message: &Received<u8>,
        answers: &mut BTreeMap<u32, Postbox<u8>>,
        parts: &mut BTreeMap<u32, PathBuf>,
        deadline: Deadline,
    ) -> Result {
        let rank = message.source() as u32;
        match message.tag() {
            tag::ASK => {
                if let Entry::Vacant(place) = answers.entry(rank) {
                    place.insert(postbox_of(world, message.source(), deadline)?);
                }
                let mut answer = [0; 16];
                answer[8..].copy_from_slice(message.get(..8).unwrap_or(&[0; 8]));
                answer[..8].copy_from_slice(&now().to_le_bytes());
                Ok(answers[&rank].post(answer.with_tag(tag::ANSWER))?)
            }
            tag::COMPARED => {
                if let [Some(at), Some(offset), Some(error)] = [0, 1, 2].map(|nth| number(message, nth)) {
                    let sample = ClockSample { at, offset: offset as i64, error };
                    self.clocks.entry(rank).or_default().0.push(sample);
                }
                Ok(())
            }
            tag::PIECE if self.cut.contains(&rank) || is_on_first_host(world, rank) => Ok(()),
            tag::PIECE => {
                if let Err(error) = self.keep_piece(rank, message) {
                    let path = received_path(&self.path, self.job, rank);
                    say!(
                        "rank {rank}: its part of the trace ends early: writing {}: {error}",
                        path.display()
                    );
                    self.cut.insert(rank);
                }
                Ok(())
            }
            tag::DONE => {
                self.done.insert(rank);
                if message.last() != Some(&1) {
                    self.cut.insert(rank);
                }
                if let Some(part) = part_of(&self.path, self.job, message, |rank| {
                    (rank as usize) < world.size() && is_on_first_host(world, rank)
                })
                .filter(|_| is_on_first_host(world, rank))
                {
                    parts.insert(rank, part);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// The part of a rank of another host, as far as it has arrived.
struct ReceivedPart {
    path: PathBuf,
    file: udeck_trace::NewFile,
    bytes: u64,
}

impl ReceivedPart {
    fn create(path: PathBuf) -> io::Result<Self> {
        Ok(ReceivedPart { file: udeck_trace::create_private(&path)?, path, bytes: 0 })
    }

    /// Writes the next piece. No correct part is longer than [`MAX_BYTES`].
    fn append(&mut self, piece: &[u8]) -> io::Result<()> {
        let bytes = self.bytes + piece.len() as u64;
        if bytes > MAX_BYTES {
            return Err(io::Error::other(format!(
                "it is longer than the {MAX_BYTES} bytes that a part may have"
            )));
        }
        self.file.write_all(piece)?;
        self.bytes = bytes;
        Ok(())
    }
}

/// Path of the part that a rank's last message names.
fn part_of(path: &Path, job: u64, word: &[u8], is_beside: impl Fn(u32) -> bool) -> Option<PathBuf> {
    let (named, _) = word.split_at_checked(4).filter(|_| word.len() == 5)?;
    let named = u32::from_le_bytes(named.try_into().ok()?);
    is_beside(named).then(|| udeck_trace::part_path(path, job, named))
}

fn number(message: &[u8], nth: usize) -> Option<u64> {
    let bytes = message.get(nth * 8..nth * 8 + 8)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

/// The launcher's name of a rank's host.
fn host_name(world: &WorldState, rank: u32) -> String {
    let placement = &world.client().welcome().placement;
    let host = placement.host_of(rank).and_then(|host| placement.hosts().get(host));
    host.cloned().unwrap_or_else(|| "?".into())
}

/// Whether a rank runs on rank 0's host, and therefore shares its clock and its files.
fn is_on_first_host(world: &WorldState, rank: u32) -> bool {
    let placement = &world.client().welcome().placement;
    rank == 0 || (placement.host_of(0).is_some() && placement.host_of(rank) == placement.host_of(0))
}

fn name() -> String {
    format!("{INTERNAL}trace")
}

fn open_inbox(world: &Arc<WorldState>) -> Result<Mailbox<u8>> {
    Mailbox::create(world, family::member(&name(), world.rank()), &MailboxOptions::new())
}

fn postbox_of(world: &Arc<WorldState>, rank: usize, deadline: Deadline) -> Result<Postbox<u8>> {
    let registered = family::member(&name(), rank);
    let channel =
        connect::<u8>(world, &registered, LookupMode::Of(Maker::Rank(rank as u32)), None, deadline)?;
    let postbox = Postbox::new(world, &name(), channel);
    postbox.set_protocol(Protocol::Auto)?; // whatever the program sets for its own messages
    Ok(postbox)
}

fn unwritable(path: &Path, error: &udeck_trace::PartError) -> Error {
    Error::Config {
        variable: VARIABLE,
        value: path.display().to_string(),
        expected: format!("a file that can be written ({error})").into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_names_no_path_but_a_rank_of_this_host_whose_part_it_is() {
        let path = std::env::temp_dir().join("job.json");
        let part = |word: &[u8]| part_of(&path, 0xBEEF, word, |rank| rank < 4);
        assert_eq!(part(&[3, 0, 0, 0, 1]), Some(std::env::temp_dir().join("job.json.beef.rank-3.part")));
        for word in [&b"/etc/passwd"[..], b"/etc", b"", &[4, 0, 0, 0, 1], &[255; 5], &[3, 0, 0, 0]] {
            assert_eq!(part(word), None, "{word:?}");
        }
    }

    #[test]
    fn a_part_from_another_host_has_a_bound() {
        let path = std::env::temp_dir().join(format!("trace-bound-{}", std::process::id()));
        let _ = fs::remove_file(&path); // left by a failed run
        let mut part = ReceivedPart::create(path.clone()).unwrap();
        part.append(b"[\n").unwrap();
        part.bytes = MAX_BYTES - 1;
        part.append(b"x").unwrap();
        let error = part.append(b"y").unwrap_err();
        assert!(error.to_string().contains("longer"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"[\nx");
        fs::remove_file(&path).unwrap();
    }
}
