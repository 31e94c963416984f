//! Routes: the transport that a postbox takes to its mailbox, and its explanation.

use std::process::Command;

use crate::common::several::{self, Barred};
use crate::common::{PROTOCOLS, SHORT, assert_pattern, config, patterned};
use udeck::via::Error as ViaError;
use udeck::{Error, Protocol, SkippedTransport, World};

const SIZES: [usize; 5] = [0, 40, 4096, 100_000, (1 << 20) + 3];

/// Protocols over the network: all but hand-off, which it lacks.
fn carried() -> impl Iterator<Item = Protocol> {
    PROTOCOLS.into_iter().filter(|protocol| *protocol != Protocol::HandOff)
}

#[test]
fn the_first_that_leads_there_is_taken() {
    several::ranks(
        3,
        &config(),
        |rank| rank == 2,
        |world| {
            if world.rank() == 0 {
                let _inbox = world.mailbox::<u8>("in")?;
                world.barrier()?;
                return world.finish();
            }
            let route = world.postbox::<u8>("in")?.route();
            if world.rank() == 1 {
                assert_eq!((route.transport.as_str(), route.to_string().as_str()), ("shm", "shm"));
                assert!(route.skipped.is_empty());
            } else {
                assert_eq!((route.transport.as_str(), route.skipped.len()), ("net", 1));
                let text = route.to_string();
                assert!(text.starts_with("net: shm not possible: connecting to nobody: "), "{text}");
            }
            world.barrier()?;
            world.finish()
        },
    );
}

#[test]
fn every_protocol_and_size_by_the_second_nic() {
    several::ranks(
        2,
        &config(),
        |rank| rank == 1,
        |world| {
            let messages = || carried().flat_map(|protocol| SIZES.map(|len| (protocol, len))).enumerate();
            if world.rank() == 0 {
                let inbox = world.mailbox::<u8>("in")?;
                for (seed, (_, len)) in messages() {
                    let received = inbox.retrieve()?;
                    assert_eq!(received.tag() as usize, seed, "out of order");
                    assert_pattern(&received, seed, len);
                }
            } else {
                let out = world.postbox::<u8>("in")?;
                for (seed, (protocol, len)) in messages() {
                    out.post_with(protocol, patterned(&world, seed, len)?)?;
                }
                out.flush()?;
            }
            world.barrier()?;
            world.finish()
        },
    );
}

/// The connection decides, not the rank.
#[test]
fn protocols_are_chosen_by_what_the_way_can_do() {
    let barred = Barred::new(false);
    let (_job, world) = several::alone(&barred);
    let inbox = world.mailbox::<u8>("in").unwrap();
    let near = world.postbox::<u8>("in").unwrap();
    barred.set(true);
    let far = world.postbox::<u8>("in").unwrap();
    assert_eq!(near.explain(1 << 20).protocol, Protocol::HandOff);
    assert_eq!(far.explain(1 << 20).protocol, Protocol::Eager);
    assert_eq!(far.explain(4 << 20).protocol, Protocol::RdmaWrite);
    let error = far.post_with(Protocol::HandOff, world.buf(100).unwrap()).unwrap_err();
    assert!(matches!(error.error, Error::Unsupported { .. }) && error.message.is_some(), "{error}");
    for (seed, out) in [(1, &far), (2, &near)] {
        out.post(patterned(&world, seed, 1 << 20).unwrap()).unwrap();
        assert_pattern(&inbox.retrieve().unwrap(), seed, 1 << 20);
    }
}

#[test]
fn no_way_at_all_says_what_was_tried() {
    let barred = Barred::new(true);
    let refusing = several::net().reaching(|_| {
        let what = "the network".into();
        Err(ViaError::Timeout { what, waited: SHORT })
    });
    let (_job, world) = several::alone_with(&barred, refusing, config());
    let _inbox = world.mailbox::<u8>("in").unwrap();
    let error = world.postbox::<u8>("in").unwrap_err();
    let Error::Unreachable { name, rank: 0, tried } = &error else { panic!("{error}") };
    assert_eq!(name, "in");
    assert!(
        tried.starts_with("shm: connecting to nobody: ") && tried.contains("; net: the network: "),
        "{tried}"
    );
    assert!(error.to_string().contains("DECK_TRANSPORT"), "{error}");
}

#[test]
fn a_mailbox_that_is_gone_is_not_looked_for_by_another_way() {
    let barred = Barred::new(false);
    let network = Barred::new(false);
    let counted = network.clone();
    let net = several::net().reaching(move |_| counted.count());
    let (_job, world) = several::alone_with(&barred, net, config());
    let inbox = world.mailbox::<u8>("in").unwrap();
    let record = lookup(&world, "in");
    drop(inbox);
    register(&world, "gone", &record);
    let error = world.postbox::<u8>("gone").unwrap_err();
    assert!(matches!(&error, Error::MailboxGone { rank: 0, .. }), "{error}");
    assert_eq!((barred.asked(), network.asked()), (1, 0));
}

fn lookup(world: &World, name: &str) -> Vec<u8> {
    world.client().lookup(name, false, soon()).unwrap().value
}

fn register(world: &World, name: &str, record: &[u8]) {
    world.client().register(name, record, soon()).unwrap();
}

fn soon() -> std::time::Instant {
    std::time::Instant::now() + crate::common::LONG
}

/// A mailbox's record in the format of `crates/deck/connect/wire.rs`.
fn record(host: &[u8], doors: &[(&str, &[u8])], kind: &str) -> Vec<u8> {
    let with_length = |bytes: &[u8]| [&[bytes.len() as u8], bytes].concat();
    let head = [&[7, 1, 0, 0, 0, 0, 0][..], &[0xff; 8], &[0; 9]].concat();
    let mut record = [&head[..], &with_length(host), &[doors.len() as u8]].concat();
    for (transport, address) in doors {
        record.extend(with_length(transport.as_bytes()));
        record.extend(with_length(address));
    }
    record.extend(kind.as_bytes());
    record
}

/// A record is a rank's own claim: an address that leads nowhere ends in an error soon.
#[test]
fn records_of_liars() {
    let barred = Barred::new(false);
    let (_job, world) = several::alone(&barred);
    let inbox = world.mailbox::<u8>("in").unwrap();
    let own = lookup(&world, "in");
    let host = &own[25..25 + usize::from(own[24])];
    let attributes: Vec<_> = world.nics().map(|nic| nic.attributes().clone()).collect();
    let (near, far) = (&*attributes[0].address, &*attributes[1].address);
    assert_eq!(own, record(host, &[("shm", near), ("net", far)], "u8"), "the liar knows the format");

    let too_many: Vec<(&str, &[u8])> = vec![("shm", b"nobody"); 9];
    let mut cut = own.clone();
    cut.truncate(60);
    let no_mailboxes: [&[u8]; 6] = [b"", b"\x05", &[0xff; 300], &cut, &record(host, &too_many, "u8"), &{
        let mut other_version = own.clone();
        other_version[0] = 2;
        other_version
    }];
    for (at, bytes) in no_mailboxes.into_iter().enumerate() {
        let name = format!("bad{at}");
        register(&world, &name, bytes);
        let error = world.postbox::<u8>(&name).unwrap_err();
        assert!(matches!(&error, Error::BadName { .. }), "{at}: {error}");
    }

    let nobody: &[(&str, &[u8])] = &[("shm", b"udeck-nobody"), ("net", b"\0\xff"), ("net", b"")];
    let unknown: &[(&str, &[u8])] = &[("carrierpigeon", near)];
    for (name, host, doors, says) in [
        ("nobody", host, nobody, "net: "),
        ("nowhere", host, &[], "shm: the mailbox lists no transport"),
        ("unknown", host, unknown, "net: the mailbox can be reached by carrierpigeon only"),
        ("elsewhere", b"mars", &[("shm", near)], "shm: it runs on another host; net: the mailbox"),
    ] {
        register(&world, name, &record(host, doors, "u8"));
        let error = world.postbox::<u8>(name).unwrap_err();
        assert!(matches!(&error, Error::Unreachable { .. }), "{name}: {error}");
        assert!(error.to_string().contains(says), "{name}: {error}");
    }
    // The record has one true address among false ones.
    register(&world, "true", &record(b"mars", &[("net", b"nobody"), ("net", far)], "u8"));
    let error = world.postbox::<u8>("true").unwrap_err();
    assert!(matches!(&error, Error::MailboxGone { .. }), "it was met, and has no such mailbox: {error}");
    world.postbox::<u8>("in").unwrap().post(patterned(&world, 1, 10).unwrap()).unwrap();
    assert_pattern(&inbox.retrieve().unwrap(), 1, 10);
}

#[test]
fn a_way_that_only_this_host_has_is_not_tried_to_another() {
    let barred = Barred::new(false);
    let (_job, world) = several::alone(&barred);
    let _inbox = world.mailbox::<u8>("in").unwrap();
    let mut elsewhere = lookup(&world, "in");
    elsewhere[25] ^= 1;
    register(&world, "far", &elsewhere);
    let error = world.postbox::<u8>("far").unwrap_err();
    // The address leads to this very process, which has no such mailbox.
    assert!(matches!(&error, Error::MailboxGone { .. }), "{error}");
    assert_eq!(barred.asked(), 0);
}

/// The test checks the output of another process, which runs this test only to print it.
#[test]
fn the_way_to_each_rank_is_explained_once() {
    if std::env::var_os("DECK_TEST_EXPLAINS").is_some() {
        let mut config = config();
        config.explain = true;
        return several::ranks(
            2,
            &config,
            |rank| rank == 1,
            |world| {
                let _inbox = world.mailbox::<u8>(&format!("in{}", world.rank()))?;
                let _outs = [0, 1, 0, 1].map(|rank| world.postbox::<u8>(&format!("in{rank}")).unwrap());
                world.barrier()?;
                world.finish()
            },
        );
    }
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new(program);
    command.args(["--exact", "--nocapture", "networks::routes::the_way_to_each_rank_is_explained_once"]);
    let output = command.env("DECK_TEST_EXPLAINS", "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let mut lines: Vec<_> = text.lines().filter(|line| line.starts_with("deck: ")).collect();
    lines.sort_unstable();
    assert_eq!(lines.len(), 2, "{text}");
    assert_eq!(lines[0], "deck: rank 0 -> rank 1: shm");
    assert!(lines[1].starts_with("deck: rank 1 -> rank 0: net (shm: connecting to nobody: "), "{text}");
}

#[test]
fn a_transport_that_is_not_there_is_named() {
    let error = udeck::init_with(config().over("shm,pigeon")).unwrap_err();
    let text = error.to_string();
    assert!(matches!(&error, Error::Config { variable: "DECK_TRANSPORT", .. }), "{text}");
    assert!(text.contains("shm,pigeon") && text.contains("there are: shm"), "{text}");
    let world = udeck::init_with(config().over("shm")).unwrap();
    assert_eq!(world.nics().count(), 1);
}

#[test]
fn nics_over_other_memory_make_no_world() {
    let (_job, streams) = udeck_boot::local::Job::new(2).unwrap();
    let mut clients = streams.into_iter().map(|stream| udeck_boot::Client::new(stream).unwrap());
    let options = udeck::NicOptions::new([1; 32]);
    let open = || udeck::open_nic("shm0", &options).unwrap();
    let error = World::new(clients.next().unwrap(), vec![open(), open()], config(), true).unwrap_err();
    assert!(error.to_string().contains("does not use the memory of shm0"), "{error}");
    let error = World::new(clients.next().unwrap(), vec![], config(), true).unwrap_err();
    assert!(error.to_string().contains("1 to 8 NICs, not 0"), "{error}");
    let mut over_another = options.clone();
    over_another.memory = Some(open());
    let error = udeck::open_nic("shm0", &over_another).unwrap_err();
    assert!(error.to_string().contains("memory of its own only"), "{error}");
}

/// A preferred NIC that this host cannot have is explained at its place.
#[test]
fn a_nic_that_this_host_cannot_have_is_told_of() {
    let barred = Barred::new(false);
    let (_job, mut streams) = udeck_boot::local::Job::new(1).unwrap();
    let client = udeck_boot::Client::new(streams.remove(0)).unwrap();
    let nics = several::nics(client.keys(), &barred, several::net());
    let unavailable = vec![(1, SkippedTransport::new("verbs", "no such device"))];
    let world = World::with_unavailable(client, nics, unavailable, config(), true).unwrap();
    let _inbox = world.mailbox::<u8>("in").unwrap();
    let near = world.postbox::<u8>("in").unwrap();
    assert_eq!(near.route().to_string(), "shm", "nothing better is lacking");
    barred.set(true);
    let far = world.postbox::<u8>("in").unwrap().route().to_string();
    let place = far.find("shm not possible").expect("shm comes first");
    assert!(
        far.starts_with("net: ") && far[place..].ends_with("verbs not possible: no such device"),
        "{far}"
    );
}
