//! The transposes of `nas-ft`'s 3-D FFT: classes W and A have planes of these sizes.

use criterion::{Criterion, Throughput};
use num_complex::Complex64;

#[path = "../bench-apps/nas-ft/transpose.rs"]
mod nas_ft;

pub fn measure(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("transpose");
    for (rows, columns) in [(64, 64), (128, 128), (256, 256)] {
        let from = vec![Complex64::ONE; rows * columns];
        let mut into = vec![Complex64::ZERO; rows * columns];
        group.throughput(Throughput::Bytes(size_of_val(&from[..]) as u64));
        group.bench_function(format!("{rows} x {columns}"), |bencher| {
            bencher.iter(|| nas_ft::transpose(&from, columns, &mut into, rows, rows, columns));
        });
    }
    group.finish();
}
