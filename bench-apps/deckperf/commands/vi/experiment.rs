//! One rank's part around the [timed loops](crate::experiment::turn), which both ranks run in step.

use udeck::via::{Deadline, Descriptor, Region};

use super::{
    contender::{Detection, Traffic, Transfer, ViContender, ViSetup},
    ends::ViEnds,
};
use crate::{
    experiment::{
        Experiment, Timing,
        plan::Test,
        rank_pair::RankPair,
        rounds::{Shape, Trial},
        turn::{Part, Pattern, PostKind, Turn},
    },
    failure::Result,
};

/// One rank's ends of the connections, with the link to the other rank.
pub struct ViExperiment<'l, 'w> {
    /// Link to the other rank.
    pub pair: &'l RankPair<'w>,
    /// This rank's ends of the connections.
    pub ends: ViEnds,
}

impl Experiment for ViExperiment<'_, '_> {
    type Contender = ViContender;

    /// Time in which a rank rests so that the other falls asleep does not count.
    fn perform(&mut self, &Trial { contender, size, shape }: &Trial<ViContender>) -> Result<Timing> {
        let ViContender { test, way, traffic } = contender;
        let pattern = match test {
            Test::Latency => Pattern::PingPong,
            // The command line allows no other test here.
            Test::Bandwidth | Test::BiBandwidth => Pattern::Stream,
        };
        perform(self.pair, &mut self.ends, ViBatch { way, traffic, pattern, size, shape })
    }
}

/// Messages that are timed together.
pub struct ViBatch {
    /// Setup of the VIs.
    pub way: ViSetup,
    /// VIs on which the messages travel.
    pub traffic: Traffic,
    /// Roles of the two ranks in an iteration.
    pub pattern: Pattern,
    /// Bytes per message.
    pub size: usize,
    /// Numbers of iterations and messages.
    pub shape: Shape,
}

/// Performs one rank's part of a batch.
pub fn perform(
    pair: &RankPair<'_>,
    ends: &mut ViEnds,
    ViBatch { way, traffic, pattern, size, shape }: ViBatch,
) -> Result<Timing> {
    let (lane, number, memory, place) = ends.of(way, size)?;
    let part = Part {
        pattern,
        leads: pair.leads(),
        arrives: size,
        shape,
        rests: way.detection == Detection::Asleep,
        deadline: Deadline::after(pair.world().config().deadline),
    };
    let vis = lane.len();
    let mut turn = Turn::prepare(
        part,
        lane,
        |message| traffic.on(message, number, vis),
        |fresh| {
            // The data of an RDMA write do not go into its descriptor.
            Ok(match (fresh, place) {
                (PostKind::EmptyReceive | PostKind::EmptyRequest, _) | (PostKind::Receive, Some(_)) => {
                    Descriptor::new(Vec::<Region>::new())
                }
                (PostKind::Receive | PostKind::Request, None) => Descriptor::new([memory.take(size)?]),
                (PostKind::Request, Some(place)) if way.transfer == Transfer::RdmaRead => {
                    Descriptor::rdma_read([memory.take(size)?], place)
                }
                (PostKind::Request, Some(place)) => {
                    Descriptor::rdma_write([memory.take(size)?], place).immediate(0)
                }
            })
        },
    )?;
    pair.meet()?;
    let lasted = turn.perform()?;
    let rested = turn.finish(|descriptor| memory.give_back(descriptor))?;
    Ok(Timing { lasted, rested })
}
