//! Cost of packing items into a message, and of reading them where they lie.

use std::hint::black_box;

use criterion::{Criterion, Throughput};

pub fn measure(criterion: &mut Criterion) {
    let world = udeck::init().expect("a world of one");
    let mut group = criterion.benchmark_group("pack");
    for (name, len) in [("8 numbers", 8), ("8,192 numbers", 8192)] {
        let numbers = vec![1.5f64; len];
        let mut message = world.message(8 * len + 64).expect("room");
        group.throughput(Throughput::Bytes(8 * len as u64));
        group.bench_function(format!("{name} and a string"), |bencher| {
            bencher.iter(|| {
                message.clear();
                message.pack(black_box(&numbers)).and_then(|message| message.pack_str("units")).map(drop)
            });
        });
        group.bench_function(format!("{name} and a string, unpacked"), |bencher| {
            bencher.iter(|| {
                message.reset();
                let first = message.unpack::<f64>().expect("packed")[0];
                (first, message.unpack_str().expect("packed").len())
            });
        });
    }
    group.finish();
}
