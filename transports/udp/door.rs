//! The side that is called. Of who has proved nothing it keeps nothing; of who has, the request and its answer, for as long
//! as the same request may come again.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use udeck_sys::say;
use udeck_via::auth::{Keys, Pair, is_same};

use crate::core::Core;
use crate::greeting::{Cookies, EPOCH, OURS, prove};
use crate::incoming::IncomingRequest;
use crate::wire::greeting::{Answer, Ask, Exchange, Greeting, Meet, Nonce, Prove, Withdraw};
use crate::wire::{Kind, Opened};

/// How long a request is remembered: longer than its cookie is good.
const MEMORY: Duration = Duration::from_secs(2 * EPOCH + 1);
/// Requests that are remembered; of callers that know the secret. More are not heard.
const REQUESTS: usize = 65_536;
/// Addresses of which refusals are told, once each.
const TOLD: usize = 64;

/// See the module.
pub struct Door {
    cookies: Cookies,
    asked: Mutex<Asked>,
    told: Mutex<HashSet<IpAddr>>,
}

/// Who asks, and by which number.
type Key = (SocketAddr, u64);

#[derive(Default)]
struct Asked {
    requests: HashMap<Key, State>,
    order: VecDeque<(Instant, Key)>,
}

enum State {
    Pending,
    Answered(Vec<u8>),
    Withdrawn,
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
        Door { cookies: Cookies::new(key, Instant::now()), asked: Mutex::default(), told: Mutex::default() }
    }

    /// Requests that it remembers, of the last seconds.
    #[cfg(test)]
    pub fn pending(&self) -> usize {
        self.asked.lock().requests.values().filter(|state| matches!(state, State::Pending)).count()
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
                    if let Some(state) = asked.requests.get_mut(&(from, exchange.number)) {
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
        let Ask { exchange, round_trip, discriminator, hello } = ask;
        let caller = Caller { from, exchange, pair };
        let key = caller.key();
        {
            let mut asked = self.asked.lock();
            asked.forget(now);
            match asked.requests.get(&key) {
                Some(State::Answered(answer)) => _ = core.socket.send(from, answer),
                Some(State::Pending | State::Withdrawn) => {}
                None if asked.order.len() < REQUESTS => {
                    let request =
                        IncomingRequest::new(core.clone(), caller, round_trip, discriminator, hello);
                    // Locked until it is noted: who answers it at once waits for that.
                    match core.put_request(Box::new(request)) {
                        Ok(()) => asked.note(now, key),
                        // It comes again.
                        Err(request) => request.forget(),
                    }
                }
                None => {}
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
        match asked.requests.get_mut(&caller.key()) {
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
}

impl Asked {
    fn note(&mut self, now: Instant, key: Key) {
        self.requests.insert(key, State::Pending);
        self.order.push_back((now, key));
    }

    fn forget(&mut self, now: Instant) {
        while self.order.front().is_some_and(|(since, _)| *since + MEMORY <= now) {
            if let Some((_, key)) = self.order.pop_front() {
                self.requests.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use udeck_via::Reliability;
    use udeck_via::auth::Claim;
    use udeck_via::transport::Hello;

    use super::*;
    use crate::core::REQUESTS as WAITING;
    use crate::fixture::open;

    fn ask(claim: Claim, discriminator: &[u8], number: u64) -> Ask {
        let hello = Hello {
            reliability: Reliability::Delivery,
            writable_ptag: None,
            readable_ptag: None,
            private_data: Vec::new(),
        };
        let exchange = Exchange { number, nonce: [0; 32], cookie: [0; 32], claim };
        Ask { exchange, round_trip: Duration::ZERO, discriminator: discriminator.to_vec(), hello }
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
        let kept = {
            let asked = core.door.asked.lock();
            (asked.requests.len(), asked.order.len())
        };
        drop(go);
        assert_eq!(kept, (WAITING + 1, WAITING + 1));
    }
}
