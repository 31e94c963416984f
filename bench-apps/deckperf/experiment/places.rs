//! Cores on which two ranks run, and the stage that an experiment between them finds.

use super::{
    Experiment,
    baseline::Baselines,
    binding::{self, BindPlace, Cpus},
    plan::Pace,
    rank_pair::RankPair,
    rounds::Results,
};
use crate::failure::{PerfError, Result};
use udeck_cli::machine::Machine;

/// Two ranks that are connected and on their cores.
pub struct Stage<'l, 'w> {
    /// Link between the ranks.
    pub pair: &'l RankPair<'w>,
    /// Cores of the ranks.
    pub places: Places,
}

impl Stage<'_, '_> {
    /// Runs an experiment; both ranks call this, and rank 0 gets the results.
    pub fn run<E: Experiment>(
        &self,
        pace: Pace,
        cells: Results<E::Contender>,
        experiment: &mut E,
    ) -> Result<Option<Results<E::Contender>>> {
        super::run(self.pair, pace, cells, |largest| self.places.raw_limits(largest), experiment)
    }

    /// Description of the machine for a report; `more` follows the name of the NIC.
    pub fn machine(&self, more: &str) -> Machine {
        let nic = &self.pair.world().nic().attributes().name;
        Machine::describe(self.places.describe(), format!("{nic}{more}"))
    }
}

/// Cores on which the two ranks run.
pub struct Places {
    /// Cores that this rank might use before it was pinned.
    usable: Vec<usize>,
    /// Core of this rank and core of the peer, if both are pinned.
    pinned: Option<[usize; 2]>,
}

/// Value on the wire of a rank that is not pinned.
const NOT_PINNED: u64 = u64::MAX;

impl Places {
    /// Pins this rank if asked to, and learns where the other one runs. A rank that its launcher has pinned
    /// stays on its core.
    pub fn take(pair: &RankPair<'_>, pin: bool, bind_places: &[BindPlace]) -> Result<Self> {
        let usable = udeck::sys::usable_cpus();
        let mine = if bind_places.is_empty() {
            usable.get(pair.world().rank()).or(usable.first()).copied().filter(|_| pin)
        } else {
            let neighbours = pair.world().host_ranks();
            let local = neighbours.iter().position(|&rank| rank == pair.world().rank()).unwrap_or(0);
            Some(binding::core_of(bind_places, local, neighbours.len(), &usable, &Cpus::of_this_host())?)
        };
        if let Some(cpu) = mine {
            udeck::sys::pin_to_cpu(cpu).map_err(PerfError::system("pinning this rank (try --no-pin)"))?;
        }
        pair.send_words(&[mine.map_or(NOT_PINNED, |cpu| cpu as u64)])?;
        let [theirs] = pair.receive_report()?;
        let theirs = usize::try_from(theirs).ok().filter(|_| theirs != NOT_PINNED);
        Ok(Self { usable, pinned: mine.zip(theirs).map(|(mine, theirs)| [mine, theirs]) })
    }

    /// The raw limits' measurement; `None` without two cores.
    pub fn raw_limits(&self, largest: usize) -> Option<Baselines> {
        let two_cores = self.pinned.map_or(self.usable.len() > 1, |[mine, theirs]| mine != theirs);
        two_cores.then(|| Baselines::new(self.pinned, largest))
    }

    /// The cores in words, for the head of the report.
    pub fn describe(&self) -> String {
        match self.pinned {
            None => "not pinned".to_owned(),
            Some([mine, theirs]) if mine == theirs && self.usable.len() > 1 => format!("both on core {mine}"),
            Some([mine, theirs]) if mine == theirs => format!("both on core {mine}, the only usable one"),
            Some([mine, theirs]) => format!("pinned to cores {mine} and {theirs}{}", nodes([mine, theirs])),
        }
    }
}

/// NUMA nodes of the cores, if this host's kernel reports them.
fn nodes(cores: [usize; 2]) -> String {
    let cpus = Cpus::of_this_host();
    match cores.map(|core| cpus.node_of(core)) {
        [Some(one), Some(other)] if one == other => format!(" (NUMA node {one})"),
        [Some(one), Some(other)] => format!(" (NUMA nodes {one} and {other})"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_were_pinned_elsewhere_leave_no_second_core_to_one_place() {
        let shared = Places { usable: vec![3], pinned: Some([3, 3]) };
        assert!(shared.raw_limits(0).is_none());
        assert_eq!(shared.describe(), "both on core 3, the only usable one");
        let by_wish = Places { usable: vec![0, 3], pinned: Some([3, 3]) };
        assert_eq!(by_wish.describe(), "both on core 3");
        let apart = Places { usable: vec![3], pinned: Some([3, 5]) };
        assert!(apart.raw_limits(0).is_some());
        assert!(apart.describe().starts_with("pinned to cores 3 and 5"), "{}", apart.describe());
        assert!(Places { usable: vec![0], pinned: None }.raw_limits(0).is_none());
    }
}
