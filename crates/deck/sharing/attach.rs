//! Making shared objects, and attaching to them: collective among the ranks that share them.
//!
//! The lowest rank makes the memory, the others ask it for the descriptor (`udeck_via::segments`). The call
//! returns when all have it: a barrier in the memory itself. Hence nobody can be late, and the maker may end
//! when it likes.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use udeck_boot::waits::{Call, Wait};
use udeck_boot::{BootError, Maker, client::SEGMENTS};
use udeck_via::segments::{FetchError, MAX_REQUESTS, Purpose, Shape, SharedMemory, SharedUse, fetch};
use udeck_via::{Deadline, Error as ViaError};

use super::wait::how_ended;
use super::{BarrierState, Shared};
use crate::error::{Error, INTERNAL, Result, check_process};
use crate::exits::check::{Verdict, check_exit};
use crate::long_wait::{LongWait, asking};
use crate::world::{World, check_name};
use crate::world_state::WorldState;

/// Interval after which a call that found no place at the maker asks again.
const PLACE_PAUSE: Duration = Duration::from_millis(20);

/// Description of an object to be shared.
pub(crate) struct Wanted<'a> {
    pub name: &'a str,
    pub purpose: Purpose,
    /// Name of the elements' type.
    pub kind: &'static str,
    pub size: usize,
    pub len: usize,
}

impl Wanted<'_> {
    /// Name of the object in errors.
    pub fn title(&self) -> String {
        let noun = if self.purpose == Purpose::Semaphore { "semaphore" } else { "shared segment" };
        format!("{noun} {:?}", self.name)
    }

    fn shape(&self, members: &[usize], round: u64) -> Shape {
        Shape {
            name: self.name.to_owned(),
            round,
            purpose: self.purpose,
            kind: self.kind.to_owned(),
            size: self.size as u32,
            len: self.len as u64,
            members: members.iter().map(|rank| *rank as u32).collect(),
        }
    }

    fn usage(&self) -> SharedUse {
        if self.purpose == Purpose::Elements { SharedUse::Elements } else { SharedUse::Locked }
    }

    fn bytes(&self) -> usize {
        if self.purpose == Purpose::Semaphore { 0 } else { self.len.saturating_mul(self.size) }
    }
}

/// Shares an object among these ranks, which were checked. `prepare` writes to the memory at the maker,
/// before any other rank has it.
pub(crate) fn share(
    world: &Arc<WorldState>,
    ranks: Vec<usize>,
    wanted: &Wanted<'_>,
    prepare: impl FnOnce(&SharedMemory) -> Result,
) -> Result<Shared> {
    check_process()?;
    check_name(wanted.name)?;
    let round = world.sharing().next_round(wanted.name);
    let shape = wanted.shape(&ranks, round);
    let me =
        ranks.iter().position(|rank| *rank == world.rank()).expect("checked: this rank is a member") as u32;
    let (members, what) = (ranks.len() as u32, wanted.title());
    let memory = if me == 0 {
        make(world, wanted, shape, members, prepare)?
    } else {
        let attempt = Attempt { world, what: &what, maker: ranks[0] as u32, name: wanted.name };
        let passed = attempt.fetch(&shape)?;
        SharedMemory::attach(passed, wanted.usage(), members, me, wanted.bytes())
            .map_err(|source| os(&what, source))?
    };
    let barrier = Mutex::new(BarrierState { number: 1, is_waiting: false });
    let name = wanted.name.to_owned();
    let shared = Shared { world: world.clone(), memory, name, what, ranks, barrier };
    let all_have_it = shared.barrier(shared.deadline());
    if me == 0 {
        world.sharing().withdraw(wanted.name, round);
    }
    all_have_it?;
    world.sharing().end_round(wanted.name, round);
    Ok(shared)
}

fn make(
    world: &Arc<WorldState>,
    wanted: &Wanted<'_>,
    shape: Shape,
    members: u32,
    prepare: impl FnOnce(&SharedMemory) -> Result,
) -> Result<SharedMemory> {
    let what = wanted.title();
    let (fd, memory) = SharedMemory::create(wanted.usage(), members, 0, wanted.bytes())
        .map_err(|source| os(&what, source))?;
    prepare(&memory)?;
    if members > 1 {
        let make_known = |address: &[u8]| {
            let deadline = Deadline::after(world.config().setup);
            let known =
                world.client().register(&service_of(world.rank() as u32), address, deadline.instant());
            known.map_err(|error| OfferError(error.into()))
        };
        let offered = world.sharing().offer(world.client(), shape, fd, make_known);
        offered.map_err(|OfferError(error)| error)?;
    }
    Ok(memory)
}

/// An error of either kind, returned through [`crate::sharing::service::Sharing::offer`].
struct OfferError(Error);

impl From<io::Error> for OfferError {
    fn from(source: io::Error) -> Self {
        OfferError(os("offering shared memory", source))
    }
}

/// The attempt of a rank that is not the maker to attach to an object.
struct Attempt<'a> {
    world: &'a Arc<WorldState>,
    what: &'a str,
    maker: u32,
    name: &'a str,
}

impl Attempt<'_> {
    fn fetch(&self, shape: &Shape) -> Result<udeck_via::segments::PassedFd> {
        let (world, deadline) = (self.world, Deadline::after(self.world.config().deadline));
        let address = self.address(deadline)?;
        let pair = world.client().keys().call(Some(self.maker));
        let pair = pair.map_err(|why| self.broken(why.to_string()))?;
        let (start, mut known) = (Deadline::now(), LongWait::begin("a segment"));
        let mut check = || {
            known.publish_if_long(world, 0, || self.awaits());
            known.check_interrupt(world)?;
            if let Some(how) = world.exit_log().how_lost(self.maker) {
                return Err(Error::PeerLost { rank: self.maker as usize, how });
            }
            if world.exit_log().has_finished(self.maker) { Err(self.finished()) } else { Ok(()) }
        };
        let fetched = loop {
            let go_on = || {
                check()?;
                if deadline.passed() { Err(self.too_late(start.since())) } else { Ok(()) }
            };
            match fetch(&address, pair.clone(), shape, go_on) {
                Err(FetchError::Busy) if !deadline.passed() => {
                    check()?;
                    std::thread::sleep(PLACE_PAUSE.min(deadline.remaining()));
                }
                fetched => break fetched,
            }
        };
        fetched.map_err(|error| match error {
            FetchError::Stopped(error) => error,
            FetchError::Refused(theirs) => {
                Error::SegmentMismatch { rank: self.maker as usize, theirs, ours: shape.to_string() }
            }
            FetchError::Busy => self.no_place(start.since()),
            FetchError::Gone => self.gone(),
            FetchError::NotTheMaker(why) => self.broken(why),
            FetchError::Os(source) => os(self.what, source),
        })
    }

    /// Address at which the maker serves its segments.
    fn address(&self, deadline: Deadline) -> Result<Vec<u8>> {
        let start = Deadline::now();
        asking(self.world, |asked| {
            let (name, maker) = (service_of(self.maker), Maker::Rank(self.maker));
            match self.world.client().lookup_of(&name, maker, deadline.instant(), Some(&asked)) {
                Ok(record) if record.owner == self.maker => Ok(record.value),
                Ok(record) => Err(self.broken(format!("rank {} has its name", record.owner))),
                Err(BootError::NoSuchName { .. }) => Err(self.too_late(start.since())),
                Err(BootError::PeerDone { .. } | BootError::NobodyLeft { .. }) => Err(self.finished()),
                Err(error) => Err(error.into()),
            }
        })
    }

    fn awaits(&self) -> Wait {
        Wait { call: Call::Share, name: self.name.to_owned(), ranks: vec![self.maker], open: false }
    }

    fn too_late(&self, waited: Duration) -> Error {
        let whom = format!("rank {}, which makes it and has not done so yet", self.maker);
        Error::Deadline { what: self.what.to_owned(), waited, whom }
    }

    /// The error if other calls of this rank have all places at the maker.
    fn no_place(&self, waited: Duration) -> Error {
        let whom = format!(
            "a place at rank {}, which makes it: {MAX_REQUESTS} calls of this rank already wait for objects made by that rank, the most \
             that may; share from fewer threads at a time",
            self.maker
        );
        Error::Deadline { what: self.what.to_owned(), waited, whom }
    }

    fn finished(&self) -> Error {
        Error::PeerLost {
            rank: self.maker as usize,
            how: format!("it finished without making {}", self.what),
        }
    }

    /// The error if the maker does not listen any more.
    fn gone(&self) -> Error {
        let how = "it has closed its socket".to_owned();
        match check_exit(self.maker, how, self.world, Deadline::after(crate::exits::check::MAX_WAIT)) {
            Verdict::Finished => self.finished(),
            _ => Error::PeerLost { rank: self.maker as usize, how: how_ended(self.world, self.maker) },
        }
    }

    fn broken(&self, why: String) -> Error {
        Error::via(format!("asking rank {} for {}", self.maker, self.what), ViaError::rejected(why))
    }
}

fn os(what: &str, source: io::Error) -> Error {
    Error::via(what, ViaError::os("sharing memory", source))
}

/// Name under which a rank publishes the address of its segments.
fn service_of(rank: u32) -> String {
    format!("{INTERNAL}{}{rank}", &SEGMENTS[1..])
}

// ---- the ranks that may share an object ----

impl World {
    /// The ranks of this rank's host, in ascending order: the ranks that can share memory with it.
    pub fn host_ranks(&self) -> Vec<usize> {
        let neighbours = self.state.client().welcome().neighbours();
        neighbours.map(|rank| rank as usize).collect()
    }
}

/// Returns all ranks of the job, if they are on one host.
pub(crate) fn all_members(world: &WorldState, what: &str) -> Result<Vec<usize>> {
    checked_members(world, what, &(0..world.size()).collect::<Vec<_>>())
}

/// Returns these ranks, sorted, if they can share an object with this one.
pub(crate) fn checked_members(world: &WorldState, what: &str, ranks: &[usize]) -> Result<Vec<usize>> {
    let mut members = ranks.to_vec();
    members.sort_unstable();
    let bad = |why: String| Err(Error::BadMembers { what: what.to_owned(), ranks: ranks.to_vec(), why });
    if let Some(twice) = members.windows(2).find(|pair| pair[0] == pair[1]) {
        return bad(format!("rank {} is named twice", twice[0]));
    }
    if let Some(rank) = members.iter().find(|rank| **rank >= world.size()) {
        return bad(format!("this job has ranks 0 to {}, and no rank {rank}", world.size() - 1));
    }
    if !members.contains(&world.rank()) {
        return bad(format!("this rank, {}, is not among them", world.rank()));
    }
    let welcome = world.client().welcome();
    let host = |rank: usize| welcome.placement.host_of(rank as u32);
    match members.iter().find(|rank| host(**rank) != host(world.rank())) {
        None => Ok(members),
        Some(&rank) => {
            let name = |rank| {
                host(rank).map_or("another host".into(), |host| welcome.placement.hosts()[host].clone())
            };
            Err(Error::OtherHost { what: what.to_owned(), rank, host: name(rank), ours: name(world.rank()) })
        }
    }
}
