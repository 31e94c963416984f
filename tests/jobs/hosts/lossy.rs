//! Two ranks, each on a host of its own, and an unreliable VI between them over a network that loses packets. An arrived
//! message is whole, and arrives once; a lost one affects nothing else, and the connection stays alive. `tests/rdma/root`
//! makes the network lose packets, and starts this program (`cargo xtask test rdma`).

use std::{
    collections::BTreeSet,
    io::Write,
    time::{Duration, Instant},
};

use udeck::names::{Job, NameService};
use udeck::via::{
    Cq, Deadline, Descriptor, Error, Listener, Nic, Receive, Reliability, Vi, ViAttributes,
    transport::{Arrival, Body},
};
use udeck::{Mailbox, Postbox, World};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

const HOST: &str = "lossy";
const DOOR: &[u8] = b"lossy";
/// Number of messages, so large that a few per cent are several.
const MESSAGES: u32 = 1000;
/// Lengths in bytes: inside a descriptor; in one packet; the longest that one packet takes; offered, and
/// fetched by the receiver's device.
const LENGTHS: [usize; 4] = [8, 1000, 3900, 20_000];
/// Time without a message after which none is expected.
const QUIET: Duration = Duration::from_secs(3);
/// Largest number of messages under way.
const WINDOW: usize = 16;

fn main() -> Result {
    let world = udeck::init()?;
    let nic = world.nic();
    let attributes = ViAttributes {
        reliability: Reliability::Unreliable,
        receive: Receive::Lent,
        ..ViAttributes::new(nic.ptag())
    };
    let (cq, vi) = (Cq::new(nic)?, Vi::new(nic, attributes)?);
    if world.rank() == 0 {
        send(&world, nic, &cq, vi)?
    } else {
        receive(&world, nic, cq, vi)?
    }
    Ok(world.finish()?)
}

fn send(world: &World, nic: &Nic, cq: &Cq, mut vi: Vi) -> Result {
    let over: Postbox<u8> = world.postbox("over")?;
    let came: Mailbox<u32> = world.mailbox("came")?;
    let peer = Job::new(world).net_address(HOST, 0, DOOR)?;
    let queue = cq.handle();
    vi.connect(&peer, &queue, &queue, b"", soon())?;
    for number in 0..MESSAGES {
        let bytes = bytes_of(number);
        let mut region = nic.region(bytes.len(), vi.attributes().ptag)?;
        region.copy_from_slice(&bytes);
        let mut descriptor = Descriptor::new([region]).immediate(number);
        let deadline = soon();
        while let Err((error, back)) = vi.post_send(descriptor) {
            assert!(matches!(error, Error::Full { .. }) && !deadline.passed(), "message {number}: {error}");
            std::thread::sleep(Duration::from_millis(1));
            descriptor = back;
        }
        while vi.send_queue_len() >= WINDOW {
            vi.send_wait(soon())?;
        }
    }
    over.post(&[0u8][..])?;
    let came = came.retrieve()?[0];
    say(&format!("of {MESSAGES} messages {came} came, whole and once"));
    assert!(came < MESSAGES, "the network was to lose some");
    assert!(came > MESSAGES / 2, "the network was to lose a few");
    // The connection is alive: no call reports an end.
    vi.arrival()?;
    Ok(())
}

fn receive(world: &World, nic: &Nic, mut cq: Cq, mut vi: Vi) -> Result {
    let over: Mailbox<u8> = world.mailbox("over")?;
    let came: Postbox<u32> = world.postbox("came")?;
    let listener = Listener::new(nic, DOOR)?;
    Job::new(world).publish(HOST, nic)?;
    let queue = cq.handle();
    listener.wait(soon())?.accept(&mut vi, &queue, &queue, b"")?;
    let mut seen = BTreeSet::new();
    let (mut is_over, mut latest) = (false, Instant::now());
    while !is_over || latest.elapsed() < QUIET {
        while let Some(arrival) = vi.arrival()? {
            latest = Instant::now();
            let number = check(&arrival);
            assert!(seen.insert(number), "message {number} came twice");
        }
        is_over = is_over || over.try_retrieve()?.is_some();
        cq.wait(Deadline::after(Duration::from_millis(20)), || false);
    }
    came.post(&[seen.len() as u32][..]).map_err(|failed| failed.error)?;
    came.flush()?;
    Ok(())
}

/// Checks the message, and returns its number.
fn check(arrival: &Arrival) -> u32 {
    let number = arrival.immediate.expect("all have immediate data");
    let expected = bytes_of(number);
    match &arrival.body {
        Body::Inline(bytes) => assert_eq!(bytes.bytes(), expected, "message {number}"),
        Body::Lent(_, lent) => assert!(lent.as_slice().unwrap() == expected, "message {number}"),
        other => panic!("message {number} came as {other:?}"),
    }
    number
}

fn bytes_of(number: u32) -> Vec<u8> {
    let len = LENGTHS[number as usize % LENGTHS.len()];
    (0..len).map(|at| (at as u32 ^ (at as u32 >> 8) ^ number.wrapping_mul(101)) as u8).collect()
}

fn say(line: &str) {
    std::io::stdout().write_all(format!("{line}\n").as_bytes()).expect("somebody reads");
}

/// Deadline of every wait.
fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(100))
}
