use std::{
    net::TcpListener,
    os::{fd::AsRawFd, unix::net::UnixStream},
    time::Duration,
};

use super::*;
use crate::start::pmi::{
    Framing,
    fake::{at_once, soon},
};

fn pair() -> (Channel, Channel) {
    let (a, b) = UnixStream::pair().unwrap();
    (Channel::new(a), Channel::new(b))
}

/// Makes a pipe that is open both ways: a reader gets what it has written itself.
fn pipe() -> Channel {
    let (end, _other) = std::io::pipe().unwrap();
    let path = format!("/proc/self/fd/{}", end.as_raw_fd());
    Channel::new(std::fs::File::options().read(true).write(true).open(path).unwrap())
}

#[test]
fn bytes_travel_both_ways_over_sockets_and_tcp() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("localhost:{}", listener.local_addr().unwrap().port());
    let connected = Channel::connect(&address, soon()).unwrap();
    let accepted = Channel::new(listener.accept().unwrap().0);
    for (a, b) in [pair(), (connected, accepted)] {
        for (from, to) in [(&a, &b), (&b, &a)] {
            let mut inbox = Inbox::default();
            from.send(b"cmd=x\n", soon()).unwrap();
            to.receive(&mut inbox, soon()).unwrap();
            assert_eq!(inbox.next(Framing::Line).unwrap().unwrap().command(), "x");
            assert_eq!(to.receive(&mut inbox, at_once()), Err(Broken::Late { torn: false }));
        }
        drop(a);
        let Err(Broken::Gone(why)) = b.receive(&mut Inbox::default(), soon()) else { panic!("no end") };
        assert_eq!(why, "the launcher's service has closed the connection");
        // TCP takes the first bytes, and answers by a reset.
        let said = (0..).map(|_| b.send(b"x", soon())).find_map(Result::err);
        assert_eq!(said, Some(Broken::closed()));
    }
}

#[test]
fn a_pipe_will_do() {
    let pipe = pipe();
    let mut inbox = Inbox::default();
    assert_eq!(pipe.receive(&mut inbox, at_once()), Err(Broken::Late { torn: false }));
    pipe.send(b"cmd=x\n", soon()).unwrap();
    pipe.receive(&mut inbox, soon()).unwrap();
    assert!(inbox.next(Framing::Line).unwrap().is_some());
    assert_eq!(pipe.send(&vec![0; 1 << 20], at_once()), Err(Broken::Late { torn: true }));
}

#[test]
fn who_does_not_read_is_late() {
    let (a, b) = pair();
    assert_eq!(a.send(&vec![0; 8 << 20], at_once()), Err(Broken::Late { torn: true }));
    assert_eq!(a.send(b"x", at_once()), Err(Broken::Late { torn: false }));
    drop(b);
    assert_eq!(a.send(b"x", at_once()), Err(Broken::closed()));
}

#[test]
fn nobody_at_an_address_is_said_in_words() {
    let port = udeck_test_kit::free_port();
    let Err(Broken::Gone(why)) = Channel::connect(&format!("127.0.0.1:{port}"), soon()) else {
        panic!("somebody is there")
    };
    assert!(why.contains(&format!("127.0.0.1:{port}: Connection refused")), "{why}");
    // The text is not even a name: the resolver is not asked.
    let Err(Broken::Gone(why)) = Channel::connect("no port", soon()) else { panic!("somebody is there") };
    assert!(why.contains("its address is not found"), "{why}");
}

/// The queue of a listener that accepts no connection is full after a few.
#[test]
fn who_does_not_accept_is_late() {
    let listener =
        rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None).unwrap();
    rustix::net::bind(&listener, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let address = SocketAddr::try_from(rustix::net::getsockname(&listener).unwrap()).unwrap().to_string();
    let mut waiting = Vec::new();
    let late = loop {
        match Channel::connect(&address, Deadline::after(Duration::from_millis(200))) {
            Ok(channel) => waiting.push(channel),
            Err(late) => break late,
        }
        assert!(waiting.len() < 100, "everybody is let in");
    };
    assert_eq!(late, Broken::Late { torn: false });
}
