//! The side that listens, over a device that answers as it is told.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::attributes::ViAttributes;
use crate::cq::Cq;
use crate::wrap::tests::script::{Script, ScriptedDevice};

/// A VI that waits for a peer whose address is the lower one: it listens.
struct Listening {
    script: Script,
    device: Arc<ScriptedDevice>,
    vi: Vi,
    _cq: Cq,
}

fn listening() -> Listening {
    let script = Script::default();
    let device = script.device();
    let nic = Nic::new(device.clone());
    let cq = Cq::new(&nic).unwrap();
    let mut vi = Vi::new(&nic, ViAttributes::new(nic.ptag())).unwrap();
    let remote = NetAddress { host: vec![1], discriminator: b"name".to_vec() };
    let soon = Deadline::after(Duration::from_secs(60));
    vi.peer_request(&remote, &cq.handle(), &cq.handle(), b"", soon).unwrap();
    Listening { script, device, vi, _cq: cq }
}

impl Listening {
    /// A request comes that cannot be accepted.
    fn cannot_accept(&self, why: Error) {
        self.script.refusals.lock().push_back(why);
        self.device.request();
        assert!(self.script.refusals.lock().is_empty(), "it was to be accepted");
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
