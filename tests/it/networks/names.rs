//! The job-wide name service: ranks publish their NICs and find one another's, at the level of VIs.

use std::time::Duration;

use crate::common::{Event, SHORT, ranks};
use udeck::names::{Job, MAX_ADDRESS, MAX_NAME, MAX_NICS_PER_HOST, NameError, NameService};
use udeck::via::{Cq, Deadline, Error, Listener, Vi, ViAttributes};
use udeck::{Result, World};

fn own(world: &World) -> &[u8] {
    &world.nic().attributes().address
}

fn soon() -> Deadline {
    Deadline::after(crate::common::LONG)
}

#[track_caller]
fn reason<T: std::fmt::Debug>(answer: udeck::via::Result<T>) -> NameError {
    match answer.unwrap_err() {
        Error::NameService(reason) => *reason,
        other => panic!("no error of the name service: {other}"),
    }
}

fn connect(world: &World, names: &Job<'_>) -> udeck::via::Result {
    let nic = world.nic();
    let (mut vi, cq) = (Vi::new(nic, ViAttributes::new(nic.ptag()))?, Cq::new(nic)?);
    if world.rank() == 0 {
        let listener = Listener::new(nic, b"door")?;
        names.publish("server", nic)?;
        for _ in 1..world.size() {
            let request = listener.wait(soon())?;
            let client = String::from_utf8_lossy(request.private_data()).into_owned();
            request.accept(&mut vi, &cq.handle(), &cq.handle(), client.as_bytes())?;
            vi.disconnect();
        }
    } else {
        let to = names.net_address("server", 0, b"door")?;
        let introduction = [world.rank() as u8];
        let answer = vi.connect(&to, &cq.handle(), &cq.handle(), &introduction, soon())?;
        assert_eq!(answer, introduction);
    }
    Ok(())
}

#[test]
fn a_published_name_leads_to_a_connection() {
    ranks(3, |world| {
        connect(&world, &Job::new(&world)).unwrap();
        world.barrier()?;
        world.finish()
    });
}

/// The lookup comes before any publication: rank 0 publishes only after rank 1's lookup of an unknown name has
/// failed.
#[test]
fn a_name_is_waited_for() {
    let asked = Event::new();
    ranks(2, move |world| {
        let names = Job::new(&world);
        if world.rank() == 0 {
            asked.wait();
            names.publish("late", world.nic()).unwrap();
        } else {
            let now = names.patience(std::time::Duration::ZERO);
            assert!(matches!(reason(now.host_by_name("late", 0)), NameError::UnknownHost { .. }));
            asked.happen();
            let address = names.host_by_name("late", 0).unwrap();
            assert_ne!(address, own(&world));
            assert_eq!(names.host_by_address(&address).unwrap(), "late");
        }
        world.barrier()?;
        world.finish()
    });
}

#[test]
fn nics_of_one_host_are_numbered() {
    const RANKS: u32 = 4;
    ranks(RANKS, |world| {
        let names = Job::new(&world);
        let index = names.publish("node", world.nic()).unwrap();
        assert_eq!(names.host_by_name("node", index).unwrap(), own(&world));
        let mut all: Vec<_> =
            (0..RANKS as usize).map(|index| names.host_by_name("node", index).unwrap()).collect();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), RANKS as usize, "each has an index of its own");
        for address in &all {
            assert_eq!(names.host_by_address(address).unwrap(), "node");
        }
        world.barrier()?;
        world.finish()
    });
}

#[test]
fn errors_say_what_was_asked_and_what_exists() {
    ranks(2, |world| -> Result {
        let names = Job::new(&world);
        names.publish(["a", "b"][world.rank()], world.nic()).unwrap();
        world.barrier()?;
        for impatient in [names.patience(SHORT), names.patience(std::time::Duration::ZERO)] {
            let error = reason(impatient.host_by_name("c", 0));
            assert!(error.to_string().ends_with("knows no host \"c\"; there are: a, b"), "{error}");
            for index in [1, MAX_NICS_PER_HOST, usize::MAX] {
                let error = reason(impatient.host_by_name("a", index));
                let expected =
                    matches!(&error, NameError::NoSuchIndex { count: 1, index: i, .. } if *i == index);
                assert!(expected, "{error}");
            }
            let error = reason(impatient.host_by_address(b"nowhere"));
            assert!(error.to_string().ends_with("knows no host at \"nowhere\"; there are: a, b"), "{error}");
        }
        let error = reason(names.publish("again", world.nic()));
        let owner = ["a", "b"][world.rank()];
        assert!(matches!(&error, NameError::AddressTaken { owner: o, .. } if o == owner), "{error}");
        world.barrier()?;
        world.finish()
    });
}

#[test]
fn a_world_of_one_has_names_too() {
    let world = crate::common::alone(4 << 20);
    let names = Job::new(&world).patience(Duration::ZERO);
    assert!(reason(names.host_by_name("a", 0)).to_string().ends_with("there are no hosts"));
    assert_eq!(names.publish("a", world.nic()).unwrap(), 0);
    assert_eq!(names.host_by_name("a", 0).unwrap(), own(&world));
    // Hosts are no mailboxes.
    let error = world.try_postbox::<u8>("a").unwrap_err();
    assert!(error.to_string().ends_with("none exists"), "{error}");
}

#[test]
fn names_and_addresses_are_bounded() {
    let world = crate::common::alone(4 << 20);
    let names = Job::new(&world).patience(Duration::ZERO);
    let longest = "n".repeat(MAX_NAME);
    assert_eq!(names.publish(&longest, world.nic()).unwrap(), 0);
    assert_eq!(names.host_by_address(own(&world)).unwrap(), longest);
    assert!(matches!(reason(names.host_by_address(&[0xff; MAX_ADDRESS])), NameError::UnknownAddress { .. }));
    for bad in [&"n".repeat(MAX_NAME + 1), "", "two words"] {
        assert!(matches!(reason(names.publish(bad, world.nic())), NameError::BadName { .. }));
        assert!(matches!(reason(names.host_by_name(bad, 0)), NameError::BadName { .. }));
    }
    for bad in [&[][..], &[1; MAX_ADDRESS + 1]] {
        assert!(matches!(reason(names.host_by_address(bad)), NameError::BadAddress { .. }));
    }
}

#[test]
fn a_host_has_so_many_nics_and_a_refused_one_leaves_no_trace() {
    let world = crate::common::alone(4 << 20);
    let names = Job::new(&world);
    let deadline = soon().instant();
    for index in 0..MAX_NICS_PER_HOST {
        let key = format!("\u{1}deck/HOST/{index:02}/full");
        world.client().register(&key, b"taken", deadline).unwrap();
    }
    assert!(matches!(names.publish("full", world.nic()), Err(Error::Full { what: "a host", .. })));
    assert_eq!(names.publish("other", world.nic()).unwrap(), 0, "the address is free again");
}

#[test]
fn what_other_ranks_register_is_checked() {
    let world = crate::common::alone(4 << 20);
    let names = Job::new(&world);
    let deadline = soon().instant();
    let register = |key: &str, value: &[u8]| world.client().register(key, value, deadline).unwrap();
    register("\u{1}deck/HOST/00/long", &[0; MAX_ADDRESS + 1]);
    assert!(matches!(reason(names.host_by_name("long", 0)), NameError::BadAddress { .. }));
    register("\u{1}deck/NIC/01", b"two words");
    assert!(matches!(reason(names.host_by_address(&[1])), NameError::BadName { .. }));
    register("\u{1}deck/NIC/02", b"\xff");
    assert!(matches!(reason(names.host_by_address(&[2])), NameError::Service { .. }));
}

#[test]
fn names_go_with_their_rank() {
    let seen = Event::new();
    ranks(2, move |world| {
        let names = Job::new(&world);
        if world.rank() == 1 {
            names.publish("b", world.nic()).unwrap();
            seen.wait();
            return world.finish();
        }
        let address = names.host_by_name("b", 0).unwrap();
        seen.happen();
        // The launcher reports at once that no rank is left that could publish.
        let gone = || matches!(reason(names.host_by_name("?", 0)), NameError::UnknownHost { .. });
        assert!(gone());
        assert!(matches!(reason(names.host_by_name("b", 0)), NameError::UnknownHost { .. }));
        assert!(matches!(reason(names.host_by_address(&address)), NameError::UnknownAddress { .. }));
        world.finish()
    });
}

#[test]
fn a_host_keeps_its_other_nics_when_its_first_is_gone() {
    let world = crate::common::alone(4 << 20);
    let names = Job::new(&world).patience(Duration::ZERO);
    let deadline = soon().instant();
    let key = |index: usize, name: &str| format!("\u{1}deck/HOST/{index:02}/{name}");
    for (index, name) in [(0, "whole"), (0, "node"), (1, "node"), (2, "node"), (1, "whole"), (4, "gaps")] {
        world.client().register(&key(index, name), b"there", deadline).unwrap();
    }
    let gone = world.client().unregister(&key(0, "node"), deadline);
    gone.unwrap();
    assert_eq!(names.host_by_name("node", 2).unwrap(), b"there");
    for index in [0, 3, MAX_NICS_PER_HOST] {
        let error = reason(names.host_by_name("node", index));
        assert!(
            matches!(&error, NameError::NoSuchIndex { count: 2, index: i, .. } if *i == index),
            "{error}"
        );
    }
    let error = reason(names.host_by_name("gaps", 0));
    assert!(matches!(&error, NameError::NoSuchIndex { count: 1, index: 0, .. }), "{error}");
    let error = reason(names.host_by_name("unknown", 0));
    assert!(error.to_string().ends_with("there are: gaps, node, whole"), "{error}");
    // The next rank takes the free place.
    assert_eq!(Job::new(&world).publish("node", world.nic()).unwrap(), 0);
}
