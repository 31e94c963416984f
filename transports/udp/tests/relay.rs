//! A relay between two NICs that records datagrams, and can lose, duplicate and delay them.

use std::collections::VecDeque;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use udeck_faults::SplitMix64;
use udeck_via::Nic;

/// A relay. Dropping it ends it.
pub struct Relay {
    at: SocketAddr,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    seen: Mutex<Vec<Vec<u8>>>,
    /// Number of datagrams of which one is lost, one duplicated and one delayed; 0: none.
    meddles: AtomicU32,
    lost: AtomicU32,
    cut: AtomicBool,
    stopped: AtomicBool,
    over: AtomicBool,
    caller: Mutex<Option<SocketAddr>>,
}

impl Relay {
    /// Makes a relay to `nic`.
    pub fn to(nic: &Nic) -> Relay {
        let to: SocketAddr = std::str::from_utf8(&nic.attributes().address).unwrap().parse().unwrap();
        let [front, back] = [(); 2].map(|()| {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
            socket
        });
        let at = front.local_addr().unwrap();
        let shared = Arc::new(Shared::default());
        let ways = [(front.try_clone().unwrap(), back.try_clone().unwrap(), Some(to)), (back, front, None)];
        let threads = ways
            .into_iter()
            .map(|(from, by, to)| {
                let shared = shared.clone();
                std::thread::spawn(move || shared.forward(&from, &by, to))
            })
            .collect();
        Relay { at, shared, threads }
    }

    /// Address of the relay.
    pub fn address(&self) -> Vec<u8> {
        self.at.to_string().into_bytes()
    }

    /// Returns the datagrams that have passed.
    pub fn seen(&self) -> Vec<Vec<u8>> {
        self.shared.seen.lock().clone()
    }

    /// Loses one, duplicates one and delays one of every `of` datagrams from now on.
    pub fn meddle(&self, of: u32) {
        self.shared.meddles.store(of, Ordering::Relaxed);
    }

    pub fn lost(&self) -> u32 {
        self.shared.lost.load(Ordering::Relaxed)
    }

    /// Reads all datagrams from now on, and forwards none.
    pub fn cut(&self) {
        self.shared.cut.store(true, Ordering::Relaxed);
    }

    /// Stops or resumes reading, like a process that is stopped.
    pub fn stop(&self, stopped: bool) {
        self.shared.stopped.store(stopped, Ordering::Relaxed);
    }
}

impl Shared {
    fn forward(&self, from: &UdpSocket, by: &UdpSocket, to: Option<SocketAddr>) {
        let mut dice = SplitMix64::new(7);
        let (mut buffer, mut late) = (vec![0; 65536], VecDeque::new());
        while !self.over.load(Ordering::Relaxed) {
            if self.stopped.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            let Ok((len, sender)) = from.recv_from(&mut buffer) else { continue };
            if to.is_some() {
                *self.caller.lock() = Some(sender);
            }
            let Some(to) = to.or(*self.caller.lock()) else { continue };
            let datagram = &buffer[..len];
            self.seen.lock().push(datagram.to_vec());
            if self.cut.load(Ordering::Relaxed) {
                continue;
            }
            let of = u64::from(self.meddles.load(Ordering::Relaxed));
            match if of == 0 { 3 } else { dice.next_u64() % of } {
                0 => _ = self.lost.fetch_add(1, Ordering::Relaxed),
                1 => (0..2).for_each(|_| _ = by.send_to(datagram, to)),
                2 => late.push_back(datagram.to_vec()),
                _ => _ = by.send_to(datagram, to),
            }
            if late.len() > 1
                && let Some(datagram) = late.pop_front()
            {
                let _ = by.send_to(&datagram, to);
            }
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
    }
}
