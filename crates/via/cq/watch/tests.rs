use std::any::Any;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::task::Wake;

use super::*;
use crate::transport::Notifier;

/// Bound of a wait for an event that is certain to come.
const LONG: Duration = Duration::from_secs(60);

/// A notifier with a sleep word, and nothing else.
#[derive(Debug, Default)]
struct Word(AtomicU32);

impl Word {
    fn armed() -> (Arc<Word>, CqHandle) {
        let word = Arc::new(Word(AtomicU32::new(ARMED)));
        (word.clone(), CqHandle(Arc::new(Shared::new(word, 8, 8))))
    }
}

impl Notifier for Word {
    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
    fn wake(&self) {
        self.0.store(0, Ordering::SeqCst);
        wake_sleepers(&self.0);
    }
    fn sleep_word(&self) -> Option<&AtomicU32> {
        Some(&self.0)
    }
}

/// A task that sends its number when it is woken.
struct Task(usize, Sender<usize>);

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.1.send(self.0).unwrap();
    }
}

fn tasks() -> (impl Fn(usize) -> Waker, Receiver<usize>) {
    let (sender, receiver) = channel();
    (move |number| Waker::from(Arc::new(Task(number, sender.clone()))), receiver)
}

#[test]
fn a_changed_word_wakes_its_task_once_and_no_other() {
    let (watcher, (task, woken)) = (Watcher::default(), tasks());
    let words: Vec<_> = (0..3).map(|_| Word::armed()).collect();
    let watches: Vec<_> = words.iter().map(|(_, handle)| watcher.watch(handle).unwrap()).collect();
    for (number, watch) in watches.iter().enumerate() {
        watch.wake(&task(number), None);
    }
    for at in [1, 0, 2] {
        words[at].0.wake();
        assert_eq!(woken.recv_timeout(LONG), Ok(at));
    }
    words.iter().for_each(|(word, _)| word.wake());
    watches[1].wake(&task(7), None);
    assert_eq!(woken.recv_timeout(LONG), Ok(7), "it had changed before");
    assert!(woken.try_recv().is_err(), "nobody else waits");
}

#[test]
fn a_task_is_woken_at_the_latest_when_it_said() {
    let (watcher, (task, woken)) = (Watcher::default(), tasks());
    let (_quiet, handle) = Word::armed();
    let watch = watcher.watch(&handle).unwrap();
    watch.wake(&task(1), Some(Instant::now() + Duration::from_millis(3)));
    assert_eq!(woken.recv_timeout(LONG), Ok(1));
}

#[test]
fn wakers_that_were_replaced_or_taken_back_are_not_called() {
    let (watcher, (task, woken)) = (Watcher::default(), tasks());
    let [(one, first), (two, second), (three, third)] = [Word::armed(), Word::armed(), Word::armed()];
    let [first, second, third] = [first, second, third].map(|handle| watcher.watch(&handle).unwrap());
    first.wake(&task(1), None);
    first.rest();
    second.wake(&task(2), None);
    drop(second);
    third.wake(&task(3), None);
    third.wake(&task(4), None);
    [one, two].iter().for_each(|word| word.wake());
    three.wake();
    assert_eq!(woken.recv_timeout(LONG), Ok(4));
    drop((watcher, task));
    assert_eq!(woken.recv_timeout(LONG), Err(RecvTimeoutError::Disconnected), "every waker was dropped");
}

#[test]
fn a_waker_that_panics_is_alone_in_that() {
    struct Bomb;
    impl Wake for Bomb {
        fn wake(self: Arc<Self>) {
            panic!("this waker panics, as the test wants");
        }
    }
    let (watcher, (task, woken)) = (Watcher::default(), tasks());
    let [(one, first), (two, second)] = [Word::armed(), Word::armed()];
    let [first, second] = [first, second].map(|handle| watcher.watch(&handle).unwrap());
    first.wake(&Waker::from(Arc::new(Bomb)), None);
    one.wake();
    second.wake(&task(2), None);
    two.wake();
    assert_eq!(woken.recv_timeout(LONG), Ok(2));
}

#[test]
fn more_queues_than_one_thread_can_watch_have_several() {
    let (watcher, (task, woken)) = (Watcher::default(), tasks());
    let words: Vec<_> = (0..2 * PER_THREAD + 1).map(|_| Word::armed()).collect();
    let mut watches: Vec<_> = words.iter().map(|(_, handle)| watcher.watch(handle).unwrap()).collect();
    assert_eq!(watcher.threads.lock().len(), 3);
    watches.iter().enumerate().for_each(|(number, watch)| watch.wake(&task(number), None));
    for at in (0..words.len()).rev() {
        words[at].0.wake();
        assert_eq!(woken.recv_timeout(LONG), Ok(at));
    }
    watches.truncate(PER_THREAD);
    watches.extend(words[PER_THREAD..].iter().map(|(_, handle)| watcher.watch(handle).unwrap()));
    assert_eq!(watcher.threads.lock().len(), 3, "places that were given back are taken again");
}

#[test]
fn a_queue_that_sleeps_on_no_word_is_refused() {
    #[derive(Debug)]
    struct Mute;
    impl Notifier for Mute {
        fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
            self
        }
        fn wake(&self) {}
    }
    let handle = CqHandle(Arc::new(Shared::new(Arc::new(Mute), 8, 8)));
    let error = Watcher::default().watch(&handle).unwrap_err().to_string();
    assert!(error.contains("no word of memory"), "{error}");
}
