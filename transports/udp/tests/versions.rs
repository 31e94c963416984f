//! Two processes that speak different versions of the protocol: the caller is told, at once, which each speaks.

use std::net::UdpSocket;
use std::time::Duration;

use udeck_session::address;
use udeck_udp::wire::greeting::{Greeting, Meet, Prove, Versions};
use udeck_udp::wire::{Kind, VERSION, open, open_any, seal};
use udeck_udp::{Options, Source};
use udeck_via::{Cq, Deadline, Error, NetAddress, Nic, Vi, ViAttributes};

const OTHER: u8 = VERSION + 8;

fn nic() -> Nic {
    let options = Options { memory: Source::Fresh(1 << 20), ..Options::new([7; 32]) };
    udeck_udp::open(&options).unwrap()
}

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    socket
}

#[test]
fn who_calls_in_another_version_is_answered_in_it() {
    let nic = nic();
    let (caller, at) = (socket(), std::str::from_utf8(&nic.attributes().address).unwrap().to_owned());
    let versions = Versions { datagrams: OTHER.into(), frames: 99 };
    let body = Meet { versions, number: 77, nonce: [3; 32], claim: udeck_via::auth::Claim::NOBODY }.encode();
    let mut question = Greeting { kind: Kind::Meet, connection: 0, proof: [0; 32], body: &body }.encode();
    question[0] = OTHER;
    seal(&mut question, []);
    caller.send_to(&question, &at).unwrap();
    let mut answer = [0; 2000];
    let (len, from) = caller.recv_from(&mut answer).expect("an answer");
    assert_eq!((from.to_string(), answer[0]), (at, OTHER));
    assert!(len <= question.len(), "no amplifier");
    let opened = open_any(&answer[..len]).unwrap();
    assert_eq!((opened.kind, opened.connection), (Kind::Prove, 77));
    let prove = Prove::decode(Greeting::decode(&opened).unwrap().body).unwrap();
    assert_eq!((prove.versions.datagrams, prove.cookie), (VERSION.into(), [0; 32]));
}

#[test]
fn a_caller_that_is_answered_by_another_version_says_so_at_once() {
    let (nic, acceptor) = (nic(), socket());
    let at = acceptor.local_addr().unwrap();
    let answering = std::thread::spawn(move || {
        let mut question = [0; 2000];
        let (len, from) = acceptor.recv_from(&mut question).expect("a call");
        let opened = open(&question[..len]).unwrap();
        let meet = Meet::decode(Greeting::decode(&opened).unwrap().body).unwrap();
        let versions = Versions { datagrams: OTHER.into(), frames: 99 };
        let body = Prove { versions, cookie: [0; 32] }.encode();
        let answer = Greeting { kind: Kind::Prove, connection: meet.number, proof: [0; 32], body: &body };
        let mut answer = answer.encode();
        answer[0] = question[0];
        seal(&mut answer, []);
        acceptor.send_to(&answer, from).unwrap();
        meet.versions
    });
    let cq = Cq::new(&nic).unwrap();
    let mut vi = Vi::new(&nic, ViAttributes::new(nic.ptag())).unwrap();
    let to = NetAddress { host: address::encode(at), discriminator: b"x".to_vec() };
    let deadline = Deadline::after(Duration::from_secs(60));
    let error = vi.connect(&to, &cq.handle(), &cq.handle(), b"", deadline).unwrap_err();
    let ours = answering.join().unwrap();
    let Error::Rejected(words) = error else { panic!("{error}") };
    let expected = format!(
        "{at} was called: it speaks version {OTHER}.99 of the UDP protocol, this process {}.{}: build both from one version",
        ours.datagrams, ours.frames
    );
    assert_eq!(words, expected);
}
