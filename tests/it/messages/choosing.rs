//! Protocols and receive models are chosen by settings, for a postbox and for a post; the choice can be
//! explained.

use crate::common::{PROTOCOLS, alone, assert_pattern, config, len_and_source, patterned, ranks, ranks_with};
use udeck::{Config, Error, Protocol, ReceiveModel, Result, Thresholds};

const SIZES: [usize; 7] = [0, 1, 40, 41, 4096, (64 << 10) + 3, (1 << 20) + 1];

fn models() -> impl Iterator<Item = Config> {
    [ReceiveModel::CompletionQueue, ReceiveModel::WorkQueues].into_iter().map(|model| {
        let mut config = config();
        config.receive = model;
        config
    })
}

/// Each message uses another protocol than the one before it, through one postbox.
#[test]
fn every_protocol_and_size_in_turn_by_either_receive_model() {
    for config in models() {
        ranks_with(3, &config, |world| {
            let messages = || SIZES.into_iter().flat_map(|len| PROTOCOLS.map(|protocol| (len, protocol)));
            if world.rank() == 0 {
                let inbox = world.mailbox::<u8>("in")?;
                let mut next = [messages(), messages()].map(Iterator::enumerate);
                for _ in 0..2 * messages().count() {
                    let received = inbox.retrieve()?;
                    let (seed, (len, _)) =
                        next[received.source() - 1].next().expect("as many as were posted");
                    assert_eq!(received.tag() as usize, seed, "out of order");
                    assert_pattern(&received, seed, len);
                }
            } else {
                let out = world.postbox::<u8>("in")?;
                for (seed, (len, protocol)) in messages().enumerate() {
                    out.post_with(protocol, patterned(&world, seed, len)?)?;
                }
            }
            world.barrier()?;
            world.finish()
        });
    }
}

/// With any protocol, the receiver learns the message's size, and gets the message afterwards.
#[test]
fn a_buffer_too_small_is_told_the_size_by_every_protocol_and_model() {
    for config in models() {
        for protocol in PROTOCOLS {
            ranks_with(2, &config, move |world| {
                if world.rank() == 0 {
                    let inbox = world.mailbox::<u32>("in")?;
                    let error = inbox.retrieve_into(&mut [0; 5]).unwrap_err();
                    assert!(matches!(error, Error::TooSmall { needed: 3000, have: 5, rank: 1 }), "{error}");
                    let mut large = vec![0; 3000];
                    assert_eq!(len_and_source(inbox.retrieve_into(&mut large)?), (3000, 1));
                    assert_pattern(&large, 8, 3000);
                } else {
                    let out = world.postbox::<u32>("in")?;
                    let posted = out.post_with(protocol, patterned(&world, 8, 3000)?);
                    match (protocol, posted) {
                        (Protocol::Handshake, Err(failed)) => {
                            let Error::ReceiverBufferTooSmall { needed: 12_000, have: 20, .. } = failed.error
                            else {
                                panic!("{}", failed.error)
                            };
                            out.post(failed.message.expect("it comes back"))?;
                        }
                        (_, posted) => posted?,
                    }
                }
                world.barrier()?;
                world.finish()
            });
        }
    }
}

#[test]
fn a_mailbox_of_either_model_sleeps_until_a_message_comes() {
    for config in models() {
        ranks_with(2, &config, |world| {
            let inbox = world.mailbox::<u8>(&format!("in{}", world.rank()))?;
            let out = world.postbox::<u8>(&format!("in{}", 1 - world.rank()))?;
            for seed in 0..20 {
                if world.rank() == 1 {
                    // After this pause the other rank is usually asleep; the test is right in any case.
                    std::thread::sleep(std::time::Duration::from_millis(2));
                    out.post(patterned(&world, seed, 10)?)?;
                }
                assert_pattern(&inbox.retrieve()?, seed, 10);
                if world.rank() == 0 {
                    out.post(patterned(&world, seed, 10)?)?;
                }
            }
            world.barrier()?;
            world.finish()
        });
    }
}

#[test]
fn one_post_by_another_protocol_leaves_the_usual_one() {
    ranks(2, |world| {
        if world.rank() == 0 {
            let inbox = world.mailbox::<u8>("in")?;
            for seed in 0..3 {
                assert_pattern(&inbox.retrieve()?, seed, 1000);
            }
        } else {
            let out = world.postbox::<u8>("in")?;
            out.set_protocol(Protocol::Eager)?;
            let copied = || world.stats().bytes_copied;
            for (seed, protocol) in [None, Some(Protocol::HandOff), None].into_iter().enumerate() {
                let (before, message) = (copied(), patterned(&world, seed, 1000)?);
                match protocol {
                    Some(protocol) => out.post_with(protocol, message)?,
                    None => out.post(message)?,
                }
                assert_eq!(copied() - before, if protocol.is_some() { 0 } else { 1000 });
            }
        }
        world.barrier()?;
        world.finish()
    });
}

#[test]
fn a_protocol_that_cannot_be_is_refused_and_the_usual_one_stays() {
    let mut config = config();
    config.trusting = false;
    ranks_with(2, &config, |world| {
        if world.rank() == 0 {
            assert_pattern(&world.mailbox::<u8>("in")?.retrieve()?, 1, 100);
        } else {
            let out = world.postbox::<u8>("in")?;
            let failed = out.post_with(Protocol::RdmaRead, patterned(&world, 1, 100)?).unwrap_err();
            let Error::Unsupported { needed, possible, .. } = &failed.error else {
                panic!("{}", failed.error)
            };
            assert_eq!((needed.as_str(), possible.as_str()), ("rdma-read", "auto, eager, copy, handshake"));
            out.post(failed.message.expect("it comes back"))?;
        }
        world.barrier()?;
        world.finish()
    });
}

#[test]
fn a_choice_is_explained_by_what_decided_it() -> Result {
    let world = alone(8 << 20);
    let _inbox = world.mailbox::<u8>("in")?;
    let out = world.postbox::<u8>("in")?;
    assert_eq!(out.explain(40).protocol, Protocol::Eager);
    let choice = out.explain(41);
    assert_eq!(choice.protocol, Protocol::HandOff);
    assert!(choice.why.contains("hand-off takes 41 bytes and more"), "{}", choice.why);
    out.set_protocol(Protocol::Copy)?;
    let choice = out.explain(41);
    assert_eq!(choice.protocol, Protocol::Copy);
    assert!(choice.why.contains("postbox"), "{}", choice.why);
    Ok(())
}

#[test]
fn thresholds_decide_what_auto_does() {
    let mut config = config();
    config.auto.hand_off = Thresholds::NEVER;
    config.auto.rdma_write = 1000;
    ranks_with(2, &config, |world| {
        if world.rank() == 0 {
            let inbox = world.mailbox::<u8>("in")?;
            for len in [999, 1000] {
                assert_pattern(&inbox.retrieve()?, len, len);
            }
        } else {
            let out = world.postbox::<u8>("in")?;
            assert_eq!(
                [999, 1000].map(|len| out.explain(len).protocol),
                [Protocol::Eager, Protocol::RdmaWrite]
            );
            for len in [999, 1000] {
                out.post(patterned(&world, len, len)?)?;
            }
        }
        world.barrier()?;
        world.finish()
    });
}

#[test]
fn the_receive_model_is_shown() -> Result {
    for config in models() {
        let model = config.receive;
        let world = udeck::init_with(config)?;
        let inbox = world.mailbox::<u8>("in")?;
        assert!(format!("{inbox:?}").ends_with(&format!("{model})")), "{inbox:?}");
    }
    Ok(())
}
