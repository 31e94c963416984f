//! Paths between two connected VIs on one NIC over verbs.

use counts::Result;
use counts::pair::{End, connected};
use udeck_via::{Descriptor, Nic, Ptag, Status, ViAttributes};

use crate::counted::{self, SMALL};

/// Runs each path `rounds` times.
pub fn run(rounds: usize) -> Result {
    let nic = udeck_verbs::open(udeck_verbs::Options::new([7; 32])?)?;
    let ptag = nic.ptag();
    let (mut here, mut there) = connected(&nic, ViAttributes::new(ptag))?;
    sends(&nic, ptag, &mut here, &mut there, rounds)
}

/// Sends one message at a time, and polls the empty queue after each.
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
