#![allow(unsafe_code, reason = "a device for tests implements the transport contract")]

use std::collections::VecDeque;

use super::*;
use crate::mem::RemoteBuffer;
use crate::transport::{Arrival, Owner, PostedBuffer, Refused};

/// An endpoint whose sends end as it was told.
#[derive(Debug)]
struct Script(VecDeque<(u64, TransferStatus)>);

// SAFETY: it touches no memory.
unsafe impl ViEndpoint for Script {
    fn poll_completion(&mut self) -> Option<(u64, TransferStatus)> {
        self.0.pop_front()
    }
    fn send(&mut self, _: Option<u32>, _: &[u8], _: &[u8]) -> Result<(), Refused> {
        unreachable!()
    }
    fn lend(
        &mut self,
        _: Option<u32>,
        _: &[u8],
        _: &[(u64, usize)],
        _: PostedBuffer,
    ) -> Result<(), (Refused, PostedBuffer)> {
        unreachable!()
    }
    fn rdma_write(
        &mut self,
        _: &[(u64, usize)],
        _: RemoteBuffer,
        _: Option<u32>,
        _: PostedBuffer,
    ) -> Result<Option<TransferStatus>, (Refused, PostedBuffer)> {
        unreachable!()
    }
    fn receive(&mut self) -> Result<Option<Arrival>, Refused> {
        unreachable!()
    }
    fn keep(&mut self, _: u64, _: Owner) -> Result<(), Owner> {
        unreachable!()
    }
    fn request_send_notify(&mut self) {
        unreachable!()
    }
    fn unread(&mut self) -> Result<u32, Refused> {
        unreachable!()
    }
    fn close(&mut self, _: Option<&str>) {
        unreachable!()
    }
    fn leave(&mut self) {
        unreachable!()
    }
}

const LEVELS: [Reliability; 3] = [Reliability::Unreliable, Reliability::Delivery, Reliability::Reception];

/// Sends in progress, by number, of which some are done already.
fn posted(done: &[bool]) -> Sends {
    let mut sends = Sends::default();
    for (number, &done) in (0..).zip(done) {
        let status = done.then_some(Status::Done);
        let owner = Err(RawId(number));
        sends.push(PostedSend { number, status, ends_as: Status::Done, kind: Kind::Send, length: 0, owner });
    }
    sends
}

fn settle(
    sends: &mut Sends,
    statuses: &[(u64, TransferStatus)],
    level: Reliability,
) -> Option<ConnectionEnd> {
    sends.settle(&mut Script(statuses.iter().copied().collect()), level)
}

fn ends(sends: &mut Sends) -> Vec<Status> {
    std::iter::from_fn(|| sends.pop_over().map(|(status, _)| status)).collect()
}

#[test]
fn each_transfer_status_gives_a_status_of_its_level() {
    use Status::{Done, Flushed, RdmaProtectionError, RemoteDescriptorError, TransportError};
    let table = [
        (TransferStatus::Arrived, [Done, Done, Done]),
        (TransferStatus::Refused, [Done, Done, RemoteDescriptorError]),
        (TransferStatus::Unread, [Done, Done, Flushed]),
        (TransferStatus::Protection, [RdmaProtectionError; 3]),
        (TransferStatus::Lost, [TransportError; 3]),
    ];
    for (transfer_status, expected) in table {
        for (level, expected) in LEVELS.into_iter().zip(expected) {
            let mut sends = posted(&[false]);
            let end = match expected {
                Done => None,
                Flushed => Some(ConnectionEnd::Closed),
                RdmaProtectionError if level == Reliability::Unreliable => None,
                RdmaProtectionError => Some(ConnectionEnd::Forbidden),
                _ => Some(ConnectionEnd::Broken),
            };
            assert_eq!(
                settle(&mut sends, &[(0, transfer_status)], level),
                end,
                "{transfer_status:?} {level:?}"
            );
            assert_eq!(ends(&mut sends), [expected], "{transfer_status:?} {level:?}");
        }
    }
}

#[test]
fn sends_are_reported_in_order_whatever_order_they_end_in() {
    let mut sends = posted(&[false; 3]);
    settle(&mut sends, &[(2, TransferStatus::Arrived), (1, TransferStatus::Arrived)], Reliability::Delivery);
    assert_eq!(ends(&mut sends), []);
    settle(&mut sends, &[(0, TransferStatus::Arrived)], Reliability::Delivery);
    assert_eq!(ends(&mut sends), [Status::Done; 3]);
}

#[test]
fn only_the_oldest_bears_the_error() {
    use Status::{Done, Flushed, TransportError};
    let lost = [(3, TransferStatus::Lost), (1, TransferStatus::Lost), (2, TransferStatus::Lost)];
    let mut sends = posted(&[true, false, false, false]);
    assert_eq!(settle(&mut sends, &lost, Reliability::Delivery), Some(ConnectionEnd::Broken));
    assert_eq!(ends(&mut sends), [Done, TransportError, Flushed, Flushed]);
}

#[test]
fn what_ends_after_an_error_before_it_is_flushed() {
    use Status::{Done, Flushed, RemoteDescriptorError};
    let mut sends = posted(&[false, false, true, false]);
    let statuses = [(0, TransferStatus::Arrived), (1, TransferStatus::Refused)];
    assert_eq!(settle(&mut sends, &statuses, Reliability::Reception), Some(ConnectionEnd::Broken));
    assert_eq!(ends(&mut sends), [Done, RemoteDescriptorError, Flushed]);
    assert_eq!(settle(&mut sends, &[(3, TransferStatus::Unread)], Reliability::Reception), None);
    assert_eq!(ends(&mut sends), [Flushed]);
}

#[test]
fn a_flush_waits_for_the_memory() {
    use Status::{Flushed, TransportError};
    let mut sends = posted(&[false, false]);
    sends.flush(TransportError, Reliability::Delivery);
    assert_eq!(ends(&mut sends), []);
    assert!(!sends.all_over());
    settle(&mut sends, &[(1, TransferStatus::Arrived), (0, TransferStatus::Lost)], Reliability::Delivery);
    assert_eq!(ends(&mut sends), [TransportError, Flushed]);
}

#[test]
fn what_is_done_is_a_prefix_at_reliable_reception_only() {
    use Status::{Done, Flushed};
    for (level, last) in [(Reliability::Delivery, Done), (Reliability::Reception, Flushed)] {
        // The program disconnects.
        let mut sends = posted(&[false, true]);
        sends.flush(Flushed, level);
        settle(&mut sends, &[(0, TransferStatus::Arrived)], level);
        assert_eq!(ends(&mut sends), [Flushed, last], "{level:?}");
    }
    // The peer disconnects.
    let mut sends = posted(&[false, true]);
    assert_eq!(
        settle(&mut sends, &[(0, TransferStatus::Unread)], Reliability::Reception),
        Some(ConnectionEnd::Closed)
    );
    assert_eq!(ends(&mut sends), [Flushed, Flushed]);
}

#[test]
fn the_end_of_one_connection_does_not_reach_the_next() {
    use Status::{Done, Flushed, TransportError};
    for level in LEVELS {
        for first in [Flushed, TransportError] {
            let mut sends = posted(&[false]);
            sends.flush(first, level);
            sends.push(PostedSend {
                number: 1,
                status: None,
                ends_as: Done,
                kind: Kind::Send,
                length: 0,
                owner: Err(RawId(1)),
            });
            assert_eq!(settle(&mut sends, &[(0, TransferStatus::Lost)], level), None);
            settle(&mut sends, &[(1, TransferStatus::Arrived)], level);
            assert_eq!(ends(&mut sends), [first, Done], "{level:?}");
        }
    }
}

/// The bound of a send queue also counts sends that are over and not yet reported.
#[test]
fn a_send_counts_until_it_is_reported() {
    let mut sends = posted(&[true, false]);
    assert_eq!(sends.len(), 2);
    assert!(sends.pop_over().is_some() && sends.pop_over().is_none());
    assert_eq!(sends.len(), 1);
}

#[test]
fn what_is_under_way_is_counted_until_it_ends() {
    let mut sends = posted(&[false, true, false]);
    assert!(sends.oldest_is_under_way() && !sends.all_over());
    settle(&mut sends, &[(0, TransferStatus::Arrived)], Reliability::Delivery);
    assert!(!sends.oldest_is_under_way() && !sends.all_over());
    settle(&mut sends, &[(2, TransferStatus::Arrived)], Reliability::Delivery);
    assert!(!sends.oldest_is_under_way() && sends.all_over());
    assert_eq!(sends.len(), 3, "over, and not reported");
}

#[test]
fn the_unfinished_are_taken_and_no_longer_counted() {
    let mut sends = posted(&[false, true, false]);
    let numbers: Vec<u64> = sends.take_unfinished().map(|send| send.number).collect();
    assert_eq!(numbers, [0, 2]);
    assert!(sends.all_over() && sends.len() == 0);
}

#[test]
fn a_read_that_was_not_answered_is_flushed_at_every_level() {
    for level in [Reliability::Delivery, Reliability::Reception] {
        let mut sends = Sends::default();
        let (ends_as, owner) = (Status::Done, Err(RawId(0)));
        sends.push(PostedSend { number: 0, status: None, ends_as, kind: Kind::Read, length: 5, owner });
        assert_eq!(
            settle(&mut sends, &[(0, TransferStatus::Unread)], level),
            Some(ConnectionEnd::Closed),
            "{level:?}"
        );
        assert_eq!(ends(&mut sends), [Status::Flushed], "{level:?}");
    }
}

#[test]
fn what_is_behind_a_forbidden_write_or_read_is_flushed() {
    use Status::{Done, Flushed, RdmaProtectionError};
    let statuses = [(1, TransferStatus::Arrived), (0, TransferStatus::Protection)];
    let mut sends = posted(&[false; 2]);
    assert_eq!(settle(&mut sends, &statuses, Reliability::Reception), Some(ConnectionEnd::Forbidden));
    assert_eq!(ends(&mut sends), [RdmaProtectionError, Flushed]);
    let mut sends = posted(&[false; 2]);
    assert_eq!(settle(&mut sends, &statuses, Reliability::Unreliable), None, "nothing breaks it");
    assert_eq!(ends(&mut sends), [RdmaProtectionError, Done]);
}
