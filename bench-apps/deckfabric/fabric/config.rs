//! Configuration of switches, links and adapters. All of a network have the same, but ports may have their own tables.

use crate::{
    arbitration::{FLIT_BYTES, Scheme},
    congestion::{Congestion, OutOfRange},
    stages::{MOST_BUFFER, Stages},
};
use std::collections::BTreeMap;
use thiserror::Error;
use udeck_qos::table::LANES;

/// Number of levels of congestion control, in addition to those of the traffic: one for speculative packets, one for
/// control packets.
pub const OWN_LEVELS: u8 = 2;

/// Upper bound of the cycles of a link.
pub const LONGEST_LINK: u32 = 1 << 12;

/// Queues of a switch for the packets of an input's lane, and how many outputs can read them at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Queues {
    /// One queue for each output: a packet waits for none that goes elsewhere, and all outputs can read an input at once.
    #[default]
    ByOutput,
    /// One queue for each output, but only one output at a time reads an input, as with a crossbar as fast as the links.
    Crossbar,
    /// One queue: all packets behind the first one wait for it. All outputs can read an input at once.
    Fifo,
    /// One queue, and only one output at a time reads an input.
    FifoCrossbar,
}

impl Queues {
    /// Whether packets of an input's lane wait for those before them.
    pub fn is_fifo(self) -> bool {
        matches!(self, Self::Fifo | Self::FifoCrossbar)
    }

    /// Whether only one output at a time reads an input.
    pub fn has_crossbar(self) -> bool {
        matches!(self, Self::Crossbar | Self::FifoCrossbar)
    }
}

/// Lanes of service levels, as Omni-Path's tables give them: a level (SL) has service channels (SC), and each of them a lane
/// (VL). Levels may share lanes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lanes {
    /// Service channels by level, with those of congestion control behind the levels of the traffic. A network with more than one
    /// virtual channel uses the channel's place in the list. Where routes need one, a level's packets are spread over all of its
    /// service channels, of which levels may have different numbers.
    pub sl2sc: Vec<Vec<u8>>,
    /// Lane by service channel.
    pub sc2vl: Vec<u8>,
}

impl Lanes {
    /// Lane of each service channel, by level.
    fn of_levels(&self) -> Vec<Vec<u8>> {
        let lanes = |scs: &Vec<u8>| scs.iter().map(|sc| self.sc2vl[usize::from(*sc)]).collect();
        self.sl2sc.iter().map(lanes).collect()
    }

    /// Checks that InfiniBand's tables, which choose among levels, choose among lanes by this.
    fn check_vl(&self, levels: u8) -> Result<(), BadConfig> {
        let is_other = |(level, lanes): &(usize, Vec<u8>)| !lanes.iter().copied().eq([*level as u8]);
        match self.of_levels().into_iter().enumerate().take(levels.into()).find(is_other) {
            Some((level, lanes)) => Err(BadConfig::Lanes {
                reason: format!(
                    "level {level} has the lanes {lanes:?}, and InfiniBand's tables (`vl`) need a lane of its own for each level, with the \
                     level's number: give the level the lane {level} alone, leave the lanes out, or take another arbitration, such as `dtable`"
                ),
            }),
            None => Ok(()),
        }
    }

    /// Checks the lanes for `levels` of the traffic and `own_levels` of congestion control. Without these, lists of theirs are
    /// left unused, so that a run without control can be compared with one that has it.
    fn check(&self, levels: u8, own_levels: u8) -> Result<(), BadConfig> {
        let bad = |reason: &str| Err(BadConfig::Lanes { reason: reason.into() });
        let (lists, all) = (self.sl2sc.len(), usize::from(levels + OWN_LEVELS));
        if lists != usize::from(levels + own_levels) && lists != all {
            return bad(&format!(
                "each level has a list of service channels, and there are {levels} levels and {lists} lists; congestion control and \
                 acknowledgements need {OWN_LEVELS} lists behind those, of speculative packets and of control packets, so {all} in all"
            ));
        }
        if let Some(level) = self.sl2sc.iter().position(Vec::is_empty) {
            return bad(&format!("level {level} has no service channel, so it could never send"));
        }
        if self.sl2sc.iter().flatten().any(|sc| usize::from(*sc) >= self.sc2vl.len()) {
            return bad("a service channel has no lane");
        }
        if self.sc2vl.iter().any(|vl| *vl >= 32) {
            return bad("lanes are 0 to 31");
        }
        let places = |vl: u8| {
            let uses = move |scs: &Vec<u8>| scs.iter().position(|sc| self.sc2vl[usize::from(*sc)] == vl);
            let mut places: Vec<_> = self.sl2sc.iter().filter_map(uses).collect();
            places.dedup();
            places.len()
        };
        let is_twice = |scs: &Vec<u8>| {
            let mut lanes: Vec<_> = scs.iter().map(|sc| self.sc2vl[usize::from(*sc)]).collect();
            lanes.sort_unstable();
            lanes.windows(2).any(|pair| pair[0] == pair[1])
        };
        if (0..32).any(|vl| places(vl) > 1) || self.sl2sc.iter().any(is_twice) {
            return bad(
                "a lane belongs to different places in the lists of service channels, so packets could wait in a circle",
            );
        }
        Ok(())
    }
}

/// Configuration of a network.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Number of service levels of the traffic, from 0.
    pub levels: u8,
    /// Scheme by which ports choose among levels.
    pub arbitration: Scheme,
    /// Schemes of ports that have their own, by node and port. A level that such a scheme leaves out never passes there.
    pub own_arbitration: BTreeMap<(usize, usize), Scheme>,
    /// Bytes of a flit. Only InfiniBand's tables count bytes.
    pub flit_bytes: u32,
    /// Upper bound of a packet in flits.
    pub packet: u16,
    /// Size of a switch's buffer in flits, for each port, level and virtual channel. With stages: size of an input buffer, which
    /// the port's lanes share.
    pub buffer: u32,
    /// Cycles that a flit needs over a link.
    pub link: u32,
    /// Cycles that a head needs from a switch's input to the choice at its output.
    pub switch: u32,
    /// Queues of the switches, and how they are read.
    pub queues: Queues,
    /// Stages of the switches. Without them, links take packets from the input buffers.
    pub stages: Option<Stages>,
    /// Lanes of the levels. Without them, each level has a lane in each virtual channel.
    pub lanes: Option<Lanes>,
    /// Whether packets from other switches go before those that a switch's own hosts inject, in a level. Otherwise
    /// they take turns.
    pub passing_first: bool,
    /// Congestion control.
    pub congestion: Congestion,
    /// Whether every data packet is acknowledged, or only those that may be dropped.
    pub acks: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            levels: 1,
            arbitration: Scheme::RoundRobin,
            own_arbitration: BTreeMap::new(),
            flit_bytes: FLIT_BYTES,
            packet: 4,
            buffer: 64,
            link: 2,
            switch: 4,
            queues: Queues::ByOutput,
            stages: None,
            lanes: None,
            passing_first: false,
            congestion: Congestion::None,
            acks: false,
        }
    }
}

/// Why a configuration is invalid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BadConfig {
    /// A number is out of its range.
    #[error(transparent)]
    Range(#[from] OutOfRange),
    /// The arbitration leaves a level out.
    #[error("level {level} is in no table: it could never send")]
    Level {
        /// The level.
        level: u8,
    },
    /// The arbitration has turns for a level that does not exist.
    #[error(
        "the arbitration has turns for level {level}, and there are {levels} levels, which count from 0: leave the level out of the arbitration, or say `levels = {}` in [network]",
        .level + 1
    )]
    NoLevel {
        /// The level.
        level: usize,
        /// Number of the levels of the traffic.
        levels: u8,
    },
    /// The scheme needs queues by output: speculative packets are dropped wherever they wait, and marks count the
    /// packets that wait for an output.
    #[error("congestion control needs switches with queues by output")]
    Queues,
    /// Stages exclude other properties of switches.
    #[error("switches of stages have neither congestion control nor `queues` nor `passing-first`")]
    Stages,
    /// A number of the stages is out of its range.
    #[error("switches of stages: {0}")]
    Stage(OutOfRange),
    /// The lanes of the levels are invalid.
    #[error("lanes of levels: {reason}")]
    Lanes {
        /// Reason as text.
        reason: String,
    },
    /// InfiniBand's tables are invalid.
    #[error(transparent)]
    Table(#[from] udeck_qos::table::BadTable),
}

impl Config {
    /// Checks that a network can have this configuration.
    pub fn check(&self) -> Result<(), BadConfig> {
        let most_levels = LANES as u64 - 1 - u64::from(self.own_levels());
        let ranges = [
            ("levels", u64::from(self.levels), 1, most_levels),
            ("bytes of a flit", u64::from(self.flit_bytes), 1, 1 << 12),
            ("packet", u64::from(self.packet), 1, 1 << 12),
            ("buffer", u64::from(self.buffer), u64::from(self.packet), MOST_BUFFER),
            ("link", u64::from(self.link), 1, u64::from(LONGEST_LINK)),
            ("switch", u64::from(self.switch), 0, 1 << 10),
        ];
        for (what, value, least, most) in ranges {
            if !(least..=most).contains(&value) {
                return Err(OutOfRange { what, value, least, most }.into());
            }
        }
        self.congestion.check()?;
        if self.queues.is_fifo() && self.congestion != Congestion::None {
            return Err(BadConfig::Queues);
        }
        if let Some(stages) = self.stages {
            stages.check(self.packet).map_err(BadConfig::Stage)?;
            if self.congestion != Congestion::None || self.queues != Queues::ByOutput || self.passing_first {
                return Err(BadConfig::Stages);
            }
        }
        if let Some(lanes) = &self.lanes {
            lanes.check(self.levels, self.own_levels())?;
        }
        match (0..self.levels).find(|level| !self.has_turns(*level)) {
            Some(level) => Err(BadConfig::Level { level }),
            None => self
                .own_arbitration
                .values()
                .chain([&self.arbitration])
                .try_for_each(|of| self.check_scheme(of)),
        }
    }

    fn check_scheme(&self, scheme: &Scheme) -> Result<(), BadConfig> {
        if let Scheme::Vl { tables, .. } = scheme {
            tables.check()?;
        }
        // A table with deficits has no place for larger levels, whatever their weights.
        let is_beyond = |&(level, weight): &(usize, u32)| {
            level >= LANES || level >= usize::from(self.levels) && weight > 0
        };
        if let Some((level, _)) = scheme.entries().into_iter().find(is_beyond) {
            return Err(BadConfig::NoLevel { level, levels: self.levels });
        }
        match (scheme, &self.lanes) {
            (Scheme::Vl { .. }, Some(lanes)) => lanes.check_vl(self.levels),
            _ => Ok(()),
        }
    }

    fn has_turns(&self, level: u8) -> bool {
        let has_all = matches!(self.arbitration, Scheme::RoundRobin | Scheme::Priority);
        has_all || self.arbitration.entries().iter().any(|of| of.0 == usize::from(level) && of.1 > 0)
    }

    fn own_levels(&self) -> u8 {
        if self.congestion == Congestion::None && !self.acks { 0 } else { OWN_LEVELS }
    }

    /// Number of all levels, including those of congestion control.
    pub fn all_levels(&self) -> u8 {
        self.levels + self.own_levels()
    }

    /// Number of lanes where routes use `channels` virtual channels.
    pub(crate) fn lane_count(&self, channels: usize) -> usize {
        match &self.lanes {
            Some(lanes) => lanes.sc2vl.iter().max().map_or(0, |vl| usize::from(*vl) + 1),
            None => channels * usize::from(self.all_levels()),
        }
    }

    /// Lanes of each level, one for each of its service channels.
    pub(crate) fn lanes_of_levels(&self, channels: usize) -> Vec<Vec<u8>> {
        let own = |level| (0..channels).map(|channel| (level * channels + channel) as u8).collect();
        match &self.lanes {
            Some(lanes) => lanes.of_levels(),
            None => (0..usize::from(self.all_levels())).map(own).collect(),
        }
    }

    /// Level of speculative packets, which go after all others.
    pub fn speculative_level(&self) -> u8 {
        self.levels
    }

    /// Level of reservations and answers, which go before all others.
    pub fn control_level(&self) -> u8 {
        self.levels + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use udeck_qos::table::{Entry, VlTables};

    #[test]
    fn what_cannot_be_is_refused() {
        let reason = |change: fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            config.check().unwrap_err().to_string()
        };
        assert_eq!(Config::default().check(), Ok(()));
        assert_eq!(reason(|config| config.levels = 0), "levels is 0: take 1 to 15");
        assert_eq!(reason(|config| config.buffer = 3), "buffer is 3: take 4 to 16777216");
        let queues = |config: &mut Config| {
            (config.queues, config.congestion) = (Queues::Fifo, Congestion::Lhrp(Default::default()))
        };
        assert_eq!(reason(queues), "congestion control needs switches with queues by output");
        assert_eq!(reason(|config| config.link = 0), "link is 0: take 1 to 4096");
        assert_eq!(
            reason(|config| config.arbitration =
                Scheme::DTable { slots: vec![], when_stalled: Default::default() }),
            "level 0 is in no table: it could never send"
        );
        assert_eq!(
            reason(|config| config.arbitration = Scheme::Sbt { weights: [1; LANES] }),
            "the arbitration has turns for level 1, and there are 1 levels, which count from 0: leave the level out of the \
             arbitration, or say `levels = 2` in [network]"
        );
        assert_eq!(
            reason(|config| {
                let low = vec![Entry { vl: 0, weight: 1 }, Entry { vl: 15, weight: 1 }];
                let tables = VlTables { low, ..VlTables::default() };
                config.arbitration = Scheme::Vl { tables, low_turn: Default::default() };
            }),
            "entry 1 of the low table is for VL 15: tables have the VLs 0 to 14"
        );
    }
}
