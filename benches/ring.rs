//! Cost of a message through the ring, with both ends on one thread: no cache line travels.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, Throughput};
use udeck_sys::ring::{Cell, Consumer, ConsumerLine, PAYLOAD_BYTES, PAYLOAD_WORDS, Producer, Storage};

struct Heap {
    cells: Vec<Cell>,
    line: ConsumerLine,
}

impl Heap {
    fn new(cells: usize) -> Arc<Self> {
        let cells = (0..cells).map(|_| Cell::default()).collect();
        Arc::new(Heap { cells, line: ConsumerLine::default() })
    }
}

#[derive(Clone)]
struct Shared(Arc<Heap>);

impl Storage for Shared {
    fn cells(&self) -> u32 {
        self.0.cells.len() as u32
    }
    fn cell(&self, index: u32) -> &Cell {
        &self.0.cells[index as usize]
    }
    fn line(&self) -> &ConsumerLine {
        &self.0.line
    }
}

pub fn measure(criterion: &mut Criterion) {
    let shared = Shared(Heap::new(64));
    let (mut producer, mut consumer) = (Producer::new(shared.clone()), Consumer::new(shared));
    let payload = [7; PAYLOAD_WORDS];

    let mut group = criterion.benchmark_group("ring");
    group.throughput(Throughput::Bytes(PAYLOAD_BYTES as u64));
    group.bench_function("push and pop", |bencher| {
        bencher.iter(|| {
            assert!(producer.has_room().expect("an honest consumer"));
            black_box(producer.push(1, 2, black_box(&payload)));
            let taken = consumer.pop().expect("it was pushed");
            if consumer.owes_credit() {
                consumer.publish_credit();
            }
            taken.aux
        });
    });
    group.bench_function("look at an empty ring", |bencher| bencher.iter(|| consumer.pop().is_none()));
    group.finish();
}
