//! Events that are recorded before there is a part. The test is a process of its own: it has one subscriber,
//! and opens one part.

use udeck_trace::{Opening, Part};

/// A program that never calls `udeck::init` would keep the buffers of all threads that it ever had.
#[test]
fn of_threads_that_have_ended_only_the_last_ones_are_kept() {
    const THREADS: u64 = 100;
    const EVENTS: u64 = 10;
    assert!(udeck_trace::install());
    for _ in 0..THREADS {
        let thread = std::thread::spawn(|| (0..EVENTS).for_each(|number| tracing::info!(number, "early")));
        thread.join().unwrap();
    }
    let path = std::env::temp_dir().join(format!("trace-early-{}.json", std::process::id()));
    let part = Part::open(&Opening { path, rank: 0, job: 1, host: "a".into() }).unwrap();
    let dropped = part.write().unwrap();
    let text = std::fs::read_to_string(part.path()).unwrap();
    std::fs::remove_file(part.path()).unwrap();
    let kept = text.matches("\"message\":\"early\"").count() as u64;
    assert_eq!(kept + dropped, THREADS * EVENTS);
    // The buffers of the last thread, and of the threads that had ended when it began.
    assert_eq!(kept, 17 * EVENTS);
}
