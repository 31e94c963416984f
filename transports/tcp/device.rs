//! The TCP NIC: opening it, and its part of `Network`.

#![allow(unsafe_code, reason = "it implements the transport contract")]

use std::sync::Arc;

use udeck_session::admission::{Admission, MAX_DISCRIMINATOR, MAX_PRIVATE};
use udeck_session::framed::wire;
use udeck_session::{
    Driver, Listeners, Memory, Network, SendOrder, SessionDevice, Side, Windows, address, start_order_thread,
};
use udeck_via::transport::{Connected, Hello, Queues, Waiter};
use udeck_via::{Caps, Deadline, Error, NetAddress, Result};

use crate::completion_queue::take_slots;
use crate::core::{Core, PROTOCOL, TcpLink};
use crate::helper;
use crate::options::Options;
use crate::waiter::TcpWaiter;

/// The TCP NIC of a process.
pub type TcpDevice = SessionDevice<Core>;

pub fn open(options: &Options) -> Result<Arc<TcpDevice>> {
    address::check_bind(options.bind)?;
    let memory = options.memory.open()?;
    let max_transfer = memory.outbox.usage().limit;
    let admission = Admission {
        keys: options.keys.clone(),
        protocol: PROTOCOL,
        detect: options.detect,
        withdrawal: wire::withdrawal(),
    };
    let listener = admission.listen(options.bind)?;
    let mut attributes = udeck_session::attributes("tcp0", listener.address(), max_transfer);
    attributes.identity = options.keys.rank();
    attributes.max_discriminator = MAX_DISCRIMINATOR;
    attributes.max_private_data = MAX_PRIVATE;
    let send_order = options.levels.as_ref().map(|levels| SendOrder::new(levels, options.in_flight));
    if send_order.is_some() {
        attributes.caps = attributes.caps | Caps::SERVICE_LEVELS;
    }
    let core = Core::new(admission, memory, max_transfer, send_order)
        .map_err(|error| Error::os("opening a NIC's epoll", error))?;
    let device = SessionDevice::new(attributes, core.clone());
    start_order_thread(&core, "tcp-order")
        .map_err(|error| Error::os("starting a NIC's thread that orders", error))?;
    helper::start(core, listener).map_err(|error| Error::os("starting a NIC's helper thread", error))?;
    Ok(device)
}

// SAFETY: memory and windows are fields that are set once, and `Core::establish` gives them to each connection;
// nothing else of this crate writes the arenas, and `open` gives out the NIC only.
unsafe impl Network for Core {
    fn memory(&self) -> &Memory {
        &self.memory
    }

    fn windows(&self) -> &Windows {
        &self.windows
    }

    fn listeners(&self) -> &Listeners {
        &self.listeners
    }

    fn waiter(self: &Arc<Self>) -> Result<Box<dyn Waiter>> {
        Ok(Box::new(TcpWaiter::open(self)?))
    }

    fn connect(
        self: &Arc<Self>,
        to: &NetAddress,
        peer: Option<u32>,
        hello: &Hello,
        queues: Queues<'_>,
        deadline: Deadline,
    ) -> Result<Connected> {
        let slots = take_slots(self, &queues)?;
        let admitted = self.admission.call(to, peer, hello, &[], &queues.until(deadline))?;
        self.establish(admitted, hello, Side::Asked, slots, &queues)
    }

    /// Polls the links: the buffers of sends are given back when the kernel has the data.
    fn reclaim(self: &Arc<Self>) {
        for link in self.links() {
            link.try_with(|connection, driver| driver.serve(connection));
        }
    }

    fn undelivered(self: &Arc<Self>) -> usize {
        let is_done = |link: &TcpLink| link.with(|connection, driver| driver.is_done(connection));
        self.links().iter().filter(|link| !is_done(link)).count()
    }

    fn close(&self) {
        self.shut();
    }
}
