//! The paths between two connected VIs on one NIC.

use counts::Result;
use counts::pair::{End, connected};
use udeck::via::{Descriptor, Nic, Ptag, RemoteBuffer, Source, Status, ViAttributes};

use crate::counted;

/// Bytes of a message that travels inside its cell.
const SMALL: usize = 8;
/// Bytes of an RDMA write.
const LINE: usize = 64;

/// Runs each path `rounds` times.
pub fn run(nic: &Nic, rounds: usize) -> Result {
    let ptag = nic.ptag();
    let attributes = ViAttributes { enable_rdma_write: true, ..ViAttributes::new(ptag) };
    let (mut here, mut there) = connected(nic, attributes)?;
    sends(nic, ptag, &mut here, &mut there, rounds)?;
    writes(nic, ptag, &mut here, rounds)
}

/// Sends one message at a time, and polls the empty queue after each.
fn sends(nic: &Nic, ptag: Ptag, here: &mut End, there: &mut End, rounds: usize) -> Result {
    let mut send = Descriptor::new([nic.region(SMALL, ptag)?]);
    let mut receive = Descriptor::new([nic.region(SMALL, ptag)?]);
    for _ in 0..rounds {
        counted::vi_post_receive(&mut there.vi, receive);
        counted::vi_post_send(&mut here.vi, send);

        assert_eq!(counted::cq_poll_found(&mut there.cq).source, Source::Receive);
        let came = counted::vi_receive_done(&mut there.vi);
        assert_eq!((came.status, came.length), (Status::Done, SMALL));
        receive = came.descriptor.map_err(|id| format!("{id} was not posted here"))?;
        assert!(counted::cq_poll_empty(&mut there.cq), "one message was sent");

        let sent = counted::vi_send_done(&mut here.vi);
        assert_eq!((sent.status, sent.length), (Status::Done, SMALL));
        send = sent.descriptor.map_err(|id| format!("{id} was not posted here"))?;
    }
    Ok(())
}

fn writes(nic: &Nic, ptag: Ptag, here: &mut End, rounds: usize) -> Result {
    let window = nic.window(LINE, ptag)?;
    let place = RemoteBuffer { len: LINE, ..window.remote() };
    let mut line = nic.region(LINE, ptag)?;
    line.fill(1);
    let mut write = Descriptor::rdma_write([line], place);
    for _ in 0..rounds {
        counted::rdma_write(&mut here.vi, write);
        let written = here.vi.send_done().ok_or("an RDMA write is over when it was posted")?;
        assert_eq!((written.status, written.length), (Status::Done, LINE));
        write = written.descriptor.map_err(|id| format!("{id} was not posted here"))?;
    }
    let mut came = [0; LINE];
    window.read(0, &mut came)?;
    assert_eq!(came, [1; LINE]);
    Ok(())
}
