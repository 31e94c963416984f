//! The thread that writes to the sockets in the order of service levels ([`crate::send_order`]), while something waits.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use udeck_sys::thread;

use crate::core::Core;
use crate::send_order::Step;

/// Between two looks at what the network has taken; the longer one once it has taken nothing for [`SHORT_LOOKS`] looks.
const PAUSE: Duration = Duration::from_micros(50);
const LONG_PAUSE: Duration = Duration::from_millis(1);
const SHORT_LOOKS: u32 = 200;

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
    let mut looks = 0;
    loop {
        match order.next_step() {
            Step::Stop => return,
            Step::Send { link, bytes } => {
                looks = 0;
                if let Some(link) = core.link(link) {
                    link.with(|connection, driver| driver.take_turn(connection, bytes));
                }
            }
            Step::Pause => {
                looks += 1;
                std::thread::sleep(if looks < SHORT_LOOKS { PAUSE } else { LONG_PAUSE });
            }
        }
    }
}
