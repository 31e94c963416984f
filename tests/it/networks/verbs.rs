//! Worlds over verbs: over this host's device, or over the stand-in that cargo has built beside this program.

use crate::common::{PROTOCOLS, assert_pattern, over_verbs_apart as apart, patterned};
use udeck::Protocol;

const SIZES: [usize; 6] = [0, 40, 4096, 100_000, (1 << 20) + 3, 5 << 20];

#[test]
fn every_protocol_and_size() {
    if !apart("networks::verbs::every_protocol_and_size") {
        return;
    }
    let carried = || PROTOCOLS.into_iter().filter(|protocol| *protocol != Protocol::HandOff);
    let messages = move || carried().flat_map(|protocol| SIZES.map(|len| (protocol, len))).enumerate();
    let body = move |world: udeck::World| {
        let name = |rank: usize| format!("in {rank}");
        let (rank, size) = (world.rank(), world.size());
        let inbox = world.mailbox::<u8>(&name(rank))?;
        let out = world.postbox::<u8>(&name((rank + 1) % size))?;
        assert_eq!(out.route().to_string(), "verbs");
        // With synchronous posts everybody in this ring would wait for the next rank; so the first rank retrieves
        // first.
        let retrieve = |seed: usize, len: usize| -> udeck::Result {
            let received = inbox.retrieve()?;
            assert_eq!(received.tag() as usize, seed, "out of order");
            assert_pattern(&received, seed, len);
            Ok(())
        };
        for (seed, (protocol, len)) in messages() {
            if rank == 0 {
                retrieve(seed, len)?;
            }
            out.post_with(protocol, patterned(&world, seed, len)?)?;
            if rank != 0 {
                retrieve(seed, len)?;
            }
        }
        out.flush()?;
        world.barrier()?;
        world.finish()
    };
    udeck::run_local(3, body).unwrap();
}

/// Messages longer than a frame are moved by the device alone.
#[test]
fn long_messages_are_not_copied() {
    if !apart("networks::verbs::long_messages_are_not_copied") {
        return;
    }
    let body = |world: udeck::World| {
        const LEN: usize = 1 << 20;
        if world.rank() == 0 {
            let inbox = world.mailbox::<u8>("in")?;
            world.barrier()?;
            let before = world.nic().bytes_copied();
            for seed in 0..10 {
                assert_pattern(&inbox.retrieve()?, seed, LEN);
            }
            assert_eq!(world.nic().bytes_copied(), before);
        } else {
            world.barrier()?;
            let out = world.postbox::<u8>("in")?;
            let before = world.nic().bytes_copied();
            for seed in 0..10 {
                out.post_with(Protocol::Eager, patterned(&world, seed, LEN)?)?;
            }
            out.flush()?;
            assert_eq!(world.nic().bytes_copied(), before);
        }
        world.barrier()?;
        world.finish()
    };
    udeck::run_local(2, body).unwrap();
}
