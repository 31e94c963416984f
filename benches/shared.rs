//! Cost of shared segments: the lock, a permit, elements, and the barrier of two ranks.

use std::thread;

use criterion::{Criterion, Throughput};
use udeck::{Config, NicOptions, World, open_nic};
use udeck_boot::{Client, local::Job};

const ELEMENTS: usize = 1 << 17;

/// Makes a job of two ranks in this process.
fn worlds() -> [World; 2] {
    let (_job, streams) = Job::new(2).expect("a name service");
    let world = |stream| {
        let client = Client::new(stream).expect("the name service answers");
        let nic = open_nic("shm0", &NicOptions::new(client.keys())).expect("shared memory");
        World::new(client, vec![nic], Config::default(), false).expect("a world")
    };
    let worlds: Vec<_> = streams.into_iter().map(world).collect();
    worlds.try_into().unwrap_or_else(|_| unreachable!("two"))
}

pub fn measure(criterion: &mut Criterion) {
    let [world, other] = worlds();
    let echo = thread::spawn(move || {
        let both = other.shared_segment::<u64>("both", 1).expect("shared");
        // The loop ends when the other rank has set the word.
        while both.load(0) == 0 {
            both.barrier().expect("it comes");
        }
    });
    let both = world.shared_segment::<u64>("both", 1).expect("shared");
    let (list, permits, grid) = (
        world.shared_mutex_of::<u64>(&[0], "list", 8).expect("shared"),
        world.semaphore_of(&[0], "permits", 2).expect("shared"),
        world.shared_segment_of::<f64>(&[0], "grid", ELEMENTS).expect("shared"),
    );
    let counts = world.shared_segment_of::<u64>(&[0], "counts", 1).expect("shared");
    let mut group = criterion.benchmark_group("shared");
    group.bench_function("barrier of 2 ranks", |bencher| bencher.iter(|| both.barrier().expect("it comes")));
    group.bench_function("lock and unlock", |bencher| bencher.iter(|| list.lock().expect("free")[0] += 1));
    group.bench_function("acquire and release", |bencher| {
        bencher.iter(|| drop(permits.acquire().expect("free")))
    });
    group.bench_function("fetch_add", |bencher| bencher.iter(|| counts.fetch_add(0, 1)));
    group.bench_function("sum of 131,072 elements by get", |bencher| {
        bencher.iter(|| (0..ELEMENTS).map(|index| grid.get(index)).sum::<f64>());
    });
    let mut copy = vec![0.0; ELEMENTS];
    group.throughput(Throughput::Bytes(1 << 20));
    group.bench_function("copy_to of 1 MiB", |bencher| bencher.iter(|| grid.copy_to(0, &mut copy)));
    let from = vec![1.0; ELEMENTS];
    group
        .bench_function("copy of 1 MiB from a slice", |bencher| bencher.iter(|| copy.copy_from_slice(&from)));
    group.finish();
    // The other thread is at a barrier, or about to read the word.
    both.store(0, 1);
    let _ = both.barrier_timeout(std::time::Duration::from_millis(100));
    drop(both);
    let _ = echo.join();
}
