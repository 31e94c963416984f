//! Program that runs the fast paths for `cargo xtask counts`, under callgrind.
//!
//! On a shared machine a time says little, but an instruction count says the same every day. To make it so, one thread
//! drives both ends of every connection: nothing waits, spins or sleeps, and the library's own threads have nothing to
//! do. [`counted`] has the counted functions; the rest of this program prepares.

mod counted;
mod interfaces;
#[cfg(feature = "waited")]
mod waited;

use std::hint::black_box;

use counts::{Result, floor};
use udeck::{Config, Packed, World};

/// Number of elements of a message inside its cell, and of one that is handed off: 8 bytes and 64 KiB.
const SMALL: usize = 1;
const LARGE: usize = (64 << 10) / size_of::<u64>();

fn main() -> Result {
    let rounds = counts::rounds()?;
    // The environment's settings are not read, because reading them would be counted, too.
    let world = udeck::init_with(Config::default())?;
    bare(rounds);
    buffers(&world, rounds);
    mailboxes(&world, rounds)?;
    #[cfg(feature = "waited")]
    waits(&world, rounds)?;
    packed(&world, rounds)?;
    interfaces::run(world.nic(), rounds)?;
    world.finish()?;
    over_tcp(rounds)
}

/// Runs the floor, with which all paths are compared.
fn bare(rounds: usize) {
    let mut ring = floor::Ring::default();
    let (mut out, mut inbox) = ring.ends();
    for round in 0..rounds as u64 {
        counted::floor_post(&mut out, black_box(&round.to_ne_bytes()));
        assert_eq!(counted::floor_retrieve(&mut inbox), (round, 1));
    }
}

fn buffers(world: &World, rounds: usize) {
    for _ in 0..rounds {
        counted::buf_drop(counted::buf_make(world, black_box(SMALL)));
    }
}

fn mailboxes(world: &World, rounds: usize) -> Result {
    let inbox = world.mailbox::<u64>("fast-paths")?;
    let out = world.postbox::<u64>("fast-paths")?;
    for round in 0..rounds as u64 {
        let mut small = world.buf::<u64>(SMALL)?;
        small[0] = round;
        counted::mailbox_post(&out, small);
        assert_eq!(counted::mailbox_retrieve(&inbox), round);
    }
    for _ in 0..rounds {
        (0..16).for_each(|value| counted::mailbox_post_value(&out, value));
        assert_eq!(counted::mailbox_drain_16(&inbox), (0..16).sum());
        counted::mailbox_post_each_16(&out, black_box(&std::array::from_fn(|at| at as u64)));
        assert_eq!(counted::mailbox_drain_16(&inbox), (0..16).sum());
    }
    for round in 0..rounds as u64 {
        let mut large = world.buf_reused::<u64>(LARGE)?;
        large[LARGE - 1] = round;
        counted::hand_off_post(&out, large);
        assert_eq!(counted::hand_off_retrieve(&inbox), round);
    }
    Ok(())
}

/// Each message arrives while its retrieve waits.
#[cfg(feature = "waited")]
fn waits(world: &World, rounds: usize) -> Result {
    let inbox = world.mailbox::<u64>("fast-paths.waited")?;
    waited::post_by(Some(world.postbox("fast-paths.waited")?));
    for round in 0..rounds as u64 {
        let mut small = world.buf::<u64>(SMALL)?;
        small[0] = round;
        waited::prepare(small);
        udeck_sys::on_next_miss(counted::mailbox_retrieve_waited_bare);
        assert_eq!(counted::mailbox_retrieve_waited(&inbox), round);
    }
    waited::post_by(None);
    Ok(())
}

/// Messages to itself over the loopback device: the count is the library's work around the system calls.
fn over_tcp(rounds: usize) -> Result {
    let world = udeck::init_with(Config::default().over("tcp"))?;
    let inbox = world.mailbox::<u64>("fast-paths.tcp")?;
    let out = world.postbox::<u64>("fast-paths.tcp")?;
    for round in 0..rounds as u64 {
        let mut small = world.buf::<u64>(SMALL)?;
        small[0] = round;
        counted::tcp_post(&out, small);
        assert_eq!(counted::tcp_retrieve(&inbox), round);
        assert!(counted::tcp_look_in_vain(&inbox));
    }
    Ok(world.finish()?)
}

fn packed(world: &World, rounds: usize) -> Result {
    let inbox = world.mailbox::<Packed>("fast-paths.packed")?;
    let out = world.postbox::<Packed>("fast-paths.packed")?;
    for round in 0..rounds as i64 {
        let mut message = world.message(128)?;
        counted::pack(&mut message, round, black_box(&[0.5; 4]), black_box("fast"));
        out.post(message)?;
        let mut received = inbox.retrieve()?;
        assert_eq!(counted::unpack(&mut received), (round, 2.0, 4));
    }
    Ok(())
}
