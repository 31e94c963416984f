//! The thread that writes to the sockets in the order of service levels ([`crate::send_order`]), while something waits.

use std::io;
use std::sync::Arc;

use udeck_sys::thread;

use crate::core::Core;
use crate::send_order::Step;

/// Starts the thread. It ends when the NIC is closed and its links are over.
///
/// # Errors
/// The kernel's.
pub fn start(core: &Arc<Core>, port: u16) -> io::Result<()> {
    if core.send_order.is_none() {
        return Ok(());
    }
    let name = format!("tcp-order-{port}");
    let (core, failing, its_name) = (core.clone(), core.clone(), name.clone());
    thread::spawn(name, move || run(&core), move |why| failing.fail(&its_name, why)).map(drop)
}

fn run(core: &Core) {
    let Some(order) = &core.send_order else { return };
    while let Step::Send { link, bytes } = order.next_step() {
        if let Some(link) = core.link(link) {
            link.with(|connection, driver| driver.take_turn(connection, bytes));
        }
    }
}
