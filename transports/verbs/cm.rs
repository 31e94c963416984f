//! Connecting by rdma_cm, the kernel's connection manager (`librdmacm`): the only way for iWARP, a possible one
//! elsewhere.
//!
//! Both sides agree on a connection over TCP first, as always (`udeck_session::admission`). The accepting side adds
//! an [`Invitation`] to its answer: the listener's address, and a secret for this one connection. The requester
//! finds address and route, and sends its request to the listener with that secret in the private data. A request
//! without a known secret is rejected. So the listener admits only peers that the admission has admitted, and each
//! of them once.
//!
//! A NIC has one event channel and one listener. The helper takes the events, whatever the program does; a requester
//! waits for its own events, with its deadline. The queue pairs stay ours (see [`objects`]).

pub mod objects;
pub mod words;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use udeck_sys::say;
use udeck_via::{Deadline, Error, PollBudget, Result};

use crate::core::Core;
use crate::ffi::CmLibrary;
use crate::ffi::cm::cm_event;
use crate::hca::Hca;
use crate::queue::Queue;
use crate::settings::Settings;
use objects::{CmChannel, EventNotice, Id, PRIVATE, Request};

/// Name of the listener in events. Links are numbered from 1.
const LISTENER: u32 = 0;
/// Upper bound of the requests that the kernel keeps for us.
const BACKLOG: i32 = 1024;
/// Upper bound of the time for which a requester tries, whatever its deadline.
const LONGEST: Duration = Duration::from_secs(30);
/// Lifetime of an invitation, which is longer than any requester tries to use it.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Upper bound of this host's addresses that are tried.
const ADDRESSES: usize = 64;

/// Connections of a NIC by rdma_cm: its event channel, its listener, its invitations.
#[derive(Debug)]
pub struct Manager {
    _listener: Id,
    channel: Arc<CmChannel>,
    /// Address of the listener.
    at: SocketAddr,
    device: (String, u8),
    /// Invitations by link number. There are at most as many as links that wait for their peer.
    invited: Mutex<HashMap<u32, Invited>>,
    /// Event queues of the waiting requesters, by link number.
    callers: Mutex<HashMap<u32, Arc<EventQueue>>>,
    stranger: Once,
}

#[derive(Debug)]
struct Invited {
    secret: [u8; 16],
    /// Request that came before the link was made.
    request: Option<Request>,
}

/// Events for a requester that it has not taken yet.
#[derive(Debug, Default)]
struct EventQueue {
    events: Mutex<VecDeque<EventNotice>>,
    arrived: Condvar,
}

/// Invitation that the accepting side adds to its answer.
///
/// ```text
/// byte 0        16     18     22       38
///      +---------+------+------+--------+
///      | address | port | link | secret |      little-endian; IPv4 addresses as in IPv6 (RFC 4291, 2.5.5.2)
///      +---------+------+------+--------+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invitation {
    pub address: IpAddr,
    pub port: u16,
    /// Private data of the requester's request: the number of the link to meet, and the secret.
    pub private_data: [u8; PRIVATE],
}

impl Invitation {
    /// Bytes of an encoded invitation.
    pub const LEN: usize = 16 + 2 + PRIVATE;

    pub fn encode(&self) -> [u8; Self::LEN] {
        let address = match self.address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        let mut bytes = [0; Self::LEN];
        bytes[..16].copy_from_slice(&address.octets());
        bytes[16..18].copy_from_slice(&self.port.to_le_bytes());
        bytes[18..].copy_from_slice(&self.private_data);
        bytes
    }

    /// Decodes an invitation. Any bytes are one; the network finds out whether a listener is there.
    pub fn decode(bytes: &[u8; Self::LEN]) -> Self {
        let (mut octets, mut private_data) = ([0; 16], [0; PRIVATE]);
        octets.copy_from_slice(&bytes[..16]);
        private_data.copy_from_slice(&bytes[18..]);
        let address = IpAddr::from(octets).to_canonical();
        Invitation { address, port: u16::from_le_bytes([bytes[16], bytes[17]]), private_data }
    }
}

/// Encodes link number and secret as private data.
fn private_data(number: u32, secret: &[u8; 16]) -> [u8; PRIVATE] {
    let mut private_data = [0; PRIVATE];
    private_data[..4].copy_from_slice(&number.to_le_bytes());
    private_data[4..].copy_from_slice(secret);
    private_data
}

impl Manager {
    /// Listens at an address of the device's port: the NIC's address if it belongs to the port, otherwise the
    /// address of the port's GID, or any other of this host.
    ///
    /// # Errors
    /// Reason as text: no library, no kernel module, no address.
    pub fn open(library: Arc<CmLibrary>, hca: &Hca, bind: SocketAddr) -> std::result::Result<Self, String> {
        let file = library.file.clone();
        let channel = CmChannel::open(library).map_err(|error| {
            format!("{file}: no connections can be made: {error} (is the kernel module rdma_ucm loaded?)")
        })?;
        let device = (hca.name.clone(), hca.port);
        let mut tried = Vec::new();
        for address in addresses(hca, bind) {
            match listen(&channel, address, &device) {
                Ok(listener) => {
                    let at = SocketAddr::new(address.ip(), listener.port());
                    return Ok(Manager {
                        _listener: listener,
                        channel,
                        at: with_scope(at, address),
                        device,
                        invited: Mutex::default(),
                        callers: Mutex::default(),
                        stranger: Once::new(),
                    });
                }
                Err(why) => tried.push(format!("{}: {why}", address.ip())),
            }
        }
        let (name, port) = device;
        Err(format!(
            "rdma_cm finds port {port} of {name} by no address of this host ({}): give its network interface one",
            tried.join("; ")
        ))
    }

    // ---- the accepting side ----

    /// Makes an invitation for the peer of link `number`.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn make_invitation(&self, number: u32) -> Result<Invitation> {
        let mut secret = [0; 16];
        getrandom::fill(&mut secret)
            .map_err(|error| Error::os("drawing an invitation", io::Error::other(error)))?;
        self.invited.lock().insert(number, Invited { secret, request: None });
        Ok(Invitation {
            address: self.at.ip(),
            port: self.at.port(),
            private_data: private_data(number, &secret),
        })
    }

    /// Withdraws the invitation of a link if it was not used.
    pub fn withdraw(&self, number: u32) {
        let invited = self.invited.lock().remove(&number);
        // The lock is released first: dropping a request rejects it.
        drop(invited);
    }

    /// Lets a request that came before its link meet the link, which has been added now.
    pub fn admit(&self, core: &Core, number: u32) {
        let mut invited = self.invited.lock();
        let Some(Invited { request: Some(_), .. }) = invited.get(&number) else { return };
        let request = invited.remove(&number).and_then(|invited| invited.request);
        drop(invited);
        if let (Some(request), Some(link)) = (request, core.completions.link(number)) {
            link.meet(request);
        }
    }

    /// Handles a request: it meets the link that it was invited to, once.
    fn on_request(&self, core: &Core, request: Request) {
        let said = request.private;
        let number = said.map_or(0, |said| u32::from_le_bytes([said[0], said[1], said[2], said[3]]));
        let mut table = self.invited.lock();
        let invited = table.get_mut(&number).filter(|invited| {
            invited.request.is_none() && said == Some(private_data(number, &invited.secret))
        });
        let Some(invited) = invited else {
            drop(table);
            self.stranger.call_once(|| {
                let at = self.at;
                say!("refused an RDMA connection at {at} without an invitation (reported once)");
            });
            return request.id.reject();
        };
        let Some(link) = core.completions.link(number) else {
            invited.request = Some(request);
            return;
        };
        table.remove(&number);
        drop(table);
        link.meet(request);
    }

    // ---- the requesting side ----

    /// Connects the queue pair of link `number` to the one of the invitation.
    ///
    /// # Errors
    /// [`Error::Timeout`]; [`Error::Lost`], whose text names the peer's address, the device and the step.
    pub fn call(
        &self,
        number: u32,
        queue: &mut Queue,
        (hca, settings): (&Hca, &Settings),
        invitation: &Invitation,
        deadline: Deadline,
    ) -> Result {
        let peer = with_scope(SocketAddr::new(invitation.address, invitation.port), self.at);
        let event_queue = Arc::new(EventQueue::default());
        self.callers.lock().insert(number, event_queue.clone());
        let deadline = deadline.min(Deadline::after(LONGEST));
        let call = Call { manager: self, number, event_queue, peer, since: Instant::now(), deadline };
        let id = Id::new(&self.channel, number).map_err(|error| call.broke("an identifier", error))?;

        let step = "finding the way to its address";
        let mut from = self.at;
        from.set_port(0);
        id.resolve_address(from, peer, call.millis()).map_err(|error| call.broke(step, error))?;
        call.wait(&[cm_event::ADDR_RESOLVED], step)?;
        if id.device().as_ref() != Some(&self.device) {
            return Err(call.lost(step, &format!("it leads by another device or port, {:?}", id.device())));
        }
        let step = "finding a route to it";
        id.resolve_route(call.millis()).map_err(|error| call.broke(step, error))?;
        call.wait(&[cm_event::ROUTE_RESOLVED], step)?;

        let step = "asking it for the connection";
        queue.ask(&id, hca, settings, &invitation.private_data).map_err(|error| call.broke(step, error))?;
        // On iWARP the kernel makes the whole connection.
        let answer = call.wait(&[cm_event::CONNECT_RESPONSE, cm_event::ESTABLISHED], step)?;
        if answer == cm_event::CONNECT_RESPONSE {
            let step = "confirming the connection";
            queue.confirm(&id, hca, settings).map_err(|error| call.broke(step, error))?;
        }
        queue.keep_id(id);
        Ok(())
    }

    // ---- the helper ----

    /// Takes events, and passes them on. Never waits. Strangers may send requests without end, so one call takes a
    /// bounded round; the rest keep the channel readable.
    pub fn take_events(&self, core: &Core) {
        let mut budget = PollBudget::once();
        while budget.take()
            && let Some(mut event) = self.channel.next()
        {
            if let Some(request) = event.request.take() {
                self.on_request(core, request);
                continue;
            }
            let caller = self.callers.lock().get(&event.name).cloned();
            if let Some(event_queue) = caller {
                event_queue.events.lock().push_back(event);
                event_queue.arrived.notify_all();
            } else if event.name != LISTENER {
                core.completions.link(event.name).into_iter().for_each(|link| link.on_manager(&event));
            } else if event.kind == cm_event::DEVICE_REMOVAL {
                let why = format!("the device {} was removed", self.device.0);
                core.completions.links().iter().for_each(|link| link.give_up(&why));
            }
        }
    }
}

impl AsFd for Manager {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

/// A waiting requester. Once it is dropped, its events go to its link.
struct Call<'a> {
    manager: &'a Manager,
    number: u32,
    event_queue: Arc<EventQueue>,
    peer: SocketAddr,
    since: Instant,
    deadline: Deadline,
}

impl Call<'_> {
    /// Time in milliseconds that the kernel may take.
    fn millis(&self) -> i32 {
        i32::try_from(self.deadline.remaining().as_millis()).unwrap_or(i32::MAX).max(1)
    }

    /// Waits for one of the `wanted` events. Returns its kind.
    fn wait(&self, wanted: &[u32], step: &str) -> Result<u32> {
        let mut events = self.event_queue.events.lock();
        loop {
            while let Some(event) = events.pop_front() {
                if let Some(why) = words::failure(&event) {
                    return Err(self.lost(step, &why));
                }
                if wanted.contains(&event.kind) {
                    return Ok(event.kind);
                }
            }
            let has_slept =
                self.event_queue.arrived.wait_until(&mut events, self.deadline.instant()).timed_out();
            if has_slept && self.deadline.passed() && events.is_empty() {
                let (peer, device) = (self.peer, &self.manager.device.0);
                let what = format!("connecting {device} to {peer} through rdma_cm ({step})");
                return Err(Error::Timeout { what, waited: self.since.elapsed() });
            }
        }
    }

    #[cold]
    fn lost(&self, step: &str, why: &str) -> Error {
        let (peer, device) = (self.peer, &self.manager.device.0);
        Error::Lost(format!("connecting {device} to {peer} through rdma_cm: {step}: {why}"))
    }

    #[cold]
    fn broke(&self, step: &str, error: io::Error) -> Error {
        self.lost(step, &error.to_string())
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.manager.callers.lock().remove(&self.number);
    }
}

/// Returns addresses that may belong to the device, the likely ones first.
fn addresses(hca: &Hca, bind: SocketAddr) -> Vec<SocketAddr> {
    let mut bound = bind;
    bound.set_port(0);
    let mut found = vec![bound];
    let gid = IpAddr::from(hca.gid.raw).to_canonical();
    // Link-local addresses are left out: a peer cannot use one without knowing the link.
    let others = udeck_sys::interfaces().unwrap_or_default().into_iter();
    let others =
        others.filter(|one| one.up && !udeck_sys::is_link_local(&one.address)).map(|one| one.address);
    let mapped = [gid].into_iter().filter(|gid| gid.is_ipv4());
    for address in mapped.chain(others).map(|ip| SocketAddr::new(ip, 0)) {
        if found.len() < ADDRESSES && !found.iter().any(|known| known.ip() == address.ip()) {
            found.push(address);
        }
    }
    found
}

/// Listens at a free port of this address, if the address belongs to the device.
fn listen(
    channel: &Arc<CmChannel>,
    address: SocketAddr,
    device: &(String, u8),
) -> std::result::Result<Id, String> {
    let listening = || {
        let id = Id::new(channel, LISTENER)?;
        id.bind(address)?;
        Ok(id)
    };
    let id = listening().map_err(|error: io::Error| error.to_string())?;
    match id.device() {
        Some(found) if found == *device => {}
        Some((name, port)) => return Err(format!("port {port} of {name} has it")),
        None => return Err("no RDMA device has it".into()),
    }
    id.listen(BACKLOG).map_err(|error| error.to_string())?;
    Ok(id)
}

/// Gives a link-local address the scope (the link) of `of`.
fn with_scope(mut address: SocketAddr, of: SocketAddr) -> SocketAddr {
    if let (SocketAddr::V6(address), SocketAddr::V6(of)) = (&mut address, of)
        && udeck_sys::is_link_local(&IpAddr::V6(*address.ip()))
    {
        address.set_scope_id(of.scope_id());
    }
    address
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn prop_invitations_round_trip(octets: [u8; 16], v4: [u8; 4], is_v4: bool, port: u16, number: u32, secret: [u8; 16]) {
            let address = if is_v4 { IpAddr::from(v4) } else { IpAddr::from(octets).to_canonical() };
            let invitation = Invitation { address, port, private_data: private_data(number, &secret) };
            prop_assert_eq!(Invitation::decode(&invitation.encode()), invitation);
        }
    }
}
