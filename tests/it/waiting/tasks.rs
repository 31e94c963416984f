//! Futures and streams, on an executor of a few lines.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Instant;

use crate::common::{
    LONG, all_here, alone, assert_pattern, asynchronous, config, hoard, patterned, ranks, ranks_over,
};
use futures_core::Stream;
use udeck::{Error, Mailbox, MailboxOptions, Match, Packed, PostError, Postbox, Protocol, Received, Result};

/// A waker that wakes a thread, and counts.
struct Bell {
    thread: Thread,
    rung: AtomicUsize,
}

impl Bell {
    fn new() -> (Arc<Self>, Waker) {
        let bell = Arc::new(Bell { thread: thread::current(), rung: AtomicUsize::new(0) });
        (bell.clone(), Waker::from(bell))
    }

    /// Sleeps until it was woken more than `seen` times.
    #[track_caller]
    fn wait(&self, seen: usize) {
        let started = Instant::now();
        while self.rung.load(Ordering::Acquire) <= seen {
            thread::park_timeout(LONG);
            assert!(started.elapsed() < LONG, "the task is never woken");
        }
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.rung.fetch_add(1, Ordering::Release);
        self.thread.unpark();
    }
}

/// Runs one future; the thread sleeps while the future waits.
#[track_caller]
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let (bell, waker) = Bell::new();
    let mut future = pin!(future);
    loop {
        let seen = bell.rung.load(Ordering::Acquire);
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => bell.wait(seen),
        }
    }
}

/// Runs both futures on this thread.
async fn both<A: Future, B: Future>(a: A, b: B) -> (A::Output, B::Output) {
    let (mut a, mut b) = (pin!(a), pin!(b));
    let (mut of_a, mut of_b) = (None, None);
    poll_fn(|task| {
        if of_a.is_none()
            && let Poll::Ready(output) = a.as_mut().poll(task)
        {
            of_a = Some(output);
        }
        if of_b.is_none()
            && let Poll::Ready(output) = b.as_mut().poll(task)
        {
            of_b = Some(output);
        }
        if of_a.is_some() && of_b.is_some() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    (of_a.expect("ready"), of_b.expect("ready"))
}

async fn next<S: Stream + Unpin>(stream: &mut S) -> Option<S::Item> {
    poll_fn(|task| Pin::new(&mut *stream).poll_next(task)).await
}

fn poll_once<F: Future + ?Sized>(future: Pin<&mut F>, waker: &Waker) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(waker))
}

#[test]
fn two_tasks_of_one_thread_talk_to_another_rank() {
    const ROUNDS: usize = 100;
    for protocol in asynchronous() {
        ranks(2, move |world| {
            let me = world.rank();
            let mut inboxes =
                [world.mailbox::<u8>(&format!("0-{me}"))?, world.mailbox::<u8>(&format!("1-{me}"))?];
            let mut outs = [
                world.postbox::<u8>(&format!("0-{}", 1 - me))?,
                world.postbox::<u8>(&format!("1-{}", 1 - me))?,
            ];
            outs.iter().try_for_each(|out| out.set_protocol(protocol))?;
            // Each rank begins one of the two conversations.
            let talk =
                async |inbox: &mut Mailbox<u8>, out: &mut Postbox<u8>, begins: bool, len: usize| -> Result {
                    for round in 0..ROUNDS {
                        if begins {
                            out.post_async(patterned(&world, round, len)?).await?;
                        }
                        assert_pattern(&inbox.retrieve_async().await?, round, len);
                        if !begins {
                            out.post_async(patterned(&world, round, len)?).await?;
                        }
                    }
                    Ok(())
                };
            let ([first_in, second_in], [first_out, second_out]) = (&mut inboxes, &mut outs);
            let first = talk(first_in, first_out, me == 0, 10);
            let (first, second) = block_on(both(first, talk(second_in, second_out, me == 1, 5000)));
            first?;
            second?;
            world.barrier()?;
            world.finish()
        });
    }
}

#[test]
fn a_task_that_waits_is_woken_by_its_message() {
    let world = alone(8 << 20);
    let mut inbox = world.mailbox::<u8>("in").unwrap();
    let out = world.postbox::<u8>("in").unwrap();
    for seed in 0..50 {
        let (bell, waker) = Bell::new();
        let mut future = pin!(inbox.retrieve_async());
        // The news of the new postbox may come first.
        assert!(poll_once(future.as_mut(), &waker).is_pending());
        out.post(patterned(&world, seed, 100).unwrap()).unwrap();
        let mut seen = 0;
        let received = loop {
            bell.wait(seen);
            seen = bell.rung.load(Ordering::Acquire);
            if let Poll::Ready(received) = poll_once(future.as_mut(), &waker) {
                break received.unwrap();
            }
        };
        assert_pattern(&received, seed, 100);
    }
}

#[test]
fn a_future_that_is_dropped_loses_no_message() {
    let world = alone(8 << 20);
    let mut inbox = world.mailbox::<u8>("in").unwrap();
    let out = world.postbox::<u8>("in").unwrap();
    let (bell, waker) = Bell::new();
    for seed in 0..30 {
        let mut future = Box::pin(inbox.retrieve_async());
        assert!(poll_once(future.as_mut(), &waker).is_pending());
        let post = || out.post(patterned(&world, seed, 100).unwrap()).unwrap();
        match seed % 3 {
            0 => drop((future, post())),
            1 => {
                let seen = bell.rung.load(Ordering::Acquire);
                post();
                bell.wait(seen);
                drop(future);
            }
            _ => {
                drop(future);
                post();
            }
        }
        if seed % 2 == 0 {
            assert_pattern(&inbox.retrieve().unwrap(), seed, 100);
        } else {
            assert_pattern(&block_on(inbox.retrieve_async()).unwrap(), seed, 100);
        }
    }
}

#[test]
fn the_first_of_two_wins_and_the_other_keeps_its_message() {
    let world = alone(8 << 20);
    let (mut a, mut b) = (world.mailbox::<u8>("a").unwrap(), world.mailbox::<u64>("b").unwrap());
    let (to_a, to_b) = (world.postbox::<u8>("a").unwrap(), world.postbox::<u64>("b").unwrap());
    for round in 0..40 {
        let post_a = || to_a.post(patterned(&world, round, 10).unwrap()).unwrap();
        let post_b = || to_b.post(patterned(&world, round, 10).unwrap()).unwrap();
        let (mut in_a, mut in_b) = (a.retrieve_async(), b.retrieve_async());
        let mut posted = false;
        let first = block_on(poll_fn(|task| {
            if let Poll::Ready(one) = Pin::new(&mut in_a).poll(task) {
                return Poll::Ready(Ok(one.unwrap()));
            }
            if let Poll::Ready(other) = Pin::new(&mut in_b).poll(task) {
                return Poll::Ready(Err(other.unwrap()));
            }
            if !std::mem::replace(&mut posted, true) {
                post_b();
                if round % 2 == 0 {
                    post_a();
                }
            }
            Poll::Pending
        }));
        drop((in_a, in_b));
        match first {
            Ok(from_a) => {
                assert_pattern(&from_a, round, 10);
                assert_eq!(round % 2, 0);
                assert_pattern(&b.retrieve().unwrap(), round, 10);
            }
            Err(from_b) => {
                assert_pattern(&from_b, round, 10);
                assert_eq!(a.try_retrieve().unwrap().is_some(), round % 2 == 0);
            }
        }
    }
}

#[test]
fn a_stream_tells_of_lost_ranks_and_ends_when_nobody_is_left() {
    ranks(3, |world| {
        if world.rank() == 0 {
            let mut inbox = world.mailbox::<Packed>("in")?;
            let (mut messages, mut lost) = (0, 0);
            let mut stream = inbox.stream();
            while let Some(item) = block_on(next(&mut stream)) {
                match item {
                    Ok(message) => messages += message.unpack_one::<i32>()?,
                    Err(Error::PeerLost { rank: 2, .. }) => lost += 1,
                    Err(error) => return Err(error),
                }
            }
            assert_eq!((messages, lost), (30, 1));
            assert!(matches!(block_on(inbox.retrieve_async()), Err(Error::NobodyLeft { .. })));
            return world.finish();
        }
        let mut out = world.postbox::<Packed>("in")?;
        for _ in 0..10 {
            let mut message = world.message(64)?;
            message.pack(&[world.rank() as i32])?;
            block_on(out.post_async(message))?;
        }
        block_on(out.flush_async())?;
        // Rank 2 leaves without a goodbye.
        if world.rank() == 1 { world.finish() } else { Ok(()) }
    });
}

/// A task that chooses sleeps past messages for others, which keep their order; one that gives up takes nothing.
#[test]
fn a_task_takes_what_it_chooses() {
    let posted = all_here(2);
    ranks(2, move |world| {
        if world.rank() == 1 {
            let out = world.postbox::<u8>("in")?;
            (0..6).try_for_each(|seed| -> Result { Ok(out.post(patterned(&world, seed, 100 * seed)?)?) })?;
            posted(1);
            return world.finish();
        }
        let mut inbox = world.mailbox::<u8>("in")?;
        let own = world.postbox::<u8>("in")?;
        let (_bell, waker) = Bell::new();
        let mut given_up = Box::pin(inbox.retrieve_async().from(0).tagged(9));
        assert!(poll_once(given_up.as_mut(), &waker).is_pending());
        posted(0);
        assert!(poll_once(given_up.as_mut(), &waker).is_pending(), "the other rank's messages are set aside");
        drop(given_up);
        let takes = |received: Received<u8>, rank: usize, seed: usize| {
            assert_eq!((received.source(), received.tag() as usize), (rank, seed));
            assert_pattern(&received, seed, 100 * seed);
        };
        takes(block_on(inbox.retrieve_async().tagged(4))?, 1, 4);
        takes(block_on(inbox.retrieve_async().from(1))?, 1, 0);
        takes(block_on(inbox.retrieve_async().matching(Match::source(1).and_tag(2)))?, 1, 2);
        // A message that comes while the task sleeps wakes it.
        let (bell, waker) = Bell::new();
        let mut waiting = Box::pin(inbox.retrieve_async().from(0));
        assert!(poll_once(waiting.as_mut(), &waker).is_pending());
        own.post(patterned(&world, 7, 700)?)?;
        bell.wait(0);
        takes(block_on(waiting)?, 0, 7);
        for seed in [1, 3, 5] {
            takes(block_on(inbox.retrieve_async())?, 1, seed);
        }
        let error = block_on(inbox.retrieve_async().from(1)).unwrap_err();
        assert!(matches!(error, Error::RankFinished { rank: 1, .. } | Error::NobodyLeft { .. }), "{error}");
        let error = block_on(inbox.retrieve_async().from(2)).unwrap_err();
        assert!(matches!(error, Error::NoSuchRank { rank: 2, size: 2 }), "{error}");
        drop(own);
        world.finish()
    });
}

/// A rank finishes while a task waits for it, and its postbox ends later; another rank is left.
#[test]
fn a_task_hears_of_the_end_of_the_rank_that_it_chose() {
    for _ in 0..10 {
        let (here, heard) = (all_here(3), all_here(3));
        ranks(3, move |world| {
            let rank = world.rank();
            if rank == 0 {
                let mut inbox = world.mailbox::<u8>("in")?;
                here(0);
                assert_pattern(&block_on(inbox.retrieve_async().from(1))?, 1, 100);
                let error = block_on(inbox.retrieve_async().from(1)).unwrap_err();
                assert!(matches!(error, Error::RankFinished { rank: 1, .. }), "{error}");
                heard(0);
                return world.finish();
            }
            let out = world.postbox::<u8>("in")?;
            here(rank);
            if rank == 1 {
                out.post(patterned(&world, 1, 100)?)?;
                world.finish()?;
                drop(out);
                heard(1);
                return Ok(());
            }
            heard(2);
            drop(out);
            world.finish()
        });
    }
}

/// A post that is given up has not begun, and its message can be had back.
#[test]
fn a_post_that_is_given_up_returns_its_message() {
    let world = alone(8 << 20);
    let inbox = world.mailbox_with::<u8>("in", &MailboxOptions::new().depth(1)).unwrap();
    let mut out = world.postbox::<u8>("in").unwrap();
    out.post(patterned(&world, 0, 100).unwrap()).unwrap();
    let (_bell, waker) = Bell::new();
    let mut posting = out.post_async(patterned(&world, 1, 100).unwrap());
    assert!(poll_once(Pin::new(&mut posting), &waker).is_pending());
    let message = posting.into_message().expect("it was not posted");
    assert_pattern(&message, 1, 100);
    drop(out.post_async(message));
    assert_pattern(&inbox.retrieve().unwrap(), 0, 100);
    assert!(inbox.try_retrieve().unwrap().is_none());
    let mut posting = out.post_async(patterned(&world, 2, 100).unwrap());
    assert!(poll_once(Pin::new(&mut posting), &waker).is_ready());
    assert!(posting.into_message().is_none(), "it was posted");
    assert_pattern(&inbox.retrieve().unwrap(), 2, 100);
}

#[test]
fn a_post_that_waits_for_room_does_not_hold_its_thread() {
    for protocol in asynchronous() {
        for len in [3, 5000] {
            let world = alone(64 << 20);
            let mut inbox = world.mailbox_with_queue::<u8>("in", 0).unwrap();
            let mut out = world.postbox::<u8>("in").unwrap();
            out.set_protocol(protocol).unwrap();
            let mut accepted = 0;
            while out.try_post(patterned(&world, accepted, len).unwrap()).is_ok() {
                accepted += 1;
            }
            let last = accepted + 300;
            let posts = async {
                for seed in accepted..last {
                    out.post_async(patterned(&world, seed, len)?).await?;
                }
                out.flush_async().await
            };
            let reads = async move {
                for seed in 0..last {
                    assert_pattern(&inbox.retrieve_async().await?, seed, len);
                }
                Ok::<_, Error>(())
            };
            let (posted, read) = block_on(both(posts, reads));
            posted.unwrap_or_else(|error| panic!("{protocol}: {error}"));
            read.unwrap();
        }
    }
}

/// The mailbox is not polled again after the last message was taken.
#[test]
fn a_flush_that_waits_is_woken_when_everything_was_read() {
    let world = alone(8 << 20);
    let inbox = world.mailbox::<u8>("in").unwrap();
    let mut out = world.postbox::<u8>("in").unwrap();
    for seed in 0..3 {
        out.post(patterned(&world, seed, 100).unwrap()).unwrap();
    }
    let (bell, waker) = Bell::new();
    let mut flushing = pin!(out.flush_async());
    assert!(poll_once(flushing.as_mut(), &waker).is_pending(), "nothing was read");
    (0..3).for_each(|seed| assert_pattern(&inbox.retrieve().unwrap(), seed, 100));
    bell.wait(0);
    block_on(flushing).unwrap();
}

#[test]
fn a_task_cannot_post_by_handshake_and_is_told_so() {
    let world = alone(8 << 20);
    let _inbox = world.mailbox::<u8>("in").unwrap();
    let mut out = world.postbox::<u8>("in").unwrap();
    out.set_protocol(Protocol::Handshake).unwrap();
    let failed = block_on(out.post_async(patterned(&world, 1, 10).unwrap())).unwrap_err();
    assert!(matches!(&failed.error, Error::WouldBlockThread { rank: 0, .. }), "{}", failed.error);
    assert_pattern(&failed.message.expect("it comes back"), 1, 10);
}

#[test]
fn memory_that_comes_free_lets_a_post_go_on() {
    let world = alone(4 << 20);
    let _inbox = world.mailbox::<u8>("in").unwrap();
    let mut out = world.postbox::<u8>("in").unwrap();
    out.set_protocol(Protocol::Eager).unwrap();
    let (message, hoarded) = hoard(&world, 64 << 10);
    let (bell, waker) = Bell::new();
    let mut posting = pin!(out.post_async(message));
    assert!(poll_once(posting.as_mut(), &waker).is_pending(), "there is no memory for the copy");
    drop(hoarded);
    bell.wait(0);
    block_on(posting).unwrap();
}

#[test]
fn a_post_that_fails_gives_its_message_back() {
    for protocol in asynchronous() {
        let world = alone(64 << 20);
        let inbox = world.mailbox_with_queue::<u8>("in", 0).unwrap();
        let mut out = world.postbox::<u8>("in").unwrap();
        out.set_protocol(protocol).unwrap();
        while out.try_post(patterned(&world, 0, 5000).unwrap()).is_ok() {}
        let (bell, waker) = Bell::new();
        let message = patterned(&world, 1, 5000).unwrap();
        let mut posting = Box::pin(out.post_async(message));
        assert!(poll_once(posting.as_mut(), &waker).is_pending());
        drop(inbox);
        bell.wait(0);
        let PostError { error, message } = block_on(posting).unwrap_err();
        assert!(
            matches!(error, Error::MailboxGone { .. } | Error::Undelivered { .. }),
            "{protocol}: {error}"
        );
        assert_pattern(&message.expect("nobody saw it"), 1, 5000);
    }
}

#[test]
fn tasks_may_wander_between_threads() {
    fn is_send<T: Send>(value: T) -> T {
        value
    }
    let world = alone(8 << 20);
    let mut inbox = world.mailbox::<u8>("in").unwrap();
    let mut out = world.postbox::<u8>("in").unwrap();
    let mut future: Pin<Box<dyn Future<Output = Result<Received<u8>>> + Send>> =
        Box::pin(async move { inbox.retrieve_async().await });
    // Each thread polls once, and leaves the rest to the next thread.
    for _ in 0..3 {
        future = thread::spawn(move || {
            assert!(poll_once(future.as_mut(), Waker::noop()).is_pending());
            future
        })
        .join()
        .unwrap();
    }
    let reader = thread::spawn(move || block_on(future));
    block_on(is_send(out.post_async(patterned(&world, 1, 100).unwrap()))).unwrap();
    assert_pattern(&reader.join().unwrap().unwrap(), 1, 100);
}

/// If the library has no thread for progress, a waiting task itself checks whether earlier posts may leave.
#[test]
fn a_task_moves_along_what_was_posted_where_no_thread_does() {
    const ANNOUNCED: usize = 5 << 20;
    let lonely = |_| {
        let mut config = config();
        config.progress_thread = false;
        config
    };
    ranks_over(
        "tcp",
        2,
        lonely,
        |_| true,
        |world| {
            let (mine, theirs) = (world.rank(), 1 - world.rank());
            let mut inbox = world.mailbox::<u8>(&format!("of {mine}"))?;
            let mut out = world.postbox::<u8>(&format!("of {theirs}"))?;
            world.barrier()?;
            if mine == 0 {
                block_on(out.post_async(patterned(&world, 0, ANNOUNCED)?)).map_err(|failed| failed.error)?;
                assert_pattern(&block_on(inbox.retrieve_async())?, 1, 100);
            } else {
                assert_pattern(&inbox.retrieve()?, 0, ANNOUNCED);
                out.post(patterned(&world, 1, 100)?)?;
            }
            world.barrier()?;
            world.finish()
        },
    );
}
