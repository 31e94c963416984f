//! Two queue pairs, of which either may be faster: the peer's frames on both come in any order.

use udeck_session::Memory;
use udeck_session::TakenBody;
use udeck_via::Reliability;
use udeck_via::transport::{Hello, Refused};

use crate::connection::Connection;
use crate::wire::{Frame, Header};

fn connection() -> Connection {
    let memory = Memory::fresh(4 << 20).expect("address space");
    let (reliability, private_data) = (Reliability::Unreliable, Vec::new());
    let hello = Hello { reliability, writable_ptag: None, readable_ptag: None, private_data };
    let mut connection = Connection::new(&memory, &hello, &hello, 1 << 20);
    connection.go_unreliable();
    connection
}

/// Lets a frame of the peer come on the reliable queue pair.
fn says(connection: &mut Connection, frame: Frame) {
    connection.on_receive(&Header { taken: 0, control_ack: 0, frame }.encode());
}

/// Lets a message of this number come, whose immediate data are the number.
fn comes(connection: &mut Connection, number: u32) {
    let frame = Frame::Short { immediate: Some(number), len: 0 };
    connection.on_receive_unreliable(&Header { taken: number, control_ack: 0, frame }.encode());
}

fn wrote(connection: &mut Connection, number: u32, pieces: u32, len: u64) {
    let frame = Frame::Wrote { immediate: number, pieces, len };
    connection.on_receive_unreliable(&Header { taken: number, control_ack: 0, frame }.encode());
}

const END: Frame = Frame::End { broken: false, len: 0 };

/// Takes all messages, and returns their immediate data.
fn taken(connection: &mut Connection) -> Vec<u32> {
    std::iter::from_fn(|| connection.take().ok().flatten().and_then(|taken| taken.immediate)).collect()
}

fn is_over(connection: &mut Connection) -> bool {
    matches!(connection.take(), Err(Refused::Closed))
}

#[test]
fn the_end_waits_for_what_has_left_before_it() {
    let mut connection = connection();
    says(&mut connection, Frame::Left { upto: 3 });
    says(&mut connection, END);
    assert!(!is_over(&mut connection));
    comes(&mut connection, 0);
    comes(&mut connection, 1);
    assert_eq!((connection.awaited(), taken(&mut connection)), (Some(2), vec![0, 1]));
    assert!(!is_over(&mut connection));
    comes(&mut connection, 2);
    assert_eq!((connection.awaited(), taken(&mut connection)), (None, vec![2]));
    assert!(is_over(&mut connection));
    assert_eq!(connection.take_missed(), 0);
}

#[test]
fn what_is_missed_is_waited_for_once_and_comes_too_late_after_that() {
    let mut connection = connection();
    says(&mut connection, Frame::Left { upto: 3 });
    says(&mut connection, END);
    comes(&mut connection, 0);
    connection.miss();
    assert_eq!((connection.take_missed(), connection.awaited()), (2, None));
    comes(&mut connection, 1);
    assert_eq!(taken(&mut connection), [0]);
    assert!(is_over(&mut connection));
    assert_eq!(connection.failure(), None, "who is late breaks nothing");
}

#[test]
fn what_comes_tells_of_what_was_lost_before() {
    let mut connection = connection();
    comes(&mut connection, 0);
    comes(&mut connection, 4);
    comes(&mut connection, 2);
    assert_eq!((taken(&mut connection), connection.take_missed()), (vec![0, 4], 3));
    // This report was overtaken.
    says(&mut connection, Frame::Left { upto: 3 });
    assert_eq!((connection.awaited(), connection.failure()), (None, None));
}

#[test]
fn a_write_completes_only_when_each_piece_has_come() {
    let mut connection = connection();
    connection.written_unreliable(0, 100);
    connection.written_unreliable(1, 50);
    wrote(&mut connection, 2, 2, 150);
    let arrival = connection.take().expect("it stands").expect("a write");
    assert!(matches!((arrival.immediate, arrival.body), (Some(2), TakenBody::Written(150))));
    // The first, the last and the middle piece are missing; one piece is of another write, whose *wrote* frame was lost.
    connection.written_unreliable(4, 50);
    wrote(&mut connection, 5, 2, 150);
    connection.written_unreliable(6, 100);
    wrote(&mut connection, 8, 2, 150);
    connection.written_unreliable(9, 10);
    connection.written_unreliable(11, 10);
    wrote(&mut connection, 12, 3, 30);
    connection.written_unreliable(13, 100);
    connection.written_unreliable(15, 100);
    wrote(&mut connection, 16, 2, 200);
    assert_eq!((taken(&mut connection), connection.take_missed()), (vec![], 4));
    wrote(&mut connection, 17, 0, 0);
    assert_eq!(taken(&mut connection), [17], "one of no bytes has no pieces");
    assert_eq!(connection.failure(), None);
}

#[test]
fn more_than_there_are_numbers_for_is_not_believed() {
    for break_it in [
        |connection: &mut Connection| comes(connection, 64),
        |connection: &mut Connection| says(connection, Frame::Left { upto: 65 }),
        |connection: &mut Connection| connection.written(1, 1),
        |connection: &mut Connection| says(connection, Frame::Short { immediate: None, len: 0 }),
        |connection: &mut Connection| {
            connection
                .on_receive_unreliable(&Header { taken: 1, control_ack: 0, frame: Frame::Credit }.encode());
        },
    ] {
        let mut connection = connection();
        comes(&mut connection, 0);
        assert_eq!(connection.failure(), None);
        break_it(&mut connection);
        assert!(connection.failure().is_some_and(|why| why.contains("you broke the protocol")));
    }
}
