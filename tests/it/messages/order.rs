//! Messages of one postbox arrive in the order of posting, whatever protocols carry them.

use std::collections::HashMap;
use std::sync::Arc;

use crate::common::{PROTOCOLS, assert_pattern, patterned, ranks};
use proptest::prelude::*;
use udeck::{Protocol, Result, World};

fn posts() -> impl Strategy<Value = Vec<(Protocol, usize, bool)>> {
    let sizes = prop_oneof![0_usize..100, 4000_usize..5000, Just(150_000), Just(600_000)];
    prop::collection::vec((prop::sample::select(PROTOCOLS.to_vec()), sizes, any::<bool>()), 1..80)
}

/// Posts each message; by repeated `try_post` if `patient` is false.
fn post_in_sequence(world: &World, posts: &[(Protocol, usize, bool)]) -> Result {
    let out = world.postbox::<u8>("in")?;
    for (at, &(protocol, len, patient)) in posts.iter().enumerate() {
        out.set_protocol(protocol)?;
        let mut message = patterned(world, at, len)?;
        if patient || protocol == Protocol::Handshake {
            out.post(message)?;
            continue;
        }
        while let Err(failed) = out.try_post(message) {
            assert!(matches!(failed.error, udeck::Error::WouldBlock { .. }), "{}", failed.error);
            message = failed.message.expect("a message that would have to wait comes back");
            std::thread::yield_now();
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_mixture_of_protocols_keeps_the_order(posts in posts()) {
        let posts = Arc::new(posts);
        ranks(2, move |world| {
            if world.rank() == 0 {
                let inbox = world.mailbox::<u8>("in")?;
                for (at, &(_, len, _)) in posts.iter().enumerate() {
                    let received = inbox.retrieve()?;
                    assert_eq!(received.tag() as usize, at, "out of order");
                    assert_pattern(&received, at, len);
                }
            } else {
                post_in_sequence(&world, &posts)?;
            }
            world.barrier()?;
            world.finish()
        });
    }
}

#[test]
fn fifty_postboxes_of_one_mailbox_each_keep_their_order() {
    const POSTBOXES: usize = 50;
    const ROUNDS: usize = 20;
    ranks(4, |world| {
        let (rank, size) = (world.rank(), world.size());
        let inbox = (rank == 0).then(|| world.mailbox::<u8>("in")).transpose()?;
        let mine = (rank..POSTBOXES).step_by(size);
        let postboxes: Vec<_> = mine.map(|_| world.postbox::<u8>("in")).collect::<Result<_>>()?;
        let post_all = |world: &World| -> Result {
            for round in 0..ROUNDS {
                for (at, out) in postboxes.iter().enumerate() {
                    out.set_protocol(PROTOCOLS[(round + at) % PROTOCOLS.len()])?;
                    out.post(patterned(world, round, 30 * round * round)?)?;
                }
            }
            Ok(())
        };
        match inbox {
            None => post_all(&world)?,
            Some(inbox) => std::thread::scope(|scope| -> Result {
                // The mailbox moves to a thread of its own: this rank posts to itself, too.
                let reader = scope.spawn(move || {
                    let mut next: HashMap<(usize, u32), usize> = HashMap::new();
                    for _ in 0..POSTBOXES * ROUNDS {
                        let received = inbox.retrieve()?;
                        let round = next.entry((received.source(), received.postbox())).or_default();
                        assert_eq!(received.tag() as usize, *round, "out of order");
                        assert_pattern(&received, *round, 30 * *round * *round);
                        *round += 1;
                    }
                    assert_eq!(next.len(), POSTBOXES);
                    assert!(next.values().all(|rounds| *rounds == ROUNDS));
                    Ok(())
                });
                // A postbox belongs to one thread at a time, so this thread posts.
                post_all(&world)?;
                reader.join().expect("the reader panicked")
            })?,
        }
        world.barrier()?;
        world.finish()
    });
}
