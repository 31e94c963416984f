// A VI belongs to one thread at a time.

use std::thread;
use udeck_via::Vi;

fn share(vi: &mut Vi) {
    thread::scope(|scope| {
        scope.spawn(|| drop(vi.send_done()));
    });
}

fn main() {}
