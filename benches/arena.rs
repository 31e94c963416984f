//! Cost of taking a block of message memory and giving it back.

use criterion::Criterion;
use udeck::via::Nic;
use udeck::via::mem::Fill;

pub fn measure(criterion: &mut Criterion, nic: &Nic) {
    let outbox = nic.outbox();
    let mut group = criterion.benchmark_group("arena");
    for (name, len) in [("64 B", 64), ("4 KiB", 4 << 10), ("1 MiB", 1 << 20)] {
        group.bench_function(format!("block of {name}"), |bencher| {
            bencher.iter(|| outbox.block(len, Fill::Keep).expect("the arena is empty").offset());
        });
    }
    group.bench_function("block of 4 KiB, zeroed", |bencher| {
        bencher.iter(|| outbox.block(4 << 10, Fill::Zero).expect("the arena is empty").offset());
    });
    // Blocks of other sizes are held: the books find a gap, no pocket has one.
    let held: Vec<_> = (1..200).map(|n| outbox.block(n * 1000, Fill::Keep).expect("room")).collect();
    group.bench_function("block of 100,000 B beside 199 others", |bencher| {
        bencher.iter(|| outbox.block(100_000, Fill::Keep).expect("room").offset());
    });
    drop(held);
    group.finish();
}
