//! The simulated NIC.

#![allow(unsafe_code, reason = "it implements the transport contract")]

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rand_xoshiro::rand_core::Rng;
use udeck_via::auth::Keys;
use udeck_via::transport::{
    Connected, Device, Hello, Inline, Notifier, OnRequest, Queues, ViEndpoint, Waiter,
};
use udeck_via::{
    Arena, Caps, Deadline, Error, Lent, MemHandle, NetAddress, NicAttributes, Ptag, RejectKind, Rejection,
    Result, Rights,
};

use crate::Options;
use crate::connection::{Side, WINDOW};
use crate::endpoint::SimEndpoint;
use crate::memory::{self, Memory};
use crate::request::{Pending, Verdict};
use crate::waiter::{QUEUES, SimNotifier, SimWaiter, WAITERS};
use crate::world::{Due, Exposed, Node, Shared, World};

const WINDOWS: usize = 512;
const MAX_DISCRIMINATOR: usize = 256;
const MAX_PRIVATE: usize = 4096;
/// How long a request waits, beyond its deadline, for a listener that is at work.
const LISTENER_GRACE: Duration = Duration::from_secs(1);

/// An opened NIC.
pub struct SimDevice {
    pub shared: Arc<Shared>,
    node: usize,
    attributes: NicAttributes,
    outbox: Arc<Arena>,
    landing: Arc<Arena>,
    /// Memory of the outbox.
    pub memory: Arc<Memory>,
    copied: Arc<AtomicU64>,
}

impl SimDevice {
    pub fn open(shared: &Arc<Shared>, name: &str, options: &Options) -> Result<Arc<Self>> {
        let (memory, landing) = (Memory::new(options.arena_limit), Memory::new(options.arena_limit));
        let copied = Arc::<AtomicU64>::default();
        shared.with(|world| {
            if world.node(name).is_some() {
                return Err(Error::InvalidParameter(format!("there is a NIC named {name:?} already")));
            }
            Ok(Arc::new_cyclic(|this| {
                world.nodes.push(Node {
                    name: name.to_owned(),
                    keys: options.keys.clone(),
                    device: this.clone(),
                    outbox: memory.clone(),
                    landing: landing.clone(),
                    windows: Default::default(),
                    waiters: 0,
                    listeners: Default::default(),
                    copied: copied.clone(),
                    gone: false,
                });
                SimDevice {
                    shared: shared.clone(),
                    node: world.nodes.len() - 1,
                    attributes: attributes(name, options),
                    outbox: memory::outbox(&memory),
                    landing: memory::landing(&landing),
                    memory,
                    copied,
                }
            }))
        })
    }

    pub fn has(&self, caps: Caps) -> bool {
        self.attributes.caps.has(caps)
    }

    fn require_read(&self, what: &'static str) -> Result {
        if self.has(Caps::RDMA_READ) {
            return Ok(());
        }
        Err(Error::Unsupported { what, needed: Caps::RDMA_READ, have: self.attributes.caps })
    }

    /// Adds an entry to the table of windows, under a fresh handle.
    fn publish(&self, exposed: Exposed) -> Result<MemHandle> {
        self.shared.with(|world| {
            if world.nodes[self.node].windows.len() == WINDOWS {
                return Err(Error::Full {
                    what: "the table of windows",
                    bound: format!("{WINDOWS} per NIC").into(),
                });
            }
            loop {
                let handle = world.random.next_u64() as u32;
                let windows = &mut world.nodes[self.node].windows;
                if handle != 0 && !windows.contains_key(&handle) {
                    windows.insert(handle, exposed);
                    return Ok(MemHandle(handle));
                }
            }
        })
    }

    /// Sends a connection request.
    fn request(&self, to: &NetAddress, peer: Option<u32>, hello: &Hello, waiters: [u64; 2]) -> Result<u64> {
        self.shared.with(|world| {
            let name = String::from_utf8_lossy(&to.host).into_owned();
            let Some(node) = world.node(&name) else {
                return Err(Error::os(format!("connecting to {name:?}"), io::ErrorKind::ConnectionRefused));
            };
            let peer = meet(&world.nodes[self.node].keys, peer, &world.nodes[node].keys)?;
            if world.nodes[self.node].gone {
                return Err(Error::Lost("this NIC is dead".into()));
            }
            world.reserve(waiters)?;
            let (number, link) = (world.fresh_number(), (self.node, node));
            let (hello, discriminator) = (hello.clone(), to.discriminator.clone());
            world.pending.insert(number, Pending { link, peer, hello, discriminator, answer: None });
            let travels = world.travel_time(link);
            world.schedule(travels, Due::Request(number));
            world.run_due();
            Ok(number)
        })
    }
}

/// Simulates a network's hand-shake. Returns the rank that the asking NIC proves to be, if any.
fn meet(asks: &Keys, peer: Option<u32>, answers: &Keys) -> Result<Option<u32>> {
    let asked = asks.call(peer).map_err(|error| Error::InvalidParameter(error.to_string()))?;
    let answered = answers.answer(asked.claim()).map_err(|error| Error::NoMatch(error.to_string()))?;
    if !answered.check(&asked.prove(b"sim", b"", &[]), b"sim", b"", &[]) {
        let rejection = Rejection::new(RejectKind::Identity, asked.why_wrong_callee());
        return Err(Error::Rejected(rejection));
    }
    Ok(answered.caller())
}

fn attributes(name: &str, options: &Options) -> NicAttributes {
    let mut attributes = NicAttributes::new("sim0");
    attributes.address = name.as_bytes().to_vec();
    attributes.identity = options.keys.rank();
    attributes.caps = options.caps;
    attributes.max_discriminator = MAX_DISCRIMINATOR;
    attributes.max_private_data = MAX_PRIVATE;
    attributes.max_descriptors_per_queue = WINDOW;
    attributes.max_segments = Lent::MAX_PARTS;
    attributes.max_transfer = options.arena_limit;
    attributes.max_inline = Inline::CAPACITY;
    attributes.max_head = Inline::CAPACITY;
    attributes.max_queues_per_cq = QUEUES;
    attributes.max_cq = WAITERS;
    attributes.max_cq_entries = QUEUES;
    attributes.max_windows = WINDOWS;
    attributes
}

/// Returns the fabric's own notifiers of the two queues: send, receive.
pub fn waiters_of(shared: &Arc<Shared>, node: usize, queues: &Queues<'_>) -> Result<[Arc<SimNotifier>; 2]> {
    let own = |notifier: &Arc<dyn Notifier>| match notifier.clone().into_any().downcast::<SimNotifier>() {
        Ok(sim) if sim.node == node && Arc::ptr_eq(&sim.shared, shared) => Ok(sim),
        _ => Err(Error::InvalidParameter("the completion queue belongs to another NIC".into())),
    };
    Ok([own(queues.send)?, own(queues.receive)?])
}

/// Makes the endpoint of one side.
pub fn endpoint(
    device: Arc<SimDevice>,
    connection: u64,
    side: Side,
    notifiers: [Arc<SimNotifier>; 2],
) -> Box<dyn ViEndpoint> {
    Box::new(SimEndpoint { device, connection, side, receipt: None, notifiers })
}

// SAFETY: the arenas are fixed when the NIC opens; RDMA looks up the window and copies under the world's one lock,
// so nobody is inside a window when `revoke` has the lock. `Fabric::nic` gives out the NIC only.
unsafe impl Device for SimDevice {
    fn attributes(&self) -> &NicAttributes {
        &self.attributes
    }

    fn outbox(&self) -> &Arc<Arena> {
        &self.outbox
    }

    fn landing(&self) -> &Arc<Arena> {
        &self.landing
    }

    fn expose(&self, offset: u64, len: usize, ptag: Ptag) -> Result<MemHandle> {
        self.expose_for(offset, len, ptag, Rights::WRITE)
    }

    fn expose_for(&self, offset: u64, len: usize, ptag: Ptag, rights: Rights) -> Result<MemHandle> {
        if rights.read {
            self.require_read("a readable window")?;
        }
        self.publish(Exposed { offset, len, ptag, rights, in_outbox: false })
    }

    fn expose_outbox(&self, offset: u64, len: usize, ptag: Ptag) -> Result<MemHandle> {
        self.require_read("a message that peers read")?;
        self.publish(Exposed { offset, len, ptag, rights: Rights::READ, in_outbox: true })
    }

    /// Removes the window. Writes and reads happen under the fabric's lock: none is under way when this returns.
    fn revoke(&self, handle: MemHandle, _: Deadline) -> Result {
        self.shared.with(|world| world.nodes[self.node].windows.remove(&handle.0));
        Ok(())
    }

    fn waiter(&self) -> Result<Box<dyn Waiter>> {
        Ok(Box::new(SimWaiter::new(&self.shared, self.node)?))
    }

    fn listen(&self, discriminator: &[u8], on_request: OnRequest) -> Result {
        if discriminator.len() > MAX_DISCRIMINATOR {
            let what =
                format!("a discriminator of {} bytes, at most {MAX_DISCRIMINATOR}", discriminator.len());
            return Err(Error::InvalidParameter(what));
        }
        let taken = self.shared.with(|world| {
            let listeners = &mut world.nodes[self.node].listeners;
            if listeners.contains_key(discriminator) {
                return Some(on_request);
            }
            listeners.insert(discriminator.to_vec(), Arc::new(Mutex::new(on_request)));
            None
        });
        if taken.is_some() {
            let name = String::from_utf8_lossy(discriminator);
            let what = format!("discriminator {name:?} has a listener already");
            return Err(Error::InvalidParameter(what));
        }
        Ok(())
    }

    fn unlisten(&self, discriminator: &[u8]) {
        let listener = self.shared.with(|world| world.nodes[self.node].listeners.remove(discriminator));
        drop(listener); // dropping may run the program's code, so it happens outside the lock
    }

    fn connect(
        &self,
        to: &NetAddress,
        peer: Option<u32>,
        hello: &Hello,
        queues: Queues<'_>,
        deadline: Deadline,
    ) -> Result<Connected> {
        let start = Instant::now();
        let notifiers = waiters_of(&self.shared, self.node, &queues)?;
        let waiters = [notifiers[0].number, notifiers[1].number];
        let number = self.request(to, peer, hello, waiters)?;
        let until = queues.until(deadline);
        let answered = loop {
            let answered = self.shared.wait(self.node, until.remaining(), |world| {
                world.pending.get(&number).is_none_or(|pending| pending.answer.is_some()).then_some(())
            });
            if answered.is_some() || until.passed() {
                break answered;
            }
        };
        if answered.is_none() {
            self.shared.await_listeners(Instant::now() + LISTENER_GRACE);
        }
        // The last check and the end of the wait are one step: an answer that comes later finds no waiting requester.
        let device = self.shared.with(|world| {
            let answer = world.pending.remove(&number).and_then(|pending| pending.answer);
            if let Some(Verdict::Accepted { connection, .. }) = &answer {
                world.attach(*connection, 0, waiters, &queues);
            } else {
                waiters.into_iter().for_each(|waiter| world.release(waiter));
            }
            (answer, world.nodes[self.node].device.upgrade())
        });
        match device {
            (Some(Verdict::Accepted { connection, hello }), Some(device)) => {
                Ok((endpoint(device, connection, 0, notifiers), hello))
            }
            (Some(Verdict::Refused(rejection)), _) => Err(Error::of_rejection(rejection, &to.discriminator)),
            (Some(Verdict::Lost(why)), _) => Err(Error::Lost(why)),
            _ => {
                let what = format!("an answer from {:?}", String::from_utf8_lossy(&to.host));
                Err(Error::Timeout { what, waited: start.elapsed() })
            }
        }
    }

    /// Does nothing: buffers are free as soon as they are given back.
    fn reclaim(&self) {}

    fn reclaim_recent(&self) {}

    fn undelivered(&self) -> usize {
        self.shared.with(|world| {
            let left = |world: &World| world.undelivered(self.node);
            world.look(|world| (left(world) == 0).then_some(()));
            left(world)
        })
    }

    fn bytes_copied(&self) -> u64 {
        self.copied.load(Ordering::Relaxed)
    }

    fn count_copied(&self, bytes: usize) {
        self.copied.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

impl Drop for SimDevice {
    fn drop(&mut self) {
        if udeck_via::is_forked() {
            return;
        }
        self.shared.with(|world| world.remove_node(self.node, false));
    }
}

impl std::fmt::Debug for SimDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SimDevice({:?})", String::from_utf8_lossy(&self.attributes.address))
    }
}
