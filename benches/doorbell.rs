//! Cost of marking a ring that has messages, and of finding the marked rings.

use criterion::Criterion;
use udeck_sys::doorbell::{BITS, Doorbell};

pub fn measure(criterion: &mut Criterion) {
    let doorbell = Doorbell::default();
    let mut group = criterion.benchmark_group("doorbell");
    for marked in [1, 64] {
        let bits: Vec<u32> = (0..marked).map(|number| number * (BITS / marked)).collect();
        group.bench_function(format!("ring and drain {marked} of {BITS}"), |bencher| {
            bencher.iter(|| {
                bits.iter().for_each(|&bit| doorbell.ring(bit));
                let mut found = 0;
                doorbell.drain(|_| found += 1);
                found
            });
        });
    }
    group.bench_function("look at a silent one", |bencher| bencher.iter(|| doorbell.has_news()));
    group.bench_function("park and unpark", |bencher| {
        bencher.iter(|| {
            assert!(doorbell.park(), "no news");
            doorbell.unpark();
        });
    });
    group.finish();
}
