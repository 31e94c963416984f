//! Matching: retrieves of one rank's messages, or of one tag. Other messages keep their order, and errors name
//! what was waited for.

use std::collections::VecDeque;

use crate::common::{
    LONG, PROTOCOLS, SHORT, all_here, are_crowded, assert_pattern, config, len_and_source, patterned, ranks,
    ranks_over, ranks_with,
};
use udeck::{
    Error, Mailbox, Match, Packed, Protocol, ReceiveModel, Received, Result, WithTag, World, select,
};

const EACH: usize = 12;
const LENGTHS: [usize; 3] = [3, 5000, 40];

/// Numbers of each rank's messages that were not retrieved yet: the tag is the number, modulo 4.
struct Pending(Vec<VecDeque<usize>>);

impl Pending {
    fn new(ranks: usize) -> Self {
        Pending((0..ranks).map(|_| (0..EACH).collect()).collect())
    }

    /// Checks that this is the first matching message of its rank.
    #[track_caller]
    fn take(&mut self, received: &Received<u8>, source: Option<usize>, tag: Option<u32>) {
        let (from, pending) = (received.source(), &mut self.0[received.source()]);
        assert!(source.is_none_or(|rank| rank == from), "{from}");
        let matches = |number: &usize| tag.is_none_or(|tag| tag == *number as u32 % 4);
        let at = pending.iter().position(matches).expect("it was posted, and not retrieved");
        let number = pending.remove(at).unwrap();
        assert_eq!(received.tag(), number as u32 % 4);
        assert_pattern(received, number, LENGTHS[number % 3]);
    }
}

fn post_all(world: &World, protocol: Protocol) -> Result {
    let out = world.postbox::<u8>("in")?;
    out.set_protocol(protocol)?;
    for number in 0..EACH {
        out.post(patterned(world, number, LENGTHS[number % 3])?.with_tag(number as u32 % 4))?;
    }
    world.barrier()?;
    Ok(())
}

fn choose(inbox: &Mailbox<u8>, world: &World) -> Result {
    let mut pending = Pending::new(3);
    pending.take(&inbox.retrieve_from(2)?, Some(2), None);
    pending.take(&inbox.retrieve_tagged(3)?, None, Some(3));
    pending.take(&inbox.from(1).tagged(2).retrieve()?, Some(1), Some(2));
    pending.take(&inbox.from(2).tagged(1).retrieve()?, Some(2), Some(1));
    pending.take(&inbox.from(1).within(LONG).retrieve()?, Some(1), None);
    pending.take(&inbox.tagged(0).within(LONG).retrieve()?, None, Some(0));
    let mut to = vec![0; 5000];
    let got = inbox.from(2).tagged(3).retrieve_into(&mut to)?;
    let number = got.tag as usize + 4 * usize::from(!pending.0[2].contains(&3));
    assert_eq!((got.source, got.tag, got.len), (2, 3, LENGTHS[number % 3]));
    assert_pattern(&to[..got.len], number, LENGTHS[number % 3]);
    pending.0[2].retain(|pending| *pending != number);
    // The remaining messages arrive in the order of posting.
    for _ in 0..2 * EACH - 7 {
        pending.take(&inbox.retrieve()?, None, None);
    }
    assert!(inbox.try_retrieve()?.is_none());
    world.barrier()?;
    // All ranks have posted, and everything was taken.
    assert!(inbox.from(1).try_retrieve()?.is_none() && inbox.tagged(0).try_retrieve()?.is_none());
    Ok(())
}

#[test]
fn what_matches_is_taken_and_the_rest_keeps_its_order() {
    for transport in ["shm", "tcp"] {
        for (protocol, receive) in PROTOCOLS
            .into_iter()
            .zip([ReceiveModel::CompletionQueue, ReceiveModel::WorkQueues].into_iter().cycle())
        {
            let mut settings = config();
            settings.receive = receive;
            ranks_over(
                transport,
                3,
                |_| settings.clone(),
                are_crowded,
                move |world| {
                    if world.rank() == 0 {
                        let inbox = world.mailbox::<u8>("in")?;
                        choose(&inbox, &world)?;
                    } else {
                        let protocol = if world.postbox::<u8>("in")?.set_protocol(protocol).is_ok() {
                            protocol
                        } else {
                            Protocol::Auto
                        };
                        post_all(&world, protocol)?;
                    }
                    world.barrier()?;
                    world.finish()
                },
            );
        }
    }
}

#[test]
fn a_wait_for_a_rank_hears_at_once_that_it_has_finished() {
    ranks(4, |world| {
        match world.rank() {
            0 => {
                let inbox = world.mailbox::<u8>("in")?;
                world.barrier()?;
                for number in 0..2 {
                    assert_pattern(&inbox.retrieve_from(1)?, number, 5);
                }
                for _ in 0..2 {
                    let error = inbox.retrieve_from(1).unwrap_err();
                    assert!(
                        matches!(&error, Error::RankFinished { rank: 1, name } if name == "in"),
                        "{error}"
                    );
                    let told = inbox.from(1).retrieve_into(&mut [0]);
                    assert!(matches!(told, Err(Error::RankFinished { .. })));
                }
                // Rank 2 never had a postbox.
                let error = inbox.retrieve_from(2).unwrap_err();
                assert!(matches!(error, Error::RankFinished { rank: 2, .. }), "{error}");
                // No other rank is affected.
                assert_pattern(&inbox.retrieve_from(3)?, 7, 5);
                world.postbox::<u8>("go")?.post(&[1])?;
            }
            1 => {
                let out = world.postbox::<u8>("in")?;
                (0..2).try_for_each(|number| out.post(patterned(&world, number, 5)?).map_err(Error::from))?;
                world.barrier()?;
            }
            2 => world.barrier()?,
            _ => {
                let go = world.mailbox::<u8>("go")?;
                world.postbox::<u8>("in")?.post(patterned(&world, 7, 5)?)?;
                world.barrier()?;
                go.retrieve_from(0)?;
            }
        }
        world.finish()
    });
}

#[test]
fn a_wait_for_a_rank_hears_at_once_that_it_is_lost() {
    let pass_all = all_here(3);
    ranks(3, move |world| {
        let inbox = (world.rank() == 0).then(|| world.mailbox::<u8>("in")).transpose()?;
        world.barrier()?;
        pass_all(world.rank());
        match (world.rank(), inbox) {
            (0, Some(inbox)) => {
                for _ in 0..2 {
                    // The error comes for each such retrieve; a general retrieve reports it once.
                    let error = inbox.retrieve_from(1).unwrap_err();
                    assert!(matches!(&error, Error::PeerLost { rank: 1, .. }), "{error}");
                }
                world.postbox::<u8>("go")?.post(&[1])?;
                assert_eq!(*inbox.retrieve()?, [9]);
            }
            (1, _) => return Ok(()), // without `finish`
            _ => {
                world.mailbox::<u8>("go")?.retrieve()?;
                world.postbox::<u8>("in")?.post(&[9])?;
            }
        }
        world.finish()
    });
}

#[test]
fn a_deadline_says_what_was_asked_for_and_what_came_instead() {
    ranks(3, |world| {
        let out = (world.rank() != 0).then(|| world.postbox::<u8>("in"));
        if world.rank() == 0 {
            let inbox = world.mailbox::<u8>("in")?;
            world.barrier()?;
            let error = inbox.from(1).tagged(7).within(SHORT).retrieve().unwrap_err();
            assert!(matches!(error, Error::Deadline { .. }), "{error}");
            let text = error.to_string();
            for part in [
                "retrieving a message of rank 1 with tag 7 from mailbox \"in\"",
                "waited for rank 1 to post",
                "set aside meanwhile: 1 message of rank 1, 2 of rank 2",
            ] {
                assert!(text.contains(part), "{text}");
            }
            let error = inbox.tagged(7).within(SHORT).retrieve().unwrap_err().to_string();
            assert!(error.contains("a message with tag 7") && error.contains("ranks 1-2 to post"), "{error}");
            assert!(inbox.tagged(7).try_retrieve()?.is_none());
        } else if let Some(out) = &out {
            let out = out.as_ref().expect("a postbox");
            for _ in 0..world.rank() {
                out.post([1, 2].with_tag(5))?;
            }
            world.barrier()?;
        }
        world.barrier()?;
        drop(out);
        world.finish()
    });
}

#[test]
fn what_is_set_aside_has_a_bound_and_the_error_says_whose_it_is() {
    let mut settings = config();
    settings.set_aside = 4096;
    ranks_with(3, &settings, |world| {
        if world.rank() == 0 {
            let inbox = world.mailbox::<u8>("in")?;
            for _ in 0..2 {
                let error = inbox.retrieve_tagged(7).unwrap_err();
                let Error::SetAsideFull { limit: 4096, messages, .. } = &error else { panic!("{error}") };
                assert!(messages.iter().all(|(rank, n)| [1, 2].contains(rank) && *n <= 40), "{messages:?}");
                let sum: usize = messages.iter().map(|(_, n)| n).sum();
                assert!((4096 / 168..=4096 / 128 + 1).contains(&sum), "{messages:?}");
                assert!(error.to_string().contains("DECK_SET_ASIDE"), "{error}");
            }
            let mut next = [0, 0, 0];
            for _ in 0..80 {
                let received = inbox.retrieve_tagged(1)?;
                assert_pattern(&received, next[received.source()], 20);
                next[received.source()] += 1;
            }
            assert_eq!((inbox.retrieve_tagged(7)?.len(), next), (1, [0, 40, 40]));
        } else {
            let out = world.postbox::<u8>("in")?;
            for number in 0..40 {
                out.post(patterned(&world, number, 20)?.with_tag(1))?;
            }
            if world.rank() == 2 {
                // This message is behind all others of this rank: it is found when there is room for them.
                out.post([1].with_tag(7))?;
            }
        }
        world.finish()
    });
}

/// One message is too long and stays; another rank's message, which would fit, is not tried.
#[test]
fn a_buffer_that_is_too_small_for_what_matches_leaves_it() {
    for protocol in PROTOCOLS {
        ranks(3, move |world| {
            if world.rank() == 0 {
                let inbox = world.mailbox::<u8>("in")?;
                let (mut small, mut large) = ([0; 10], [0; 1000]);
                let error = inbox.from(1).retrieve_into(&mut small).unwrap_err();
                assert!(
                    matches!(error, Error::TooSmall { needed: 1000, have: 10, rank: 1 }),
                    "{protocol}: {error}"
                );
                let two = inbox.from(2).retrieve_into(&mut small)?;
                assert_eq!(len_and_source(two), (5, 2));
                let one = inbox.from(1).tagged(1).retrieve_into(&mut large)?;
                assert_eq!(len_and_source(one), (1000, 1));
                assert_pattern(&large, 1, 1000);
            } else {
                let out = world.postbox::<u8>("in")?;
                let len = if world.rank() == 1 { 1000 } else { 5 };
                out.post_with(protocol, patterned(&world, world.rank(), len)?)?;
            }
            world.barrier()?;
            world.finish()
        });
    }
}

#[test]
fn what_was_set_aside_is_found_by_all_other_ways_to_look() {
    let world = crate::common::alone(8 << 20);
    let (inbox, out) = (world.mailbox::<u8>("in").unwrap(), world.postbox::<u8>("in").unwrap());
    let post = |tags: &[u32]| tags.iter().try_for_each(|tag| out.post([*tag as u8].with_tag(*tag))).unwrap();
    post(&[1, 2, 3, 4, 5, 6]);
    assert_eq!(*inbox.retrieve_tagged(4).unwrap(), [4]);
    assert_eq!(select(&[&inbox]).unwrap(), 0);
    assert_eq!(*inbox.try_retrieve().unwrap().unwrap(), [1]);
    assert_eq!(inbox.retrieve_into(&mut [0]).unwrap().tag, 2);
    let mut seen = Vec::new();
    inbox
        .drain(100, |received| {
            seen.push(received.tag());
            if received.tag() == 7 {
                // Messages that a run has taken are searched, too.
                seen.push(inbox.retrieve_tagged(9).unwrap().tag());
            }
            if received.tag() == 3 {
                post(&[7, 8, 9, 10]);
            }
        })
        .unwrap();
    assert_eq!(seen, [3, 5, 6, 7, 9, 8, 10]);
    assert_eq!(
        inbox
            .matching(Match::ANY)
            .within(SHORT)
            .retrieve()
            .map(drop)
            .unwrap_err()
            .to_string()
            .find("set aside"),
        None
    );
}

#[test]
fn packed_messages_match_too_and_ranks_that_are_none_are_named() {
    let world = crate::common::alone(8 << 20);
    let (inbox, out) = (world.mailbox::<Packed>("in").unwrap(), world.postbox::<Packed>("in").unwrap());
    for tag in 0..3 {
        let mut message = world.message(64).unwrap();
        message.pack(&[tag]).unwrap();
        out.post(message.with_tag(tag)).unwrap();
    }
    assert_eq!(inbox.from(0).tagged(2).retrieve().unwrap().unpack_one::<u32>().unwrap(), 2);
    assert_eq!(inbox.retrieve_from(0).unwrap().unpack_one::<u32>().unwrap(), 0);
    for rank in [1, usize::MAX] {
        let error = inbox.retrieve_from(rank).unwrap_err();
        assert!(matches!(error, Error::NoSuchRank { rank: named, size: 1 } if named == rank), "{error}");
    }
}
