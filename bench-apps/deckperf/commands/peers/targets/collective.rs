//! The rows of `deckperf collectives`: a group of µDECK's beside the same operation of an MPI.
//!
//! Operations on slices copy on both sides. A hand-off gives the receiver the sender's own memory instead. It is compared with
//! the copies of the MPIs: where nobody reads the data, and where all of them are written and read.

use super::{Row, Target, Unit, beat_peers_by};
use crate::{
    commands::peers::request::{Column, Method, PeerTest},
    experiment::plan::Payload::{self, Untouched, WrittenRead},
};

const SMALL: usize = 8;
const MIDDLE: usize = 64 << 10;
const LARGE: usize = 1 << 20;
const LARGEST: usize = 4 << 20;

const ON_TWO: [Target; 1] = [beat_peers_by(0.8)];
/// Targets for more ranks than processors.
const ON_MORE: [Target; 1] = [beat_peers_by(0.6)];
const HANDED_OFF: [Target; 1] = [beat_peers_by(0.3)];

/// Rows of all operations, for each of these numbers of ranks.
macro_rules! rows {
    ($($ranks:literal)*) => { &[$(
        all_reduce(concat!("all-reduce 8 B, ", $ranks, " ranks"), $ranks, SMALL),
        all_reduce(concat!("all-reduce 64 KiB, ", $ranks, " ranks"), $ranks, MIDDLE),
        all_reduce(concat!("all-reduce 4 MiB, ", $ranks, " ranks"), $ranks, LARGEST),
        broadcast(concat!("broadcast 64 KiB, ", $ranks, " ranks"), $ranks, MIDDLE),
        broadcast(concat!("broadcast 1 MiB, ", $ranks, " ranks"), $ranks, LARGE),
        broadcast_hand_off(concat!("broadcast 1 MiB, hand-off, ", $ranks, " ranks"), $ranks, Untouched),
        broadcast_hand_off(concat!("broadcast 1 MiB w+r, hand-off, ", $ranks, " ranks"), $ranks, WrittenRead),
        all_to_all(concat!("all-to-all 64 KiB, ", $ranks, " ranks"), $ranks, MIDDLE),
        all_to_all(concat!("all-to-all 1 MiB, ", $ranks, " ranks"), $ranks, LARGE),
        all_to_all_hand_off(concat!("all-to-all 1 MiB, hand-off, ", $ranks, " ranks"), $ranks, Untouched),
        all_to_all_hand_off(concat!("all-to-all 1 MiB w+r, hand-off, ", $ranks, " ranks"), $ranks, WrittenRead),
        barrier(concat!("barrier, ", $ranks, " ranks"), $ranks),
    )*] };
}

pub(super) const ROWS: &[Row] = rows!(2 4 8);

const fn collective(title: &'static str, test: PeerTest, ranks: usize, bytes: usize) -> Row {
    Row {
        title,
        column: Column { test, ranks, payload: Untouched, bytes },
        ours: Method::Group,
        theirs: Method::Send,
        unit: Unit::Micros,
        targets: if ranks == 2 { &ON_TWO } else { &ON_MORE },
    }
}

const fn all_reduce(title: &'static str, ranks: usize, bytes: usize) -> Row {
    collective(title, PeerTest::AllReduce, ranks, bytes)
}

const fn broadcast(title: &'static str, ranks: usize, bytes: usize) -> Row {
    collective(title, PeerTest::Broadcast, ranks, bytes)
}

const fn all_to_all(title: &'static str, ranks: usize, bytes: usize) -> Row {
    collective(title, PeerTest::AllToAll, ranks, bytes)
}

const fn barrier(title: &'static str, ranks: usize) -> Row {
    collective(title, PeerTest::Barrier, ranks, 0)
}

const fn broadcast_hand_off(title: &'static str, ranks: usize, payload: Payload) -> Row {
    handed_off(broadcast(title, ranks, LARGE), payload)
}

const fn all_to_all_hand_off(title: &'static str, ranks: usize, payload: Payload) -> Row {
    handed_off(all_to_all(title, ranks, LARGE), payload)
}

const fn handed_off(row: Row, payload: Payload) -> Row {
    Row { column: Column { payload, ..row.column }, ours: Method::GroupBuf, targets: &HANDED_OFF, ..row }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::peers::targets::{Against, Bound};

    #[test]
    fn every_row_has_one_goal_and_it_is_to_beat_the_peers() {
        for row in ROWS {
            let &[Target { against: Against::BestPeer, bound: Bound::AtMost(ratio), .. }] = row.targets
            else {
                panic!("{}: {:?}", row.title, row.targets)
            };
            let wanted = match (row.ours, row.column.ranks) {
                (Method::GroupBuf, _) => 0.3,
                (_, 2) => 0.8,
                _ => 0.6,
            };
            assert_eq!(ratio, wanted, "{}", row.title);
        }
    }

    #[test]
    fn titles_say_how_many_ranks() {
        for row in ROWS {
            assert!(row.title.ends_with(&format!(", {} ranks", row.column.ranks)), "{}", row.title);
        }
    }
}
