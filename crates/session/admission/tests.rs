//! Listeners and calls on sockets. The listener is driven by an epoll instance of its owner, as a transport drives it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use udeck_via::auth::Claim;
use udeck_via::{Deadline, Error, NetAddress, RejectKind, Rejection, Reliability};

use super::wire::Meet;
use super::*;
use crate::address;
use crate::poll::{EventFlags, Found, Poller};

fn admission(name: &str) -> Admission {
    Admission {
        keys: [7; 32].into(),
        protocol: Protocol::new(name, 1),
        detect: Duration::from_secs(10),
        withdrawal: b"withdrawn".to_vec(),
    }
}

fn hello(words: &[u8]) -> Hello {
    let private_data = words.to_vec();
    Hello { reliability: Reliability::Delivery, writable_ptag: None, readable_ptag: None, private_data }
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

fn to(listener: &RequestListener) -> NetAddress {
    NetAddress { host: address::encode(listener.address()), discriminator: b"at".to_vec() }
}

fn listening(name: &str) -> RequestListener {
    admission(name).listen("127.0.0.1:0".parse().unwrap()).unwrap()
}

/// Runs an owner's loop until `done`: it sleeps in its own epoll instance, as long as the listener allows.
fn drive(
    listener: &mut RequestListener,
    on_request: &mut dyn FnMut(PendingRequest),
    done: impl Fn(&RequestListener) -> bool,
) {
    const LISTENER: u64 = 5;
    let (poller, mut found) = (Poller::new().unwrap(), Found::default());
    poller.add(&*listener, LISTENER, EventFlags::IN).unwrap();
    while !done(listener) {
        let next = listener.tick(Instant::now());
        let limit =
            next.map_or(Duration::from_secs(1), |next| next.saturating_duration_since(Instant::now()));
        poller.poll(&mut found, limit.min(Duration::from_millis(20)));
        for token in found.tokens() {
            assert_eq!(token, LISTENER);
            listener.serve(on_request);
        }
    }
}

/// Makes one call to a listener, and answers its request.
fn call(
    listener: &mut RequestListener,
    caller: &Admission,
    parameters: &[u8],
    mut answer: impl FnMut(PendingRequest),
) -> Result<Admitted> {
    let to = to(listener);
    std::thread::scope(|scope| {
        let calling = scope.spawn(|| caller.call(&to, None, &hello(b"asks"), parameters, &soon().into()));
        drive(listener, &mut answer, |_| calling.is_finished());
        calling.join().unwrap()
    })
}

#[test]
fn what_is_left_is_a_socket_and_what_both_sides_said() {
    let mut listener = listening("verbs");
    let mut accepted = None;
    let longest = [9; MAX_PARAMETERS];
    let called = call(&mut listener, &admission("verbs"), &longest, |pending| {
        assert_eq!((pending.discriminator(), pending.parameters()), (&b"at"[..], &longest[..]));
        assert_eq!(pending.hello(), &hello(b"asks"));
        accepted = Some(pending.accept(&hello(b"answers"), b"queue pair 17").unwrap());
    })
    .unwrap();
    let accepted = accepted.expect("it was asked");
    assert_eq!((accepted.theirs, accepted.parameters), (hello(b"asks"), longest.to_vec()));
    assert_eq!((called.theirs, called.parameters), (hello(b"answers"), b"queue pair 17".to_vec()));
    assert_eq!(called.peer, listener.address());
    // The next byte is the transport's, both ways; the listener does not read it.
    let [mut here, mut there] = [accepted.socket, called.socket].map(TcpStream::from);
    assert_eq!(there.local_addr().unwrap(), accepted.peer);
    let mut words = [0; 8];
    for socket in [&here, &there] {
        socket.set_nonblocking(false).unwrap();
    }
    here.write_all(b"lifeline").unwrap();
    there.read_exact(&mut words).unwrap();
    assert_eq!(&words, b"lifeline");
    there.write_all(b"ready").unwrap();
    here.read_exact(&mut words[..5]).unwrap();
    assert_eq!(&words[..5], b"ready");
    listener.serve(&mut |pending| panic!("{pending:?}"));
}

#[test]
fn each_refusal_is_an_error_of_its_own() {
    let mut listener = listening("verbs");
    let caller = admission("verbs");
    let mut refused = |answer: fn(PendingRequest)| call(&mut listener, &caller, b"", answer).unwrap_err();
    let busy = refused(|pending| pending.reject(Rejection::new(RejectKind::Refused, "busy")));
    assert!(matches!(busy, Error::Rejected(rejection) if rejection.to_string() == "busy"));
    let nobody = refused(|pending| pending.reject(RejectKind::NoListener));
    assert!(matches!(nobody, Error::NoMatch(at) if at == "at"));
    assert!(matches!(refused(|pending| pending.reject(RejectKind::Reliability)), Error::InvalidReliability));
    assert!(refused(drop).to_string().contains("dropped unanswered"));
    let too_long = refused(|pending| {
        let error = pending.accept(&hello(b""), &[0; MAX_PARAMETERS + 1]).unwrap_err();
        assert!(error.to_string().contains("257 bytes"), "{error}");
    });
    assert!(matches!(too_long, Error::Rejected(_)), "{too_long}");
    let error = caller.call(&to(&listener), None, &hello(b""), &[0; 257], &soon().into()).unwrap_err();
    assert!(matches!(error, Error::InvalidParameter(_)), "{error}");
}

#[test]
fn who_is_of_another_transport_or_job_is_told_and_does_not_get_in() {
    let mut listener = listening("tcp");
    let error = call(&mut listener, &admission("verbs"), b"", |_| panic!("it got in")).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("it is a NIC of the tcp transport, and this one of verbs"), "{error}");
    let stranger = Admission { keys: [8; 32].into(), ..admission("tcp") };
    let error = call(&mut listener, &stranger, b"", |_| panic!("it got in")).unwrap_err().to_string();
    assert!(error.contains("does not know this job's secret"), "{error}");
}

/// The listener keeps the time: it hangs up on a caller that sends half a greeting, and no other caller has to come for that.
#[test]
fn a_silent_caller_is_hung_up_on() {
    let mut listener = listening("tcp");
    let mut socket = TcpStream::connect(listener.address()).unwrap();
    let meet = Meet { protocol: Protocol::new("tcp", 1), claim: Claim::NOBODY, nonce: [1; 32] }.encode();
    socket.write_all(&meet[..20]).unwrap();
    assert_eq!(listener.tick(Instant::now()), None, "nobody is let in yet");
    drive(&mut listener, &mut |_| panic!("it got in"), |listener| !listener.is_empty());
    let until = listener.tick(Instant::now()).expect("it is waited for");
    assert!(!listener.is_empty());
    assert_eq!(listener.tick(until), None);
    assert!(listener.is_empty());
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    // The socket is closed by a reset, if its bytes were not read yet.
    let end = socket.read(&mut [0; 8]).map_err(|error| error.kind());
    assert!(matches!(end, Ok(0) | Err(io::ErrorKind::ConnectionReset)), "{end:?}");
}

/// The owner may poll a listener by any means: it is readable as long as it has something to do.
#[test]
fn a_listener_is_readable_while_somebody_waits_before_it() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut listener = listening("tcp");
    let readable = |listener: &RequestListener, limit: u64| {
        let limit = Timespec { tv_sec: limit as _, tv_nsec: 0 };
        poll(&mut [PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN)], Some(&limit)).unwrap() > 0
    };
    assert!(!readable(&listener, 0));
    let caller = TcpStream::connect(listener.address()).unwrap();
    assert!(readable(&listener, 60) && readable(&listener, 0));
    listener.serve(&mut |_| panic!("it got in"));
    assert!(!readable(&listener, 0));
    drop(caller);
    assert!(readable(&listener, 60));
    listener.serve(&mut |_| panic!("it got in"));
    assert!(!readable(&listener, 0));
}

const UNHEARD: &str = "admission::tests::a_stranger_is_sent_away_though_nobody_reads_why";
/// Environment variable that is set in the process whose stderr nobody reads.
const IS_UNHEARD: &str = "UDECK_TEST_NOBODY_READS_STDERR";

#[test]
fn a_stranger_is_sent_away_though_nobody_reads_why() {
    if std::env::var_os(IS_UNHEARD).is_some() {
        let mut listener = listening("tcp");
        let stranger = Admission { keys: [8; 32].into(), ..admission("tcp") };
        call(&mut listener, &stranger, b"", |pending| panic!("{pending:?}")).unwrap_err();
        let mut accepted = None;
        let accept =
            |pending: PendingRequest| accepted = Some(pending.accept(&hello(b"answers"), b"").unwrap());
        call(&mut listener, &admission("tcp"), b"", accept).expect("the listener is served");
        return;
    }
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut unheard = std::process::Command::new(std::env::current_exe().unwrap());
    unheard.args([UNHEARD, "--exact", "--nocapture"]).env(IS_UNHEARD, "1").stderr(writer);
    let ended = unheard.output().unwrap();
    assert!(ended.status.success(), "{}: {}", ended.status, String::from_utf8_lossy(&ended.stdout));
}
