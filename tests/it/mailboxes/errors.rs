//! Errors about names, types and waiting, and their texts.

use std::time::Instant;

use crate::common::{Event, SHORT, ranks};
use udeck::{Error, ExitKind, Packed, World, select};

fn alone() -> World {
    crate::common::alone(4 << 20)
}

#[test]
fn a_taken_name_says_who_has_it() {
    ranks(3, |world| {
        let _mine = (world.rank() == 1).then(|| world.mailbox::<u8>("sums")).transpose()?;
        world.barrier()?;
        // The rank that has the name is told the same.
        let error = world.mailbox::<f64>("sums").unwrap_err();
        assert!(matches!(&error, Error::NameTaken { name, rank: 1 } if name == "sums"), "{error}");
        assert!(error.to_string().contains("on rank 1"), "{error}");
        world.barrier()?;
        world.finish()
    });
}

#[test]
fn a_name_refused_or_given_up_can_be_had_again() {
    let world = alone();
    for _ in 0..50 {
        let first = world.mailbox::<u8>("again").unwrap();
        assert!(matches!(world.mailbox::<u8>("again"), Err(Error::NameTaken { .. })));
        let out = world.postbox::<u8>("again").unwrap();
        out.post(world.buf(1).unwrap()).unwrap();
        assert_eq!(*first.retrieve().unwrap(), [0]);
    }
}

#[test]
fn names_that_cannot_be() {
    let world = alone();
    for (name, why) in
        [("", "empty"), (&*"x".repeat(201), "200"), ("a\nb", "control"), ("\u{1}deck/barrier/0", "control")]
    {
        let errors = [
            world.mailbox::<u8>(name).unwrap_err(),
            world.postbox::<u8>(name).unwrap_err(),
            world.try_postbox::<u8>(name).unwrap_err(),
        ];
        for error in errors {
            assert!(matches!(&error, Error::BadName { name: named, .. } if named == name), "{error}");
            assert!(error.to_string().contains(why), "{error}");
        }
    }
    let longest = "é".repeat(100);
    let inbox = world.mailbox::<u8>(&longest).unwrap();
    world.postbox::<u8>(&longest).unwrap().post(world.buf(3).unwrap()).unwrap();
    assert_eq!(inbox.retrieve().unwrap().len(), 3);
}

#[test]
fn elements_that_cannot_be() {
    let world = alone();
    assert!(matches!(world.mailbox::<()>("void"), Err(Error::BadPayload { .. })));
    let error = world.buf::<[u8; 0]>(3).unwrap_err().to_string();
    assert!(error.starts_with("messages cannot consist of [u8; 0]: its elements have no size"), "{error}");
}

#[test]
fn a_missing_mailbox_is_told_at_once_with_the_names_there_are() {
    ranks(2, |world| {
        let _inbox = world.mailbox::<u8>(&format!("in{}", world.rank()))?;
        world.barrier()?; // makes the library's own mailboxes, too
        let error = world.try_postbox::<u8>("out").unwrap_err();
        let Error::NoSuchMailbox { name, existing, .. } = &error else { panic!("{error}") };
        let mut existing = existing.clone();
        existing.sort();
        assert_eq!((name.as_str(), existing), ("out", vec!["in0".into(), "in1".into()]));
        world.barrier()?;
        world.finish()
    });
}

#[test]
fn waiting_for_a_mailbox_ends_with_its_name_and_the_wait() {
    ranks(2, |world| {
        let start = Instant::now();
        let error = world.postbox_timeout::<u8>("never", SHORT).unwrap_err();
        assert!(start.elapsed() >= SHORT);
        assert!(matches!(&error, Error::NoSuchMailbox { waited, .. } if !waited.is_zero()), "{error:?}");
        let text = error.to_string();
        let parts = ["\"never\"", "waited", "none exists"];
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        world.barrier()?;
        world.finish()
    });
}

#[test]
fn a_postbox_waits_for_its_mailbox() {
    let asked = Event::new();
    ranks(2, move |world| {
        if world.rank() == 0 {
            asked.wait();
            let inbox = world.mailbox::<u8>("late")?;
            assert_eq!(inbox.retrieve()?.source(), 1);
        } else {
            assert!(matches!(world.try_postbox::<u8>("late"), Err(Error::NoSuchMailbox { .. })));
            asked.happen();
            world.postbox::<u8>("late")?.post(world.buf(1)?)?;
        }
        world.barrier()?;
        world.finish()
    });
}

#[test]
fn a_type_mismatch_names_both_types() {
    let world = alone();
    let _sums = world.mailbox::<f64>("sums").unwrap();
    let _reports = world.mailbox::<Packed>("reports").unwrap();
    let error = world.postbox::<u32>("sums").unwrap_err().to_string();
    assert!(error.contains("f64") && error.contains("u32") && error.contains("\"sums\""), "{error}");
    let error = world.postbox::<f64>("reports").unwrap_err().to_string();
    assert!(error.contains("packed messages") && error.contains("f64"), "{error}");
    assert!(matches!(world.postbox::<Packed>("sums"), Err(Error::WrongType { .. })));
}

#[test]
fn a_retrieve_that_gets_nothing_says_who_could_have_posted() {
    ranks(3, |world| {
        if world.rank() == 0 {
            let inbox = world.mailbox::<u8>("in")?;
            assert!(inbox.try_retrieve()?.is_none());
            let start = Instant::now();
            let error = inbox.retrieve_timeout(SHORT).unwrap_err();
            assert!(start.elapsed() >= SHORT);
            assert!(matches!(&error, Error::Deadline { waited, .. } if !waited.is_zero()), "{error:?}");
            let text = error.to_string();
            assert!(text.contains("\"in\"") && text.contains("any rank"), "{text}");

            world.barrier()?;
            world.barrier()?; // rank 2 has made a postbox, and posted nothing
            let text = inbox.retrieve_timeout(SHORT).unwrap_err().to_string();
            assert!(text.contains("rank 2 to post"), "{text}");
            world.barrier()?;
        } else {
            world.barrier()?;
            let _out = (world.rank() == 2).then(|| world.postbox::<u8>("in")).transpose()?;
            world.barrier()?;
            world.barrier()?;
        }
        world.finish()
    });
}

#[test]
fn when_all_others_have_finished_nobody_is_left_to_wait_for() {
    ranks(3, |world| {
        if world.rank() == 0 {
            let (inbox, unused) = (world.mailbox::<u8>("in")?, world.mailbox::<u8>("unused")?);
            for _ in 1..3 {
                inbox.retrieve()?; // messages first
            }
            for inbox in [inbox, unused] {
                let error = inbox.retrieve().unwrap_err();
                assert!(matches!(&error, Error::NobodyLeft { name } if name == inbox.name()), "{error}");
            }
        } else {
            world.postbox::<u8>("in")?.post(world.buf(1)?)?;
        }
        world.finish()
    });
}

#[test]
fn a_rank_that_leaves_without_finishing_is_lost_once_per_mailbox() {
    ranks(3, |world| {
        if world.rank() == 2 {
            world.postbox::<u8>("in")?.post(world.buf(1)?)?;
            return Ok(()); // without `finish`: as if it had crashed
        }
        if world.rank() == 0 {
            let inbox = world.mailbox::<u8>("in")?;
            let (mut messages, mut lost) = (0, 0);
            while messages + lost < 3 {
                match inbox.retrieve() {
                    Ok(_) => messages += 1,
                    Err(Error::PeerLost { rank: 2, .. }) => lost += 1,
                    Err(other) => panic!("{other}"),
                }
            }
            assert_eq!((messages, lost), (2, 1));
        } else {
            world.postbox::<u8>("in")?.post(world.buf(1)?)?;
        }
        world.finish()
    });
}

/// Waits until the launcher has reported a rank's end.
fn wait_for_end_of(world: &World, rank: usize) -> ExitKind {
    let exits = world.rank_exits().unwrap();
    loop {
        assert_eq!(select(&[&exits]).unwrap(), 0);
        let ended = exits.try_next().expect("it was named");
        if ended.rank == rank {
            return ended.how;
        }
    }
}

/// With `--on-failure continue` the other ranks go on, and a call reports the loss only if it asks for it.
#[test]
fn a_lost_rank_is_told_where_it_posts_or_is_expected_to() {
    let lost = Event::new();
    ranks(3, move |world| match world.rank() {
        0 => {
            let [inbox, expecting] = ["in", "expecting"].map(|name| world.mailbox::<u8>(name).unwrap());
            expecting.expect([2]);
            assert!(matches!(wait_for_end_of(&world, 2), ExitKind::Lost(_)));
            let error = inbox.retrieve_timeout(SHORT).unwrap_err();
            assert!(matches!(error, Error::Deadline { .. }), "{error}");
            assert!(error.to_string().contains("rank 2 is lost"), "{error}");
            let error = expecting.retrieve().unwrap_err();
            assert!(matches!(error, Error::PeerLost { rank: 2, .. }), "{error}");
            lost.happen();
            assert_eq!(inbox.retrieve()?.source(), 1);
            assert_eq!(wait_for_end_of(&world, 1), ExitKind::Finished);
            let ended: Vec<_> = world.exited_ranks().map(|ended| ended.rank).collect();
            assert_eq!(ended, [2, 1]);
            // No rank is left that could post, so every loss is reported, once.
            let error = inbox.retrieve().unwrap_err();
            assert!(matches!(error, Error::PeerLost { rank: 2, .. }), "{error}");
            for inbox in [inbox, expecting] {
                let error = inbox.retrieve().unwrap_err();
                assert!(matches!(error, Error::NobodyLeft { .. }), "{error}");
            }
            world.finish()
        }
        1 => {
            let out = world.postbox::<u8>("in")?;
            lost.wait();
            out.post(world.buf(1)?)?;
            world.finish()
        }
        _ => Ok(()), // without `finish`: as if it had crashed
    });
}

#[test]
fn a_barrier_with_a_lost_rank_is_an_error_every_time() {
    let [passed, saw_it]: [[_; 2]; 2] = std::array::from_fn(|_| std::array::from_fn(|_| Event::new()));
    ranks(3, move |world| {
        world.barrier()?;
        if world.rank() == 2 {
            // A rank that is still inside may learn of the loss instead of passing the barrier.
            passed.iter().for_each(|passed| passed.wait());
            return Ok(());
        }
        passed[world.rank()].happen();
        for _ in 0..3 {
            let error = world.barrier().unwrap_err();
            assert!(matches!(error, Error::PeerLost { rank: 2, .. }), "{error}");
        }
        saw_it[world.rank()].happen();
        saw_it[1 - world.rank()].wait();
        world.finish()
    });
}

#[test]
fn settings_that_make_no_sense_are_named() {
    let error = "handoff".parse::<udeck::Protocol>().unwrap_err();
    assert!(matches!(&error, Error::Config { value, .. } if value == "handoff"), "{error}");
    assert!(error.to_string().contains("hand-off"), "{error}");
}

#[test]
fn a_rank_that_finished_is_not_waited_for_at_a_barrier() {
    ranks(2, |world| {
        if world.rank() == 1 {
            return world.finish();
        }
        let error = world.barrier().unwrap_err();
        assert!(matches!(error, Error::PeerLost { rank: 1, .. }), "{error}");
        assert!(error.to_string().contains("finished"), "{error}");
        world.finish()
    });
}

#[test]
fn a_mailbox_whose_postboxes_are_gone_does_not_say_that_there_was_none() {
    ranks(2, |world| {
        if world.rank() == 0 {
            let inbox = world.mailbox::<u8>("in")?;
            inbox.retrieve()?;
            world.barrier()?; // the postbox is gone
            let mut text = inbox.retrieve_timeout(SHORT).unwrap_err().to_string();
            while text.contains("rank 1 to post") {
                text = inbox.retrieve_timeout(SHORT).unwrap_err().to_string();
            }
            assert!(text.contains("any rank (all postboxes of it are gone)"), "{text}");
        } else {
            world.postbox::<u8>("in")?.post(world.buf(1)?)?;
            world.barrier()?;
        }
        world.barrier()?;
        world.finish()
    });
}
