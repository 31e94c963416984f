//! The side that is called. Of who has proved nothing it keeps nothing; of who has, the request and its answer, for as long
//! as the same request may come again.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use udeck_sys::{job_time, say};
use udeck_via::auth::{Keys, Pair, is_same};

use crate::asked::{Asked, Key, State};
use crate::core::Core;
use crate::greeting::{Cookies, OURS, prove};
use crate::incoming::IncomingRequest;
use crate::shares::Origin;
use crate::wire::greeting::{Answer, Ask, Exchange, Greeting, Meet, Nonce, Prove, Withdraw};
use crate::wire::{Kind, Opened};

/// Addresses of which refusals are told, once each.
const TOLD: usize = 64;

/// See the module.
pub struct Door {
    cookies: Cookies,
    asked: Mutex<Asked>,
    told: Mutex<HashSet<IpAddr>>,
}

/// Where an answer goes.
#[derive(Clone, Debug)]
pub struct Caller {
    pub from: SocketAddr,
    pub exchange: Exchange,
    /// Who it has proved to be, to whom.
    pub pair: Pair,
}

impl Door {
    /// `key`: random.
    pub fn new(key: Nonce) -> Self {
        Door { cookies: Cookies::new(key, job_time()), asked: Mutex::default(), told: Mutex::default() }
    }

    /// Requests that it remembers, of the last seconds.
    #[cfg(test)]
    pub fn pending(&self) -> usize {
        self.asked.lock().pending()
    }

    /// A greeting of who calls.
    pub fn hear(&self, core: &Arc<Core>, now: Instant, from: SocketAddr, opened: &Opened<'_>) {
        let Ok(greeting) = Greeting::decode(opened) else { return };
        match greeting.kind {
            Kind::Meet => {
                if let Ok(meet) = Meet::decode(greeting.body) {
                    let _ = core.socket.send(from, &self.meet(&core.keys, now, from, &meet));
                }
            }
            Kind::Ask => {
                if let Ok(ask) = Ask::decode(greeting.body)
                    && let Some(pair) = self.is_good(core, now, from, &ask.exchange, &greeting)
                {
                    self.ask(core, now, from, pair, ask);
                }
            }
            _ => {
                if let Ok(Withdraw(exchange)) = Withdraw::decode(greeting.body)
                    && self.is_good(core, now, from, &exchange, &greeting).is_some()
                {
                    let mut asked = self.asked.lock();
                    if let Some(state) = asked.get(&(from, exchange.number)) {
                        *state = State::Withdrawn;
                    }
                }
            }
        }
    }

    fn meet(&self, keys: &Keys, now: Instant, from: SocketAddr, meet: &Meet) -> Vec<u8> {
        // Who speaks another version is told that, so that it can say so, and no proof; so is who wants another process.
        let pair = keys.answer(meet.claim).ok().filter(|_| meet.versions == OURS);
        let cookie = if pair.is_some() { self.cookies.bake(now, from, meet) } else { [0; 32] };
        let body = Prove { versions: OURS, cookie }.encode();
        let proof = pair.map_or([0; 32], |pair| prove(&pair, Kind::Prove, &meet.nonce, &cookie, &body));
        Greeting { kind: Kind::Prove, connection: meet.number, proof, body: &body }.encode()
    }

    /// Who it has proved to be, to whom.
    fn is_good(
        &self,
        core: &Core,
        now: Instant,
        from: SocketAddr,
        exchange: &Exchange,
        greeting: &Greeting<'_>,
    ) -> Option<Pair> {
        // A cookie that is none, or too old, says nothing bad of who brings it.
        if !self.cookies.knows(now, from, exchange) {
            return None;
        }
        let pair = core.keys.answer(exchange.claim).ok()?;
        let expected = prove(&pair, greeting.kind, &exchange.nonce, &exchange.cookie, greeting.body);
        if !is_same(&greeting.proof, &expected) {
            self.tell(from.ip(), &pair.why_wrong_caller());
            return None;
        }
        Some(pair)
    }

    #[cold]
    fn tell(&self, from: IpAddr, why: &str) {
        let mut told = self.told.lock();
        if told.len() < TOLD && told.insert(from) {
            say!("refused a connection from {from}: {why} (said once per address)");
        }
    }

    fn ask(&self, core: &Arc<Core>, now: Instant, from: SocketAddr, pair: Pair, ask: Ask) {
        let caller = Caller { from, exchange: ask.exchange, pair };
        let (key, origin) = (caller.key(), caller.origin());
        let mut asked = self.asked.lock();
        asked.forget(now);
        match asked.get(&key) {
            Some(State::Answered(answer)) => _ = core.socket.send(from, answer),
            Some(State::Pending | State::Withdrawn) => {}
            None => {
                let request = IncomingRequest::new(core.clone(), caller, ask);
                // Locked until it is noted: who answers it at once waits for that.
                let without_place = core.put_request(Box::new(request));
                if without_place.as_ref().is_none_or(|other| other.caller().key() != key) {
                    asked.note(now, origin, key);
                }
                if let Some(request) = without_place {
                    // It comes again.
                    asked.remove(&request.caller().key());
                    drop(asked);
                    request.forget();
                }
            }
        }
    }

    /// Gives an answer, to be given again to who asks again. `false`: the caller has given up.
    pub fn answer(&self, core: &Core, caller: &Caller, answer: &Answer) -> bool {
        let body = answer.encode();
        let Exchange { number, nonce, cookie, .. } = caller.exchange;
        let proof = prove(&caller.pair, Kind::Answer, &nonce, &cookie, &body);
        let datagram = Greeting { kind: Kind::Answer, connection: number, proof, body: &body }.encode();
        let mut asked = self.asked.lock();
        match asked.get(&caller.key()) {
            Some(State::Withdrawn) => return false,
            Some(state) => {
                let _ = core.socket.send(caller.from, &datagram);
                *state = State::Answered(datagram);
            }
            // So long ago that it is forgotten; a caller that still waits learns it now or never.
            None => _ = core.socket.send(caller.from, &datagram),
        }
        true
    }
}

impl Caller {
    fn key(&self) -> Key {
        (self.from, self.exchange.number)
    }

    pub fn origin(&self) -> Origin {
        Origin::of(self.from, &self.pair)
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;

    use udeck_via::Reliability;
    use udeck_via::auth::Claim;
    use udeck_via::transport::Hello;

    use super::*;
    use crate::asked::REQUESTS;
    use crate::fixture::open;
    use crate::incoming::REQUESTS as WAITING;
    use crate::wire::greeting::Process;

    fn ask(claim: Claim, discriminator: &[u8], number: u64) -> Ask {
        let hello = Hello {
            reliability: Reliability::Delivery,
            writable_ptag: None,
            readable_ptag: None,
            private_data: Vec::new(),
        };
        let exchange = Exchange { number, nonce: [0; 32], cookie: [0; 32], claim };
        let (round_trip, process) = (Duration::ZERO, Process::default());
        Ask { exchange, round_trip, process, discriminator: discriminator.to_vec(), hello }
    }

    #[test]
    fn of_a_request_for_which_there_is_no_place_nothing_is_kept() {
        let (core, _nic) = open();
        let caller = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let from = caller.local_addr().unwrap();
        let claim = core.keys.call(None).unwrap().claim();
        let hear = |door: &[u8], number| {
            let pair = core.keys.answer(claim).unwrap();
            core.door.ask(&core, Instant::now(), from, pair, ask(claim, door, number));
        };
        // The helper takes one, and no other until the end.
        let (go, wait) = mpsc::channel::<()>();
        let (begin, began) = mpsc::channel();
        let busy = move |_| {
            begin.send(()).unwrap();
            let _ = wait.recv();
        };
        core.listeners.listen(b"busy", Box::new(busy)).unwrap();
        hear(b"busy", 1);
        began.recv().unwrap();
        let last = 2 + WAITING as u64;
        (2..last).for_each(|number| hear(b"door", number));
        for _ in 0..10 {
            (last..last + 10).for_each(|number| hear(b"door", number));
        }
        let kept = core.door.asked.lock().len();
        drop(go);
        assert_eq!(kept, WAITING + 1);
    }

    /// A flood from one address, so many requests that every place is taken, does not keep another caller out until they are
    /// forgotten: no time passes here.
    #[test]
    fn a_flood_of_one_caller_keeps_no_other_out() {
        let (core, _nic) = open();
        let (claim, now) = (core.keys.call(None).unwrap().claim(), Instant::now());
        let hear = |from, number| {
            let pair = core.keys.answer(claim).unwrap();
            core.door.ask(&core, now, from, pair, ask(claim, b"nobody", number));
        };
        let flooding = UdpSocket::bind("127.0.0.1:0").unwrap();
        let from = flooding.local_addr().unwrap();
        let mut numbers = 1..;
        while core.door.asked.lock().len() < REQUESTS {
            numbers.by_ref().take(WAITING).for_each(|number| hear(from, number));
        }
        let caller = UdpSocket::bind("127.0.0.2:0").unwrap();
        caller.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let (here, over) = (caller.local_addr().unwrap(), AtomicBool::new(false));
        let answered = std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in numbers {
                    if over.load(Ordering::Relaxed) {
                        return;
                    }
                    hear(from, number);
                }
            });
            let limit = Instant::now() + Duration::from_secs(60);
            let answered = loop {
                hear(here, 1);
                if caller.recv(&mut [0; 2000]).is_ok() {
                    break true;
                }
                if Instant::now() > limit {
                    break false;
                }
            };
            over.store(true, Ordering::Relaxed);
            answered
        });
        assert!(answered, "the other one was never heard");
    }
}
