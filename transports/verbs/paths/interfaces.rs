//! Two connected VIs on one NIC over verbs, and the paths between them.

use std::{thread, time::Duration};

use udeck_via::{Cq, Deadline, Descriptor, Listener, NetAddress, Nic, Ptag, Status, Vi, ViAttributes};

use crate::{Result, SMALL, counted};

const DOOR: &[u8] = b"verbs-paths";

/// Goes through each path `rounds` times.
pub fn run(rounds: usize) -> Result {
    let nic = udeck_verbs::open(udeck_verbs::Options::new([7; 32])?)?;
    let ptag = nic.ptag();
    let mut here = End::new(&nic, ptag)?;
    let mut there = End::new(&nic, ptag)?;
    meet(&nic, &mut here, &mut there)?;
    // A new connection names its queues once.
    while there.cq.poll().is_some() {}
    sends(&nic, ptag, &mut here, &mut there, rounds)
}

struct End {
    vi: Vi,
    cq: Cq,
}

impl End {
    fn new(nic: &Nic, ptag: Ptag) -> Result<Self> {
        Ok(End { vi: Vi::new(nic, ViAttributes::new(ptag))?, cq: Cq::new(nic)? })
    }
}

/// The only place where two threads are needed: asking waits for the answer.
fn meet(nic: &Nic, here: &mut End, there: &mut End) -> Result {
    let listener = Listener::new(nic, DOOR)?;
    let address = NetAddress { host: nic.attributes().address.clone(), discriminator: DOOR.to_vec() };
    let deadline = Deadline::after(Duration::from_secs(60));
    let (ours, theirs) = (here.cq.handle(), there.cq.handle());
    thread::scope(|scope| -> Result {
        let answering = &mut there.vi;
        let answer = scope.spawn(move || listener.wait(deadline)?.accept(answering, &theirs, &theirs, b""));
        here.vi.connect(&address, &ours, &ours, b"", deadline)?;
        Ok(answer.join().expect("the answering end panicked")?)
    })
}

/// One message at a time, and a look at the empty queue after each.
fn sends(nic: &Nic, ptag: Ptag, here: &mut End, there: &mut End, rounds: usize) -> Result {
    let mut send = Descriptor::new([nic.region(SMALL, ptag)?]);
    let receive = Descriptor::new([nic.region(SMALL, ptag)?]);
    there.vi.post_receive(receive).map_err(|(error, _)| error)?;
    for _ in 0..rounds {
        counted::verbs_post_send(&mut here.vi, send);
        assert_eq!(counted::verbs_retrieve(&mut there.cq, &mut there.vi), SMALL);
        counted::verbs_cq_empty(&mut there.cq);

        let sent = counted::verbs_send_done(&mut here.vi);
        assert_eq!((sent.status, sent.length), (Status::Done, SMALL));
        send = sent.descriptor.map_err(|id| format!("{id} was not posted here"))?;
    }
    Ok(())
}
