//! A VI's connection, as its state sees it.

use udeck::via::{Deadline, Vi};
use udeck_rdma::Outcome;

use super::early::Early;
use super::{Until, ViObject};
use crate::vipl::address::NetAddress;
use crate::vipl::engine::NicState;
use crate::vipl::error;
use crate::vipl::types::{ViAttributes, ViState, VipReturn};
use crate::vipl::wire::Greeting;
use crate::vipl::work_request::Queue;

/// A peer request that is under way.
pub(in crate::vipl) struct PeerRequest {
    /// Number of the request, which tells it from a later one.
    pub number: u64,
    pub deadline: Deadline,
    pub stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::vipl) enum Stage {
    /// A thread looks for the peer.
    Searching,
    /// The VI below asks it.
    Asking,
    /// The peer was not found.
    Failed(VipReturn),
}

impl ViObject {
    /// Returns the greeting that tells the peer of this side.
    pub fn greeting(&self, local: &NetAddress) -> Greeting {
        Greeting {
            reliability: self.face.attributes.reliability,
            max_transfer: self.max_transfer() as u64,
            rdma_write: self.face.attributes.rdma_write != 0,
            rdma_read: self.face.attributes.rdma_read != 0,
            host: self.face.nic.address.to_vec(),
            discriminator: local.discriminator.clone(),
        }
    }

    /// Takes the VI below out, to connect it without the lock.
    ///
    /// # Errors
    /// The state is another one than idle.
    pub fn begin_connecting(&mut self) -> Result<Vi, VipReturn> {
        if self.state != ViState::IDLE {
            return Err(VipReturn::INVALID_STATE);
        }
        let below = self.queues.vi.take().ok_or(VipReturn::INVALID_STATE)?;
        self.state = ViState::CONNECT_PENDING;
        Ok(below)
    }

    /// Puts the VI below back, connected or not.
    pub fn end_connecting(&mut self, below: Vi, connected: bool) {
        self.queues.vi = Some(below);
        self.state = if connected { ViState::CONNECTED } else { ViState::IDLE };
        if connected {
            self.now_connected();
        }
    }

    fn now_connected(&mut self) {
        self.face.told_of_refusal = false;
        self.face.early = Early::connected();
        self.find_way();
        self.count_needs();
        self.move_on(Until::Bound); // takes messages that came with the answer
    }

    pub fn begin_peering(&mut self, number: u64, deadline: Deadline) -> Result<(), VipReturn> {
        if self.state != ViState::IDLE {
            return Err(VipReturn::INVALID_STATE);
        }
        self.state = ViState::CONNECT_PENDING;
        self.peer = Some(PeerRequest { number, deadline, stage: Stage::Searching });
        Ok(())
    }

    pub fn is_peering(&self, number: u64) -> bool {
        self.peer.as_ref().is_some_and(|peer| peer.number == number)
    }

    /// Ends the search for the peer, with the result of the thread that looked for it.
    pub fn peer_found(
        &mut self,
        number: u64,
        found: Result<udeck::via::NetAddress, VipReturn>,
        local: &NetAddress,
    ) {
        if !self.is_peering(number) {
            return; // the request was withdrawn
        }
        let greeting = self.greeting(local).encode();
        let nic = self.face.nic.clone();
        let (Some(peer), Some(below)) = (&mut self.peer, &mut self.queues.vi) else { return };
        let cq = nic.progress.cq_handle();
        peer.stage = match found {
            Err(code) => Stage::Failed(code),
            Ok(to) => match below.peer_request(&to, cq, cq, &greeting, peer.deadline) {
                Ok(()) => Stage::Asking,
                Err(why) => {
                    error::tell("VipConnectPeerRequest", &why);
                    Stage::Failed(error::code(&why))
                }
            },
        };
    }

    /// Whether the connection is there: the peer's attributes, or `NOT_DONE`.
    pub fn peer_done(&mut self) -> Result<ViAttributes, VipReturn> {
        let Some(peer) = &self.peer else { return Err(VipReturn::INVALID_STATE) };
        let outcome = match peer.stage {
            Stage::Searching => return Err(VipReturn::NOT_DONE),
            Stage::Failed(code) => Err(code),
            Stage::Asking => {
                let below = self.queues.vi.as_mut().ok_or(VipReturn::INVALID_STATE)?;
                match below.peer_done() {
                    Ok(None) => return Err(VipReturn::NOT_DONE),
                    Ok(Some(theirs)) => Greeting::decode(&theirs).ok_or(VipReturn::REJECT),
                    Err(why) => Err(error::code(&why)),
                }
            }
        };
        self.peer = None;
        match outcome {
            Ok(greeting) => {
                self.state = ViState::CONNECTED;
                self.now_connected();
                Ok(greeting.attributes())
            }
            Err(code) => {
                if let Some(below) = &mut self.queues.vi {
                    below.disconnect();
                }
                self.state = ViState::IDLE;
                Err(code)
            }
        }
    }

    /// `VipDisconnect`.
    pub fn disconnect(&mut self) -> VipReturn {
        let Some(below) = &mut self.queues.vi else { return VipReturn::INVALID_STATE };
        below.disconnect();
        self.peer = None;
        self.end(ViState::IDLE, Outcome::Flushed);
        VipReturn::SUCCESS
    }

    /// Whether the VI may be destroyed.
    pub fn may_go(&self) -> Result<(), VipReturn> {
        if self.state != ViState::IDLE {
            return Err(VipReturn::INVALID_STATE);
        }
        if self.is_empty(Queue::Send) && self.is_empty(Queue::Receive) {
            Ok(())
        } else {
            Err(VipReturn::ERROR_RESOURCE)
        }
    }

    /// Takes the VI from its queues and its NIC. Nothing names it any more.
    pub fn detach(&self, nic: &NicState) {
        for cq in self.face.send_cq.iter().chain(&self.face.receive_cq) {
            cq.detach(self.face.handle);
        }
        nic.vis.lock().remove(&self.face.handle);
    }
}
