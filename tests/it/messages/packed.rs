//! Packed messages: every type, nested, read again, and refused without damage.

use crate::common::{PROTOCOLS, alone, asynchronous, config, ranks};
use udeck::{Error, Message, NicOptions, PackError, Packed, Protocol, Received, Result, World};
use udeck_boot::{Client, local::Job};
use udeck_faults::{Fault, PermittedFaults, When, wrapped};

fn pack_everything(message: &mut Message, inner: &Message) -> Result {
    message.pack(&[-1_i8, 2])?.pack(&[3_u8])?.pack(&[-4_i16, 5, 6])?.pack(&[7_u16])?;
    message.pack(&[-8_i32])?.pack(&[9_u32])?.pack(&[-10_i64])?.pack(&[11_u64; 5])?;
    message.pack(&[0.5_f32])?.pack(&[0.25_f64, -0.0])?;
    message.pack_str("grüße")?.pack_message(inner)?.pack::<f64>(&[])?;
    Ok(())
}

fn assert_everything(received: &Received<Packed>) -> Result {
    assert_eq!(received.unpack::<i8>()?, [-1, 2]);
    assert_eq!(received.unpack_one::<u8>()?, 3);
    assert_eq!(received.unpack::<i16>()?, [-4, 5, 6]);
    assert_eq!(received.unpack::<u16>()?, [7]);
    assert_eq!(received.unpack_one::<i32>()?, -8);
    assert_eq!(received.unpack_one::<u32>()?, 9);
    assert_eq!(received.unpack_one::<i64>()?, -10);
    assert_eq!(received.unpack::<u64>()?, [11; 5]);
    assert_eq!(received.unpack_one::<f32>()?, 0.5);
    assert_eq!(received.unpack::<f64>()?, [0.25, -0.0]);
    assert_eq!(received.unpack_str()?, "grüße");
    let sum = received.unpack_message(|inner| {
        assert_eq!(inner.unpack_str()?, "inner");
        let mut innermost = inner.unpack_message()?;
        let sum = innermost.unpack::<i64>()?.iter().sum::<i64>();
        assert!(matches!(innermost.unpack::<i64>(), Err(Error::Pack(PackError::End))));
        assert!(matches!(inner.unpack_str(), Err(Error::Pack(PackError::End))));
        Ok(sum)
    })?;
    assert_eq!(sum, 6);
    assert_eq!(received.unpack::<f64>()?, []);
    assert!(matches!(received.unpack::<u8>(), Err(Error::Pack(PackError::End))));
    Ok(())
}

fn nested(world: &World) -> Result<Message> {
    let mut innermost = world.message(32)?;
    innermost.pack(&[1_i64, 2, 3])?;
    let mut inner = world.message(100)?;
    inner.pack_str("inner")?.pack_message(&innermost)?;
    Ok(inner)
}

#[test]
fn every_type_travels_by_every_protocol() {
    ranks(2, |world| {
        if world.rank() == 0 {
            let inbox = world.mailbox::<Packed>("reports")?;
            for tag in 0..PROTOCOLS.len() as u32 {
                let received = inbox.retrieve()?;
                assert_eq!((received.source(), received.tag()), (1, tag));
                assert_everything(&received)?;
                received.reset();
                assert_everything(&received)?;
            }
        } else {
            let out = world.postbox::<Packed>("reports")?;
            for (tag, protocol) in PROTOCOLS.into_iter().enumerate() {
                out.set_protocol(protocol)?;
                let mut message = world.message(1000)?;
                pack_everything(&mut message, &nested(&world)?)?;
                out.post(message.with_tag(tag as u32))?;
            }
        }
        world.barrier()?;
        world.finish()
    });
}

#[test]
fn what_was_not_packed_does_not_travel() {
    let world = alone(8 << 20);
    let inbox = world.mailbox::<Packed>("in").unwrap();
    let out = world.postbox::<Packed>("in").unwrap();
    out.post(world.message(1 << 20).unwrap()).unwrap();
    let mut small = world.message(1 << 20).unwrap();
    small.pack(&[1_u8]).unwrap();
    out.post(small).unwrap();
    assert_eq!(inbox.retrieve().unwrap().len_bytes(), 0);
    assert_eq!(inbox.retrieve().unwrap().len_bytes(), 16);
}

#[test]
fn a_full_message_stays_as_it_was() {
    let world = alone(8 << 20);
    let mut message = world.message(40).unwrap();
    message.pack(&[1_i32, 2]).unwrap().pack_str("more than sixteen bytes").map(drop).unwrap_err();
    let nested = nested(&world).unwrap();
    for _ in 0..2 {
        let error = message.pack(&[0.5; 3]).map(drop).unwrap_err();
        assert!(matches!(error, Error::Pack(PackError::Full { needed: 32, free: 24 })), "{error}");
        assert!(matches!(message.pack_message(&nested), Err(Error::Pack(PackError::Full { .. }))));
        assert_eq!((message.len(), message.capacity()), (16, 40));
    }
    message.pack(&[0.5; 2]).unwrap();
    assert_eq!(message.len(), message.capacity());
    assert_eq!(message.unpack::<i32>().unwrap(), [1, 2]);
    assert_eq!(message.unpack::<f64>().unwrap(), [0.5; 2]);
}

#[test]
fn a_wrong_type_is_refused_and_the_cursor_stays() {
    let world = alone(8 << 20);
    let inbox = world.mailbox::<Packed>("in").unwrap();
    let mut message = world.message(100).unwrap();
    message.pack(&[1_i32, 2]).unwrap().pack_str("text").unwrap();
    world.postbox::<Packed>("in").unwrap().post(message).unwrap();
    let received = inbox.retrieve().unwrap();
    let error = received.unpack::<u32>().map(drop).unwrap_err();
    assert!(error.to_string().contains("[i32]") && error.to_string().contains("[u32]"), "{error}");
    assert!(received.unpack_str().is_err());
    assert!(received.unpack_message(|_| Ok(())).is_err());
    assert!(received.unpack_one::<i32>().is_err(), "two values");
    assert_eq!(received.unpack::<i32>().unwrap(), [1, 2]);
    assert!(received.unpack::<i32>().is_err());
    assert_eq!(received.unpack_str().unwrap(), "text");
}

#[test]
fn clear_and_reset_before_posting() {
    let world = alone(8 << 20);
    let mut message = world.message(64).unwrap();
    assert!(message.is_empty());
    message.pack(&[7_u64]).unwrap();
    assert_eq!(message.unpack::<u64>().unwrap(), [7]);
    assert!(message.unpack::<u64>().is_err());
    message.reset();
    assert_eq!(message.unpack::<u64>().unwrap(), [7]);
    message.clear();
    assert!(message.is_empty());
    message.pack_str("fresh").unwrap();
    assert_eq!(message.unpack_str().unwrap(), "fresh");
}

/// With `eager` the connection ends while the message is being copied: the message itself comes back, not the
/// copy.
#[test]
fn a_message_that_comes_back_is_whole() {
    for protocol in asynchronous() {
        let (_job, streams) = Job::new(2).unwrap();
        let worlds = streams.into_iter().zip(0..).map(|(stream, rank)| {
            let client = Client::new(stream).unwrap();
            let nic = udeck::open_nic("shm0", &NicOptions::new(client.keys())).unwrap();
            let tries = u64::from(protocol == Protocol::Eager); // before the one that is copied for
            let luck = PermittedFaults {
                busy: When::Numbers((0..tries).collect()),
                lose_at: When::Numbers(vec![tries]),
                ..PermittedFaults::default()
            };
            let nic = if rank == 1 { wrapped(&nic, Fault::honest(luck, 1)) } else { nic };
            std::thread::spawn(move || World::new(client, vec![nic], config(), true).unwrap())
        });
        let threads: Vec<_> = worlds.collect();
        let [owner, poster] = <[_; 2]>::try_from(threads).unwrap().map(|world| world.join().unwrap());
        let _inbox = owner.mailbox::<Packed>("in").unwrap();
        let out = poster.postbox::<Packed>("in").unwrap();
        out.set_protocol(protocol).unwrap();
        let items: Vec<i64> = (0..512).collect();
        let mut message = poster.message(64 << 10).unwrap();
        message.pack(&items).unwrap();
        let message = message.with_tag(7);
        let (capacity, len) = (message.capacity(), message.len());
        let back = out.post_nonblocking(message).expect_err("the connection is lost");
        let mut message = back.message.expect("it was not sent");
        assert_eq!((message.capacity(), message.len(), message.tag()), (capacity, len, 7), "{protocol}");
        assert_eq!(message.unpack::<i64>().unwrap(), items);
        let room = vec![0_u8; capacity - len - 8];
        message.pack(&room).unwrap();
        assert_eq!(message.len(), message.capacity(), "{protocol}");
    }
}
