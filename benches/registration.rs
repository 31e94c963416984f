//! Cost of registering memory of the program's own: for the first time, and found in the registration cache.

use criterion::{BatchSize, Criterion};
use udeck::via::{Nic, UserMemory};

const LEN: usize = 64 << 10;

pub fn measure(criterion: &mut Criterion, nic: &Nic) {
    let ptag = nic.ptag();
    let mut group = criterion.benchmark_group("registration cache");
    group.bench_function("found", |bencher| {
        let mut kept = Some(UserMemory::new(vec![0u8; LEN]));
        bencher.iter(|| {
            let memory = kept.take().expect("put back below");
            let Ok(region) = nic.register_memory(memory, ptag) else { panic!("refused") };
            kept = Some(region.into_memory::<Vec<u8>>().expect("of this type"));
        });
    });
    group.bench_function("made and ended", |bencher| {
        let fresh = || UserMemory::new(vec![0u8; LEN]);
        bencher.iter_batched(
            fresh,
            |memory| {
                let Ok(region) = nic.register_memory(memory, ptag) else { panic!("refused") };
                region.into_buffer::<Vec<u8>>().expect("of this type")
            },
            BatchSize::SmallInput,
        );
    });
    group.finish();
}
