//! The timed operations, each in a loop of its own; only the operation itself is under the clock.

use std::time::{Duration, Instant};

use clap::ValueEnum;
use udeck::{
    ExternalBuf, Protocol,
    via::{Nic, Ptag, Region, mem::UserMemory},
};

use crate::{
    experiment::{
        Experiment, Timing,
        rank_pair::RankPair,
        rounds::{Contend, Results, Shape, Trial},
    },
    failure::{PerfError, Result},
};

/// Timed operation.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
#[value(rename_all = "snake_case")]
pub enum Operation {
    /// `Nic::register` of memory that the NIC has never seen.
    Register,
    /// `Region::into_buffer` of such memory.
    Deregister,
    /// `Nic::register_memory` of memory that the cache does not know.
    Miss,
    /// `Nic::register_memory` of memory that the cache knows.
    Hit,
    /// Round trip: a message in an `ExternalBuf` that is made for it, and a word back.
    PostRegistering,
    /// Round trip: a message in an `ExternalBuf` that was posted before, and a word back.
    PostCached,
    /// Round trip: a message in the library's own memory, and a word back.
    PostBuf,
}

impl Operation {
    fn is_post(self) -> bool {
        matches!(self, Operation::PostRegistering | Operation::PostCached | Operation::PostBuf)
    }
}

impl Contend for Operation {
    fn counted(&self, _: u64) -> u64 {
        1
    }
}

/// Contenders: every operation at every size.
pub fn contenders(sizes: &[usize]) -> Results<Operation> {
    let cells = sizes
        .iter()
        .flat_map(|&size| Operation::value_variants().iter().map(move |&operation| (operation, size)));
    // The machine's limits serve only to judge noise: copies of these sizes would take most of the time.
    Results::empty(sizes, cells)
}

/// One rank's part; rank 0 performs the operations.
pub struct Registrar<'l, 'w> {
    pair: &'l RankPair<'w>,
    /// The program's own memory, written once, so that no operation pays for fresh pages.
    memory: Vec<u8>,
}

impl<'l, 'w> Registrar<'l, 'w> {
    /// Makes the registrar.
    pub fn new(pair: &'l RankPair<'w>) -> Self {
        Self { pair, memory: Vec::new() }
    }

    /// Takes memory of `size` bytes; [`give`](Self::give) returns it.
    fn take(&mut self, size: usize) -> Vec<u8> {
        let mut memory = std::mem::take(&mut self.memory);
        if memory.len() != size {
            memory = vec![1; size];
        }
        memory
    }

    fn give(&mut self, memory: Vec<u8>) {
        self.memory = memory;
    }

    /// Times a batch with memory of this size, which `turn` registers and gets back.
    fn with_memory(
        &mut self,
        trial: &Trial<Operation>,
        mut turn: impl FnMut(&Nic, Ptag, &mut Vec<u8>) -> Result<Duration>,
    ) -> Result<Timing> {
        let nic = self.pair.world().nic();
        let ptag = nic.ptag();
        let mut memory = self.take(trial.size);
        let timed = timed(trial.shape, || turn(nic, ptag, &mut memory))?;
        nic.destroy_ptag(ptag)?;
        self.give(memory);
        Ok(timed)
    }

    fn register(&mut self, trial: &Trial<Operation>) -> Result<Timing> {
        self.with_memory(trial, |nic, ptag, memory| {
            let started = Instant::now();
            let region = nic.register(std::mem::take(memory), ptag).map_err(|(error, _)| error)?;
            let registered = started.elapsed();
            let started = Instant::now();
            *memory = region.into_buffer().map_err(not_ours)?;
            Ok(if trial.contender == Operation::Register { registered } else { started.elapsed() })
        })
    }

    fn miss(&mut self, trial: &Trial<Operation>) -> Result<Timing> {
        self.with_memory(trial, |nic, ptag, memory| {
            // A new `UserMemory` has a new identity, which the cache does not know.
            let unknown = UserMemory::new(std::mem::take(memory));
            let started = Instant::now();
            let region = nic.register_memory(unknown, ptag).map_err(|(error, _)| error)?;
            let elapsed = started.elapsed();
            *memory = region.into_buffer().map_err(not_ours)?;
            Ok(elapsed)
        })
    }

    fn hit(&mut self, trial: &Trial<Operation>) -> Result<Timing> {
        let nic = self.pair.world().nic();
        let ptag = nic.ptag();
        let register = |memory| nic.register_memory(memory, ptag).map_err(|(error, _)| error);
        let back = |region: Region| region.into_memory::<Vec<u8>>().map_err(not_ours);
        let mut known = Some(back(register(UserMemory::new(self.take(trial.size)))?)?);
        let hits = nic.registrations().hits;
        let timed = timed(trial.shape, || {
            let memory =
                known.take().ok_or_else(|| PerfError::Internal("registered memory is missing".into()))?;
            let started = Instant::now();
            let region = register(memory)?;
            let elapsed = started.elapsed();
            known = Some(back(region)?);
            Ok(elapsed)
        })?;
        let turns = trial.shape.warm_up + trial.shape.iterations;
        if nic.registrations().hits - hits < turns {
            return Err(PerfError::Internal("memory that was registered is not in the cache".into()));
        }
        self.give(known.map(UserMemory::into_inner).unwrap_or_default());
        nic.destroy_ptag(ptag)?;
        Ok(timed)
    }

    fn post(&mut self, trial: &Trial<Operation>) -> Result<Timing> {
        let pair = self.pair;
        let &Trial { contender: operation, size, shape } = trial;
        let outlet = pair.outlet(Protocol::Auto)?;
        let mut memory = if operation == Operation::PostBuf { Vec::new() } else { self.take(size) };
        let mut kept =
            (operation == Operation::PostCached).then(|| ExternalBuf::new(std::mem::take(&mut memory)));
        let not_returned = || PerfError::Internal("a posted buffer was not returned".into());
        let timed = timed(shape, || {
            let started = Instant::now();
            match operation {
                Operation::PostBuf => outlet.post(pair.world().buf_reused::<u8>(size)?)?,
                Operation::PostCached => {
                    let buffer = kept.take().ok_or_else(not_returned)?;
                    outlet.post(buffer)?;
                    kept = outlet.take_returned();
                }
                _ => {
                    outlet.post(ExternalBuf::new(std::mem::take(&mut memory)))?;
                    let back = outlet.take_returned();
                    memory = back.ok_or_else(not_returned)?.into_inner();
                }
            }
            pair.await_acknowledgement()?;
            Ok(started.elapsed())
        })?;
        if let Some(buffer) = kept {
            memory = buffer.into_inner();
        }
        match operation {
            Operation::PostBuf => {}
            _ if memory.len() == size => self.give(memory),
            _ => return Err(not_returned()),
        }
        Ok(timed)
    }

    /// Runs rank 1's part: takes the messages of rank 0, and answers each.
    fn answer(&self, trial: &Trial<Operation>) -> Result<Timing> {
        for _ in 0..trial.shape.warm_up + trial.shape.iterations {
            let message = self.pair.inbox().retrieve()?;
            self.pair.check_length(Protocol::Auto, trial.size, message.len())?;
            drop(message);
            self.pair.acknowledge()?;
        }
        Ok(Timing::default())
    }
}

fn not_ours(_: Region) -> PerfError {
    PerfError::Internal("a region is not of the memory that was registered".into())
}

/// Times a batch; `turn` returns the operation's own time. The work around the operation does not count.
fn timed(shape: Shape, mut turn: impl FnMut() -> Result<Duration>) -> Result<Timing> {
    for _ in 0..shape.warm_up {
        turn()?;
    }
    let started = Instant::now();
    let mut elapsed = Duration::ZERO;
    for _ in 0..shape.iterations {
        elapsed += turn()?;
    }
    let lasted = started.elapsed();
    Ok(Timing { lasted, rested: lasted.saturating_sub(elapsed) })
}

impl Experiment for Registrar<'_, '_> {
    type Contender = Operation;

    /// Copies limit nothing here; the hand-over of a line serves the verdict on noise.
    const COPIES: bool = false;

    fn followers(&self, trial: &Trial<Operation>) -> Vec<usize> {
        if trial.contender.is_post() { vec![1] } else { Vec::new() }
    }

    fn perform(&mut self, trial: &Trial<Operation>) -> Result<Timing> {
        match trial.contender {
            _ if !self.pair.leads() => self.answer(trial),
            Operation::Register | Operation::Deregister => self.register(trial),
            Operation::Miss => self.miss(trial),
            Operation::Hit => self.hit(trial),
            Operation::PostRegistering | Operation::PostCached | Operation::PostBuf => self.post(trial),
        }
    }
}
