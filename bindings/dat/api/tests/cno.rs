//! A wait for several dispatchers.

use std::os::fd::AsRawFd;

use super::*;

#[test]
fn who_waits_learns_which_dispatcher_has_events() {
    for transport in TRANSPORTS {
        let (here, there) = pair(transport);
        let cno = Cno::new(there.ep.ia());
        for evd in [&there.work, &there.connections] {
            evd.set_cno(Some(&cno)).unwrap();
        }
        assert!(cno.poll().is_none());
        there.ep.post_receive(there.lmr(&[0; 4]), 1).unwrap();
        let wait = || cno.wait(Deadline::after(LIMIT)).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(wait);
            std::thread::sleep(Duration::from_millis(30)); // it sleeps, most often
            here.ep.post_send(here.lmr(b"wake"), 1).unwrap();
            assert_eq!(waiting.join().unwrap(), there.work.id(), "{transport}");
        });
        assert_eq!(there.completion().length, 4);
        here.ep.disconnect(true).unwrap();
        assert_eq!(wait(), there.connections.id(), "{transport}");
        assert_eq!(told(&there.connections, &there.ep), Connection::Disconnected);
        let (start, limit) = (std::time::Instant::now(), Duration::from_millis(30));
        let late = cno.wait(Deadline::after(limit));
        assert!(matches!(late, Err(Error::Timeout { call: "dat_cno_wait", .. })), "{late:?}");
        assert!(start.elapsed() >= limit);
    }
}

#[test]
fn each_dispatcher_is_told_once_and_only_while_it_is_enabled() {
    let one = end(&nic("shm"));
    let ia = one.ep.ia();
    let (cno, other) = (Cno::new(ia), Evd::new(ia, 0));
    one.work.post_software(1).unwrap();
    one.work.set_cno(Some(&cno)).unwrap();
    one.work.post_software(2).unwrap();
    other.set_cno(Some(&cno)).unwrap();
    other.set_enabled(false);
    other.post_software(3).unwrap();
    assert_eq!((cno.poll(), cno.poll()), (Some(one.work.id()), None), "what was there is told, too");
    other.set_enabled(true);
    assert_eq!((cno.poll(), cno.poll()), (Some(other.id()), None));
    // A threshold and a CNO exclude each other.
    let refused = one.work.wait_for(2, Deadline::after(LIMIT));
    assert!(matches!(refused, Err(Error::InUse { call: "dat_evd_wait", .. })), "{refused:?}");
    one.work.set_cno(None).unwrap();
    assert!(matches!(one.work.wait_for(2, Deadline::after(LIMIT)), Ok(Event::Software(1))));
    // A dispatcher that has gone is not named, and it may outlive the object.
    other.post_software(4).unwrap();
    drop(other);
    assert!(cno.poll().is_none());
    one.work.set_cno(Some(&cno)).unwrap();
    assert!(Evd::new(&Ia::on_nic(&nic("shm")).unwrap(), 0).set_cno(Some(&cno)).is_err());
    drop(cno);
    one.work.post_software(5).unwrap();
    assert!(matches!(next(&one.work), Event::Software(2)));
}

#[test]
fn a_descriptor_is_readable_while_there_is_news() {
    let readable = |fd: std::os::fd::BorrowedFd<'_>, limit: i32| {
        let mut polled = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
        let limit = rustix::time::Timespec { tv_sec: limit.into(), tv_nsec: 0 };
        rustix::event::poll(&mut polled, Some(&limit)).unwrap() == 1
    };
    for transport in TRANSPORTS {
        let (here, there) = pair(transport);
        let cno = Cno::with_fd(there.ep.ia()).unwrap();
        there.work.set_cno(Some(&cno)).unwrap();
        there.ep.post_receive(there.lmr(&[0; 4]), 1).unwrap();
        let fd = cno.fd().unwrap();
        assert!(fd.as_raw_fd() >= 0 && !readable(fd, 0), "{transport}");
        here.ep.post_send(here.lmr(b"wake"), 1).unwrap();
        assert!(readable(fd, 20), "{transport}: the library's thread takes what has arrived");
        assert_eq!(cno.poll(), Some(there.work.id()));
        assert!(!readable(fd, 0), "{transport}");
        assert_eq!(there.completion().cookie, 1);
    }
    assert!(Cno::new(end(&nic("shm")).ep.ia()).fd().is_none());
}

#[test]
fn a_dispatcher_has_the_room_that_it_is_given() {
    let ia = Ia::on_nic(&nic("shm")).unwrap();
    let evd = Evd::new(&ia, 10_000);
    assert_eq!(evd.room(), 10_000);
    for value in 0..9000 {
        evd.post_software(value).unwrap();
    }
    assert!(matches!(evd.resize(8192), Err(Error::InUse { .. })));
    evd.resize(9000).unwrap();
    assert!(evd.post_software(0).unwrap_err().is_full());
    assert!(matches!(evd.resize(usize::MAX), Err(Error::InvalidParameter { .. })));
}

#[test]
fn an_agent_is_called_with_dispatchers_that_have_events() {
    let (called, calls) = std::sync::mpsc::channel();
    let one = end(&nic("shm"));
    let cno = Cno::new(one.ep.ia());
    let evd = one.work.clone();
    let agent = move |of| {
        while let Some(event) = evd.dequeue() {
            called.send((of, format!("{event:?}"))).unwrap();
        }
    };
    cno.set_agent(Some(Box::new(agent))).unwrap();
    one.work.set_cno(Some(&cno)).unwrap();
    for value in [7, 8] {
        one.work.post_software(value).unwrap();
        assert_eq!(calls.recv_timeout(LIMIT), Ok((one.work.id(), format!("{:?}", Event::Software(value)))));
    }
    cno.set_agent(None).unwrap();
    one.work.post_software(9).unwrap();
    assert!(calls.recv_timeout(LIMIT).is_err(), "what it owned has gone with it");
    assert_eq!(one.work.len(), 1);
}

#[test]
fn an_agent_that_is_replaced_in_a_call_leaves_its_news_to_the_next() {
    let one = end(&nic("shm"));
    let (cno, other) = (Cno::new(one.ep.ia()), Evd::new(one.ep.ia(), 0));
    one.work.set_cno(Some(&cno)).unwrap();
    other.set_cno(Some(&cno)).unwrap();
    let (began, begins) = std::sync::mpsc::channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let slow = move |of| {
        began.send(of).unwrap();
        let _ = released.recv_timeout(LIMIT);
    };
    // The agent is also called for events that came before it was set.
    one.work.post_software(1).unwrap();
    cno.set_agent(Some(Box::new(slow))).unwrap();
    assert_eq!(begins.recv_timeout(LIMIT), Ok(one.work.id()));
    for evd in [&other, &one.work, &other] {
        evd.post_software(2).unwrap();
    }
    let (called, calls) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let replacing = scope.spawn(|| cno.set_agent(Some(Box::new(move |of| called.send(of).unwrap()))));
        assert_eq!(calls.recv_timeout(LIMIT), Ok(other.id()));
        assert_eq!(calls.recv_timeout(LIMIT), Ok(one.work.id()));
        release.send(()).unwrap();
        replacing.join().unwrap().unwrap();
    });
    assert!(begins.try_recv().is_err(), "called after its end");
    assert!(calls.try_recv().is_err(), "each is told once");
}

#[test]
fn an_agent_that_panics_stays() {
    let (called, calls) = std::sync::mpsc::channel();
    let one = end(&nic("shm"));
    let cno = Cno::new(one.ep.ia());
    let evd = one.work.clone();
    let agent = move |_| match evd.dequeue() {
        Some(Event::Software(7)) => panic!("the agent's own mistake"),
        event => called.send(format!("{event:?}")).unwrap(),
    };
    cno.set_agent(Some(Box::new(agent))).unwrap();
    one.work.set_cno(Some(&cno)).unwrap();
    one.work.post_software(7).unwrap();
    let limit = Deadline::after(LIMIT);
    while !one.work.is_empty() {
        assert!(!limit.passed(), "it is not called");
        std::thread::yield_now();
    }
    one.work.post_software(8).unwrap();
    assert_eq!(calls.recv_timeout(LIMIT), Ok(format!("{:?}", Some(Event::Software(8)))));
    cno.set_agent(None).unwrap();
}
