//! Handles that outlive their world: after `World::finish` they return the messages that have arrived, and every other
//! call is an error.

use std::time::Duration;

use crate::common::{LONG, SHORT, config, ranks_with};
use udeck::{Error, PostError, Protocol, Result, WithTag, World, select_timeout, try_select};

/// Whether a call reported that this rank has finished.
fn is_over<R>(result: Result<R>) -> bool {
    result.is_err_and(|error| error.to_string().contains("this rank has finished"))
}

fn alone(body: impl Fn(World) -> Result + Send + Sync + 'static) {
    ranks_with(1, &config(), body);
}

#[test]
fn nothing_is_posted_after_the_end() {
    alone(|world| {
        let _inbox = world.mailbox::<u64>("in")?;
        let (out, requests) = (world.postbox::<u64>("in")?, world.postbox::<u64>("in")?);
        let (short, long) = (world.buf::<u64>(1)?, world.buf::<u64>(100_000)?);
        let request = requests.post_nonblocking(&[7][..])?;
        world.finish()?;
        let posts = [
            is_over(out.post(&[1][..]).map_err(PostError::into)),
            is_over(out.try_post(&[1][..]).map_err(PostError::into)),
            is_over(out.post([1].with_tag(3)).map_err(Error::from)),
            is_over(out.post_each(&[1, 2, 3]).map_err(Error::from)),
            is_over(out.post(short).map_err(PostError::into)),
            is_over(out.post(long).map_err(PostError::into)),
            is_over(out.post_with(Protocol::Eager, &[1][..]).map_err(PostError::into)),
            is_over(out.post_nonblocking(&[1][..]).map(drop).map_err(PostError::into)),
            is_over(out.set_protocol(Protocol::Eager)),
            is_over(out.flush()),
        ];
        assert!(posts.iter().all(|post| *post), "{posts:?}");
        assert!(request.is_done() && request.wait().is_ok(), "it was over before");
        Ok(())
    });
}

/// A program that shares a world among threads can take it back.
#[test]
fn shutdown_ends_what_other_threads_wait_for() {
    ranks_with(2, &config(), |world| {
        if world.rank() > 0 {
            let inbox = world.mailboxes::<u64>("in")?;
            while inbox.retrieve_from(0).is_ok() {}
            return world.finish();
        }
        let (inbox, other) = (world.mailboxes::<u64>("in")?, world.mailbox::<u64>("other")?);
        let out = world.postbox_of::<u64>("in", 1)?;
        out.post(&[1][..])?;
        std::thread::scope(|scope| {
            let world = &world;
            let waits: [(_, Box<dyn FnOnce() -> bool + Send>); 5] = [
                ("retrieve", Box::new(move || is_over(inbox.retrieve()))),
                ("select", Box::new(move || is_over(select_timeout(&[&other], LONG)))),
                ("barrier", Box::new(move || is_over(world.barrier()))),
                ("postbox", Box::new(move || is_over(world.postbox::<u64>("none")))),
                ("group", Box::new(move || is_over(world.group("both", &[1, 0])))),
            ];
            let waits = waits.map(|(what, wait)| (what, scope.spawn(wait)));
            // A later call is refused at once. A wait of more than 100 ms sleeps until it is woken.
            std::thread::sleep(10 * SHORT);
            world.shutdown();
            for (what, wait) in waits {
                assert!(wait.join().expect("it panicked"), "{what} went on");
            }
        });
        world.finish()
    });
}

#[test]
fn what_has_come_is_retrieved_and_nothing_more_is_waited_for() {
    alone(|world| {
        let inbox = world.mailbox::<u64>("in")?;
        let out = world.postbox::<u64>("in")?;
        let exits = world.rank_exits()?;
        out.post_each(&[1, 2, 3])?;
        world.finish()?;
        assert_eq!(inbox.retrieve()?[..], [1]);
        assert_eq!(inbox.try_retrieve()?.expect("it has come")[..], [2]);
        assert_eq!(inbox.iter().count(), 2, "the last message, and the error once");
        let calls = [
            is_over(inbox.retrieve()),
            is_over(inbox.try_retrieve()),
            is_over(inbox.retrieve_timeout(Duration::ZERO)),
            is_over(inbox.retrieve_tagged(7)),
            is_over(inbox.tagged(7).try_retrieve()),
            is_over(inbox.retrieve_into(&mut [0])),
            is_over(inbox.drain(1, |_| ())),
            is_over(try_select(&[&inbox])),
            is_over(select_timeout(&[&inbox, &exits], LONG)),
            is_over(select_timeout(&[&exits], LONG)),
        ];
        assert!(calls.iter().all(|call| *call), "{calls:?}");
        Ok(())
    });
}

#[test]
fn no_collective_call_is_made_after_the_end() {
    for size in [1, 2] {
        ranks_with(size, &config(), |world| {
            let all = world.all()?.within(LONG);
            all.barrier()?;
            let segment = world.shared_segment::<u64>("segment", 1)?;
            let semaphore = world.semaphore("semaphore", 1)?;
            world.finish()?;
            let calls = [
                is_over(all.barrier()),
                is_over(all.broadcast(0, &mut [1_u64])),
                is_over(all.split(Some(0), 0)),
                is_over(all.barrier_nonblocking()),
                is_over(segment.barrier()),
                is_over(segment.lock().map(drop)),
                is_over(segment.try_lock().map(drop)),
                is_over(semaphore.acquire().map(drop)),
                is_over(semaphore.try_acquire().map(drop)),
                is_over(semaphore.release(1)),
            ];
            assert!(calls.iter().all(|call| *call), "{calls:?}");
            Ok(())
        });
    }
}

#[test]
fn iteration_ends_when_nobody_is_left() {
    ranks_with(2, &config(), |world| {
        if world.rank() == 1 {
            world.postbox::<u64>("in")?.post_each(&[1, 2, 3])?;
            return world.finish();
        }
        let inbox = world.mailbox::<u64>("in")?;
        // The limit shows a stream that does not end.
        let messages: Vec<_> = inbox.iter().take(9).collect::<Result<_>>()?;
        assert_eq!(messages.iter().map(|message| message[0]).collect::<Vec<_>>(), [1, 2, 3]);
        assert!(inbox.iter_timeout(LONG).next().is_none(), "it stays so");
        world.finish()
    });
}
