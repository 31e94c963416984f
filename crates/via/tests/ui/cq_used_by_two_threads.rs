// A completion queue is polled by one thread; other threads have handles, to wake it.

use std::thread;
use udeck_via::{Cq, Deadline};

fn share(cq: &mut Cq) {
    let handle = cq.handle();
    thread::scope(|scope| {
        scope.spawn(|| cq.wait(Deadline::now(), || false));
        scope.spawn(|| (handle.wake(), cq.poll()));
    });
}

fn main() {}
