//! A real network that is wild: datagrams between two sockets of this host go through a thread that loses, doubles and
//! disorders them.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::Random;

/// What it does to so much of what comes, from 0 to 1.
#[derive(Clone, Copy, Debug)]
pub struct Wild {
    pub lose: f64,
    pub double: f64,
    pub reorder: f64,
}

/// Whoever calls [`Relay::address`] reaches who is behind it. Ends when dropped.
pub struct Relay {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    lost: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Relay {
    /// In front of `behind`. One caller at a time.
    pub fn new(behind: SocketAddr, wild: Wild, seed: u64) -> Self {
        let socket = || {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            // What comes in bursts is to be lost by chance and not for want of room.
            rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 4 << 20).unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(2))).unwrap();
            Arc::new(socket)
        };
        let (front, back) = (socket(), socket());
        let address = front.local_addr().unwrap();
        let stop = Arc::<AtomicBool>::default();
        let lost = Arc::<AtomicU64>::default();
        let caller = Arc::new(parking_lot::Mutex::new(None));
        let run = |from: &Arc<UdpSocket>, to: &Arc<UdpSocket>, there: Option<SocketAddr>, seed| {
            let (from, to, stop, lost, caller) =
                (from.clone(), to.clone(), stop.clone(), lost.clone(), caller.clone());
            std::thread::spawn(move || {
                let mut random = Random::new(seed);
                let mut held = Vec::<Vec<u8>>::new();
                let mut buffer = vec![0; 65_536];
                while !stop.load(Ordering::Relaxed) {
                    let mut out = Vec::new();
                    match from.recv_from(&mut buffer) {
                        Ok((len, sender)) => {
                            if there.is_some() {
                                *caller.lock() = Some(sender);
                            }
                            let datagram = buffer[..len].to_vec();
                            if random.chance(wild.double) {
                                out.push(datagram.clone());
                            }
                            if random.chance(wild.lose) {
                                lost.fetch_add(1, Ordering::Relaxed);
                            } else if random.chance(wild.reorder) && held.len() < 8 {
                                held.push(datagram);
                            } else {
                                out.push(datagram);
                                if random.chance(0.3) {
                                    out.append(&mut held);
                                }
                            }
                        }
                        Err(_) => out.append(&mut held),
                    }
                    let Some(there) = there.or(*caller.lock()) else { continue };
                    for datagram in out {
                        let _ = to.send_to(&datagram, there);
                    }
                }
            })
        };
        let threads = vec![run(&front, &back, Some(behind), seed), run(&back, &front, None, seed ^ 0x5555)];
        Relay { address, stop, lost, threads }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Datagrams that it has lost.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
