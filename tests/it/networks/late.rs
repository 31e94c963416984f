//! Messages over a network with slow RDMA: a mailbox that waits for a read goes on with other postboxes.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{Event, PROTOCOLS, SHORT, assert_pattern, config, patterned};
use udeck::via::Caps;
use udeck::{Config, Error, Protocol, Result, World};
use udeck_sim::{Fabric, Link};

/// A link on which each direction takes some time.
fn slow() -> Link {
    Link { delay: Duration::from_micros(20)..Duration::from_micros(200), ..Link::default() }
}

/// Runs ranks as `common::ranks_with` does, over NICs `rank0`, `rank1`, ... of a fabric.
pub(crate) fn ranks<F>(size: u32, fabric: &Fabric, config: &Config, body: F)
where
    F: Fn(World) -> Result + Send + Sync + 'static,
{
    ranks_able(size, fabric, config, udeck_sim::Options::all_caps(), body);
}

/// Runs ranks as [`ranks`] does, over NICs with these abilities.
pub(crate) fn ranks_able<F>(size: u32, fabric: &Fabric, config: &Config, caps: Caps, body: F)
where
    F: Fn(World) -> Result + Send + Sync + 'static,
{
    let (_job, streams) = udeck_boot::local::Job::new(size).expect("a name service");
    let body = Arc::new(body);
    let start = |(rank, stream): (usize, std::os::unix::net::UnixStream)| {
        let (body, config, fabric) = (body.clone(), config.clone(), fabric.clone());
        std::thread::spawn(move || {
            let client = udeck_boot::Client::new(stream)?;
            let options = udeck_sim::Options {
                keys: client.keys(),
                arena_limit: config.arena.unwrap_or(16 << 20),
                caps,
            };
            let nic = fabric.nic(&format!("rank{rank}"), options).expect("the name is free");
            body(World::new(client, vec![nic], config, true)?)
        })
    };
    let threads: Vec<_> = streams.into_iter().enumerate().map(start).collect();
    let results: Vec<Result> = threads.into_iter().map(|thread| thread.join().expect("no panic")).collect();
    // All errors are collected: one rank is lost because another one failed.
    let failed = results.into_iter().enumerate().filter_map(|(rank, result)| Some((rank, result.err()?)));
    let failed: Vec<_> = failed.map(|(rank, error)| format!("rank {rank}: {error}")).collect();
    assert!(failed.is_empty(), "{failed:#?}");
}

pub(crate) fn fabric() -> Fabric {
    let fabric = Fabric::new(1);
    fabric.set_default_link(slow());
    fabric
}

#[test]
fn messages_of_all_protocols_arrive_in_order() {
    ranks(2, &fabric(), &config(), |world| {
        for protocol in PROTOCOLS {
            let name = format!("{protocol:?}");
            let lengths = [1, 40, 5000, 300_000, 0, 70_000];
            if world.rank() == 0 {
                let inbox = world.mailbox::<u8>(&name)?;
                for seed in 0..24 {
                    assert_pattern(&inbox.retrieve()?, seed, lengths[seed % lengths.len()]);
                }
            } else {
                let out = world.postbox::<u8>(&name)?;
                out.set_protocol(protocol)?;
                for seed in 0..24 {
                    out.post(patterned(&world, seed, lengths[seed % lengths.len()])?)?;
                }
                out.flush()?;
            }
            world.barrier()?;
        }
        world.finish()
    });
}

#[test]
fn many_are_read_at_a_time() {
    const EACH: usize = 20;
    ranks(4, &fabric(), &config(), |world| {
        if world.rank() == 0 {
            let inbox = world.mailbox::<u8>("in")?;
            let mut next = [0; 4];
            for _ in 0..3 * EACH {
                let message = inbox.retrieve()?;
                let from = message.source();
                assert_pattern(&message, next[from], 50_000);
                next[from] += 1;
            }
            assert_eq!(next, [0, EACH, EACH, EACH]);
        } else {
            let out = world.postbox::<u8>("in")?;
            out.set_protocol(Protocol::RdmaRead)?;
            for seed in 0..EACH {
                out.post(patterned(&world, seed, 50_000)?)?;
            }
        }
        world.barrier()?;
        world.finish()
    });
}

/// The link to one rank stalls in the middle of a read: the others are heard meanwhile, and so is this rank when
/// the link recovers.
#[test]
fn a_read_that_hangs_holds_up_its_own_postbox_only() {
    let fabric = fabric();
    let links = fabric.clone();
    let [announced, stalled] = [Event::new(), Event::new()];
    ranks(3, &fabric, &config(), move |world| {
        let stall = |stalled| links.set_link("rank1", "rank0", Link { stalled, ..slow() });
        match world.rank() {
            0 => {
                let inbox = world.mailbox::<u8>("in")?;
                announced.wait();
                links.advance(Duration::from_millis(1)); // the announcement has come, and nobody has looked
                stall(true);
                stalled.happen();
                for seed in 0..10 {
                    let message = inbox.retrieve()?;
                    assert_eq!(message.source(), 2);
                    assert_pattern(&message, seed, 100);
                }
                assert!(inbox.try_retrieve()?.is_none());
                let late = inbox.retrieve_timeout(SHORT).unwrap_err();
                let Error::Deadline { whom, .. } = &late else { panic!("{late}") };
                assert!(whom.contains("being read from rank 1"), "{whom}");
                stall(false);
                assert_pattern(&inbox.retrieve()?, 7, 50_000);
            }
            1 => {
                let out = world.postbox::<u8>("in")?;
                out.set_protocol(Protocol::RdmaRead)?;
                out.post(patterned(&world, 7, 50_000)?)?;
                announced.happen();
            }
            _ => {
                let out = world.postbox::<u8>("in")?;
                stalled.wait();
                for seed in 0..10 {
                    out.post(patterned(&world, seed, 100)?)?;
                }
            }
        }
        world.barrier()?;
        world.finish()
    });
}

/// Messages that a mailbox reads at a time get at most half of the memory. The others wait for their turn, a larger message for
/// being alone; all arrive.
#[test]
fn messages_that_are_read_at_a_time_have_a_bound_together() {
    const POSTBOXES: usize = 6;
    const LEN: usize = 1 << 20;
    let (fabric, mut config) = (fabric(), config());
    config.arena = Some(8 << 20);
    let links = fabric.clone();
    let announced = Event::new();
    ranks(2, &fabric, &config, move |world| {
        if world.rank() == 0 {
            let inbox = world.mailbox::<u8>("in")?;
            announced.wait();
            let stall = |stalled| links.set_link("rank1", "rank0", Link { stalled, ..slow() });
            links.advance(Duration::from_millis(1)); // the announcements have come, and nobody has looked
            stall(true);
            assert!(inbox.try_retrieve()?.is_none());
            assert!(inbox.retrieve_timeout(SHORT).is_err());
            assert_eq!(world.nic().outbox().usage().used, 4 << 20);
            stall(false);
            let mut found: Vec<_> = (0..POSTBOXES)
                .map(|_| {
                    let message = inbox.retrieve()?;
                    let seed = message.tag() as usize;
                    assert_pattern(&message, seed, LEN);
                    Ok(seed)
                })
                .collect::<Result<_>>()?;
            found.sort_unstable();
            assert_eq!(found, [0, 1, 2, 3, 4, 5]);
            world.barrier()?;
            assert_pattern(&inbox.retrieve()?, 6, 6 * LEN);
        } else {
            let outs: Vec<_> = (0..POSTBOXES).map(|_| world.postbox::<u8>("in")).collect::<Result<_>>()?;
            for (seed, out) in outs.iter().enumerate() {
                out.post_with(Protocol::RdmaRead, patterned(&world, seed, LEN)?)?;
            }
            announced.happen();
            world.barrier()?;
            outs[0].post_with(Protocol::RdmaRead, patterned(&world, 6, 6 * LEN)?)?;
        }
        world.barrier()?;
        world.finish()
    });
}
