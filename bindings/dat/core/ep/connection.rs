//! An end point's connection, as its state sees it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once};

use udeck::via::{Vi, ViAttributes, Withdrawal};
use udeck_rdma::Outcome;

use super::Ep;
use crate::core::address::SockAddr;
use crate::core::code::{Code, Result, Sub};
use crate::core::event::{Event, number};
use crate::core::qos::Qos;
use crate::core::state::{EpCall, EpEvent, EpState};
use crate::core::wire::{Greeting, Process};
use udeck::names::address::Host;

/// The other end.
#[derive(Debug)]
pub struct Peer {
    /// The address that the peer gives as its own.
    pub host: Host,
    pub port: u64,
    process: Process,
    /// Private data of the peer's. The program has a pointer to them.
    pub private_data: Arc<[u8]>,
    /// Host and qualifier that this end has asked; `None` at the end that accepted.
    pub asked_at: Option<(Host, u64)>,
}

impl Peer {
    fn new(host: Host, port: u64, private_data: &[u8], asked_at: Option<(Host, u64)>) -> Peer {
        Peer { host, port, process: Process::of(&host, port), private_data: private_data.into(), asked_at }
    }

    /// The peer's process, which the end point's events may come from.
    pub fn process(&self) -> Process {
        self.process
    }
}

/// An attempt of an end point to connect.
pub struct Attempt {
    /// The interface to connect, idle yet.
    pub vi: Vi,
    /// The greeting, encoded.
    pub greeting: Vec<u8>,
    pub number: u64,
    /// Ends the attempt when the end point goes another way.
    pub withdrawal: Withdrawal,
}

fn next_attempt() -> u64 {
    static ATTEMPTS: AtomicU64 = AtomicU64::new(1);
    ATTEMPTS.fetch_add(1, Ordering::Relaxed)
}

fn next_reservation() -> u64 {
    static RESERVATIONS: AtomicU64 = AtomicU64::new(1);
    RESERVATIONS.fetch_add(1, Ordering::Relaxed)
}

impl Ep {
    fn new_vi(&self) -> Result<Vi> {
        let mut attributes = ViAttributes::new(self.face.ia.ptag);
        attributes.receive = udeck::via::Receive::Lent;
        attributes.context = self.id;
        attributes.level = self.qos().level();
        if self.qos() != self.qos {
            self.say_levels_lack();
        }
        Vi::new(&self.face.ia.nic, attributes).map_err(|why| {
            udeck::via::say!("uDAPL: {why}");
            Code::INSUFFICIENT_RESOURCES.of(Sub::ResourceTep)
        })
    }

    /// Reports that the NIC has no service levels; once, because a program may make thousands of connections.
    #[cold]
    fn say_levels_lack(&self) {
        static SAID: Once = Once::new();
        let (asked, nic) = (self.qos, &self.face.ia.nic.attributes().name);
        SAID.call_once(|| {
            udeck::via::say!(
                "uDAPL: a connection shall be {asked:?}, and {nic} knows no service levels: it is best effort. \
                 tcp with DECK_LEVELS has some, and verbs."
            );
        });
    }

    fn set_peer(&mut self, peer: Peer) {
        self.remote.set(&SockAddr::of(&peer.host));
        self.face.peer = Some(peer);
    }

    fn greeting(&self, private_data: &[u8]) -> Greeting {
        Greeting { host: self.face.ia.address, port: self.port, private_data: private_data.to_vec() }
    }

    /// Begins to ask for a connection of this quality; `None`: of the quality of the end point's settings.
    ///
    /// # Errors
    /// The state forbids it.
    pub fn begin_connecting(
        &mut self,
        host: Host,
        qualifier: u64,
        qos: Option<Qos>,
        private_data: &[u8],
    ) -> Result<Attempt> {
        self.state.check(EpCall::Connect)?;
        if self.face.settings.connect_evd.is_none() {
            return Err(Code::INVALID_STATE.of(Sub::EpEvdConnect));
        }
        self.qos = qos.unwrap_or(self.face.settings.qos);
        let vi = match self.new_vi() {
            Ok(vi) => vi,
            Err(why) => {
                self.qos = self.face.settings.qos;
                return Err(why);
            }
        };
        self.port = self.face.ia.port();
        self.attempt = next_attempt();
        self.set_peer(Peer::new(host, 0, &[], Some((host, qualifier))));
        self.enter(EpEvent::Asks);
        let withdrawal = self.asking.insert(Withdrawal::default()).clone();
        let greeting = self.greeting(private_data).encode();
        Ok(Attempt { vi, greeting, number: self.attempt, withdrawal })
    }

    /// Undoes [`Ep::begin_connecting`] for want of a thread that could ask. No event is put.
    pub fn not_asked(&mut self, attempt: u64) {
        if self.is_connecting(attempt) {
            (self.asking, self.face.peer, self.qos) = (None, None, self.face.settings.qos);
            self.enter(EpEvent::NotAsked);
        }
    }

    /// Lets the thread that asks for the connection stop.
    pub(super) fn withdraw(&mut self) {
        self.asking.take().iter().for_each(Withdrawal::withdraw);
    }

    /// Whether the attempt is still under way.
    pub fn is_connecting(&self, attempt: u64) -> bool {
        self.attempt == attempt && self.state == EpState::ActivePending
    }

    /// Ends the attempt: with a connection and the peer's greeting, or with the number of the event that says why there is none.
    pub fn end_connecting(
        &mut self,
        attempt: u64,
        mut vi: Vi,
        outcome: std::result::Result<Greeting, (u32, Vec<u8>)>,
    ) {
        if !self.is_connecting(attempt) {
            vi.disconnect();
            return;
        }
        self.asking = None;
        let asked_at = self.face.peer.take().and_then(|peer| peer.asked_at);
        match outcome {
            Ok(Greeting { host, port, private_data }) => {
                self.queues.vi = Some(vi);
                self.set_peer(Peer::new(host, port, &private_data, asked_at));
                self.enter(EpEvent::Established);
                self.tell_said(number::ESTABLISHED);
                self.move_on();
            }
            Err((number, private_data)) => {
                let (host, _) = asked_at.unwrap_or_default();
                self.enter(EpEvent::Failed);
                self.queues.flush(&mut self.face, Outcome::Flushed);
                self.set_peer(Peer::new(host, 0, &private_data, asked_at));
                self.tell_said(number);
            }
        }
    }

    /// Puts a connection event with the peer's private data.
    fn tell_said(&self, number: u32) {
        if let (Some(evd), Some(peer)) = (&self.face.settings.connect_evd, &self.face.peer) {
            evd.keep_said(&peer.private_data);
            let event = Event::connection(number, self.face.handle, &peer.private_data);
            evd.push_from(event, || Some(peer.process));
        }
    }

    /// Makes the interface that is needed to [accept](Ep::accept) a request. If this fails, the request is still there. The caller has
    /// checked the state.
    ///
    /// # Errors
    /// The NIC has no interface left.
    pub fn begin_accepting(&mut self) -> Result<Vi> {
        self.qos = self.face.settings.qos;
        self.new_vi()
    }

    /// Accepts a request, with the interface of [`Ep::begin_accepting`]. Returns the number of the accept, and the encoded greeting; the caller
    /// sends it, and then calls [`Ep::end_accepting`].
    pub fn accept(&mut self, theirs: &Greeting, private_data: &[u8]) -> (u64, Vec<u8>) {
        self.port = self.face.ia.port();
        self.attempt = next_attempt();
        self.set_peer(Peer::new(theirs.host, theirs.port, &[], None));
        self.enter(EpEvent::Accepts);
        if let Some(evd) = &self.face.settings.connect_evd {
            evd.accepting(self.attempt, theirs.process());
        }
        (self.attempt, self.greeting(private_data).encode())
    }

    /// Ends the accept, with the transport's answer. The connect event dispatcher gets the outcome, unless the end point has gone another way.
    pub fn end_accepting(&mut self, attempt: u64, mut vi: Vi, answered: &udeck::via::Result) {
        if self.attempt != attempt || self.state != EpState::PassivePending {
            vi.disconnect();
            return;
        }
        let told = if answered.is_ok() {
            self.queues.vi = Some(vi);
            self.enter(EpEvent::Established);
            number::ESTABLISHED
        } else {
            self.enter(EpEvent::Failed);
            self.queues.flush(&mut self.face, Outcome::Flushed);
            number::ACCEPT_COMPLETION_ERROR
        };
        if let Some(evd) = &self.face.settings.connect_evd {
            evd.accepted(attempt, Some(Event::connection(told, self.face.handle, &[])));
        }
        self.move_on();
    }

    /// Releases the events that wait for the end point's accept.
    pub(super) fn stop_accepting(&mut self) {
        if let (EpState::PassivePending, Some(evd)) = (self.state, &self.face.settings.connect_evd) {
            evd.accepted(self.attempt, None);
        }
    }

    /// Enters the state that an event of a reserved service point leads to.
    ///
    /// # Errors
    /// The state forbids it.
    pub fn reserve(&mut self, event: EpEvent) -> Result {
        if event == EpEvent::Reserved {
            self.state.check(EpCall::Reserve)?;
            self.reservation = next_reservation();
        }
        if self.enter(event) { Ok(()) } else { Err(self.state.refusal()) }
    }

    /// Number of the latest reservation; the reservation of another service point has another number.
    pub fn reservation(&self) -> u64 {
        self.reservation
    }

    /// `dat_ep_disconnect`. Does nothing if there is nothing to end.
    ///
    /// # Errors
    /// The state forbids it.
    pub fn disconnect(&mut self, graceful: bool) -> Result {
        self.state.check(EpCall::Disconnect)?;
        match self.state {
            EpState::ActivePending | EpState::PassivePending => {
                self.withdraw();
                self.end(Outcome::Flushed, number::DISCONNECTED);
                self.attempt = next_attempt();
            }
            EpState::Connected if graceful => {
                self.enter(EpEvent::Closes);
                self.move_on(); // ends it, unless something is to be sent first
            }
            EpState::Connected | EpState::DisconnectPending if !graceful => {
                self.end(Outcome::Flushed, number::DISCONNECTED);
            }
            _ => {}
        }
        Ok(())
    }

    /// `dat_ep_reset`.
    ///
    /// # Errors
    /// The state forbids it.
    pub fn reset(&mut self) -> Result {
        self.state.check(EpCall::Reset)?;
        self.enter(EpEvent::Reset);
        self.qos = self.face.settings.qos;
        self.face.peer = None;
        Ok(())
    }
}
