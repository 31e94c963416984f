//! Thread that writes in the order of service levels ([`crate::send_order`]), while something waits.

use std::io;
use std::sync::Arc;

use udeck_sys::thread;

use crate::send_order::{SendBuffer, SendOrder, Step};

/// A NIC whose links send in an order, if its levels have shares.
pub trait Ordered: Send + Sync + 'static {
    /// Buffer below its links.
    type Buffer: SendBuffer;

    /// The order of its links. `None`: links send as they like.
    fn send_order(&self) -> Option<&SendOrder<Self::Buffer>>;

    /// Gives a link its turn, if the link still exists: it writes at most `bytes`, reports what it wrote by
    /// [`SendOrder::sent`], and asks for another turn if it has more.
    fn take_turn(&self, link: u64, bytes: usize);

    /// Fails the NIC: the thread has panicked.
    fn fail(self: &Arc<Self>, thread: &str, why: &str);
}

/// Starts the thread `name`, if there is an order. It ends after [`SendOrder::stop`].
///
/// # Errors
/// Errors of the kernel.
pub fn start_order_thread<N: Ordered>(nic: &Arc<N>, name: &'static str) -> io::Result<()> {
    if nic.send_order().is_none() {
        return Ok(());
    }
    let (nic, failing) = (nic.clone(), nic.clone());
    thread::spawn(name, move || run(&*nic), move |why| failing.fail(name, why)).map(drop)
}

fn run(nic: &impl Ordered) {
    let Some(order) = nic.send_order() else { return };
    while let Step::Send { link, bytes } = order.next_step() {
        nic.take_turn(link, bytes);
    }
}
