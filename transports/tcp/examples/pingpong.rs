//! A ping-pong over TCP on this host, by VIs and by bare sockets that spin, in turns. Times are one way, in microseconds.
//!
//! ```sh
//! cargo run --release -p udeck-tcp --example pingpong [ROUNDS]
//! ```
//! The two threads are pinned to two processors. The best round counts on each side: disturbances only make a round
//! slower.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use udeck_tcp::{Options, Source};
use udeck_via::mem::Fill;
use udeck_via::transport::Body;
use udeck_via::{Cq, Deadline, Listener, NetAddress, Nic, Receive, Vi, ViAttributes};

const SIZES: [(usize, u32); 4] = [(8, 20_000), (4096, 10_000), (64 << 10, 3000), (1 << 20, 300)];

fn main() {
    let rounds = std::env::args().nth(1).map_or(7, |rounds| rounds.parse().expect("a number of rounds"));
    for (size, turns) in SIZES {
        let (mut bare, mut by_vi) = (f64::MAX, f64::MAX);
        for _ in 0..rounds {
            bare = bare.min(measure(turns, bare_pair(size)));
            by_vi = by_vi.min(measure(turns, vi_pair(size)));
        }
        println!("{size:>8} B: bare sockets {bare:8.2} us, VIs {by_vi:8.2} us, ratio {:.3}", by_vi / bare);
    }
}

/// One end of a ping-pong: sends (`true`) or receives (`false`).
type Move = Box<dyn FnMut(bool) + Send>;

fn measure(turns: u32, (mut asker, mut answerer): (Move, Move)) -> f64 {
    let pin = |processor| drop(udeck_sys::pin_to_cpu(processor));
    std::thread::scope(|scope| {
        scope.spawn(move || {
            pin(1);
            for _ in 0..turns + turns / 10 {
                answerer(false);
                answerer(true);
            }
        });
        let asking = scope.spawn(move || {
            pin(0);
            let mut start = Instant::now();
            for turn in 0..turns + turns / 10 {
                if turn == turns / 10 {
                    start = Instant::now();
                }
                asker(true);
                asker(false);
            }
            start.elapsed().as_secs_f64() * 1e6 / f64::from(2 * turns)
        });
        asking.join().expect("no panic")
    })
}

fn bare_pair(size: usize) -> (Move, Move) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let one = TcpStream::connect(listener.local_addr().expect("bound")).expect("a connection");
    let other = listener.accept().expect("a connection").0;
    let end = |mut socket: TcpStream| -> Move {
        socket.set_nodelay(true).expect("TCP");
        socket.set_nonblocking(true).expect("TCP");
        let mut buffer = vec![1u8; size];
        Box::new(move |sends| {
            let mut done = 0;
            while done < size {
                let moved =
                    if sends { socket.write(&buffer[done..]) } else { socket.read(&mut buffer[done..]) };
                match moved {
                    Ok(0) => panic!("the other end is gone"),
                    Ok(len) => done += len,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => panic!("{error}"),
                }
            }
        })
    };
    (end(one), end(other))
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(30))
}

fn vi_pair(size: usize) -> (Move, Move) {
    let nic = || {
        let options = Options { memory: Source::Fresh(256 << 20), ..Options::new([7; 32]) };
        udeck_tcp::open(options).expect("a NIC")
    };
    let (a, b) = (nic(), nic());
    let listener = Listener::new(&b, b"door").expect("a listener");
    let to = NetAddress { host: b.attributes().address.clone(), discriminator: b"door".to_vec() };
    let end = |nic: &Nic| {
        let attributes = ViAttributes { receive: Receive::Lent, ..ViAttributes::new(nic.ptag()) };
        (Vi::new(nic, attributes).expect("a VI"), Cq::new(nic).expect("a queue"))
    };
    let ((mut left, left_cq), (mut right, right_cq)) = (end(&a), end(&b));
    std::thread::scope(|scope| {
        let (left, cq) = (&mut left, left_cq.handle());
        let asking = scope.spawn(move || left.connect(&to, &cq, &cq, b"", soon()).map(drop));
        let cq = right_cq.handle();
        listener.wait(soon()).expect("a request").accept(&mut right, &cq, &cq, b"").expect("accepted");
        asking.join().expect("no panic").expect("connected");
    });
    (mover(a, left, left_cq, size), mover(b, right, right_cq, size))
}

fn mover(nic: Nic, mut vi: Vi, mut cq: Cq, size: usize) -> Move {
    let mut kept = Some(nic.outbox().block(size, Fill::Zero).expect("memory"));
    Box::new(move |sends| {
        if sends && size <= 48 {
            return vi.send_inline(None, b"", &[1; 48][..size]).expect("room");
        }
        if sends {
            let block = kept.take().or_else(|| nic.outbox().block(size, Fill::Keep).ok());
            return vi.hand_off(None, b"", block.expect("memory")).map_err(|(error, _)| error).expect("room");
        }
        loop {
            while cq.poll().is_none() {}
            if let Some(arrival) = vi.arrival().expect("connected") {
                let len = match &arrival.body {
                    Body::Inline(bytes) => bytes.bytes().len(),
                    Body::Lent(_, lent) => lent.as_slice().unwrap().len(),
                    Body::Written(len) => *len,
                };
                assert_eq!(len, size);
                return;
            }
        }
    })
}
