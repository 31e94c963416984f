//! Cost of all steps of one rank in each order of exchange.

use criterion::Criterion;
use udeck::exchange::{Step, hypercube, tournament, triangle};

pub fn measure(criterion: &mut Criterion) {
    let peers = |steps: &mut dyn Iterator<Item = Step>| steps.map(|step| step.peer).sum::<usize>();
    let mut group = criterion.benchmark_group("exchange");
    for ranks in [64, 1024] {
        let rank = ranks / 3;
        let mut all = |name: &str, order: &dyn Fn() -> usize| {
            group.bench_function(format!("{name} of {ranks}"), |bencher| bencher.iter(order));
        };
        all("tournament", &|| peers(&mut tournament(rank, ranks)));
        all("hypercube", &|| peers(&mut hypercube(rank, ranks).expect("a power of two")));
        all("triangle", &|| peers(&mut triangle(rank, ranks)));
    }
    group.finish();
}
