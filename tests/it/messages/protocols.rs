//! Protocols: each carries every size of every type, with the promised number of copies.

use std::sync::{Arc, Mutex};

use crate::common::{PROTOCOLS, assert_pattern, config, patterned, ranks, ranks_with};
use bytemuck::{Pod, Zeroable};
use udeck::{Error, Mailbox, Postbox, Protocol, Result, World};

/// Lengths in elements: around the inline limit (40 bytes), a page, 64 KiB and fragments of `copy`.
const SIZES: [usize; 17] =
    [0, 1, 2, 5, 6, 7, 39, 40, 41, 48, 512, 4095, 4096, 4097, (64 << 10) - 1, 64 << 10, (64 << 10) + 1];

/// A type whose size is no multiple of 8, without padding bytes.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Particle {
    position: [f32; 3],
    kind: u16,
    flags: [u8; 2],
    charge: i32,
}

fn every_protocol_carries<T: Pod>(extra: &'static [usize]) {
    ranks(2, move |world| {
        if world.rank() == 0 {
            take_all::<T>(&world.mailbox("in")?, extra)?;
        } else {
            post_all::<T>(&world, &world.postbox("in")?, extra)?;
        }
        world.barrier()?;
        world.finish()
    });
}

fn all_sizes(extra: &'static [usize]) -> impl Iterator<Item = (usize, usize)> {
    SIZES.into_iter().chain(extra.iter().copied()).enumerate()
}

fn post_all<T: Pod>(world: &World, to: &Postbox<T>, extra: &'static [usize]) -> Result {
    for (which, protocol) in PROTOCOLS.into_iter().enumerate() {
        to.set_protocol(protocol)?;
        for (at, len) in all_sizes(extra) {
            to.post(patterned(world, 100 * which + at, len)?)?;
        }
    }
    Ok(())
}

fn take_all<T: Pod>(inbox: &Mailbox<T>, extra: &'static [usize]) -> Result {
    let mut postbox = None;
    for which in 0..PROTOCOLS.len() {
        for (at, len) in all_sizes(extra) {
            let received = inbox.retrieve()?;
            assert_eq!((received.source(), received.tag() as usize), (1, 100 * which + at));
            assert_eq!(received.len_bytes(), len * size_of::<T>());
            assert_eq!(*postbox.get_or_insert(received.postbox()), received.postbox());
            assert_pattern(&received, 100 * which + at, len);
        }
    }
    Ok(())
}

#[test]
fn bytes() {
    every_protocol_carries::<u8>(&[(1 << 20) + 3]);
}

#[test]
fn floats() {
    every_protocol_carries::<f64>(&[(1 << 17) + 3]);
}

#[test]
fn types_of_greater_alignment_than_inline_messages_have() {
    assert_eq!(align_of::<u128>(), 16);
    every_protocol_carries::<u128>(&[]);
}

#[test]
fn structures() {
    every_protocol_carries::<Particle>(&[]);
}

/// Number of copies that a protocol makes of each byte, on both sides together.
fn copies(protocol: Protocol, len: usize) -> usize {
    match protocol {
        Protocol::Auto if len > 40 => 0,
        Protocol::HandOff => 0,
        Protocol::RdmaWrite | Protocol::RdmaRead | Protocol::Handshake => 1,
        _ => 2,
    }
}

#[test]
fn each_protocol_copies_as_often_as_it_says() {
    let counts: Arc<Mutex<[u64; 2]>> = Arc::default();
    ranks(2, move |world| {
        let inbox = world.mailbox::<u8>(&format!("in{}", world.rank()))?;
        let out = world.postbox::<u8>(&format!("in{}", 1 - world.rank()))?;
        for protocol in PROTOCOLS {
            out.set_protocol(protocol)?;
            for len in [0, 1, 40, 41, 4096, 300_000] {
                let before = world.stats().bytes_copied;
                if world.rank() == 1 {
                    out.post(patterned(&world, 1, len)?)?;
                } else {
                    assert_pattern(&inbox.retrieve()?, 1, len);
                }
                world.barrier()?;
                counts.lock().unwrap()[world.rank()] = world.stats().bytes_copied - before;
                world.barrier()?;
                let total: u64 = counts.lock().unwrap().iter().sum();
                assert_eq!(total as usize, copies(protocol, len) * len, "{protocol} of {len} bytes");
                world.barrier()?;
            }
        }
        world.finish()
    });
}

#[test]
fn without_trust_nothing_is_shared_and_auto_still_works() {
    let mut config = config();
    config.trusting = false;
    ranks_with(2, &config, |world| {
        if world.rank() == 0 {
            let inbox = world.mailbox::<u8>("in")?;
            for (at, len) in all_sizes(&[(1 << 20) + 3]) {
                assert_pattern(&inbox.retrieve()?, at, len);
            }
        } else {
            let out = world.postbox::<u8>("in")?;
            for (at, len) in all_sizes(&[(1 << 20) + 3]) {
                out.post(patterned(&world, at, len)?)?;
            }
            for protocol in [Protocol::HandOff, Protocol::RdmaWrite, Protocol::RdmaRead] {
                let error = out.set_protocol(protocol).unwrap_err();
                let Error::Unsupported { protocol: named, rank: 0, possible, .. } = &error else {
                    panic!("{error}")
                };
                assert_eq!((*named, possible.as_str()), (protocol, "auto, eager, copy, handshake"));
            }
        }
        world.barrier()?;
        world.finish()
    });
}

#[test]
fn without_trust_a_default_that_cannot_be_is_refused_where_it_is_first_used() {
    for protocol in [Protocol::HandOff, Protocol::RdmaWrite, Protocol::RdmaRead] {
        let mut config = config();
        (config.trusting, config.protocol) = (false, protocol);
        ranks_with(2, &config, move |world| {
            let _inbox = world.mailbox::<u8>(&format!("in{}", world.rank()))?;
            let error = world.postbox::<u8>(&format!("in{}", world.rank())).unwrap_err();
            assert!(
                matches!(&error, Error::Unsupported { possible, .. } if possible == "auto, eager, copy, handshake")
            );
            // The library's own messages do not depend on the setting.
            world.barrier()?;
            world.finish()
        });
    }
}
