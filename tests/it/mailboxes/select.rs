//! `select`: one wait at several mailboxes.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::common::{
    Event, LONG, PROTOCOLS, SHORT, all_here, alone, apart, assert_pattern, patterned, ranks,
};
use udeck::{
    Error, ExitKind, Mailbox, Packed, Postbox, RankExit, Result, Selectable, select, select_timeout,
    try_select,
};

#[test]
fn each_mailbox_wakes_the_select_whatever_it_carries() {
    for protocol in PROTOCOLS {
        ranks(2, move |world| {
            let own = world.mailbox::<u8>(&format!("go{}", world.rank()))?;
            let other = world.postbox::<u8>(&format!("go{}", 1 - world.rank()))?;
            if world.rank() == 0 {
                let bytes = world.mailbox::<u8>("bytes")?;
                let words = world.mailbox::<u64>("words")?;
                let packed = world.mailbox::<Packed>("packed")?;
                let all: [&dyn Selectable; 3] = [&bytes, &words, &packed];
                for round in 0..60 {
                    other.post(world.buf(1)?)?;
                    assert_eq!(select(&all)?, round % 3);
                    match round % 3 {
                        0 => assert_pattern(&bytes.try_retrieve()?.expect("selected"), round, 3000),
                        1 => assert_pattern(&words.try_retrieve()?.expect("selected"), round, 3),
                        _ => {
                            let message = packed.try_retrieve()?.expect("selected");
                            assert_eq!(message.unpack_one::<i32>()?, round as i32);
                        }
                    }
                }
                assert_eq!(try_select(&all)?, None);
            } else {
                let bytes = world.postbox::<u8>("bytes")?;
                let words = world.postbox::<u64>("words")?;
                let packed = world.postbox::<Packed>("packed")?;
                bytes.set_protocol(protocol)?;
                words.set_protocol(protocol)?;
                packed.set_protocol(protocol)?;
                for round in 0..60 {
                    own.retrieve()?;
                    match round % 3 {
                        0 => bytes.post(patterned(&world, round, 3000)?)?,
                        1 => words.post(patterned(&world, round, 3)?)?,
                        _ => {
                            let mut message = world.message(64)?;
                            message.pack(&[round as i32])?;
                            packed.post(message)?;
                        }
                    }
                }
            }
            world.barrier()?;
            world.finish()
        });
    }
}

#[test]
fn a_select_that_waits_sleeps_in_its_one_thread() {
    // The test examines all threads of the process, so it runs in a process of its own.
    if !apart("mailboxes::select::a_select_that_waits_sleeps_in_its_one_thread", |_| {}) {
        return;
    }
    let world = alone(8 << 20);
    let mailboxes: Vec<Mailbox<u8>> = (0..5).map(|n| world.mailbox(&format!("in{n}")).unwrap()).collect();
    let outs: Vec<Postbox<u8>> = (0..5).map(|n| world.postbox(&format!("in{n}")).unwrap()).collect();
    let (sender, receiver) = std::sync::mpsc::channel();
    let waiting = std::thread::spawn(move || -> Result {
        let thread = std::fs::read_link("/proc/thread-self").unwrap();
        sender.send(PathBuf::from("/proc").join(thread)).unwrap();
        let all: Vec<&dyn Selectable> = mailboxes.iter().map(|mailbox| mailbox as &dyn Selectable).collect();
        for (expected, mailbox) in mailboxes.iter().enumerate() {
            assert_eq!(select(&all)?, expected);
            mailbox.try_retrieve()?.expect("selected");
        }
        Ok(())
    });
    let thread = receiver.recv().unwrap();
    for out in &outs {
        // The library's own short waits between two sleeps do not last: the thread must be found asleep several
        // times in a row.
        let (mut asleep, started) = (0, Instant::now());
        while asleep < 3 {
            assert!(!waiting.is_finished(), "it selected something that was not posted");
            assert!(started.elapsed() < LONG, "it does not sleep");
            let stat = std::fs::read_to_string(thread.join("stat")).unwrap();
            let (_, state) = stat.rsplit_once(") ").unwrap();
            asleep = if state.starts_with('S') { asleep + 1 } else { 0 };
            std::thread::yield_now();
        }
        assert!(!threads().contains(&"deck-via-cno".into()), "the other queues need no threads");
        out.post(world.buf(1).unwrap()).unwrap();
    }
    waiting.join().unwrap().unwrap();
}

/// The names of this process's threads.
fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names =
        tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).unwrap_or_default());
    names.map(|name| name.trim().to_owned()).collect()
}

#[test]
fn a_busy_mailbox_starves_no_other() {
    let world = alone(8 << 20);
    let names = ["a", "b", "c", "d"];
    let mailboxes = names.map(|name| world.mailbox::<u8>(name).unwrap());
    let outs = names.map(|name| world.postbox::<u8>(name).unwrap());
    let all: Vec<&dyn Selectable> = mailboxes.iter().map(|mailbox| mailbox as &dyn Selectable).collect();
    // The first two mailboxes never run dry, the third has three messages, the fourth none.
    let post = |at: usize| outs[at].post(world.buf::<u8>(100).unwrap()).unwrap();
    [0, 1, 2, 2, 2].into_iter().for_each(post);
    let mut selected = Vec::new();
    for _ in 0..12 {
        let at = select(&all).unwrap();
        mailboxes[at].try_retrieve().unwrap().expect("selected");
        if at < 2 {
            post(at);
        }
        selected.push(at);
    }
    assert_eq!(selected, [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 0]);
    post(3);
    assert_eq!(select(&all).unwrap(), 3, "it was selected least recently");
    // Among other mailboxes, too, the one that has waited longest comes first.
    post(2);
    assert_eq!(select(&[all[0], all[2]]).unwrap(), 1);
}

#[test]
fn a_select_takes_nothing() {
    let world = alone(8 << 20);
    let (a, b) = (world.mailbox::<u8>("a").unwrap(), world.mailbox::<u16>("b").unwrap());
    let out = world.postbox::<u16>("b").unwrap();
    for seed in 0..3 {
        out.post(patterned(&world, seed, 10 * seed).unwrap()).unwrap();
    }
    for _ in 0..5 {
        assert_eq!(try_select(&[&a, &b, &b]).unwrap(), Some(1));
    }
    assert_eq!(world.stats().messages_retrieved, 0);
    for seed in 0..3 {
        assert_pattern(&b.retrieve().unwrap(), seed, 10 * seed);
    }
    assert_eq!(try_select(&[&a, &b]).unwrap(), None);
}

#[test]
fn a_select_that_gets_nothing_names_the_mailboxes_and_who_could_have_posted() {
    ranks(2, |world| {
        if world.rank() == 0 {
            let (a, b) = (world.mailbox::<u8>("a")?, world.mailbox::<u64>("b")?);
            world.barrier()?;
            let start = Instant::now();
            let error = select_timeout(&[&a, &b], SHORT).unwrap_err();
            assert!(start.elapsed() >= SHORT);
            assert!(matches!(&error, Error::Deadline { waited, .. } if !waited.is_zero()), "{error}");
            let text = error.to_string();
            assert!(text.contains("\"a\", \"b\""), "{text}");
            assert!(text.contains("any rank (none has made a postbox of it yet) in \"a\""), "{text}");
            assert!(text.contains("rank 1 to post in \"b\""), "{text}");
        } else {
            let _out = world.postbox::<u64>("b")?;
            world.barrier()?;
            world.barrier()?;
            return world.finish();
        }
        world.barrier()?;
        world.finish()
    });
    let error = select(&[]).unwrap_err();
    assert!(matches!(&error, Error::InvalidArgument { .. }), "{error}");
    assert!(error.to_string().contains("the list of mailboxes is empty: name one at least"), "{error}");
}

/// Rank 1 finishes with work in hand, rank 2 is lost before it has requested any: the wait for answers reports both.
#[test]
fn ranks_that_end_are_waited_for_beside_mailboxes() {
    let answered = Event::new();
    ranks(3, move |world| {
        match world.rank() {
            0 => {}
            1 => {
                world.postbox::<u8>("answers")?.post(world.buf(1)?)?;
                answered.wait();
                return world.finish();
            }
            _ => {
                answered.wait();
                return Ok(());
            }
        }
        let (answers, exits) = (world.mailbox::<u8>("answers")?, world.rank_exits()?);
        assert_eq!(try_select(&[&exits])?, None);
        assert_eq!(select(&[&exits, &answers])?, 1);
        assert_eq!(answers.retrieve()?.source(), 1);
        answered.happen();
        let mut ended = Vec::new();
        while ended.len() < 2 {
            match select_timeout(&[&answers, &exits], LONG) {
                Ok(at) => assert_eq!(at, 1),
                // No rank is left, so the wait reports the loss, too.
                Err(Error::PeerLost { rank: 2, .. }) => continue,
                Err(error) => return Err(error),
            }
            ended.push(exits.try_next().expect("it was named"));
        }
        ended.sort_by_key(|ended| ended.rank);
        assert_eq!(ended[0], RankExit { rank: 1, how: ExitKind::Finished });
        assert!(matches!(&ended[1], RankExit { rank: 2, how: ExitKind::Lost(_) }), "{ended:?}");
        assert_eq!(exits.try_next(), None);
        let error = select(&[&exits]).unwrap_err();
        assert!(matches!(error, Error::NobodyLeft { .. }), "{error}");
        world.finish()
    });
}

#[test]
fn a_lost_rank_is_told_once_and_a_deserted_world_ends_the_select() {
    let told = Arc::new(AtomicUsize::new(0));
    let count = told.clone();
    let pass_all = all_here(3);
    ranks(3, move |world| {
        if world.rank() == 0 {
            let (a, b) = (world.mailbox::<u8>("a")?, world.mailbox::<u8>("b")?);
            world.barrier()?;
            pass_all(world.rank());
            let error = loop {
                match select_timeout(&[&a, &b], LONG) {
                    Err(Error::PeerLost { rank: 2, .. }) => count.fetch_add(1, Ordering::Relaxed),
                    Err(error) => break error,
                    Ok(at) => panic!("nobody posted to {at}"),
                };
            };
            assert!(matches!(&error, Error::NobodyLeft { name } if name == "a, b"), "{error}");
            // The select reported it in the name of both mailboxes.
            assert!(matches!(b.retrieve(), Err(Error::NobodyLeft { .. })));
            return world.finish();
        }
        let _outs = (world.postbox::<u8>("a")?, world.postbox::<u8>("b")?);
        world.barrier()?;
        pass_all(world.rank());
        // Rank 2 leaves without a goodbye.
        if world.rank() == 1 { world.finish() } else { Ok(()) }
    });
    assert_eq!(told.load(Ordering::Relaxed), 1);
}
