use std::any::Any;
use std::sync::atomic::AtomicUsize;

use super::*;

/// A notifier that counts its wake-ups.
#[derive(Debug, Default)]
struct Bell(AtomicUsize);

impl Notifier for Bell {
    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
    fn wake(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn handle(entries: usize) -> (CqHandle, Arc<Bell>) {
    let bell = Arc::<Bell>::default();
    (CqHandle(Arc::new(Shared::new(bell.clone(), entries, 8))), bell)
}

fn bound_of(error: &Error) -> &str {
    let Error::Full { bound, .. } = error else { panic!("not full: {error}") };
    bound
}

#[test]
fn work_queues_and_events_share_the_entries() {
    let (cq, _) = handle(3);
    let _places = CqReservations::take(&cq, &cq).unwrap();
    cq.post_event(7).unwrap();
    let error = cq.post_event(8).unwrap_err();
    assert!(bound_of(&error).starts_with("3 entries, and 2 work queues and 1 software events"), "{error}");
    assert!(matches!(CqReservations::take(&cq, &cq), Err(Error::Full { .. })));
    assert_eq!(cq.0.take_event().unwrap().context, 7);
    cq.post_event(9).expect("the event's entry is free again");
}

#[test]
fn places_that_do_not_both_fit_leave_nothing_taken() {
    let (cq, _) = handle(1);
    let (other, _) = handle(1);
    for _ in 0..3 {
        assert!(CqReservations::take(&cq, &cq).is_err());
        let places = CqReservations::take(&cq, &other).expect("one entry of each");
        assert!(CqReservations::take(&other, &cq).is_err());
        drop(places);
    }
}

#[test]
fn resize_keeps_what_is_there() {
    let (cq, _) = handle(4);
    let places = CqReservations::take(&cq, &cq).unwrap();
    cq.post_event(1).unwrap();
    let error = cq.0.resize(2).unwrap_err();
    assert!(bound_of(&error).starts_with("2 entries, and 2 work queues and 1 "), "{error}");
    assert_eq!(cq.0.entries(), 4);
    cq.0.resize(3).unwrap();
    assert!(cq.post_event(2).is_err());
    drop(places);
    cq.0.resize(1).unwrap();
    assert_eq!(cq.0.take_event().unwrap().context, 1);
    assert_eq!(cq.0.take_event(), None);
}

#[test]
fn only_what_is_posted_wakes() {
    let (cq, bell) = handle(1);
    cq.post_event(1).unwrap();
    cq.post_event(2).unwrap_err();
    assert_eq!(bell.0.load(Ordering::Relaxed), 1);
    assert!(cq.0.has_events());
    cq.0.take_event();
    assert!(!cq.0.has_events());
}
