//! Benchmarks of the parts, each alone: `cargo bench`, or `cargo bench -- ring` for some of them. A run takes
//! half a minute.
//!
//! These benchmarks compare two versions of a part on one machine. `deckperf` measures whole messages, and other libraries
//! beside them; `cargo xtask counts` counts instructions.

mod arena;
mod doorbell;
mod exchange;
mod pack;
mod registration;
mod ring;
mod shared;

use std::time::Duration;

use criterion::Criterion;
use udeck_boot::{Client, local::Job};

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(600))
        .configure_from_args();
    ring::measure(&mut criterion);
    shared::measure(&mut criterion);
    doorbell::measure(&mut criterion);
    arena::measure(&mut criterion, &nic());
    registration::measure(&mut criterion, &nic());
    pack::measure(&mut criterion);
    exchange::measure(&mut criterion);
    criterion.final_summary();
}

/// Opens a NIC of shared memory whose process is alone.
fn nic() -> udeck::via::Nic {
    let (_job, mut streams) = Job::new(1).expect("a name service");
    let client = Client::new(streams.remove(0)).expect("the name service answers");
    udeck::open_nic("shm0", &udeck::NicOptions::new(client.keys())).expect("shared memory")
}
