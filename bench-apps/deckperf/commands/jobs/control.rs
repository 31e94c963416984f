//! Orders and answers between rank 0 and the other ranks, and the cores on which all of them run.

use std::{collections::BTreeSet, fs};

use udeck::{Mailbox, Postbox, Protocol, Received, World};

use crate::{
    experiment::{
        Link,
        baseline::Baselines,
        binding::{self, BindPlace, Cpus},
        rounds::{Contend, Results},
    },
    failure::{PerfError, Result},
    report::raw_limits,
    stats::noise::Noise,
};

/// One rank's ends of these links. A wait for a rank ends with an error when that rank is lost.
pub struct Control<'w> {
    world: &'w World,
    inbox: Mailbox<u64>,
    /// Postboxes: at rank 0, of every other rank from 1 on; at the others, of rank 0.
    others: Vec<Postbox<u64>>,
}

/// Host, core and NUMA node of a rank.
#[derive(Clone, Debug, PartialEq)]
struct Place {
    host: String,
    core: Option<usize>,
    node: Option<usize>,
}

/// Places of all ranks, as rank 0 knows them.
pub struct Placement {
    places: Vec<Place>,
    usable: Vec<usize>,
}

const MAILBOX: &str = "jobs.words";

/// Value on the wire for no core or no node.
const NONE: u64 = u64::MAX;

impl<'w> Control<'w> {
    /// Opens the links. All ranks call this.
    pub fn open(world: &'w World) -> Result<Self> {
        let inbox = world.mailboxes(MAILBOX)?;
        let towards = if world.rank() == 0 { 1..world.size() } else { 0..1 };
        let open = |rank| -> Result<Postbox<u64>> {
            let postbox = world.postbox_of(MAILBOX, rank)?;
            postbox.set_protocol(Protocol::Auto)?;
            Ok(postbox)
        };
        Ok(Self { world, inbox, others: towards.map(open).collect::<Result<_>>()? })
    }

    /// The world of the ranks.
    pub fn world(&self) -> &'w World {
        self.world
    }

    /// Returns the next words of rank 0, if they have arrived.
    pub fn try_receive(&self) -> Result<Option<Received<u64>>> {
        Ok(self.inbox.try_retrieve()?)
    }

    /// Binds this rank if asked to; rank 0 learns the places of all ranks.
    pub fn place(&self, pin: bool, bind_places: &[BindPlace]) -> Result<Option<Placement>> {
        let usable = udeck::sys::usable_cpus();
        let neighbours = self.world.host_ranks();
        let local = neighbours.iter().position(|&rank| rank == self.world.rank()).unwrap_or(0);
        let cpus = Cpus::of_this_host();
        let core = if !bind_places.is_empty() {
            Some(binding::core_of(bind_places, local, neighbours.len(), &usable, &cpus)?)
        } else {
            // This rank is bound by the launcher to one core, or each rank has a core.
            let enough = usable.len() == 1 || neighbours.len() <= usable.len();
            usable.get(local % usable.len().max(1)).copied().filter(|_| pin && enough)
        };
        if let Some(core) = core {
            udeck::sys::pin_to_cpu(core).map_err(PerfError::system("pinning this rank (try --no-pin)"))?;
        }
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
        let mine = Place { host, core, node: core.and_then(|core| cpus.node_of(core)) };
        if self.world.rank() != 0 {
            self.send(0, &mine.encode())?;
            return Ok(None);
        }
        let theirs = (1..self.world.size()).map(|rank| Place::decode(&self.receive(rank)?));
        let places = [Ok(mine)].into_iter().chain(theirs).collect::<Result<Vec<_>>>()?;
        Ok(Some(Placement { places, usable }))
    }
}

impl Link for Control<'_> {
    fn world(&self) -> &World {
        self.world
    }

    fn send(&self, rank: usize, words: &[u64]) -> Result {
        let unknown = || PerfError::Internal(format!("this rank sends no words to rank {rank}"));
        let at = if self.world.rank() == 0 { rank.checked_sub(1) } else { Some(0) };
        let postbox = at.and_then(|at| self.others.get(at)).ok_or_else(unknown)?;
        let mut message = self.world.buf(words.len())?;
        message.copy_from_slice(words);
        Ok(postbox.post(message)?)
    }

    fn receive(&self, rank: usize) -> Result<Received<u64>> {
        Ok(self.inbox.retrieve_from(rank)?)
    }
}

impl Place {
    fn encode(&self) -> Vec<u64> {
        let number = |number: Option<usize>| number.map_or(NONE, |number| number as u64);
        let host = self.host.bytes().map(u64::from);
        [number(self.core), number(self.node)].into_iter().chain(host).collect()
    }

    fn decode(words: &[u64]) -> Result<Self> {
        let [core, node, host @ ..] = words else { return Err(PerfError::BadReport(words.len())) };
        let number = |&word: &u64| usize::try_from(word).ok().filter(|_| word != NONE);
        let host: Vec<u8> = host.iter().map(|&byte| byte as u8).collect();
        let host = String::from_utf8_lossy(&host).into_owned();
        Ok(Place { host, core: number(core), node: number(node) })
    }
}

impl Placement {
    /// The raw limits' measurement; `None` without two cores of rank 0's host.
    pub fn raw_limits(&self, largest: usize) -> Option<Baselines> {
        let mine = self.places.first()?;
        let beside = self.places.iter().skip(1).filter(|place| place.host == mine.host);
        let apart = beside.filter_map(|place| place.core).find(|&core| Some(core) != mine.core);
        match (mine.core, apart) {
            (Some(core), Some(other)) => Some(Baselines::new(Some([core, other]), largest)),
            (None, _) if self.usable.len() > 1 => Some(Baselines::new(None, largest)),
            _ => None,
        }
    }

    /// Ranks of rank 0's host, and the cores that they may use. A rank that was bound, here or by its launcher, has a core
    /// of its own.
    fn local_ranks_and_cores(&self) -> (usize, usize) {
        let here = || {
            self.places.iter().filter(|place| Some(&place.host) == self.places.first().map(|mine| &mine.host))
        };
        let bound: Option<BTreeSet<usize>> = here().map(|place| place.core).collect();
        (here().count(), bound.map_or(self.usable.len(), |cores| cores.len()))
    }

    /// Whether the raw line shows how quiet the machine was. It does not where ranks that spin share cores with it.
    pub fn can_judge_noise(&self) -> bool {
        let (ranks, cores) = self.local_ranks_and_cores();
        ranks > 0 && ranks <= cores
    }

    /// [`Results::noise`], where the raw line can judge noise.
    pub fn noise<C: Contend>(&self, results: &Results<C>) -> Option<Noise> {
        results.noise().filter(|_| self.can_judge_noise())
    }

    /// Sentences on the raw limits, and the reason if there is no verdict on the noise.
    pub fn raw_sentences<C: Contend>(&self, results: &Results<C>) -> String {
        let raw = raw_limits(results).to_owned();
        if self.can_judge_noise() {
            return raw;
        }
        let (_, cores) = self.local_ranks_and_cores();
        let word = if cores == 1 { "core" } else { "cores" };
        raw + &format!(
            "noise: no verdict, since rank 0's host has more ranks than the {cores} {word} that they may use: ranks that spin \
             share them with the raw line, and move it\n"
        )
    }

    /// Placement in words, for the head of the report.
    pub fn describe(&self) -> String {
        let of = |rank: usize, place: &Place| match (place.core, place.node) {
            (Some(core), Some(node)) => format!("{rank} on core {core} of NUMA node {node}"),
            (Some(core), None) => format!("{rank} on core {core}"),
            (None, _) => format!("{rank} not pinned"),
        };
        let mut hosts: Vec<&str> = self.places.iter().map(|place| &place.host[..]).collect();
        hosts.dedup();
        let mut text = if self.places.iter().all(|place| place.core.is_none()) {
            format!("not pinned ({} cores may be used)", self.usable.len())
        } else {
            let all: Vec<String> =
                self.places.iter().enumerate().map(|(rank, place)| of(rank, place)).collect();
            all.join(", ")
        };
        if hosts.len() > 1 {
            text += &format!("; in this order on the hosts {}", hosts.join(", "));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(host: &str, core: Option<usize>) -> Place {
        Place { host: host.to_owned(), core, node: core.map(|_| 0) }
    }

    #[test]
    fn places_survive_the_journey() {
        for core in [None, Some(0), Some(77)] {
            let place = place("höst", core);
            assert_eq!(Place::decode(&place.encode()).expect("decodes"), place);
        }
        assert!(Place::decode(&[1]).is_err());
    }

    #[test]
    fn noise_is_not_judged_where_ranks_share_cores() {
        let of = |places: Vec<Place>| Placement { places, usable: vec![0, 1] };
        let mut results = Results::<crate::experiment::rounds::Contender>::empty(&[8], []);
        results.raws[0].line = vec![0.1; 9];
        let crowded = of(vec![place("a", None); 3]);
        assert_eq!(crowded.noise(&results), None);
        let said = crowded.raw_sentences(&results);
        let words =
            "\nnoise: no verdict, since rank 0's host has more ranks than the 2 cores that they may use";
        assert!(said.contains(words), "{said:?}");
        // The launcher has bound each rank, so this one may use no core but its own.
        let bound = Placement { places: vec![place("a", Some(0)), place("a", Some(1))], usable: vec![0] };
        assert!(bound.noise(&results).is_some(), "a core for each");
        let shared = of(vec![place("a", Some(1)), place("a", Some(1))]);
        assert_eq!(shared.noise(&results), None);
        assert!(shared.raw_sentences(&results).contains("more ranks than the 1 core that they may use"));
        for roomy in [vec![place("a", None); 2], vec![place("a", None), place("b", None), place("b", None)]] {
            let roomy = of(roomy);
            assert!(roomy.noise(&results).is_some());
            assert_eq!(roomy.raw_sentences(&results).lines().count(), 1);
        }
    }

    #[test]
    fn the_limits_are_measured_between_two_ranks_of_a_host() {
        let of = |places: Vec<Place>| Placement { places, usable: vec![0] };
        let apart = of(vec![place("a", Some(0)), place("b", Some(1))]);
        assert!(apart.raw_limits(0).is_none(), "not between hosts");
        assert!(apart.describe().ends_with("in this order on the hosts a, b"), "{}", apart.describe());
        assert!(of(vec![place("a", Some(0)), place("a", Some(0))]).raw_limits(0).is_none());
        let beside = of(vec![place("a", Some(0)), place("b", Some(0)), place("a", Some(1))]);
        assert!(beside.raw_limits(0).is_some());
        assert_eq!(of(vec![place("a", None); 3]).describe(), "not pinned (1 cores may be used)");
    }
}
