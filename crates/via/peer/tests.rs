//! Tests of either side, over a device that answers as it is told.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::attributes::ViAttributes;
use crate::cq::Cq;
use crate::script::{Script, ScriptedDevice};
use crate::vi::Vi;

/// A VI that has asked for a peer.
struct Asked {
    script: Script,
    device: Arc<ScriptedDevice>,
    vi: Vi,
    _cq: Cq,
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

/// Makes a VI of the NIC at `host`, over a device that already knows why its connections will not be made.
fn asked(host: u8, refusals: impl IntoIterator<Item = Error>, deadline: Deadline) -> Asked {
    let script = Script::default();
    script.refusals.lock().extend(refusals);
    let device = script.device();
    let nic = Nic::new(device.clone());
    let cq = Cq::new(&nic).unwrap();
    let mut vi = Vi::new(&nic, ViAttributes::new(nic.ptag())).unwrap();
    let remote = NetAddress { host: vec![host], discriminator: b"name".to_vec() };
    vi.peer_request(&remote, &cq.handle(), &cq.handle(), b"", deadline).unwrap();
    Asked { script, device, vi, _cq: cq }
}

/// Makes a VI of a NIC with the higher address, which listens.
fn listening() -> Asked {
    asked(1, [], soon())
}

impl Asked {
    /// Delivers a request that cannot be accepted.
    fn cannot_accept(&self, why: Error) {
        self.script.refusals.lock().push_back(why);
        self.device.request();
        assert!(self.script.refusals.lock().is_empty(), "it was to be accepted");
    }

    /// Waits until the asking thread has ended.
    fn until_asked_no_more(&self) {
        let (net, rendezvous) = (soon(), &self.vi.peering("the test").unwrap().rendezvous);
        while Arc::strong_count(rendezvous) > 1 {
            assert!(!net.passed(), "it asks on");
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_requester_that_is_gone_does_not_end_the_wait_for_the_next() {
    let mut end = listening();
    end.cannot_accept(Error::Lost("the requester has given up".into()));
    assert!(end.vi.peer_done().unwrap().is_none(), "the peer may yet come");
    end.cannot_accept(Error::Closed);
    assert!(end.vi.peer_done().unwrap().is_none());
    end.device.request();
    end.script.arrives_inline(b"");
    assert_eq!(end.vi.peer_wait().unwrap(), [1, 2], "what the one that confirmed has sent along");
}

#[test]
fn a_shortage_of_its_own_ends_the_wait() {
    let mut end = listening();
    end.cannot_accept(Error::Full { what: "the table of connections", bound: "64".into() });
    assert!(matches!(end.vi.peer_wait(), Err(Error::Full { .. })));
}

/// The error tells the program's own deadline, and how long it has waited in all.
#[test]
fn a_request_that_is_too_late_is_told_as_the_programs_own() {
    let answer = Error::Timeout { what: "an answer".into(), waited: Duration::from_nanos(1) };
    let mut end = asked(200, [answer], Deadline::now());
    end.until_asked_no_more();
    let error = end.vi.peer_wait().unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }) && error.to_string().contains("\"name\""), "{error}");
}

#[test]
fn what_else_keeps_a_request_from_being_made_is_told() {
    let mut end = asked(200, [Error::InvalidReliability], soon());
    assert!(matches!(end.vi.peer_wait(), Err(Error::InvalidReliability)));
}
