//! Two connected VIs on one NIC.

use std::{thread, time::Duration};

use udeck_via::{Cq, Deadline, Listener, NetAddress, Nic, Result, Vi, ViAttributes};

const DOOR: &[u8] = b"fast-paths";

/// One end of the connection, and the queue of its completions.
pub struct End {
    /// Connected interface.
    pub vi: Vi,
    /// Queue of the completions of both its queues.
    pub cq: Cq,
}

/// Makes both ends of a connection.
///
/// # Errors
/// Errors of the NIC, which has to listen at one name, and to have room for two interfaces.
pub fn connected(nic: &Nic, attributes: ViAttributes) -> Result<(End, End)> {
    let end = || -> Result<End> { Ok(End { vi: Vi::new(nic, attributes)?, cq: Cq::new(nic)? }) };
    let (mut here, mut there) = (end()?, end()?);
    meet(nic, &mut here, &mut there)?;
    // A new connection names its queues once, so these entries are taken first.
    while there.cq.poll().is_some() {}
    Ok((here, there))
}

/// Connects the ends: the only place that needs two threads, because a connect waits for the answer.
fn meet(nic: &Nic, here: &mut End, there: &mut End) -> Result {
    let listener = Listener::new(nic, DOOR)?;
    let address = NetAddress { host: nic.attributes().address.clone(), discriminator: DOOR.to_vec() };
    let deadline = Deadline::after(Duration::from_secs(60));
    let (ours, theirs) = (here.cq.handle(), there.cq.handle());
    thread::scope(|scope| -> Result {
        let answering = &mut there.vi;
        let answer = scope.spawn(move || listener.wait(deadline)?.accept(answering, &theirs, &theirs, b""));
        here.vi.connect(&address, &ours, &ours, b"", deadline)?;
        answer.join().expect("the answering end panicked")
    })
}
