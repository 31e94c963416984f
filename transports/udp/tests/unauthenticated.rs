//! Unauthenticated callers: how much they are granted, how long, and beside how many others.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use quinn_proto::Dir;
use udeck_sys::job_time;
use udeck_via::{NetAddress, Reliability};

use super::raw_peer::Raw;
use super::{connect, ends, host_of, open, open_with, soon, works};
use crate::fixture::End;
use crate::unauthenticated::BOUNDS;

/// Makes QUIC's own timers late.
fn quiet(options: &mut crate::Options) {
    options.detect = Duration::from_secs(3600);
}

#[test]
fn a_caller_that_proves_nothing_is_sent_away_in_time_and_forgotten() {
    let (core, b) = open_with(quiet);
    let long = Duration::from_secs(60);
    // On a busy machine the caller's time may be over before QUIC is quiet: then another caller is made.
    let limit = soon();
    let (mut raw, peer) = loop {
        assert!(!limit.passed(), "every caller's time was over before QUIC was quiet");
        let mut raw = Raw::new();
        raw.call(host_of(&b));
        raw.until("a TLS session", |raw| raw.is_connected);
        // QUIC has nothing more to do now, so the NIC's timer is for the end of the caller's time.
        raw.until("the end of its time", |_| core.timers.wait(job_time(), long) > Duration::from_secs(1));
        let wait = core.timers.wait(job_time(), long);
        if let [peer] = &core.peers.all()[..] {
            assert!(wait <= BOUNDS.limit, "nobody looks at it in time");
            break (raw, peer.clone());
        }
    };
    peer.on_timeout(peer.created + BOUNDS.limit - Duration::from_millis(1));
    assert!(!peer.is_over());
    peer.on_timeout(peer.created + BOUNDS.limit);
    assert!(peer.is_over() && core.peers.all().is_empty(), "it is kept");
    assert_eq!(core.endpoint.lock().open_connections(), 0);
    raw.until("its end", |raw| raw.lost.is_some());
}

/// Each side grants the other one more once that one has authenticated itself.
#[test]
fn who_has_proved_nothing_has_one_stream_and_little_room() {
    let (_, b) = open_with(quiet);
    let mut caller = Raw::new();
    caller.call(host_of(&b));
    caller.until("a TLS session", |raw| raw.is_connected);
    let control = caller.quic().streams().open(Dir::Bi).expect("the control stream");
    assert!(caller.quic().streams().open(Dir::Bi).is_none(), "another stream of a caller");
    assert_eq!(room(&mut caller, control), 64 << 10, "for a caller");

    let (_, a) = open_with(quiet);
    let mut callee = Raw::new();
    let to = NetAddress { host: callee.address().to_string().into_bytes(), discriminator: b"here".to_vec() };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut end = End::new(&a, Reliability::Delivery);
            let cq = end.cq.handle();
            end.vi.connect(&to, &cq, &cq, b"", soon()).unwrap_err()
        });
        let hello = callee.hear(56);
        assert_eq!(hello.len(), 56);
        assert!(callee.quic().streams().open(Dir::Bi).is_none(), "a stream of one that is called");
        let control = callee.control();
        assert_eq!(room(&mut callee, control), 64 << 10, "for one that is called");
        callee.quic().close(std::time::Instant::now(), 1u32.into(), bytes::Bytes::new());
        callee.look();
    });
}

/// Number of bytes that QUIC lets it send on that stream before anything is answered.
fn room(raw: &mut Raw, stream: quinn_proto::StreamId) -> usize {
    let (mut sent, bytes) = (0, vec![0; 8 << 10]);
    while let Ok(written) = raw.quic().send_stream(stream).write(&bytes) {
        sent += written;
    }
    sent
}

#[test]
fn whoever_holds_all_places_keeps_nobody_at_another_address_out() {
    let other = |options: &mut crate::Options| options.bind = "127.0.0.2:0".parse().unwrap();
    let ((core_b, b), (_, a)) = (open_with(quiet), open_with(other));
    let unauthenticated = || core_b.peers.all().iter().filter(|peer| peer.is_unauthenticated()).count();
    let mut flood: Vec<Raw> = Vec::new();
    // On a slow machine the NIC may have ended the first of them meanwhile.
    while unauthenticated() < BOUNDS.most {
        let mut raw = Raw::new();
        raw.call(host_of(&b));
        raw.until("a TLS session", |raw| raw.is_connected);
        flood.push(raw);
    }
    assert!(core_b.make_room(host_of(&a).ip(), job_time()), "there is no place");
    assert!(unauthenticated() < BOUNDS.most, "nobody has made place");
    let (mut left, mut right) = ends(&a, &b);
    connect(&mut left, &mut right);
    works(&mut left, &mut right);
}

/// A caller that was evicted for another one tries again.
#[test]
fn who_is_sent_away_before_it_has_proved_who_it_is_calls_again() {
    let ((core_b, b), (_, a)) = (open(), open());
    let (mut left, mut right) = ends(&a, &b);
    let is_closed_ = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut dismissed, limit) = (0, soon());
            while dismissed < 3 && !is_closed_.load(Ordering::Relaxed) && !limit.passed() {
                for peer in core_b.peers.all().iter().filter(|peer| peer.is_unauthenticated()) {
                    peer.evict();
                    dismissed += 1;
                }
            }
        });
        connect(&mut left, &mut right);
        is_closed_.store(true, Ordering::Relaxed);
    });
    works(&mut left, &mut right);
}
