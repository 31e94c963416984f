use super::*;
use crate::{
    analysis::{distance, wait_bytes},
    table::VlTables,
    vl_arbiter::LowTurn,
};
use proptest::{collection::vec, prelude::*};

const fn link(rate: u64) -> Link {
    Link { rate, mtu: 2048, high_limit: 10, cap: 80 }
}

const SDR: Link = link(2_500_000_000);

const fn bandwidth(bandwidth: u64) -> Request {
    Request { bandwidth, latency: None }
}

/// Makes a request with the latency that a distance keeps.
fn at_distance(distance: usize, bandwidth: u64) -> Request {
    Request { bandwidth, latency: Some(SDR.wait_at(distance)) }
}

#[test]
fn weights_and_frames_are_the_published_ones() {
    let weights = [64_000, 1_550_000, 64_000_000, 255_000_000].map(|bits| SDR.weight(bits));
    assert_eq!(weights, [1, 11, 418, 1665]);
    assert_eq!(weights.map(|weight| weight.div_ceil(255)), [1, 1, 2, 7]);
    let frames = [2_500_000_000, 10_000_000_000, 30_000_000_000].map(|rate| link(rate).frame().as_nanos());
    assert_eq!(frames, [3_342_336, 835_584, 278_528]);
}

#[test]
fn a_latency_is_a_distance_rounded_down() {
    for bits in 0..=6 {
        let distance = 1 << bits;
        let latency = SDR.wait_at(distance);
        assert_eq!(SDR.distance(latency), Ok(distance));
        let longer = latency + Duration::from_micros(1);
        assert_eq!(SDR.distance(longer), Ok(distance));
    }
    let least = SDR.wait_at(1);
    let asked = least - Duration::from_nanos(1);
    assert_eq!(SDR.distance(asked), Err(AdmissionError::Latency { asked, least }));
}

#[test]
fn connections_of_a_lane_share_entries_while_there_is_weight() {
    let mut planner = Planner::new(SDR);
    // The sequence has 4 entries of 255 units. 104 connections of 9.792 units each fill 1,018.4 of its 1,020 units.
    let request = at_distance(16, 1_500_000);
    for _ in 0..104 {
        planner.admit(3, request).expect("there is weight left");
    }
    assert_eq!(planner.free(), 60);
    let last = planner.admit(3, request).expect("another four entries");
    assert_eq!(planner.free(), 56);
    assert_eq!(distance(&planner.table(), 3).map(|distance| distance <= 16), Some(true));
    assert!(planner.release(last).is_empty());
    assert_eq!(planner.free(), 60);
}

/// At 30 Gb/s a unit is 1.838 Mb/s. The weight is that of the sum (§3.4 of the thesis): were each connection's rounded up, the
/// first sequence would be full after 8,160 connections of 64 kb/s, a 29th of what it carries.
#[test]
fn slow_connections_share_the_units_of_their_sequence() {
    let mut planner = Planner::new(link(30_000_000_000));
    let mut admitted = 0;
    while planner.free() == 64 || planner.free() == 32 {
        planner.admit_at(0, 64_000, 2).expect("there is room");
        admitted += 1;
    }
    let fit = |entries: u64| entries * 255 * 30_000_000_000 / (64 * 255) / 64_000;
    assert_eq!(admitted, fit(32) + 1);
}

#[test]
fn an_entry_that_is_there_for_its_latency_has_a_weight() {
    let mut planner = Planner::new(SDR);
    planner.admit(0, at_distance(2, 64_000)).expect("it fits");
    let weights: Vec<_> = planner.table().iter().map(|entry| entry.weight).collect();
    assert_eq!(weights.iter().filter(|weight| **weight == 1).count(), 32);
    assert_eq!(weights.iter().map(|weight| u32::from(*weight)).sum::<u32>(), 32);
}

#[test]
fn a_refusal_says_what_is_missing_and_what_would_fit() {
    let mut planner = Planner::new(SDR);
    assert_eq!(planner.admit(15, bandwidth(1)), Err(AdmissionError::Lane { vl: 15 }));
    assert_eq!(planner.admit(0, bandwidth(0)), Err(AdmissionError::NoBandwidth));
    let too_much = planner.admit(0, bandwidth(2_500_000_000)).expect_err("above the cap").to_string();
    assert_eq!(too_much, "it needs 2.500 Gb/s, and 2 Gb/s of the 2 Gb/s that may be promised are left");
    planner.admit(0, at_distance(2, 64_000)).expect("it fits");
    let closer = planner.admit(0, at_distance(1, 64_000)).expect_err("the lane's distance").to_string();
    assert!(
        closer.starts_with("it needs the distance 1, and the connections of VL 0 have 2: take another VL"),
        "{closer}"
    );
    planner.admit(1, at_distance(4, 64_000)).expect("it fits");
    let full = planner.admit(2, at_distance(2, 64_000)).expect_err("too few entries");
    let AdmissionError::Entries { needs: 32, free: 16, fits: Some(fits) } = full else { panic!("{full:?}") };
    let request = Request { bandwidth: fits.bandwidth, latency: Some(fits.latency) };
    planner.admit(2, request).expect("what it says would fit does fit");
    assert_eq!(planner.free(), 0);
    let none = planner.admit(4, bandwidth(1)).expect_err("full").to_string();
    assert_eq!(
        none,
        "it needs 1 entries, and 0 are free: nothing would fit before another connection is released"
    );
}

#[test]
fn huge_numbers_are_refused() {
    for link in [SDR, link(1), link(u64::MAX), Link { rate: 0, mtu: u32::MAX, high_limit: 0, cap: 255 }] {
        let mut planner = Planner::new(link);
        for bandwidth in [1, 1 << 40, u64::MAX] {
            for latency in [None, Some(Duration::ZERO), Some(Duration::MAX)] {
                let _ = planner.admit(1, Request { bandwidth, latency });
            }
        }
        assert!(planner.promised() <= link.promised());
    }
}

#[test]
fn low_entries_are_of_their_kinds() {
    let table =
        low_table(&[(5, Unpromised::Preferred), (6, Unpromised::BestEffort), (7, Unpromised::Challenged)]);
    let pairs: Vec<_> = table.iter().map(|entry| (entry.vl, entry.weight)).collect();
    assert_eq!(pairs, [(5, 255), (5, 255), (5, 255), (5, 255), (6, 10), (7, 1)]);
}

#[derive(Clone, Debug)]
enum Step {
    Admit { vl: u8, bits: u32, bandwidth: u64 },
    Release(prop::sample::Index),
}

fn history() -> impl Strategy<Value = Vec<Step>> {
    let bandwidth = prop_oneof![3 => 1u64..2_000_000, 1 => 1u64..400_000_000];
    let admit =
        (0u8..15, 0u32..=6, bandwidth).prop_map(|(vl, bits, bandwidth)| Step::Admit { vl, bits, bandwidth });
    let release = any::<prop::sample::Index>().prop_map(Step::Release);
    vec(prop_oneof![3 => admit, 2 => release], 1..60)
}

proptest! {
    /// After any history, each connection has its bandwidth and its latency, and a refusal for lack of entries is
    /// justified.
    #[test]
    fn proptest_what_is_admitted_is_kept(history in history()) {
        let mut planner = Planner::new(SDR);
        let mut held: BTreeMap<ConnectionId, (u8, Request)> = BTreeMap::new();
        for step in history {
            match step {
                Step::Admit { vl, bits, bandwidth } => {
                    let request = at_distance(1 << bits, bandwidth);
                    match planner.admit(vl, request) {
                        Ok(id) => drop(held.insert(id, (vl, request))),
                        Err(AdmissionError::Entries { needs, free, fits }) => {
                            prop_assert!(needs > free);
                            if let Some(Fits { bandwidth, latency }) = fits {
                                let request = Request { bandwidth, latency: Some(latency) };
                                prop_assert!(planner.clone().admit(vl, request).is_ok(), "{:?} does not fit", fits);
                            }
                        }
                        Err(AdmissionError::Bandwidth { fits, .. }) => prop_assert!(bandwidth > fits),
                        Err(AdmissionError::Distance { asked, has, .. }) => prop_assert!(asked < has),
                        Err(other) => prop_assert!(false, "{}", other),
                    }
                }
                Step::Release(index) if !held.is_empty() => {
                    let id = *index.get(&held.keys().copied().collect::<Vec<_>>());
                    held.remove(&id);
                    planner.release(id);
                }
                Step::Release(_) => {}
            }
        }
        let low = low_table(&[(14, Unpromised::BestEffort)]);
        let tables = VlTables { high: planner.table(), low, high_limit: SDR.high_limit };
        prop_assert_eq!(planner.promised(), held.values().map(|(_, request)| request.bandwidth).sum::<u64>());
        for vl in 0..15 {
            let own = held.values().filter(|(lane, _)| *lane == vl).map(|(_, request)| request);
            let needed = SDR.weight(own.clone().map(|request| request.bandwidth).sum());
            let given = tables.high.iter().filter(|entry| entry.vl == vl);
            let given: u64 = given.map(|entry| u64::from(entry.weight)).sum();
            prop_assert!(given >= needed, "VL {}: {} of {}", vl, given, needed);
            for request in own {
                let bytes = wait_bytes(&tables, LowTurn::Packet, SDR.mtu, vl).expect("it has entries");
                prop_assert!(Some(time_of(bytes, SDR.rate)) <= request.latency);
            }
        }
    }
}
