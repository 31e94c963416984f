//! Ends of connections, and what is left of them.

use std::io::{Read, Write};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use udeck_via::mem::Fill;
use udeck_via::{Error, State};

use super::{LentEnd, check, listen, nic, nic_with, pair, rogue};

/// Connects a rogue to an end of `nic`.
fn connected(nic: &udeck_via::Nic) -> (std::net::TcpStream, LentEnd) {
    let (listener, _) = listen(nic);
    let mut end = LentEnd::new(nic);
    std::thread::scope(|scope| {
        let calling = scope.spawn(|| rogue::connect(nic));
        end.accept(&listener);
        (calling.join().unwrap(), end)
    })
}

/// The rogue does as the kernel of a killed process does: it sends no End frame, only the end of the stream.
#[test]
fn a_peer_that_is_killed_is_lost() {
    let nic = nic();
    let (socket, mut end) = connected(&nic);
    drop(socket);
    assert!(matches!(end.end(), Error::Lost(_)));
    assert_eq!(end.vi.state(), State::Error);
}

#[test]
fn a_peer_that_leaves_is_closed() {
    let (a, b) = (nic(), nic());
    let (left, mut right) = pair(&a, &b);
    drop(left);
    assert!(matches!(right.end(), Error::Closed));
}

#[test]
fn any_bytes_on_a_connection_end_it_at_most() {
    let nic = nic();
    let (mut left, mut right) = pair(&nic, &nic);
    let bytes = prop::collection::vec(any::<u8>(), 1..500);
    TestRunner::new(Config::with_cases(100))
        .run(&bytes, |bytes| {
            let (mut socket, mut end) = connected(&nic);
            let _ = socket.write_all(&bytes);
            drop(socket);
            prop_assert!(matches!(end.end(), Error::Lost(_)));
            Ok(())
        })
        .unwrap();
    check(&mut left, &mut right);
}

/// Loopback loses nothing: the kernel is asked, and reports 0 retransmissions.
#[test]
fn the_kernel_tells_what_it_has_sent_again() {
    let (a, b) = (nic(), nic());
    let (mut left, mut right) = pair(&a, &b);
    check(&mut left, &mut right);
    let report = left.vi.link_report().and_then(|report| report.upgrade()).expect("a connection");
    assert_eq!(report.retransmissions().expect("the kernel counts them").packets, 0);
}

/// The peer reads nothing for longer than a silent host would live, and its kernel answers probes. Then it reads all.
#[test]
fn a_stopped_peer_is_not_dead() {
    let detect = Duration::from_secs(2);
    let nic = nic_with(|options| options.detect = detect);
    let (mut socket, mut end) = connected(&nic);
    // More bytes than the kernels at both ends take.
    const LEN: usize = 16 << 20;
    let mut block = nic.outbox().block(LEN, Fill::Zero).unwrap();
    block.bytes_mut().fill(3);
    end.vi.hand_off(None, b"", block).unwrap();
    std::thread::sleep(detect * 4);
    assert!(end.vi.arrival().unwrap().is_none(), "it is connected");
    let mut bytes = vec![0; LEN];
    socket.read_exact(&mut bytes).unwrap();
    assert!(bytes[1024..].iter().all(|&byte| byte == 3));
}

/// Counts this host's sockets in TIME_WAIT with one end at `port`.
fn in_time_wait(port: u16) -> usize {
    let table = std::fs::read_to_string("/proc/net/tcp").expect("a mounted /proc");
    let port = format!(":{port:04X}");
    let fields = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    fields.filter(|fields| fields[3] == "06" && fields[1..3].iter().any(|at| at.ends_with(&port))).count()
}

#[test]
fn what_ends_in_order_leaves_no_socket_waiting() {
    let (a, b) = (nic(), nic());
    for _ in 0..50 {
        let (mut left, mut right) = pair(&a, &b);
        check(&mut left, &mut right);
        drop(left);
        assert!(matches!(right.end(), Error::Closed));
    }
    for nic in [a, b] {
        let address = String::from_utf8(nic.attributes().address.clone()).unwrap();
        let port = address.parse::<std::net::SocketAddr>().unwrap().port();
        assert_eq!(in_time_wait(port), 0);
    }
}
